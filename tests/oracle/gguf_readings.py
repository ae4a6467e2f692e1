#!/usr/bin/env python3
"""Writes what the `gguf` package (llama.cpp's own, `pip install gguf`) makes of GGUF files.

    python tests/oracle/gguf_readings.py FOLDER tests/fixtures

makes `gguf_readings.txt`, one line per key and tensor of every file under the first directory, and
`gguf_py.gguf`, a file with every kind of value written by that package's writer. tests/tests/gguf.rs compares
both with this project's reader and writer.
"""

import enum
import pathlib
import sys
import zlib

import gguf
import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter

# Types that the package does not know; the sizes are those of docs/FORMATS.md.
Type = enum.IntEnum(
    "Type", {t.name: t.value for t in gguf.GGMLQuantizationType} | {"Q2_0": 42, "PQ2_0": 142, "PTQ1_0": 143}
)
gguf.gguf_reader.GGMLQuantizationType = Type
gguf.GGML_QUANT_SIZES[Type.PQ2_0] = (128, 34)
gguf.GGML_QUANT_SIZES[Type.PTQ1_0] = (128, 28)


def crc(data: bytes) -> str:
    return f"{zlib.crc32(data):08x}"


def value(field) -> str:
    """The value as tests/tests/gguf.rs spells it."""
    kind = field.types[0]
    if kind == GGUFValueType.STRING:
        return f"string {crc(field.parts[-1].tobytes())}"
    if kind == GGUFValueType.ARRAY:
        inner = field.types[-1]
        # parts: key length, key, type, element type, length, then elements; strings have two parts each.
        if inner == GGUFValueType.STRING:
            raw = b"".join(field.parts[i - 1].tobytes() + field.parts[i].tobytes() for i in field.data)
        else:
            raw = b"".join(field.parts[i].tobytes() for i in field.data)
        return f"array {int(inner)} {len(field.data)} {crc(raw)}"
    return f"{int(kind)} {field.parts[-1].tobytes().hex()}"


def reading(path: pathlib.Path, name: str) -> list[str]:
    gguf.GGML_QUANT_SIZES[Type.Q2_0] = (128, 34) if "legacy" in path.name else (64, 18)
    reader = GGUFReader(path)
    lines = [f"file {name} {path.stat().st_size}"]
    lines += [f"kv {key} {value(f)}" for key, f in reader.fields.items() if not key.startswith("GGUF.")]
    for t in reader.tensors:
        dims = "x".join(str(int(d)) for d in t.shape)
        data = np.asarray(t.data).tobytes()
        assert len(data) == t.n_bytes
        lines.append(f"tensor {t.name} {int(t.tensor_type)} {dims} {t.data_offset} {t.n_bytes} {crc(data)}")
    return lines


def every_kind(path: pathlib.Path) -> None:
    w = GGUFWriter(path, "qwen3")
    w.add_uint8("kind.u8", 200)
    w.add_int8("kind.i8", -100)
    w.add_uint16("kind.u16", 60000)
    w.add_int16("kind.i16", -30000)
    w.add_uint32("kind.u32", 4_000_000_000)
    w.add_int32("kind.i32", -2_000_000_000)
    w.add_float32("kind.f32", 1.5e-6)
    w.add_bool("kind.true", True)
    w.add_bool("kind.false", False)
    w.add_string("kind.string", "こんにちは, 盆栽")
    w.add_uint64("kind.u64", 2**63 + 1)
    w.add_int64("kind.i64", -(2**62))
    w.add_float64("kind.f64", 1e300)
    w.add_array("array.strings", ["a", "", "Ġthe"])
    w.add_array("array.i32", [1, -2, 3])
    w.add_array("array.f32", [0.5, -1.25])
    w.add_array("array.bool", [True, False])
    r = np.arange(15, dtype=np.float32).reshape(3, 5)
    w.add_tensor("f32.weight", r)
    w.add_tensor("f16.weight", (r / 8).astype(np.float16))
    w.add_tensor("q8_0.weight", (np.arange(3 * 34) % 251).astype(np.uint8).reshape(3, 34), raw_dtype=Type.Q8_0)
    w.add_tensor("q1_0.weight", (np.arange(2 * 36) % 251).astype(np.uint8).reshape(2, 36), raw_dtype=Type.Q1_0)
    w.add_tensor("one.weight", np.array([7], dtype=np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main() -> None:
    data, fixtures = map(pathlib.Path, sys.argv[1:3])
    every_kind(fixtures / "gguf_py.gguf")
    lines = reading(fixtures / "gguf_py.gguf", "gguf_py.gguf")
    for path in sorted(data.rglob("*.gguf")):
        lines += reading(path, path.relative_to(data).as_posix())
    (fixtures / "gguf_readings.txt").write_text("\n".join(lines) + "\n")


main()
