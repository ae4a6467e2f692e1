"""Logits and hidden states of small random Qwen3 and Qwen3MoE models by Hugging Face transformers, as the oracle of the
forward pass.

Writes to tests/fixtures/, for each shape: NAME.gguf (F16 matrices, F32 norms), NAME.logits (little-endian f32,
one row of the vocabulary per position of TOKENS) and NAME.hidden (the same of the states that the head reads). Of a
mixture of experts only the logits are written.
NAME.shifted has the logits after each of the last tokens where the first SEEN were cached, DROP of them behind
the first KEEP were removed, and the others moved to the front: as in StreamingLLM, keys are rotated anew from
what they are before rotation. NAME.window has the logits with transformers' sliding window of WINDOW positions, and
NAME.sinks those with a mask that also shows the first SINKS positions. One shape has a tokenizer with a token for each byte, and reads TEXT instead: of
it only the hidden states are written.

    pip install torch transformers gguf numpy
    python tests/oracle/qwen3_logits.py
"""

import copy
from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

OUT = Path(__file__).parent.parent / "fixtures"
VOCAB = 96
TOKENS = [(7 * i * i + 3 * i + 1) % VOCAB for i in range(24)]
TEXT = "The fox ran home, all alone."

SEEN, KEEP, DROP = 20, 4, 7
WINDOW, SINKS = 5, 2

SHAPES = {
    # Like the 4B: heads x head_dim is not the hidden size; tied; YaRN always on.
    "qwen3-tied-yarn": dict(
        hidden=32, layers=2, heads=4, kv_heads=2, head_dim=16, ffn=64, tied=True, base=1e6, yarn=(4.0, 8), eps=1e-6
    ),
    # Like the 8B: an output matrix of its own; one kv head for all; no scaling.
    "qwen3-untied": dict(
        hidden=48, layers=3, heads=3, kv_heads=1, head_dim=16, ffn=80, tied=False, base=1e4, yarn=None, eps=1e-5
    ),
    "qwen3-bytes": dict(
        hidden=32, layers=2, heads=2, kv_heads=1, head_dim=16, ffn=48, tied=True, base=1e4, yarn=None, eps=1e-6
    ),
    # Experts of 64 rows, which kernels read in panels of 16; probabilities of the chosen ones add up to 1.
    "qwen3moe": dict(
        hidden=32, layers=2, heads=4, kv_heads=2, head_dim=16, ffn=96, tied=True, base=1e6, yarn=None, eps=1e-6,
        experts=(8, 3, 64, True)
    ),
    # Experts of 40 rows; probabilities as they are.
    "qwen3moe-plain": dict(
        hidden=48, layers=2, heads=3, kv_heads=1, head_dim=16, ffn=96, tied=False, base=1e4, yarn=None, eps=1e-5,
        experts=(5, 2, 40, False)
    ),
}

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.down_proj": "ffn_down_exps",
}


def gguf_name(name: str) -> str:
    fixed = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in fixed:
        return fixed[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"


def gguf_tensors(name: str, p: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """Transformers keeps the gate and up matrices of all experts in one tensor."""
    if name.endswith("mlp.experts.gate_up_proj"):
        layer = name.split(".")[2]
        gate, up = p.chunk(2, dim=1)
        return [(f"blk.{layer}.ffn_gate_exps.weight", gate), (f"blk.{layer}.ffn_up_exps.weight", up)]
    return [(gguf_name(name), p)]


def letters() -> list[str]:
    """GPT-2's letter for each byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = iter(range(256, 512))
    return [chr(byte if byte in shown else next(hidden)) for byte in range(256)]


def shifted_logits(model: Qwen3ForCausalLM) -> torch.Tensor:
    unrotated = []
    hooks = [
        layer.self_attn.k_norm.register_forward_hook(lambda _, __, k: unrotated.append(k.transpose(1, 2)))
        for layer in model.model.layers
    ]
    cache = model(torch.tensor([TOKENS[:SEEN]]), use_cache=True).past_key_values
    for hook in hooks:
        hook.remove()
    left = [*range(KEEP), *range(KEEP + DROP, SEEN)]
    position = torch.arange(len(left))[None]
    moved = DynamicCache()
    for i, k in enumerate(unrotated):
        cos, sin = model.model.rotary_emb(k, position)
        k = k[:, :, left]
        a, b = k.chunk(2, dim=-1)
        moved.update(k * cos + torch.cat((-b, a), dim=-1) * sin, cache.layers[i].values[:, :, left], i)
    return model(torch.tensor([TOKENS[SEEN:]]), past_key_values=moved).logits[0]


def window_logits(model: Qwen3ForCausalLM) -> torch.Tensor:
    config = copy.deepcopy(model.config)
    config.use_sliding_window, config.sliding_window = True, WINDOW
    config.layer_types = ["sliding_attention"] * config.num_hidden_layers
    windowed = type(model)(config).eval().double()
    windowed.load_state_dict(model.state_dict())
    return windowed(torch.tensor([TOKENS])).logits[0]


def sinks_logits(model: Qwen3ForCausalLM) -> torch.Tensor:
    i, j = torch.meshgrid(torch.arange(len(TOKENS)), torch.arange(len(TOKENS)), indexing="ij")
    sees = (j <= i) & ((i - j < WINDOW) | (j < SINKS))
    mask = torch.zeros(sees.shape, dtype=torch.float64).masked_fill(~sees, float("-inf"))
    return model(torch.tensor([TOKENS]), attention_mask=mask[None, None]).logits[0]


def make(name: str, s: dict) -> None:
    torch.manual_seed(len(name))
    reads_text = name == "qwen3-bytes"
    vocab = 257 if reads_text else VOCAB
    rope = {"rope_type": "default", "rope_theta": s["base"]}
    if s["yarn"]:
        factor, original = s["yarn"]
        rope = {
            "rope_type": "yarn",
            "rope_theta": s["base"],
            "factor": factor,
            "original_max_position_embeddings": original,
        }
    kind, of, more = Qwen3Config, Qwen3ForCausalLM, {}
    if "experts" in s:
        count, used, width, normalize = s["experts"]
        kind, of = Qwen3MoeConfig, Qwen3MoeForCausalLM
        more = dict(num_experts=count, num_experts_per_tok=used, moe_intermediate_size=width, norm_topk_prob=normalize)
    config = kind(
        vocab_size=vocab,
        hidden_size=s["hidden"],
        intermediate_size=s["ffn"],
        num_hidden_layers=s["layers"],
        num_attention_heads=s["heads"],
        num_key_value_heads=s["kv_heads"],
        head_dim=s["head_dim"],
        max_position_embeddings=64,
        rms_norm_eps=s["eps"],
        tie_word_embeddings=s["tied"],
        rope_parameters=rope,
        attn_implementation="eager",
        experts_implementation="eager",
        **more,
    )
    model = of(config).eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            if key.endswith("norm.weight"):
                p.copy_(1 + 0.3 * torch.randn_like(p))
            else:
                p.copy_((torch.randn_like(p) * (2.0 / p.shape[-1]) ** 0.5).half().float())
        ids = torch.tensor([list(TEXT.encode()) if reads_text else TOKENS])
        logits = model.double()(ids).logits[0]
        hidden = model.model(ids).last_hidden_state[0]
        shifted = shifted_logits(model)

    w = gguf.GGUFWriter(OUT / f"{name}.gguf", "qwen3moe" if more else "qwen3")
    w.add_context_length(64)
    w.add_embedding_length(s["hidden"])
    w.add_block_count(s["layers"])
    w.add_feed_forward_length(s["ffn"])
    w.add_head_count(s["heads"])
    w.add_head_count_kv(s["kv_heads"])
    w.add_key_length(s["head_dim"])
    w.add_value_length(s["head_dim"])
    w.add_layer_norm_rms_eps(s["eps"])
    w.add_rope_freq_base(s["base"])
    if more:
        w.add_expert_count(count)
        w.add_expert_used_count(used)
        w.add_expert_feed_forward_length(width)
        w.add_expert_weights_norm(normalize)
    if s["yarn"]:
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(s["yarn"][0])
        w.add_rope_scaling_orig_ctx_len(s["yarn"][1])
    if reads_text:
        w.add_tokenizer_model("gpt2")
        w.add_tokenizer_pre("qwen2")
        # A merge there must be.
        w.add_token_list([*letters(), "zz"])
        w.add_token_types([gguf.TokenType.NORMAL] * vocab)
        w.add_token_merges(["z z"])
    for key, p in model.named_parameters():
        for tensor, part in gguf_tensors(key, p.detach()):
            a = part.float().numpy()
            # llama.cpp, too, leaves routers in F32.
            plain = a.ndim == 1 or "ffn_gate_inp" in tensor
            w.add_tensor(tensor, a if plain else np.ascontiguousarray(a.astype(np.float16)))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    if not reads_text:
        (OUT / f"{name}.logits").write_bytes(logits.float().numpy().astype("<f4").tobytes())
    if not reads_text and not more:
        (OUT / f"{name}.shifted").write_bytes(shifted.float().numpy().astype("<f4").tobytes())
        for kind, logits_of in (("window", window_logits), ("sinks", sinks_logits)):
            with torch.no_grad():
                other = logits_of(model)
            assert (other - logits).abs().max() > 0.1
            (OUT / f"{name}.{kind}").write_bytes(other.float().numpy().astype("<f4").tobytes())
    if not more:
        (OUT / f"{name}.hidden").write_bytes(hidden.float().numpy().astype("<f4").tobytes())
    print(name, "logits", tuple(logits.shape), "std", logits.std().item())


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    for name, shape in SHAPES.items():
        make(name, shape)
