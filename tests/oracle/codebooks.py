"""Writes the codebooks of IQ1, IQ2 and IQ3, and what gguf-py and llama.cpp make of such blocks.

    python tests/oracle/codebooks.py core/src/quant/codebook/points.bin core/tests/blocks tests/fixtures/codebooks.json

The codebooks are those of the Python package `gguf`. Each is a set of points in ascending order, so that a bit for each
point of the space is enough: bit p % 8 of byte p / 8, where digit i of p, the lowest first, is the level of weight i.

core/tests/blocks/NAME.q are the blocks that llama.cpp writes for src.f32 with all weights equally important, by the library
in the Python package `xllamacpp`; NAME.deq.f32 is what `gguf` makes of them. The JSON file has, for each format, a hash
of what `gguf` makes of many blocks of pseudo-random bytes, in which every point occurs.
"""

import ctypes
import json
import sys
from pathlib import Path

import gguf
import numpy as np
import xllamacpp
from gguf import quants

points_file, blocks, digests = map(Path, sys.argv[1:])
BOOKS = [  # (format, levels, weights of a point)
    ("IQ2_XXS", 3, 8), ("IQ2_XS", 3, 8), ("IQ2_S", 3, 8), ("IQ1_S", 3, 8), ("IQ3_XXS", 8, 4), ("IQ3_S", 8, 4),
]
FORMATS = ["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M"]
BLOCKS = 1024

bits = b""
for name, levels, weights in BOOKS:
    book = getattr(quants, name)
    book.init_grid()
    digit = {value: i for i, value in enumerate(book.grid_map)}
    digits = np.vectorize(lambda value: digit[value])(book.grid.reshape(book.grid_shape)).astype(np.int64)
    numbers = (digits * levels ** np.arange(weights)).sum(1)
    assert digits.shape[1] == weights and (np.diff(numbers) > 0).all(), name
    chosen = np.zeros(levels**weights, np.uint8)
    chosen[numbers] = 1
    bits += np.packbits(chosen, bitorder="little").tobytes()
points_file.write_bytes(bits)

ggml = ctypes.CDLL(str(next(Path(xllamacpp.__file__).parent.glob("*.so"))))
ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
weights = np.fromfile(blocks / "src.f32", np.float32)
equal = np.ones(256, np.float32)


def pointer(array):
    return array.ctypes.data_as(ctypes.c_void_p)


def noise(size):
    """Numbers of a linear congruential generator, their highest bytes."""
    x, out = 1, bytearray()
    for _ in range(size):
        x = (x * 1664525 + 1013904223) & 0xFFFFFFFF
        out.append(x >> 24)
    return np.frombuffer(bytes(out), np.uint8).copy()


def fnv(data):
    """The 64-bit FNV-1a hash of 32-bit words."""
    h = 0xCBF29CE484222325
    for word in data.view(np.uint32).tolist():
        h = ((h ^ word) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{h:016x}"


hashes = {}
for name in FORMATS:
    kind = gguf.GGMLQuantizationType[name]
    size = gguf.GGML_QUANT_SIZES[kind][1]
    packed = np.zeros(4 * size, np.uint8)
    n = ctypes.c_int64
    ggml.ggml_quantize_chunk(int(kind), pointer(weights), pointer(packed), n(0), n(4), n(256), pointer(equal))
    packed.tofile(blocks / f"{name.lower()}.q")
    quants.dequantize(packed.reshape(4, size), kind).tofile(blocks / f"{name.lower()}.deq.f32")
    many = noise(BLOCKS * size).reshape(BLOCKS, size)
    # No scale that is infinite or NaN: the highest bit of the exponent is cleared.
    top = 55 if name == "IQ1_M" else 1
    many[:, top] &= 0xBF
    hashes[name] = fnv(quants.dequantize(many, kind).astype(np.float32).reshape(-1))
digests.write_text(json.dumps({"blocks": BLOCKS, "hashes": hashes}, indent=1) + "\n")
