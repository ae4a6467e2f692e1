"""Sums of squares of what linear layers read, by transformers, for cli/tests/surgery.rs.

    pip install torch transformers
    python calibrate.py > ../fixtures/calibration.json
"""

import json
import pathlib

import torch
from transformers import AutoModelForCausalLM

folder = pathlib.Path(__file__).parent.parent / "fixtures/hf/qwen3"
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
names = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down"}
inputs = {}
for i, layer in enumerate(model.model.layers):
    for theirs, ours in names.items():
        key = f"blk.{i}.{ours}.weight"

        def hook(_module, args, _out, key=key):
            inputs.setdefault(key, []).append(args[0].detach().reshape(-1, args[0].shape[-1]).double())

        layer.get_submodule(theirs).register_forward_hook(hook)
# Two full windows of 24, and a rest that does not count.
tokens = [(7 * i * i + 3 * i + 1) % model.config.vocab_size for i in range(57)]
for start in (0, 24):
    model(torch.tensor([tokens[start:start + 24]]))
out = {"tokens": tokens, "window": 24, "inputs": {}}
for key, parts in inputs.items():
    x = torch.cat(parts)
    out["inputs"][key] = {"count": len(x), "min": float(x.min()), "max": float(x.max()), "mean_abs": float(x.abs().mean()),
                          "squares": [float(f"{v:.7g}") for v in (x * x).sum(0)]}
print(json.dumps(out))
