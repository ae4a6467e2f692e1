"""Writes train/tests/fixtures/oxck-v1.bin, a checkpoint as another program writes it: by the layout that the crate
oxibonsai-model publishes, without keys of Shohin.

    python tests/oracle/oxck.py

The metadata have spaces, an escaped quote and backslash, and a line break as it is, which that crate does not escape.
"""

import struct
from pathlib import Path

PATH = Path(__file__).resolve().parents[2] / "train/tests/fixtures/oxck-v1.bin"
METADATA = '{ "step":"7", "note":"a \\"b\\" \\\\ c\nd", "größe":"∞" }'
TENSORS = [
    ("layer.0.weight", (2, 3), (1.0, -2.5, 0.0, -0.0, 1e-45, 3.4028234663852886e38)),
    ("bias", (4,), (float("inf"), float("-inf"), 0.1, -1.0)),
    ("empty", (0, 5), ()),
    ("α", (), (0.5,)),
    ("nothing", (), ()),
]


def main() -> None:
    text = METADATA.encode()
    out = b"OXCK" + struct.pack("<IQQI", 1, 0, len(TENSORS), len(text)) + text
    for name, shape, data in TENSORS:
        out += struct.pack("<I", len(name.encode())) + name.encode()
        out += struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        out += struct.pack(f"<Q{len(data)}f", len(data), *data)
    PATH.write_bytes(out)


if __name__ == "__main__":
    main()
