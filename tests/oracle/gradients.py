"""Losses and gradients of small models by PyTorch's autograd in float64, as the oracle of the crate `train`.

The forward pass is written here once more, from the formulas of docs/MODEL.md: every architecture, all tensors of a
GGUF file dequantized, all rotary scalings, ALiBi, and the pattern `window:W:S` of attention. A batch is several sequences
without padding; each begins at position 0. Its loss is `sum w nll / sum w` over rows, with nll = log sum exp(logits) -
logits[target]. Experts' matrices are frozen; their routers are not.

    pip install torch numpy gguf safetensors
    python tests/oracle/gradients.py             writes the fixtures, and tests/fixtures/llama3.gguf from hf/llama3
    python tests/oracle/gradients.py --check     compares them, logits and frequencies with what transformers computed, and
                                                 gradients with central differences
    python tests/oracle/gradients.py --dump CASE prints the norm of every value and of its gradient

They were made with torch 2.15.0, numpy 2.4.6, gguf 0.19.0 and safetensors 0.8.0. Where transformers and PEFT are installed
as well, `--check` also compares the gradients with those of transformers' models and of PEFT's adapters, but for sprout's
(see `check_transformers`); with transformers 5.24.0 and peft 0.21.2 they differed by less than 1e-6, relative,
and those of folders by less than 3e-6, of Gemma 3 by less than 3e-5.

Files
=====

train/tests/fixtures/gradients/CASE.txt has lines of words between single spaces:

    model PATH             of the model, from the root of the repository: a GGUF file, or a folder that becomes one
    architecture NAME      in place of the file's
    attention PATTERN      as `shohin --attention` parses it; without this line: full
    rope SCALING           in place of the file's, as `shohin --rope-scaling` parses it
    context N              that the rotary frequencies are for, where they depend on it
    lora RANK ALPHA        only factors are trained: of the seven matrices of every block
    sequences N..          rows of each sequence
    tokens N..             of all rows
    targets N..            of all rows
    weights W..            of all rows, exact in f32
    loss X                 with 17 digits, as the numbers below, of folders 9
    tensor NAME ROWS COLS NORM          the gradient of a tensor is the next ROWS * COLS numbers of CASE.f32
    project NAME ROWS COLS NORM P..     or it is not stored: 32 projections on the vectors below, of folders 4

in this order, without those that do not apply, and with a line of `tensor` or `project` for each trained tensor in the order
of the model's header. A norm is the square root of the sum of squares. Vectors have one row. Matrices are (ROWS, COLS) =
(outputs, inputs), row by row.

CASE.f32 are little-endian f32. With `lora`, NAME is that of the matrix and `.lora_a` (RANK, inputs) or `.lora_b` (outputs,
RANK), A before B for each matrix. The product is `W x + (ALPHA / RANK) B (A x)`, and CASE.factors has the factors themselves,
in the order of CASE.f32.

Element j (from 0, row by row) of vector v (from 0) is -1 where bit 63 of splitmix64(v * 2^32 + j) is set, otherwise +1:

    splitmix64(x): x += 0x9e3779b97f4a7c15; x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9; x = (x ^ x >> 27) * 0x94d049bb133111eb;
                   x ^ x >> 31                                                          (wrapping, 64 bits)

P_v is the sum of the gradient's elements times the vector's. With n projections, `sum (P - Q)^2 / n` estimates the squared
distance of two gradients.

The tokens of tiny models come from a generator; those of sprout are a part of the text in models/sprout.expected.json, and
each target is the token after it.
"""

import json
import math
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
OUT = ROOT / "train" / "tests" / "fixtures" / "gradients"
sys.path.append(str(ROOT / "models" / "train"))
import container  # noqa: E402

torch.set_num_threads(1)
PROJECTIONS = 32
PROJECTIONS_OF_FOLDERS = 4
TINY = [5, 17, 9]
MATRICES = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]


# --------------------------------------------------------------------------- files


def read(path):
    """Metadata, and tensors in the order of the header, rows first."""
    if path.parent.name == "models":
        # Blocks that the package cannot dequantize.
        meta, tensors = container.read(str(path))
        return meta, {name: w.astype(np.float64) for name, (_, w) in tensors.items()}
    reader = gguf.GGUFReader(path)
    meta = {key: field.contents() for key, field in reader.fields.items()}
    return meta, {
        t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float64) for t in reader.tensors
    }


def hugging_face(folder, name):
    """The Llama in `folder` as a GGUF file's metadata and tensors."""
    from safetensors.torch import load_file

    config = json.loads((folder / "config.json").read_text())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    found = {}
    for shard in sorted(folder.glob("*.safetensors")):
        found |= {key: w.double().numpy() for key, w in load_file(shard).items()}
    rope = config["rope_parameters"]
    meta = {
        "general.architecture": "llama",
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.block_count": config["num_hidden_layers"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": kv_heads,
        "llama.attention.key_length": config["head_dim"],
        "llama.attention.value_length": config["head_dim"],
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "llama.rope.freq_base": rope["rope_theta"],
        "llama.rope.dimension_count": config["head_dim"],
        "llama.vocab_size": config["vocab_size"],
    }
    tensors = {}
    if rope["rope_type"] == "llama3":
        d, original = config["head_dim"], rope["original_max_position_embeddings"]
        turns = original / (2 * math.pi) * float(rope["rope_theta"]) ** (-np.arange(0, d, 2) / d)
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        keep = np.clip((turns - low) / (high - low), 0, 1)
        tensors["rope_freqs.weight"] = 1 / (keep + (1 - keep) / rope["factor"])
    else:
        assert rope["rope_type"] == "default", name

    tensors["token_embd.weight"] = found["model.embed_tokens.weight"]
    for i in range(config["num_hidden_layers"]):
        of = lambda part: found[f"model.layers.{i}.{part}.weight"]
        block = {
            "attn_norm": of("input_layernorm"),
            "attn_q": halves_to_pairs(of("self_attn.q_proj"), heads),
            "attn_k": halves_to_pairs(of("self_attn.k_proj"), kv_heads),
            "attn_v": of("self_attn.v_proj"),
            "attn_output": of("self_attn.o_proj"),
            "ffn_norm": of("post_attention_layernorm"),
            "ffn_gate": of("mlp.gate_proj"),
            "ffn_up": of("mlp.up_proj"),
            "ffn_down": of("mlp.down_proj"),
        }
        tensors |= {f"blk.{i}.{part}.weight": w for part, w in block.items()}
    tensors["output_norm.weight"] = found["model.norm.weight"]
    if not config["tie_word_embeddings"]:
        tensors["output.weight"] = found["lm_head.weight"]
    return meta, tensors


NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.attn_sub_norm": "attn_sub_norm",
    "mlp.ffn_sub_norm": "ffn_sub_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GEMMA_NAMES = NAMES | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
ARCHITECTURES = {
    "qwen2": "qwen2", "smollm3": "smollm3", "granite": "granite", "gemma3_text": "gemma3", "bitnet": "bitnet-b1.58",
}
INTERLEAVED = ("llama", "smollm3", "granite")


def halves_to_pairs(w, heads):
    """Halves of a head, which are rotated together, become neighbours; of weights or their gradients."""
    return w.reshape(heads, 2, -1, w.shape[-1]).swapaxes(1, 2).reshape(w.shape)


def gguf_parameter(name, architecture):
    """The name in a GGUF file of a tensor of a folder."""
    names = GEMMA_NAMES if architecture == "gemma3" else NAMES
    block, part, kind = re.fullmatch(r"(?:model\.layers\.(\d+)\.)?(.*)\.(weight|bias)", name).groups()
    return f"{'' if block is None else f'blk.{block}.'}{names[part]}.{kind}"


def stored_pairs(name, w, architecture, heads):
    """A tensor or gradient of a folder as it is in a GGUF file, in which pairs of elements are neighbours."""
    part = name.split(".")[-2]
    if architecture in INTERLEAVED and part in ("attn_q", "attn_k"):
        return halves_to_pairs(w, heads[0 if part == "attn_q" else 1])
    return w


def folder_model(folder, options):
    """The model in `folder` as metadata with llama.cpp's keys, and the tensors of a GGUF file."""
    from safetensors.torch import load_file

    config = json.loads((folder / "config.json").read_text())
    source = ARCHITECTURES[config["model_type"]]
    architecture = options.architecture or source
    heads = config["num_attention_heads"], config["num_key_value_heads"]
    rope = config["rope_parameters"]
    keys = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": heads[0],
        "attention.head_count_kv": heads[1],
        "attention.key_length": config.get("head_dim", config["hidden_size"] // heads[0]),
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": rope.get("full_attention", rope)["rope_theta"],
    }
    if architecture == "gemma3":
        keys["attention.sliding_window"] = config["sliding_window"]
        keys["rope.freq_base_swa"] = rope["sliding_attention"]["rope_theta"]
    if architecture == "granite":
        factors = dict(
            attention="attention_multiplier", embedding="embedding_multiplier", residual="residual_multiplier",
            logit="logits_scaling",
        )
        keys |= {f"factors.{name}": config[key] for name, key in factors.items()}
    meta = {"general.architecture": architecture} | {f"{architecture}.{key}": x for key, x in keys.items()}
    tensors = {}
    for name, w in load_file(folder / "model.safetensors").items():
        name, w = gguf_parameter(name, source), w.double().numpy()
        if source == "gemma3" and w.ndim == 1:
            w = w + 1
        tensors[name] = stored_pairs(name, w, source, heads)
    return meta, tensors


def write_llama(path, folder):
    """A GGUF file (F16 matrices) of the Llama in `folder`, as llama.cpp's converter writes it."""
    meta, tensors = hugging_face(folder, path.stem)
    w = gguf.GGUFWriter(path, "llama")
    for key, value in meta.items():
        if key != "general.architecture":
            (w.add_float32 if isinstance(value, float) else w.add_uint32)(key, value)
    for name, a in tensors.items():
        stored = a.astype(np.float32 if a.ndim == 1 else np.float16)
        # bfloat16's smallest numbers are not exact in F16.
        assert np.abs(stored.astype(np.float64) - a).max() < 1e-7 * np.abs(a).max()
        w.add_tensor(name, np.ascontiguousarray(stored))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


# --------------------------------------------------------------------------- positions


def speeds(head_dim, base, scaling, context):
    """Radians per position of each pair, and the factor of cos and sin. `scaling` is a name and its numbers."""
    kind, *numbers = scaling
    i, d, magnitude = np.arange(head_dim // 2), head_dim, 1.0
    if kind == "dynamic":
        factor, original = numbers
        base *= (factor * max(context, original) / original - (factor - 1)) ** (d / (d - 2))
    plain = base ** (-2 * i / d)
    if kind == "linear":
        return plain / numbers[0], magnitude
    if kind == "yarn":
        factor, original, magnitude, fast, slow = numbers
        corr = lambda turns: d * math.log(original / (2 * math.pi * turns)) / (2 * math.log(base))
        low, high = max(0, math.floor(corr(fast))), min(d - 1, math.ceil(corr(slow)))
        ramp = np.clip((i - low) / max(0.001, high - low), 0, 1)
        return plain * ((1 - ramp) + ramp / factor), magnitude
    if kind == "llama3":
        factor, original, low, high = numbers
        keep = np.clip((original * plain / (2 * math.pi) - low) / (high - low), 0, 1)
        return plain * (keep + (1 - keep) / factor), magnitude
    if kind == "divided":
        factors, magnitude = numbers
        return plain / factors, magnitude
    assert kind in ("none", "dynamic"), kind
    return plain, magnitude


def scaling_of(text):
    """What `shohin --rope-scaling` parses."""
    kind, *numbers = text.split(":")
    numbers = [float(x) for x in numbers]
    usual = {"yarn": lambda: [0.1 * math.log(numbers[0]) + 1, 32.0, 1.0], "llama3": lambda: [1.0, 4.0]}
    return [kind, *numbers, *usual.get(kind, list)()]


def scaling_of_file(key, tensors, context):
    longrope = "rope_factors_long.weight" in tensors
    if longrope:
        over = context > key("rope.scaling.original_context_length")
        factors = tensors[f"rope_factors_{'long' if over else 'short'}.weight"]
        return ["divided", factors, key("rope.scaling.attn_factor", 1.0)]
    if "rope_freqs.weight" in tensors:
        return ["divided", tensors["rope_freqs.weight"], 1.0]
    kind, factor = key("rope.scaling.type", "none"), key("rope.scaling.factor", 1.0)
    if kind == "none":
        return ["none"]
    original = key("rope.scaling.original_context_length", 0)
    text = {"linear": f"linear:{factor}"}.get(kind, f"{kind}:{factor}:{original}")
    return scaling_of(text)


def slopes(heads, max_bias):
    n = 1 << (heads.bit_length() - 1)
    first = [2 ** (-max_bias * h / n) for h in range(1, n + 1)]
    between = [2 ** (-max_bias * (2 * k - 1) / (2 * n)) for k in range(1, heads - n + 1)]
    return np.array(first + between)


# --------------------------------------------------------------------------- the model


@dataclass(frozen=True)
class Options:
    attention: str = "full"
    rope: str | None = None
    context: int | None = None
    lora: tuple[int, float] | None = None
    # In place of the file's.
    architecture: str | None = None
    alibi: float | None = None
    rotates: bool | None = None


class Model:
    def __init__(self, source, options=Options()):
        if isinstance(source, Path):
            source = folder_model(source, options) if source.is_dir() else read(source)
        self.meta, tensors = source
        self.architecture = self.meta["general.architecture"]
        key = lambda name, absent=None: self.meta.get(f"{self.architecture}.{name}", absent)
        self.options = options
        self.w = {name: torch.tensor(w, dtype=torch.float64) for name, w in tensors.items()}
        self.layers, self.eps = key("block_count"), key("attention.layer_norm_rms_epsilon")
        self.heads = key("attention.head_count")
        self.kv_heads = key("attention.head_count_kv", self.heads)
        self.d = key("attention.key_length", key("embedding_length") // self.heads)
        self.interleaved = self.architecture in INTERLEAVED
        # Of embeddings, scores, what a block adds, and logits.
        width = key("embedding_length")
        self.embedding_factor = width**0.5 if self.architecture == "gemma3" else key("factors.embedding", 1.0)
        self.score_factor = key("factors.attention", self.d**-0.5)
        self.residual_factor = key("factors.residual", 1.0)
        self.logit_factor = 1 / key("factors.logit", 1.0)
        self.window, self.window_speeds = key("attention.sliding_window"), None
        if self.window:
            self.window_speeds = speeds(self.d, key("rope.freq_base_swa"), ["none"], 0)[0]
        self.experts = None
        if self.architecture == "qwen3moe":
            self.experts = (key("expert_used_count"), key("expert_weights_norm", True))
        context = options.context or key("context_length")
        max_bias = key("attention.max_alibi_bias", 0.0) if options.alibi is None else options.alibi
        scaling = scaling_of(options.rope) if options.rope else scaling_of_file(key, tensors, context)
        rotates = options.rotates
        if rotates is None:
            rotates = key("rope.dimension_count", 0 if max_bias else self.d) > 0
        self.speeds, self.magnitude = speeds(self.d, key("rope.freq_base", 1e4), scaling, context)
        if not rotates:
            self.speeds, self.magnitude = 0 * self.speeds, 1.0
        self.slopes = torch.tensor(slopes(self.heads, max_bias)) if max_bias else None
        # What is added to matrices, by their names: scale, A, B.
        self.adapters = []
        self.names = [
            name for name in self.w if not re.search(r"_exps\.weight$|^rope_f", name)
        ]
        self.params = {name: self.w[name] for name in self.names}
        if options.lora:
            self.adapt(*options.lora)
        # The least distance between a probability that was chosen and one that was not.
        self.margin = math.inf
        self.seen = None

    def adapt(self, rank, alpha):
        """Random factors, in f32."""
        rng = np.random.default_rng(17)
        factors, self.params = {}, {}
        for name in self.names:
            if name.split(".")[-2] not in MATRICES or name.endswith("bias"):
                continue
            rows, cols = self.w[name].shape
            a = (rng.standard_normal((rank, cols)) / cols**0.5).astype(np.float32)
            b = (0.3 * rng.standard_normal((rows, rank))).astype(np.float32)
            a, b = (torch.tensor(x, dtype=torch.float64) for x in (a, b))
            self.params |= {f"{name}.lora_a": a, f"{name}.lora_b": b}
            factors[name] = (alpha / rank, a, b)
        self.names = list(self.params)
        self.adapters = [factors]

    def note(self, name, value):
        if self.seen is not None:
            value.retain_grad() if value.requires_grad else None
            self.seen.append((name, value))
        return value

    def norm(self, x, name):
        return x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt() * self.w[name]

    def inner_norm(self, x, name):
        """The norm `name`, in models that have it."""
        return self.norm(x, name) if name in self.w else x

    def linear(self, x, name):
        y = x @ self.w[name].T
        for factors in self.adapters:
            if name in factors:
                scale, a, b = factors[name]
                y = y + scale * ((x @ a.T) @ b.T)
        bias = self.w.get(name.removesuffix("weight") + "bias")
        return y if bias is None else y + bias

    def is_windowed(self, layer):
        return self.window and layer % 6 != 5

    def speeds_of(self, layer):
        if self.is_windowed(layer):
            return self.window_speeds
        unrotated = self.architecture == "smollm3" and layer % 4 == 3
        return 0 * self.speeds if unrotated else self.speeds

    def rotate(self, x, position, speeds):
        """`x`: [rows, heads, d]."""
        angle = torch.tensor(np.outer(position, speeds))[:, None]
        cos, sin = angle.cos() * self.magnitude, angle.sin() * self.magnitude
        if self.interleaved:
            a, b = x[..., 0::2], x[..., 1::2]
            return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def sees(self, sequence, position):
        """Whether each row attends to each other."""
        i, j = position[:, None], position[None, :]
        sees = (sequence[:, None] == sequence[None, :]) & (j <= i)
        kind, *numbers = self.options.attention.split(":")
        if kind == "window":
            window, sinks = [int(n) for n in [*numbers, 0][:2]]
            sees &= (i - j < window) | (j < sinks)
        else:
            assert kind == "full", kind
        return torch.tensor(sees)

    def attention(self, n, layer, position, sees):
        rows, block, frequencies = len(position), f"blk.{layer}.", self.speeds_of(layer)
        if self.is_windowed(layer):
            # Beside those of other sequences, which are not seen anyway.
            sees = sees & torch.tensor(position[:, None] - position[None, :] < self.window)
        q, k, v = (
            self.note(f"{block}{name}", self.linear(n, f"{block}attn_{name}.weight")).view(rows, -1, self.d)
            for name in "qkv"
        )
        if f"{block}attn_q_norm.weight" in self.w:
            q, k = self.norm(q, f"{block}attn_q_norm.weight"), self.norm(k, f"{block}attn_k_norm.weight")
        q, k = self.rotate(q, position, frequencies), self.rotate(k, position, frequencies)
        group = self.heads // self.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.einsum("ihd,jhd->hij", q, k) * self.score_factor
        if self.slopes is not None:
            scores = scores + self.slopes[:, None, None] * torch.tensor(position[None, :] - position[:, None])
        p = scores.masked_fill(~sees, -math.inf).softmax(-1)
        return self.note(f"{block}attention", torch.einsum("hij,jhd->ihd", p, v).reshape(rows, -1))

    def feed_forward(self, m, block):
        silu = lambda z: z / (1 + torch.exp(-z))
        if not self.experts:
            gate, up = (self.linear(m, f"{block}ffn_{name}.weight") for name in ("gate", "up"))
            if self.architecture == "gemma3":
                inner = (2 / math.pi) ** 0.5 * (gate + 0.044715 * gate**3)
                gate = 0.5 * gate * (1 + inner.tanh())
            elif self.architecture == "bitnet-b1.58":
                gate = gate.clamp(min=0).square()
            else:
                gate = silu(gate)
            gated = self.inner_norm(self.note(f"{block}gated", gate * up), f"{block}ffn_sub_norm.weight")
            return self.linear(gated, f"{block}ffn_down.weight")
        used, normalize = self.experts
        p = self.note(f"{block}p", (m @ self.w[f"{block}ffn_gate_inp.weight"].T).softmax(-1))
        # The lower index first where two are equal.
        order = torch.sort(p.detach(), dim=-1, descending=True, stable=True)
        if used < p.shape[-1]:
            self.margin = min(self.margin, (order[0][:, used - 1] - order[0][:, used]).min().item())
        chosen = torch.zeros_like(p).scatter(-1, order[1][:, :used], 1.0)
        p = p * chosen
        if normalize:
            p = p / p.sum(-1, keepdim=True)
        gate, up, down = (self.w[f"{block}ffn_{name}_exps.weight"] for name in ("gate", "up", "down"))
        inner = silu(torch.einsum("rc,efc->ref", m, gate)) * torch.einsum("rc,efc->ref", m, up)
        return torch.einsum("ref,ecf,re->rc", inner, down, p)

    def logits(self, tokens, lengths):
        sequence = np.repeat(np.arange(len(lengths)), lengths)
        position = np.concatenate([np.arange(n) for n in lengths])
        sees = self.sees(sequence, position)
        x = self.embedding_factor * self.note("embedding", self.w["token_embd.weight"][torch.tensor(tokens)])
        for layer in range(self.layers):
            block = f"blk.{layer}."
            n = self.norm(x, f"{block}attn_norm.weight")
            attended = self.inner_norm(self.attention(n, layer, position, sees), f"{block}attn_sub_norm.weight")
            delta = self.linear(attended, f"{block}attn_output.weight")
            delta = self.inner_norm(delta, f"{block}post_attention_norm.weight")
            x = self.note(f"{block}middle", x + self.residual_factor * delta)
            m = self.norm(x, f"{block}ffn_norm.weight")
            delta = self.inner_norm(self.feed_forward(m, block), f"{block}post_ffw_norm.weight")
            x = self.note(f"{block}out", x + self.residual_factor * delta)
        hidden = self.logit_factor * self.note("hidden", self.norm(x, "output_norm.weight"))
        return self.note("logits", hidden @ self.w.get("output.weight", self.w["token_embd.weight"]).T)

    def loss(self, batch):
        logits = self.logits(batch.tokens, batch.lengths)
        picked = logits.gather(-1, torch.tensor(batch.targets)[:, None])[:, 0]
        weights = torch.tensor(batch.weights, dtype=torch.float64)
        return (weights * (logits.logsumexp(-1) - picked)).sum() / weights.sum()

    def gradients(self, batch):
        """The loss, and a gradient for each of `names`."""
        for p in self.params.values():
            p.requires_grad_(True)
        loss = self.loss(batch)
        found = torch.autograd.grad(loss, list(self.params.values()))
        for p in self.params.values():
            p.requires_grad_(False)
        return loss.item(), {name: g.numpy() for name, g in zip(self.params, found)}


# --------------------------------------------------------------------------- batches


@dataclass(frozen=True)
class Batch:
    lengths: list[int]
    tokens: list[int]
    targets: list[int]
    weights: list[float]


class Generator:
    """Knuth's linear congruential generator; its upper bits."""

    def __init__(self, seed):
        self.state = seed

    def below(self, n):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % n


def weights(generator, count):
    found = [[0.0, 0.25, 0.5, 1.0, 1.0, 1.5][generator.below(6)] for _ in range(count)]
    assert 0.0 in found and 1.5 in found
    return found


def tiny_batch(seed, vocab, lengths):
    generator, count = Generator(seed), sum(lengths)
    tokens, targets = ([generator.below(vocab) for _ in range(count)] for _ in range(2))
    # As in text: a token comes more than once, and as a target, too.
    tokens[-1] = targets[0] = tokens[1]
    return Batch(lengths, tokens, targets, weights(generator, count))


def sprout_batch():
    lengths = [64, 40, 33, 7]
    text = json.loads((ROOT / "models" / "sprout.expected.json").read_text())["models"]["sprout.gguf"]["ids"]
    rows = [(text[at : at + n], text[at + 1 : at + n + 1]) for at, n in zip([0, 64, 104, 137], lengths)]
    assert [len(targets) for _, targets in rows] == lengths
    tokens, targets = (sum(part, []) for part in zip(*rows))
    return Batch(lengths, tokens, targets, weights(Generator(99), sum(lengths)))


# --------------------------------------------------------------------------- fixtures


@dataclass(frozen=True)
class Case:
    model: str
    options: Options = Options()
    # Whether gradients are stored as they are.
    whole: bool = False
    lengths: tuple[int, ...] = tuple(TINY)

    @property
    def path(self):
        return ROOT / self.model

    def load(self):
        return Model(self.path, self.options)

    def batch(self, model):
        if self.model.startswith("models/"):
            return sprout_batch()
        return tiny_batch(len(self.model), model.w["token_embd.weight"].shape[0], list(self.lengths))


def tiny(name, whole=False, lengths=tuple(TINY), **options):
    return Case(f"tests/fixtures/{name}.gguf", Options(**options), whole, lengths)


def folder(name, **options):
    return Case(f"tests/fixtures/hf/{name}", Options(**options))


CASES = {
    "qwen3-tied-yarn": tiny("qwen3-tied-yarn", whole=True),
    "qwen3-tied-yarn-window": tiny("qwen3-tied-yarn", whole=True, attention="window:7:2"),
    "qwen3-untied": tiny("qwen3-untied"),
    "qwen3-untied-linear": tiny("qwen3-untied", rope="linear:2.5"),
    "qwen3-untied-dynamic": tiny("qwen3-untied", rope="dynamic:4:8", context=32),
    "qwen3-untied-lora": tiny("qwen3-untied", whole=True, lora=(3, 5.0)),
    "qwen3-alibi": tiny("qwen3-alibi", whole=True),
    "qwen3-longrope": tiny("qwen3-longrope", whole=True, context=32),
    "qwen3-longrope-short": tiny("qwen3-longrope", lengths=(5, 8, 3), context=8),
    "qwen3moe": tiny("qwen3moe", whole=True),
    "qwen3moe-plain": tiny("qwen3moe-plain", whole=True),
    "llama3": tiny("llama3", whole=True),
    "qwen2": folder("qwen2"),
    "qwen2-lora": folder("qwen2", lora=(2, 5.0)),
    "smollm3": folder("smollm3"),
    "granite": folder("granite"),
    "granite-lora": folder("granite", lora=(1, 5.0)),
    "gemma3": folder("gemma3"),
    "gemma3-lora": folder("gemma3", lora=(1, 3.0)),
    "bitnet-b158": folder("bitnet"),
    "bitnet": folder("bitnet", architecture="bitnet"),
    "sprout": Case("models/sprout.gguf"),
    "sprout-q1": Case("models/sprout-q1.gguf"),
}


def splitmix64(x):
    """Of an array of u64."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)


def signs(v, count):
    bits = splitmix64(np.uint64(v << 32) + np.arange(count, dtype=np.uint64)) >> np.uint64(63)
    return 1.0 - 2.0 * bits.astype(np.float64)


def project(g, count):
    return [float(signs(v, g.size) @ g.ravel()) for v in range(count)]


def shape(w):
    return (1, w.shape[0]) if w.ndim == 1 else w.shape


def digits(x):
    return f"{x:.17g}"


def lines(name, case, model, batch):
    """The text of a case, and its gradients."""
    o = case.options
    yield f"model {case.model}"
    if o.architecture:
        yield f"architecture {o.architecture}"
    if o.attention != "full":
        yield f"attention {o.attention}"
    if o.rope:
        yield f"rope {o.rope}"
    if o.context:
        yield f"context {o.context}"
    if o.lora:
        yield f"lora {o.lora[0]} {o.lora[1]:g}"
    rows = {
        "sequences": batch.lengths, "tokens": batch.tokens, "targets": batch.targets,
        "weights": [f"{w:g}" for w in batch.weights],
    }
    for word, numbers in rows.items():
        yield f"{word} " + " ".join(map(str, numbers))
    loss, gradients = model.gradients(batch)
    yield f"loss {digits(loss)}"
    count = PROJECTIONS_OF_FOLDERS if case.path.is_dir() else PROJECTIONS
    short = (lambda x: f"{x:.9g}") if case.path.is_dir() else digits
    for tensor, g in gradients.items():
        what, numbers = ("tensor", []) if case.whole else ("project", project(g, count))
        numbers = [np.linalg.norm(g.ravel()), *numbers]
        yield " ".join([what, tensor, *map(str, shape(g)), *map(short, numbers)])
    binary = lambda suffix, found: (
        OUT / f"{name}.{suffix}", b"".join(np.asarray(x).astype("<f4").tobytes() for x in found)
    )
    files = [binary("f32", gradients.values())] if case.whole else []
    if o.lora:
        files.append(binary("factors", model.params.values()))
    yield files


def fixture(name):
    case = CASES[name]
    model = case.load()
    *text, files = lines(name, case, model, case.batch(model))
    # f32 must choose the same experts.
    assert model.margin > 1e-4, model.margin
    return [(OUT / f"{name}.txt", ("\n".join(text) + "\n").encode()), *files]


def main():
    write_llama(FIXTURES / "llama3.gguf", FIXTURES / "hf" / "llama3")
    OUT.mkdir(parents=True, exist_ok=True)
    for name in CASES:
        files = fixture(name)
        for path, data in files:
            path.write_bytes(data)
        print(name, " ".join(f"{path.name} {len(data)}" for path, data in files), flush=True)


# --------------------------------------------------------------------------- checks


def dump(name):
    case = CASES[name]
    model = case.load()
    batch = case.batch(model)
    for p in model.params.values():
        p.requires_grad_(True)
    model.seen = []
    loss = model.loss(batch)
    loss.backward()
    print("loss", digits(loss.item()))
    for what, value in [*model.seen, *model.params.items()]:
        grad = math.nan if value.grad is None else value.grad.norm().item()
        print(f"{what:36} {tuple(value.shape)!s:14} {value.detach().norm().item():.9e} {grad:.9e}")


def close(what, got, want, tolerance):
    error = float(np.abs(np.asarray(got) - np.asarray(want)).max())
    print(f"{what:60} {error:.1e}", flush=True)
    assert error < tolerance, (what, error)


def check_positions():
    for line in (FIXTURES / "rope_scaling.txt").read_text().splitlines():
        kind, head_dim, base, *numbers = line.split(" ")
        head_dim = int(head_dim)
        numbers = [float(x) for x in numbers]
        numbers, magnitude, want = numbers[: -head_dim // 2 - 1], numbers[-head_dim // 2 - 1], numbers[-head_dim // 2 :]
        context = 1
        if kind in ("dynamic",):
            original, factor, context = numbers
            text = f"{kind}:{factor}:{original}"
        elif kind == "linear":
            text = f"linear:{numbers[0]}"
        else:
            text = f"{kind}:{numbers[1]}:{numbers[0]}"
        got, found = speeds(head_dim, float(base), scaling_of(text), context)
        close(f"frequencies {line.split(' 0')[0][:40]}", [*(got / want), found], [1.0] * len(want) + [magnitude], 1e-5)
    for line in (FIXTURES / "alibi_slopes.txt").read_text().splitlines():
        heads, bias, *want = line.split(" ")
        assert np.allclose(slopes(int(heads), float(bias)), np.array(want, dtype=float), rtol=1e-6), line
    print("slopes of ALiBi")


def check_logits():
    """Against what transformers computed."""
    tokens = [(7 * i * i + 3 * i + 1) % 96 for i in range(24)]
    text = list(b"The fox ran home, all alone.")[:16]

    def compare(source, golden, tokens, prepare=lambda model: None, tolerance=1e-5, **options):
        model = Model(source, Options(**options))
        prepare(model)
        want = np.fromfile(FIXTURES / golden, "<f4").reshape(len(tokens), -1)
        # Beside others, to see that a sequence knows nothing of them.
        got = model.logits([*tokens[3:7], *tokens, *tokens[:7]], [4, len(tokens), 7])
        close(f"logits {golden}", got[4:-7].numpy(), want, tolerance)

    file = lambda name: FIXTURES / f"{name}.gguf"
    for name in ("qwen3-tied-yarn", "qwen3-untied"):
        compare(file(name), f"{name}.logits", tokens)
        compare(file(name), f"{name}.window", tokens, attention="window:5")
        compare(file(name), f"{name}.sinks", tokens, attention="window:5:2")
    for name in ("qwen3moe", "qwen3moe-plain"):
        compare(file(name), f"{name}.logits", tokens)
    compare(file("qwen3-untied"), "qwen3-untied.dynamic", tokens, rope="dynamic:4:8", context=24)
    compare(file("qwen3-longrope"), "qwen3-longrope.long", tokens, context=24)
    compare(file("qwen3-longrope"), "qwen3-longrope.short", tokens[:8], context=8)
    compare(file("qwen3-alibi"), "qwen3-alibi.logits", text)
    compare(file("qwen3-alibi"), "qwen3-alibi.both", text, rotates=True)
    compare(file("qwen3-alibi"), "qwen3-alibi.rope", text, alibi=0.0)
    for name in ("llama", "llama3"):
        folder = FIXTURES / "hf" / name
        ids = json.loads((folder / "texts.json").read_text())[0][1]
        compare(hugging_face(folder, name), f"hf/{name}/logits.f32", ids)
        if name == "llama3":
            compare(file(name), f"hf/{name}/logits.f32", ids)
    for name in ("qwen2", "smollm3", "granite", "gemma3", "bitnet"):
        ids = json.loads((FIXTURES / "hf" / name / "texts.json").read_text())[0][1]
        compare(FIXTURES / "hf" / name, f"hf/{name}/logits.f32", ids, tolerance=1e-4)

    def adapted(*pairs):
        def prepare(model):
            for adapter, scale in pairs:
                meta, w = read(FIXTURES / "lora" / f"{adapter}.gguf")
                alpha, factors = meta.get("adapter.lora.alpha"), {}
                for name in {name.rsplit(".", 1)[0] for name in w}:
                    a, b = (torch.tensor(w[f"{name}.lora_{x}"]) for x in "ab")
                    factors[name] = (scale * (alpha / len(a) if alpha else 1), a, b)
                model.adapters.append(factors)

        return prepare

    compare(file("qwen3-untied"), "lora/all.logits", tokens, adapted(("all", 1.0)))
    compare(file("qwen3-untied"), "lora/both.logits", tokens, adapted(("all", 0.5), ("some", -2.0)))
    for name, found in json.loads((ROOT / "models" / "sprout.expected.json").read_text())["models"].items():
        if name not in ("sprout.gguf", "sprout-q1.gguf"):
            continue
        ids, rows = found["ids"], len(found["ids"]) - 1
        logits = Model(ROOT / "models" / name).logits(ids, [len(ids)])
        losses = logits[:-1].logsumexp(-1) - logits[torch.arange(rows), torch.tensor(ids[1:])]
        close(f"loss of {name}", losses.mean().item(), found["mean_next_token_loss"], 2e-6)


def check_differences(name):
    """Central differences: of every tensor along a vector of +-1, and of some single numbers."""
    case = CASES[name]
    model = case.load()
    batch = case.batch(model)
    _, gradients = model.gradients(batch)
    large = case.model.startswith("models/")
    generator = Generator(3)
    worst, count = 0.0, 0
    for at, (tensor, g) in enumerate(gradients.items()):
        if large and at % 9:
            continue
        p = model.params[tensor]
        directions = [torch.tensor(signs(0, g.size)).view(p.shape)]
        places = [] if large else [np.abs(g).argmax(), generator.below(g.size), generator.below(g.size)]
        for place in places:
            one = torch.zeros(p.numel(), dtype=torch.float64)
            one[int(place)] = 1
            directions.append(one.view(p.shape))
        for u in directions:
            step = 1e-6 if u.count_nonzero() > 1 else 1e-5
            with torch.no_grad():
                p += step * u
                more = model.loss(batch).item()
                p -= 2 * step * u
                less = model.loss(batch).item()
                p += step * u
            want = (more - less) / (2 * step)
            got = float((torch.tensor(g) * u).sum())
            # Relative to the size of what could have been.
            scale = np.linalg.norm(g.ravel()) * (1 if u.count_nonzero() > 1 else g.size**-0.5)
            worst, count = max(worst, abs(got - want) / scale), count + 1
    close(f"{count} central differences of {name}", worst, 0, 2e-6)


def check_files():
    for name in CASES:
        for path, data in fixture(name):
            stored = path.read_bytes()
            if path.suffix != ".txt":
                got, want = (np.frombuffer(x, "<f4") for x in (data, stored))
                close(f"stored {path.name}", got, want, 1e-6)
                continue
            got, want = (x.decode().split() for x in (data, stored))
            assert len(got) == len(want)
            for a, b in zip(got, want):
                assert a == b or abs(float(a) - float(b)) < 1e-10 * max(1, abs(float(b))), (name, a, b)
            print(f"stored {path.name}")


def check_transformers():
    """Gradients of the same losses by transformers, and of adapters by PEFT, with the same weights: in f64, but for rotary
    angles and the router's softmax, which it computes in f32. `get_peft_model` with a `LoraConfig` of the seven matrices
    adds the adapter; its factors are then copied into `lora_A.default.weight` and `lora_B.default.weight`."""
    try:
        import transformers
    except ImportError:
        print("no transformers here")
        return
    from qwen3_logits import gguf_tensors

    for name, case in CASES.items():
        model = case.load()
        batch, key = case.batch(model), lambda name, of=model: of.meta.get(f"{of.architecture}.{name}")
        if case.path.is_dir():
            compare_transformers(name, case, model, batch, *folder_of_transformers(case, model))
            continue
        if case.model.startswith("models/"):
            continue
        rope = {"rope_type": "default", "rope_theta": key("rope.freq_base")}
        longest, kind = key("context_length"), (case.options.rope or key("rope.scaling.type") or "none").split(":")[0]
        if kind == "yarn":
            original = key("rope.scaling.original_context_length")
            rope |= {
                "rope_type": "yarn", "factor": key("rope.scaling.factor"), "original_max_position_embeddings": original
            }
        elif kind == "linear":
            rope |= {"rope_type": "linear", "factor": float(case.options.rope.split(":")[1])}
        elif kind == "dynamic":
            # Theirs follows the length of each sequence; all positions have the base of the context here.
            factor, original = (float(x) for x in case.options.rope.split(":")[1:])
            growth = factor * case.options.context / original - (factor - 1)
            rope["rope_theta"] *= growth ** (model.d / (model.d - 2))
        elif "rope_factors_long.weight" in model.w:
            # All positions have the factors of the context here, there those of the sequence.
            which = "long" if case.options.context > 8 else "short"
            factors = model.w[f"rope_factors_{which}.weight"].tolist()
            rope |= {
                "rope_type": "longrope", "long_factor": factors, "short_factor": factors,
                "original_max_position_embeddings": 8, "attention_factor": key("rope.scaling.attn_factor"),
            }
        common = dict(
            vocab_size=model.w["token_embd.weight"].shape[0], hidden_size=key("embedding_length"),
            intermediate_size=key("feed_forward_length"), num_hidden_layers=key("block_count"),
            num_attention_heads=key("attention.head_count"), num_key_value_heads=key("attention.head_count_kv"),
            head_dim=model.d, max_position_embeddings=longest, rms_norm_eps=model.eps,
            tie_word_embeddings="output.weight" not in model.w, attn_implementation="eager",
        )
        if model.architecture == "llama":
            theirs = transformers.LlamaForCausalLM.from_pretrained(
                FIXTURES / "hf" / "llama3", dtype=torch.float32, attn_implementation="eager"
            )
        elif model.experts:
            theirs = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(
                **common, rope_parameters=rope, num_experts=key("expert_count"),
                num_experts_per_tok=key("expert_used_count"), norm_topk_prob=key("expert_weights_norm"),
                moe_intermediate_size=key("expert_feed_forward_length"), experts_implementation="eager",
            ))
        else:
            theirs = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**common, rope_parameters=rope))
        theirs = theirs.eval().double()
        if model.slopes is not None:
            from alibi import Unrotated

            theirs.model.rotary_emb = Unrotated()
        permute = {}
        if model.architecture == "llama":
            permute = {"attn_q": model.heads, "attn_k": model.kv_heads}
        with torch.no_grad():
            for parameter, p in theirs.named_parameters():
                if model.architecture == "llama":
                    continue
                parts = [model.w[tensor].view(part.shape) for tensor, part in gguf_tensors(parameter, p)]
                p.copy_(torch.cat(parts, 1) if len(parts) > 1 else parts[0])
        if case.options.lora:
            theirs = with_peft(theirs, case)
        ours = {}
        for parameter, p in theirs.named_parameters():
            if not p.requires_grad:
                continue
            parameter, adapter = parameter.removeprefix("base_model.model."), ""
            if case.options.lora:
                parameter, adapter = re.fullmatch(r"(.*)\.lora_([AB])\.default\.weight", parameter).groups()
                parameter, adapter = parameter + ".weight", f".lora_{adapter.lower()}"
            for tensor, _ in gguf_tensors(parameter, p):
                ours[tensor + adapter] = p
        ours = {tensor: p for tensor, p in ours.items() if "_exps" not in tensor}
        assert set(ours) == set(model.names), set(ours) ^ set(model.names)
        if case.options.lora:
            with torch.no_grad():
                for tensor, p in ours.items():
                    p.copy_(model.params[tensor])
        compare_transformers(name, case, model, batch, theirs, ours, permute)


def folder_of_transformers(case, model):
    """The folder of a case as a model of transformers, its trained parameters by their names, and the heads of those whose
    rows are in another order."""
    import transformers

    more = {"hidden_act": "silu"} if model.architecture == "bitnet" else {}
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        case.path, dtype=torch.float32, attn_implementation="eager", **more
    )
    theirs = theirs.eval().double()
    if case.options.lora:
        theirs = with_peft(theirs, case)
    source, ours = "gemma3" if model.architecture == "gemma3" else "", {}
    for parameter, p in theirs.named_parameters():
        if not p.requires_grad:
            continue
        adapter = ""
        if case.options.lora:
            parameter, adapter = re.fullmatch(r"base_model\.model\.(.*)\.lora_([AB])\.default\.weight", parameter).groups()
            parameter, adapter = f"{parameter}.weight", f".lora_{adapter.lower()}"
        ours[gguf_parameter(parameter, source) + adapter] = p
    permute = {"attn_q": model.heads, "attn_k": model.kv_heads} if model.interleaved else {}
    assert set(ours) == set(model.names), set(ours) ^ set(model.names)
    if case.options.lora:
        with torch.no_grad():
            for tensor, p in ours.items():
                p.copy_(to_transformers(tensor, model.params[tensor], permute))
    return theirs, ours, permute


def permuted_heads(tensor, permute):
    """The heads whose rows are in another order in a GGUF file; of an adapter, those of B are."""
    name, adapter = re.fullmatch(r"(.*?)\.(?:weight|bias)(\.lora_[ab])?", tensor).groups()
    return permute.get(name.split(".")[-1]) if adapter != ".lora_a" else None


def to_transformers(tensor, w, permute):
    heads = permuted_heads(tensor, permute)
    return w if heads is None else w.reshape(heads, -1, 2, w.shape[-1]).swapaxes(1, 2).reshape(w.shape)


def with_peft(theirs, case):
    import peft

    rank, alpha = case.options.lora
    modules = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    config = peft.LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=0.0, target_modules=modules)
    return peft.get_peft_model(theirs, config).double()


def compare_transformers(name, case, model, batch, theirs, ours, permute):
    """The loss and gradients of `theirs`, whose parameters `ours` has by our names."""
    total, at = 0.0, 0
    for n in batch.lengths:
        rows = slice(at, at + n)
        at += n
        sees = model.sees(np.zeros(n), np.arange(n))
        mask = torch.zeros(sees.shape, dtype=torch.float64).masked_fill(~sees, -math.inf)[None, None]
        if model.slopes is not None:
            back = torch.arange(n)[None, :] - torch.arange(n)[:, None]
            mask = {"full_attention": mask + model.slopes[:, None, None] * back}
        if case.path.is_dir():
            # Its own, with its windows.
            mask = None
        logits = theirs(torch.tensor([batch.tokens[rows]]), attention_mask=mask).logits[0]
        nll = torch.nn.functional.cross_entropy(logits, torch.tensor(batch.targets[rows]), reduction="none")
        total = total + (nll * torch.tensor(batch.weights[rows], dtype=torch.float64)).sum()
    total = total / sum(batch.weights)
    total.backward()
    loss, gradients = model.gradients(batch)
    worst = 0.0
    for tensor, g in gradients.items():
        want = ours[tensor].grad.numpy()
        if heads := permuted_heads(tensor, permute):
            want = halves_to_pairs(want, heads)
        worst = max(worst, np.linalg.norm((g - want).ravel()) / np.linalg.norm(want.ravel()))
    close(f"loss of {name} by transformers", loss, total.item(), 1e-5)
    # Norms are in f32 there.
    tolerance = 5e-5 if model.architecture == "gemma3" else 1e-5
    close(f"gradients of {name} by {'PEFT' if case.options.lora else 'transformers'}", worst, 0, tolerance)


def check():
    assert int(splitmix64(np.zeros(1, dtype=np.uint64))[0]) == 0xE220A8397B1DCDAF
    check_positions()
    with torch.no_grad():
        check_logits()
    for name in CASES:
        check_differences(name)
    check_files()
    check_transformers()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--dump"]:
        dump(sys.argv[2])
    elif sys.argv[1:] == ["--check"]:
        check()
    else:
        main()
