"""Adapters (LoRA) of small models, and the logits of the models whose weights were merged with them, in f64.

    W' = W + scale (alpha / r) B A        (Hu et al. 2021, arXiv:2106.09685)

The formulas without adapters are first compared with what transformers computes: qwen3-untied.logits, hf/llama/logits.f32.
Then writes to tests/fixtures/:

  lora/all.gguf       as llama.cpp writes adapters, of every matrix of the blocks of qwen3-untied.gguf, in several types
  lora/some.gguf      of two of these matrices, without alpha
  lora/all.logits     after each token, with all.gguf at scale 1
  lora/both.logits    with all.gguf at 0.5 and some.gguf at -2
  hf/llama-lora/      as PEFT saves adapters, of hf/llama: adapter_config.json, adapter_model.safetensors, logits.f32

    pip install gguf numpy safetensors
    python tests/oracle/lora.py
"""

import json
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import load_file, save_file

from depths import Model as Qwen3
from depths import check_formulas, norm, rotate

OUT = Path(__file__).parent.parent / "fixtures"
TOKENS = [(7 * i * i + 3 * i + 1) % 96 for i in range(24)]


class Adapter:
    """Factors by the name of their matrix, rounded to the type in which they are stored."""

    def __init__(self, alpha):
        self.alpha, self.factors, self.stored = alpha, {}, {}

    def add(self, rng, name, shape, rank, kind):
        rows, cols = shape
        a, b = rng.standard_normal((rank, cols)) / cols**0.5, 0.5 * rng.standard_normal((rows, rank))
        pair = []
        for suffix, x in (("lora_a", a), ("lora_b", b)):
            # Rows of Q8_0 are whole blocks.
            own = kind if kind != Type.Q8_0 or x.shape[1] % 32 == 0 else Type.F32
            stored = gguf.quants.quantize(x.astype(np.float32), own)
            self.stored[f"{name}.{suffix}"] = (stored, own)
            pair.append(gguf.quants.dequantize(stored, own).astype(np.float64))
        self.factors[name] = pair

    def change(self, name, scale):
        a, b = self.factors[name]
        return scale * (self.alpha / len(a) if self.alpha else 1) * (b @ a)

    def write(self, path):
        w = gguf.GGUFWriter(path, "qwen3")
        w.add_type("adapter")
        w.add_string("adapter.type", "lora")
        w.add_name("An adapter of a small model")
        if self.alpha:
            w.add_float32("adapter.lora.alpha", self.alpha)
        for name, (stored, kind) in self.stored.items():
            w.add_tensor(name, stored, raw_dtype=kind)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()


def merged(tensors, adapters):
    tensors = {name: np.asarray(w, dtype=np.float64) for name, w in tensors.items()}
    for adapter, scale in adapters:
        for name in adapter.factors:
            tensors[name] = tensors[name] + adapter.change(name, scale)
    return tensors


def qwen3():
    check_formulas()
    rng = np.random.default_rng(7)
    tensors = {t.name: t.data for t in gguf.GGUFReader(OUT / "qwen3-untied.gguf").tensors}
    matrices = [name for name, w in tensors.items() if name.startswith("blk.") and w.ndim == 2]
    every, some = Adapter(12.0), Adapter(None)
    kinds = [Type.F32, Type.F16, Type.BF16, Type.Q8_0]
    for i, name in enumerate(matrices):
        every.add(rng, name, tensors[name].shape, [4, 3, 32, 1, 8][i % 5], kinds[i % 4])
    for name in ("blk.1.attn_q.weight", "blk.2.ffn_up.weight"):
        some.add(rng, name, tensors[name].shape, 2, Type.F16)
    assert {kind for _, kind in every.stored.values()} == set(kinds)
    (OUT / "lora").mkdir(exist_ok=True)
    every.write(OUT / "lora" / "all.gguf")
    some.write(OUT / "lora" / "some.gguf")
    logits = lambda adapters: np.array([m.forward(t) for m in [Qwen3(merged(tensors, adapters), 1e4, 1e-5)] for t in TOKENS])
    plain, one, both = logits([]), logits([(every, 1)]), logits([(every, 0.5), (some, -2)])
    assert min(np.abs(a - b).max() for a, b in ((plain, one), (plain, both), (one, both))) > 0.3
    one.astype("<f4").tofile(OUT / "lora" / "all.logits")
    both.astype("<f4").tofile(OUT / "lora" / "both.logits")


class Llama:
    """hf/llama, in the order of rows that transformers has."""

    def __init__(self, weights, config):
        self.w, self.eps, self.base = weights, config["rms_norm_eps"], config["rope_parameters"]["rope_theta"]
        self.layers, self.d = config["num_hidden_layers"], config["head_dim"]

    def forward(self, tokens):
        w = lambda name: self.w[f"model.{name}.weight"]
        x = w("embed_tokens")[tokens]
        n = len(tokens)
        for layer in (f"layers.{i}." for i in range(self.layers)):
            h = norm(x, w(layer + "input_layernorm"), self.eps)
            q, k, v = ((h @ w(layer + f"self_attn.{p}_proj").T).reshape(n, -1, self.d) for p in "qkv")
            q, k = (np.array([rotate(row, i, self.base) for i, row in enumerate(y)]) for y in (q, k))
            scores = np.einsum("ihd,jhd->hij", q, np.repeat(k, q.shape[1] // k.shape[1], 1)) / self.d**0.5
            scores = np.where(np.tril(np.ones((n, n), bool)), scores, -np.inf)
            p = np.exp(scores - scores.max(-1, keepdims=True))
            p /= p.sum(-1, keepdims=True)
            heads = np.einsum("hij,jhd->ihd", p, np.repeat(v, q.shape[1] // v.shape[1], 1))
            x = x + heads.reshape(n, -1) @ w(layer + "self_attn.o_proj").T
            m = norm(x, w(layer + "post_attention_layernorm"), self.eps)
            gate = m @ w(layer + "mlp.gate_proj").T
            x = x + (gate / (1 + np.exp(-gate)) * (m @ w(layer + "mlp.up_proj").T)) @ w(layer + "mlp.down_proj").T
        return norm(x, w("norm"), self.eps) @ self.w["lm_head.weight"].T


def llama():
    folder, out = OUT / "hf" / "llama", OUT / "hf" / "llama-lora"
    config = json.loads((folder / "config.json").read_text())
    weights = {}
    for shard in folder.glob("*.safetensors"):
        weights |= {name: w.astype(np.float64) for name, w in load_file(shard).items()}
    _, tokens = json.loads((folder / "texts.json").read_text())[0]
    logits = lambda weights: Llama(weights, config).forward(tokens)
    plain = logits(weights)
    assert np.abs(plain - np.fromfile(folder / "logits.f32", "<f4").reshape(plain.shape)).max() < 1e-4

    rng = np.random.default_rng(11)
    # The ranks and alphas of PEFT's rank_pattern and alpha_pattern: keys match the end of a module's name.
    rank, alpha, ranks, alphas = 4, 8, {"layers.1.self_attn.q_proj": 6}, {"k_proj": 3, "layers.0.mlp.down_proj": 1}
    modules = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    of = lambda patterns, module, otherwise: next(
        (x for end, x in patterns.items() if module == end or module.endswith("." + end)), otherwise
    )
    tensors = {}
    for name in sorted(weights):
        module = name.removesuffix(".weight")
        if module.split(".")[-1] not in modules:
            continue
        rows, cols = weights[name].shape
        r, a = of(ranks, module, rank), of(alphas, module, alpha)
        down = (rng.standard_normal((r, cols)) / cols**0.5).astype(np.float32)
        up = (0.3 * rng.standard_normal((rows, r))).astype(np.float32)
        tensors[f"base_model.model.{module}.lora_A.weight"] = down
        tensors[f"base_model.model.{module}.lora_B.weight"] = up
        # rsLoRA (Kalajdzievski 2023, arXiv:2312.03732)
        weights[name] = weights[name] + a / r**0.5 * up.astype(np.float64) @ down.astype(np.float64)
    adapted = logits(weights)
    assert np.abs(adapted - plain).max() > 0.3
    out.mkdir(exist_ok=True)
    save_file(tensors, out / "adapter_model.safetensors", metadata={"format": "pt"})
    settings = {
        "alpha_pattern": alphas,
        "auto_mapping": None,
        "base_model_name_or_path": "a/llama",
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "layers_pattern": None,
        "layers_to_transform": None,
        "lora_alpha": alpha,
        "lora_dropout": 0.05,
        "megatron_config": None,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": rank,
        "rank_pattern": ranks,
        "revision": None,
        "target_modules": modules,
        "task_type": "CAUSAL_LM",
        "use_dora": False,
        "use_rslora": True,
    }
    (out / "adapter_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    adapted.astype("<f4").tofile(out / "logits.f32")


if __name__ == "__main__":
    qwen3()
    llama()
