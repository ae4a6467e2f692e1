"""Factors of SmoothQuant (Xiao et al. 2022), with inputs from transformers, for cli/tests/surgery.rs.

    pip install torch transformers
    python smooth.py > ../fixtures/smooth.json
"""

import json
import pathlib

import torch
from transformers import AutoModelForCausalLM

ALPHA = 0.6
folder = pathlib.Path(__file__).parent.parent / "fixtures/hf/qwen3"
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")
config = model.config
heads, kv = config.num_attention_heads, config.num_key_value_heads
ranges = {}
for name, module in model.named_modules():
    if isinstance(module, torch.nn.Linear):
        def hook(_module, args, _out, name=name):
            x = args[0].detach().abs().reshape(-1, args[0].shape[-1]).amax(0)
            ranges[name] = torch.maximum(ranges[name], x) if name in ranges else x

        module.register_forward_hook(hook)
tokens = [(7 * i * i + 3 * i + 1) % config.vocab_size for i in range(57)]
windows = [torch.tensor([tokens[start:start + 24]]) for start in (0, 24)]
before = [model(window).logits for window in windows]


def factors(x, matrices):
    w = torch.cat([m.weight.detach() for m in matrices]).abs().amax(0)
    return x ** ALPHA / w ** (1 - ALPHA)


out = {"alpha": ALPHA, "tokens": tokens, "factors": {}}
todo = []
for i, layer in enumerate(model.model.layers):
    attention, mlp, root = layer.self_attn, layer.mlp, f"model.layers.{i}"
    qkv, gated = [attention.q_proj, attention.k_proj, attention.v_proj], [mlp.gate_proj, mlp.up_proj]
    s = factors(ranges[f"{root}.self_attn.q_proj"], qkv)
    todo.append((f"blk.{i}.attn_norm.weight", s, s, layer.input_layernorm, qkv))
    # Heads of queries that share a head of values: the largest ranges of all.
    shape = (kv, heads // kv, -1)
    x = ranges[f"{root}.self_attn.o_proj"].reshape(shape).amax(1)
    w = attention.o_proj.weight.detach().abs().amax(0).reshape(shape).amax(1)
    own = (x ** ALPHA / w ** (1 - ALPHA)).flatten()
    spread = own.reshape(kv, 1, -1).expand(kv, heads // kv, -1).flatten()
    todo.append((f"blk.{i}.attn_v.weight", own, spread, attention.v_proj, [attention.o_proj]))
    s = factors(ranges[f"{root}.mlp.gate_proj"], gated)
    todo.append((f"blk.{i}.ffn_norm.weight", s, s, layer.post_attention_layernorm, gated))
    s = factors(ranges[f"{root}.mlp.down_proj"], [mlp.down_proj])
    todo.append((f"blk.{i}.ffn_up.weight", s, s, mlp.up_proj, [mlp.down_proj]))
for name, own, spread, source, readers in todo:
    out["factors"][name] = [float(f"{v:.7g}") for v in spread]
    with torch.no_grad():
        source.weight.div_(own if source.weight.ndim == 1 else own[:, None])
        for reader in readers:
            reader.weight.mul_(spread)
for window, logits in zip(windows, before):
    difference = float((model(window).logits - logits).abs().max())
    assert difference < 1e-10, difference
print(json.dumps(out))
