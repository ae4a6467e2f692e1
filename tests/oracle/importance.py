"""What llama.cpp's quantizers write with importance matrices, by the library in the Python package `xllamacpp`.

    python tests/oracle/importance.py core/tests/blocks tests/fixtures/importance.json

core/tests/blocks/importance.f32 is the importance of 512 columns, and NAME.imp.q what src.f32 becomes with it, as two rows. The
JSON file has a hash of the bytes that many pseudo-random weights become, for each format.
"""

import ctypes
import json
import sys
from pathlib import Path

import gguf
import numpy as np
import xllamacpp

blocks, digests = map(Path, sys.argv[1:])
FORMATS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"]
ROWS, COLS = 192, 768

ggml = ctypes.CDLL(str(next(Path(xllamacpp.__file__).parent.glob("*.so"))))
ggml.ggml_quantize_chunk.restype = ctypes.c_size_t


def pointer(array):
    return array.ctypes.data_as(ctypes.c_void_p)


def quantized(name, weights, importance):
    rows, cols = weights.shape
    kind = gguf.GGMLQuantizationType[name]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    packed = np.zeros(rows * cols // block * size, np.uint8)
    n = ctypes.c_int64
    ggml.ggml_quantize_chunk(int(kind), pointer(weights), pointer(packed), n(0), n(rows), n(cols), pointer(importance))
    return packed


def noise(size):
    """Numbers of a linear congruential generator, their highest bytes."""
    x, out = 1, bytearray()
    for _ in range(size):
        x = (x * 1664525 + 1013904223) & 0xFFFFFFFF
        out.append(x >> 24)
    return np.frombuffer(bytes(out), np.uint8).astype(np.float32)


def fnv(data):
    """The 64-bit FNV-1a hash of bytes."""
    h = 0xCBF29CE484222325
    for byte in data.tolist():
        h = ((h ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{h:016x}"


# Mean squares differ by orders of magnitude between channels, and some are 0.
x = np.arange(512, dtype=np.float64)
importance = (np.exp(3 * np.sin(x * 1.7)) * (x % 37 != 5)).astype(np.float32)
importance.tofile(blocks / "importance.f32")
src = np.fromfile(blocks / "src.f32", np.float32).reshape(2, 512)
bytes_ = noise(COLS + 2 * ROWS * COLS)
of_columns = bytes_[:COLS] ** 2 / 64
pairs = bytes_[COLS:].reshape(ROWS, COLS, 2) - 128
weights = np.ascontiguousarray(pairs[..., 0] * pairs[..., 1] / 4096)
hashes = {}
for name in FORMATS:
    quantized(name, src, importance).tofile(blocks / f"{name.lower().replace('_k', '_K')}.imp.q")
    hashes[name] = fnv(quantized(name, weights, of_columns))
digests.write_text(json.dumps({"rows": ROWS, "cols": COLS, "hashes": hashes}, indent=1) + "\n")
