"""A small random Maple, and what its formulas give in float64. transformers does not have this architecture.

Writes the folder tests/fixtures/hf/maple/, as architectures.py does. The layers are: token embedding; blocks of attention (heads normalized, half
of each head rotated in layers with a window, nothing in the others) and of experts (softmax, the best of which share a weight of 1;
silu(min(gate, 7)) * clamp(up, -7, 7)); a norm; an output matrix of its own.

    pip install numpy torch transformers tokenizers safetensors
    python tests/oracle/maple.py
"""

import json
import sys

import torch
from architectures import split
from hf_folder import QWEN2, TEXTS, start, tokenizer
from safetensors.torch import save_file

HIDDEN, LAYERS, HEADS, KV_HEADS, DIM, WINDOW, BASE, EPS = 32, 5, 4, 2, 16, 5, 1e4, 1e-6
EXPERTS, USED, WIDTH = 6, 2, 48
TYPES = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"]


def norm(x, w):
    return x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * w


def rope(x):
    """Half of a head, in pairs that are a quarter of it apart; x is (tokens, heads, DIM)."""
    rotated = DIM // 2
    speed = BASE ** (-torch.arange(0, rotated, 2).double() / rotated)
    angle = torch.arange(x.shape[0]).double()[:, None, None] * speed
    a, b, rest = x[..., : rotated // 2], x[..., rotated // 2 : rotated], x[..., rotated:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin(), rest], -1)


def attention(x, w, windowed):
    n = x.shape[0]
    q, k, v = (x @ w[f"self_attn.{name}_proj.weight"].T for name in "qkv")
    q = norm(q.view(n, HEADS, DIM), w["self_attn.q_norm.weight"])
    k = norm(k.view(n, KV_HEADS, DIM), w["self_attn.k_norm.weight"])
    if windowed:
        q, k = rope(q), rope(k)
    k, v = (t.repeat_interleave(HEADS // KV_HEADS, 1) for t in (k, v.view(n, KV_HEADS, DIM)))
    scores = torch.einsum("qhd,khd->hqk", q, k) / DIM**0.5
    distance = torch.arange(n)[:, None] - torch.arange(n)
    hidden = (distance < 0) | (windowed & (distance >= WINDOW))
    probabilities = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", probabilities, v).reshape(n, -1) @ w["self_attn.o_proj.weight"].T


def experts(x, w, seen):
    probabilities = (x @ w["mlp.gate.weight"].T).softmax(-1)
    best, index = probabilities.topk(USED)
    best = best / best.sum(-1, keepdim=True).clamp(min=6.1e-5)
    out = torch.zeros_like(x)
    for row in range(x.shape[0]):
        for p, e in zip(best[row], index[row].tolist()):
            gate, up = (w[f"mlp.experts.{e}.{name}_proj.weight"] @ x[row] for name in ("gate", "up"))
            seen.append((gate > 7).any().item() or (up.abs() > 7).any().item())
            gate = gate.clamp(max=7)
            out[row] += p * (w[f"mlp.experts.{e}.down_proj.weight"] @ (gate * gate.sigmoid() * up.clamp(-7, 7)))
    return out


def main():
    torch.manual_seed(9)
    t = tokenizer(split(QWEN2))
    shapes = {"model.embed_tokens.weight": (len(t), HIDDEN), "lm_head.weight": (len(t), HIDDEN), "model.norm.weight": (HIDDEN,)}
    for i in range(LAYERS):
        block = {
            "input_layernorm": (HIDDEN,), "post_attention_layernorm": (HIDDEN,),
            "self_attn.q_proj": (HEADS * DIM, HIDDEN), "self_attn.k_proj": (KV_HEADS * DIM, HIDDEN),
            "self_attn.v_proj": (KV_HEADS * DIM, HIDDEN), "self_attn.o_proj": (HIDDEN, HEADS * DIM),
            "self_attn.q_norm": (DIM,), "self_attn.k_norm": (DIM,), "mlp.gate": (EXPERTS, HIDDEN),
        }
        for e in range(EXPERTS):
            block |= {f"mlp.experts.{e}.{name}_proj": (WIDTH, HIDDEN) for name in ("gate", "up")}
            block[f"mlp.experts.{e}.down_proj"] = (HIDDEN, WIDTH)
        shapes |= {f"model.layers.{i}.{name}.weight": shape for name, shape in block.items()}
    weights = {}
    for name, shape in shapes.items():
        t_ = 1 + 0.3 * torch.randn(shape) if len(shape) == 1 else torch.randn(shape) * (2 / shape[-1]) ** 0.5
        # Products over 7.
        weights[name] = (t_ * (1.8 if "gate_proj" in name or "up_proj" in name else 1)).bfloat16()
    folder = start("maple", t)
    config = dict(
        architectures=["MapleForCausalLM"], model_type="maple", attention_bias=False, hidden_act="silu", head_dim=DIM,
        hidden_size=HIDDEN, intermediate_size=WIDTH, moe_intermediate_size=WIDTH, num_experts=EXPERTS,
        num_experts_per_tok=USED, norm_topk_prob=True, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS, max_position_embeddings=64, rms_norm_eps=EPS, rope_theta=BASE,
        partial_rotary_factor=0.5, sliding_window=WINDOW, layer_types=TYPES, tie_word_embeddings=False,
        vocab_size=len(t), eos_token_id=t.eos_token_id, torch_dtype="bfloat16",
    )
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})

    double = {name: w.double() for name, w in weights.items()}
    ids = t(TEXTS[0], add_special_tokens=False).input_ids
    x, seen = double["model.embed_tokens.weight"][ids], []
    for i, kind in enumerate(TYPES):
        prefix = f"model.layers.{i}."
        w = {name.removeprefix(prefix): p for name, p in double.items() if name.startswith(prefix)}
        x = x + attention(norm(x, w["input_layernorm.weight"]), w, kind == "sliding_attention")
        x = x + experts(norm(x, w["post_attention_layernorm.weight"]), w, seen)
    logits = norm(x, double["model.norm.weight"]) @ double["lm_head.weight"].T
    assert any(seen) and not all(seen)
    (folder / "logits.f32").write_bytes(logits.float().numpy().astype("<f4").tobytes())
    texts = [[text, t(text, add_special_tokens=False).input_ids] for text in TEXTS]
    (folder / "texts.json").write_text(json.dumps(texts) + "\n")
    for path in folder.iterdir():
        path.chmod(0o644)
    print(tuple(logits.shape), logits.std().item(), sum(seen), len(seen), file=sys.stderr)


if __name__ == "__main__":
    main()
