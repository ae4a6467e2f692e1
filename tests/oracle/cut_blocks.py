"""Cuts core/tests/blocks/ out of a full set of reference blocks made by llama.cpp.

    python tests/oracle/cut_blocks.py DIR core/tests/blocks

DIR holds src.f32 (4 rows of 1024 floats) and, per format, NAME.q (the bytes llama.cpp's reference
quantizer writes for it) and NAME.deq.f32 (what it dequantizes to). Four runs of 256 weights are kept:
ordinary ones, those around the outlier of row 2, zeros, and exactly ternary ones. Where the Python
package `gguf` knows a format, its own (independent) code must agree.

NAME.q of the formats in SEARCHED came out of llama.cpp's search for the best scale (its path for importance
matrices, here all ones), not of its reference quantizer; the output of the latter is added as NAME.ref.q, from
the library in the Python package `llama-cpp-python`, as is everything of Q8_K.
"""

import ctypes
import sys
from pathlib import Path

import gguf
import llama_cpp
import numpy as np

ggml = ctypes.CDLL(str(Path(llama_cpp.__file__).parent / "lib" / "libggml-base.so"))
ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
SEARCHED = ["q4_0", "q4_1", "q5_0", "q5_1", "q2_K", "q3_K", "q4_K", "q5_K", "q6_K", "iq4_nl", "iq4_xs"]

source, target = Path(sys.argv[1]), Path(sys.argv[2])
target.mkdir(parents=True, exist_ok=True)
FORMATS = {  # name: (weights, bytes) of a block
    "f16": (1, 2), "bf16": (1, 2), "q8_0": (32, 34), "q4_0": (32, 18), "q4_1": (32, 20), "q1_0": (128, 18),
    "q2_0": (64, 18), "pq2_0": (128, 34), "oxibonsai_tq2_0_g128": (128, 34), "ptq1_0": (128, 28),
    "tq1_0": (256, 54), "tq2_0": (256, 66), "q5_0": (32, 22), "q5_1": (32, 24), "q2_K": (256, 84),
    "q3_K": (256, 110), "q4_K": (256, 144), "q5_K": (256, 176), "q6_K": (256, 210), "iq4_nl": (32, 18),
    "iq4_xs": (256, 136), "mxfp4": (32, 17), "nvfp4": (64, 36),
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
    if not name.startswith("oxi"):
        values.tofile(target / f"{name}.deq.f32")
    kind = getattr(gguf.GGMLQuantizationType, name.upper(), None)
    try:
        other = gguf.quants.dequantize(packed.reshape(4, -1), kind).reshape(-1)
    except (NotImplementedError, AttributeError, KeyError):
        print(name, "cut")
        continue
    assert np.array_equal(other, values), name
    print(name, "cut, the same by gguf-py")

weights = cut(src, 1, 1)


def pointer(array):
    return array.ctypes.data_as(ctypes.c_void_p)


for name in SEARCHED:
    packed = np.zeros(4 * 256 // FORMATS[name][0] * FORMATS[name][1], np.uint8)
    kind = int(gguf.GGMLQuantizationType[name.upper()])
    n = ctypes.c_int64
    ggml.ggml_quantize_chunk(kind, pointer(weights), pointer(packed), n(0), n(4), n(256), None)
    packed.tofile(target / f"{name}.ref.q")
packed, values = np.zeros(4 * 292, np.uint8), np.zeros(1024, np.float32)
ggml.quantize_row_q8_K_ref(pointer(weights), pointer(packed), ctypes.c_int64(1024))
ggml.dequantize_row_q8_K(pointer(packed), pointer(values), ctypes.c_int64(1024))
packed.tofile(target / "q8_K.q")
values.tofile(target / "q8_K.deq.f32")
