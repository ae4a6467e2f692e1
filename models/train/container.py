"""The GGUF v3 container and the three block formats used here, written and read.

The `gguf` package knows neither type 142 nor type 42, so the few lines needed are written out. Blocks:
PQ2_0 (142): 128 weights, f16 scale then 32 bytes of 2-bit codes (code - 1) * d;
Q2_0 (42): the same in groups of 64; Q1_0 (41): 128 weights, f16 scale then 16 bytes of sign bits.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

F32, Q1_0, Q2_0, PQ2_0 = 0, 41, 42, 142
GROUP = {Q1_0: 128, Q2_0: 64, PQ2_0: 128}
BLOCK_BYTES = {Q1_0: 18, Q2_0: 18, PQ2_0: 34}
ALIGN = 32


def pack(kind: int, code: np.ndarray, scale: np.ndarray) -> bytes:
    """`code`: [rows, columns] of -1, 0, 1; `scale`: [rows, columns / 128]. Groups of 64 repeat their scale."""
    rows, cols = code.shape
    group = GROUP[kind]
    d = np.repeat(scale, 128 // group, axis=1).astype("<f2")
    assert np.array_equal(d.astype(np.float32), np.repeat(scale, 128 // group, axis=1)), "scale is not exact in f16"
    if kind == Q1_0:
        assert np.all(code != 0)
        bits = (code > 0).reshape(rows, -1, 16, 8)
        body = (bits << np.arange(8)).sum(-1).astype(np.uint8)
    else:
        two = (code + 1).astype(np.uint8).reshape(rows, -1, group // 4, 4)
        body = (two << (2 * np.arange(4, dtype=np.uint8))).sum(-1).astype(np.uint8)
    out = np.concatenate((d[..., None].view(np.uint8).reshape(rows, cols // group, 2), body), axis=-1)
    return out.tobytes()


def unpack(kind: int, raw: bytes, shape: tuple[int, ...]) -> np.ndarray:
    """Any of the four types as f32, rows first."""
    if kind == F32:
        return np.frombuffer(raw, "<f4").reshape(shape)
    blocks = np.frombuffer(raw, np.uint8).reshape(-1, BLOCK_BYTES[kind])
    d = np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)
    body = blocks[:, 2:]
    if kind == Q1_0:
        w = ((body[:, :, None] >> np.arange(8)) & 1).reshape(len(blocks), -1) * np.float32(2) - 1
    else:
        w = ((body[:, :, None] >> (2 * np.arange(4))) & 3).reshape(len(blocks), -1).astype(np.float32) - 1
    return (w * d).astype(np.float32).reshape(shape)


# --------------------------------------------------------------------------- container

U32, F32_VALUE, BOOL, STRING, ARRAY, I32, U64 = 4, 6, 7, 8, 9, 5, 10


class Int32(list):
    """A list to be stored as int32, as tokenizer.ggml.token_type is."""


def _string(s: str) -> bytes:
    b = s.encode("utf-8")
    return struct.pack("<Q", len(b)) + b


def _value(v: Any) -> bytes:
    if isinstance(v, bool):
        return struct.pack("<IB", BOOL, v)
    if isinstance(v, int):
        return struct.pack("<II", U32, v)
    if isinstance(v, float):
        return struct.pack("<If", F32_VALUE, v)
    if isinstance(v, str):
        return struct.pack("<I", STRING) + _string(v)
    if isinstance(v, Int32):
        return struct.pack("<IIQ", ARRAY, I32, len(v)) + struct.pack(f"<{len(v)}i", *v)
    return struct.pack("<IIQ", ARRAY, STRING, len(v)) + b"".join(map(_string, v))


def write(path: str, meta: dict[str, Any], tensors: list[tuple[str, tuple[int, ...], int, bytes]]) -> None:
    """`tensors`: name, shape with rows first, type, bytes."""
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(meta))
    head += b"".join(_string(k) + _value(v) for k, v in meta.items())
    offset = 0
    for name, shape, kind, raw in tensors:
        head += _string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), kind, offset)
        offset += -(-len(raw) // ALIGN) * ALIGN
    with open(path, "wb") as f:
        f.write(head + b"\0" * (-len(head) % ALIGN))
        for *_, raw in tensors:
            f.write(raw + b"\0" * (-len(raw) % ALIGN))


def read(path: str) -> tuple[dict[str, Any], dict[str, tuple[int, np.ndarray]]]:
    """Metadata, and per tensor its type and its values as f32."""
    data = open(path, "rb").read()
    at = 0

    def take(fmt: str):
        nonlocal at
        v = struct.unpack_from("<" + fmt, data, at)
        at += struct.calcsize("<" + fmt)
        return v[0] if len(v) == 1 else v

    def string() -> str:
        nonlocal at
        n = take("Q")
        at += n
        return data[at - n:at].decode("utf-8")

    def value(kind: int) -> Any:
        if kind == STRING:
            return string()
        if kind == ARRAY:
            inner, n = take("IQ")
            return [value(inner) for _ in range(n)]
        return take({U32: "I", I32: "i", F32_VALUE: "f", BOOL: "?", U64: "Q"}[kind])

    magic, version, n_tensors, n_meta = take("4sIQQ")
    assert magic == b"GGUF" and version == 3
    meta = {}
    for _ in range(n_meta):
        key = string()
        meta[key] = value(take("I"))
    infos = []
    for _ in range(n_tensors):
        name = string()
        dims = [take("Q") for _ in range(take("I"))]
        infos.append((name, tuple(reversed(dims)), *take("IQ")))
    base = -(-at // ALIGN) * ALIGN
    tensors = {}
    for name, shape, kind, offset in infos:
        n = int(np.prod(shape))
        size = n * 4 if kind == F32 else n // GROUP[kind] * BLOCK_BYTES[kind]
        tensors[name] = (kind, unpack(kind, data[base + offset:base + offset + size], shape))
    return meta, tensors
