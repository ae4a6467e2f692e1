"""All 256 values of torch's 8-bit floats, as the oracle of the reader of safetensors.

Writes tests/fixtures/hf/float8_*.f32.

    pip install torch
    python tests/oracle/float8.py
"""

from pathlib import Path

import torch

OUT = Path(__file__).parent.parent / "fixtures" / "hf"
for name in ("float8_e4m3fn", "float8_e5m2"):
    values = torch.arange(256, dtype=torch.uint8).view(getattr(torch, name)).float()
    (OUT / f"{name}.f32").write_bytes(values.numpy().astype("<f4").tobytes())
