"""Masks of torch.nn.utils.prune for the tiny model of fixtures/hf/qwen3, for cli/tests/surgery.rs: for each case and matrix, the
SHA-256 of the mask's bytes (1 where a weight stays). Weights of this model are in bfloat16, of which some are equal: they are made
unique first, as the test makes them.

    pip install torch safetensors numpy
    python prune.py > ../fixtures/prune.json
"""

import hashlib
import json
import pathlib

import numpy as np
import torch
from safetensors.torch import load_file
from torch.nn.utils import prune

folder = pathlib.Path(__file__).parent.parent / "fixtures/hf/qwen3"
stored = load_file(folder / "model.safetensors")
names = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down"}
matrices = {}
for layer in range(2):
    for theirs, ours in names.items():
        name = f"blk.{layer}.{ours}.weight"
        weight = stored[f"model.layers.{layer}.{theirs}.weight"].float()
        # As `noise` in the test: different at every place.
        seed = 0
        i = np.arange(weight.numel(), dtype=np.uint64)
        h = i
        for byte in name.encode():
            h = (h * 31 + byte) % 2**32
        noise = ((h * 2654435761 % 2**32) >> 16).astype(np.float32) / np.float32(65536) - np.float32(0.5)
        changed = weight.numpy().reshape(-1) + np.float32(0.1) * noise.astype(np.float32)
        matrices[name] = torch.tensor(changed.reshape(weight.shape))


def digest(mask):
    return hashlib.sha256(bytes(mask.to(torch.uint8).reshape(-1).tolist())).hexdigest()


cases = {}
for name, weight in matrices.items():
    for sparsity in (0.5, 0.3):
        cases.setdefault(f"l1 {sparsity}", {})[name] = digest(prune.L1Unstructured(sparsity).compute_mask(weight, torch.ones_like(weight)))
    for method, n in (("l1", 1), ("l2", 2)):
        for structure, dim in (("rows", 0), ("columns", 1)):
            mask = prune.LnStructured(0.3, n, dim).compute_mask(weight, torch.ones_like(weight))
            cases.setdefault(f"{method} {structure}", {})[name] = digest(mask)
    # N:M: all but the two largest of four.
    parts = weight.abs().reshape(-1, 4)
    mask = torch.zeros_like(parts).scatter(1, parts.topk(2, 1).indices, 1.0)
    cases.setdefault("2:4", {})[name] = digest(mask)
whole = torch.cat([w.reshape(-1) for w in matrices.values()])
mask = prune.L1Unstructured(0.4).compute_mask(whole, torch.ones_like(whole))
for name, part in zip(matrices, mask.split([w.numel() for w in matrices.values()])):
    cases.setdefault("global", {})[name] = digest(part)
print(json.dumps(cases, indent=1))
