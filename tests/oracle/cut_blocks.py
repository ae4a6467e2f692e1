"""Cuts core/tests/blocks/ out of a full set of reference blocks made by llama.cpp.

    python tests/oracle/cut_blocks.py DIR core/tests/blocks

DIR holds src.f32 (4 rows of 1024 floats) and, per format, NAME.q (the bytes llama.cpp's reference
quantizer writes for it) and NAME.deq.f32 (what it dequantizes to). Four runs of 256 weights are kept:
ordinary ones, those around the outlier of row 2, zeros, and exactly ternary ones. Where the Python
package `gguf` knows a format, its own (independent) code must agree.

NAME.q of Q4_0 and Q4_1 came out of llama.cpp's search for the best scale (its path for importance matrices),
not of its reference quantizer; the output of the latter is taken from `gguf`, as q4_0.ref.q and q4_1.ref.q.
"""

import sys
from pathlib import Path

import gguf
import numpy as np

source, target = Path(sys.argv[1]), Path(sys.argv[2])
target.mkdir(parents=True, exist_ok=True)
FORMATS = {  # name: (weights, bytes) of a block
    "f16": (1, 2), "bf16": (1, 2), "q8_0": (32, 34), "q4_0": (32, 18), "q4_1": (32, 20), "q1_0": (128, 18),
    "q2_0": (64, 18), "pq2_0": (128, 34), "oxibonsai_tq2_0_g128": (128, 34), "ptq1_0": (128, 28),
    "tq1_0": (256, 54), "tq2_0": (256, 66),
}
src = np.fromfile(source / "src.f32", np.float32).reshape(4, 1024)
outlier = int(np.abs(src[2]).argmax()) // 256 * 256
runs = [(0, 0), (2, outlier), (3, 0), (3, 256)]


def cut(rows, block, size):
    return np.concatenate([rows[r, at // block * size : (at + 256) // block * size] for r, at in runs])


cut(src, 1, 1).tofile(target / "src.f32")
for name, (block, size) in FORMATS.items():
    packed = cut(np.fromfile(source / f"{name}.q", np.uint8).reshape(4, -1), block, size)
    packed.tofile(target / f"{name}.q")
    deq = source / f"{'pq2_0' if name.startswith('oxi') else name}.deq.f32"
    values = cut(np.fromfile(deq, np.float32).reshape(4, 1024), 1, 1)
    values.tofile(target / f"{name}.deq.f32")
    kind = getattr(gguf.GGMLQuantizationType, name.upper(), None)
    try:
        other = gguf.quants.dequantize(packed.reshape(4, -1), kind).reshape(-1)
    except (NotImplementedError, AttributeError, KeyError):
        print(name, "cut")
        continue
    assert np.array_equal(other, values), name
    print(name, "cut, the same by gguf-py")

for name in ["q4_0", "q4_1"]:
    kind = gguf.GGMLQuantizationType[name.upper()]
    reference = gguf.quants.quantize(cut(src, 1, 1).reshape(4, 256), kind)
    reference.reshape(-1).tofile(target / f"{name}.ref.q")
