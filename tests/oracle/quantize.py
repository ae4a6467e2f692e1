"""Ternary and 1-bit weights by the functions of models/train/model.py in PyTorch, as the oracle of train/src/quantize.rs.

    pip install torch numpy
    python tests/oracle/quantize.py              writes train/tests/fixtures/quantize.txt
    python tests/oracle/quantize.py --check      compares it

It was made with torch 2.15.0. The file has three lines for each group of 128 weights:

    weights W..             their bits in f32, hexadecimal
    ternary SCALE CODES     the scale's bits, and a character of -, 0, + for each weight
    1bit SCALE CODES
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
PATH = ROOT / "train/tests/fixtures/quantize.txt"
sys.path.insert(0, str(ROOT / "models/train"))

from model import GROUP, codes  # noqa: E402


def groups() -> torch.Tensor:
    g = torch.Generator().manual_seed(1)
    normal = torch.randn(6, GROUP, generator=g)
    # A mean of 1, so that 0.5 is half a scale; and the floats around that.
    ties = torch.tensor([0.5, 1.5, -0.5, -1.5]).repeat(GROUP // 4)
    half = torch.tensor(0.5)
    above, below = torch.nextafter(half, torch.tensor(1.0)), torch.nextafter(half, torch.tensor(0.0))
    around = ties.clone()
    around[0], around[4], around[2], around[6] = above, below, -above, -below
    # A mean of 1 + 1/256, between two numbers of bf16, and of 1 + 3/256.
    lower, upper = torch.full((GROUP,), 1 + 1 / 256), torch.full((GROUP,), 1 + 3 / 256)
    few = torch.zeros(GROUP)
    few[[3, 77]] = torch.tensor([0.25, -0.125])
    signs = torch.zeros(GROUP)
    signs[::3] = -0.0
    return torch.stack([
        *normal[:2], *normal[2:4] * 0.05, normal[4] * 2e4, normal[5] * 3e-5,
        ties, around, lower, -upper, few, signs,
        normal[0] * 1e-13, normal[1] * 1e-30, normal[2] * 1e-42, normal[3] * 1e30, torch.full((GROUP,), 6.5e4),
    ])


def text() -> str:
    lines = []
    for w in groups():
        bits = lambda x: " ".join(f"{b & 0xffffffff:08x}" for b in x.view(torch.int32).flatten().tolist())
        lines.append("weights " + bits(w))
        for mode in ("ternary", "1bit"):
            q, d = codes(w.view(1, GROUP), mode)
            lines.append(f"{mode} {bits(d)} " + "".join("-0+"[int(c) + 1] for c in q.flatten()))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if "--check" in sys.argv:
        assert PATH.read_text() == text()
    else:
        PATH.write_text(text())
