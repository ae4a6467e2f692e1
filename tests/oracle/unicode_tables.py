#!/usr/bin/env python3
"""Writes core/src/tokenizer/{unicode,nfc}_tables.rs: \\p{L}, \\p{N}, \\p{M}, and what NFC needs.

    pip install unicodedata2==16.0.0 tokenizers && python tests/oracle/unicode_tables.py

Unicode 16.0, because that is what the regex engine inside Hugging Face `tokenizers` knows: every code
point's class is compared with that engine. The checksums printed at the end stand in a test in nfc.rs.
"""
import pathlib
import subprocess
import sys

import unicodedata2 as ucd

assert ucd.unidata_version == "16.0.0", ucd.unidata_version
OUT = pathlib.Path(__file__).resolve().parents[2] / "core/src/tokenizer"
MAX = 0x110000
CLASS = {"L": 1, "N": 2, "M": 3}


def is_scalar(c):
    return not 0xD800 <= c < 0xE000


def category(c):
    return CLASS.get(ucd.category(chr(c))[0], 0)


def check_with_huggingface():
    try:
        from tokenizers import Regex, pre_tokenizers
    except ImportError:
        print("skipped: tokenizers is not installed", file=sys.stderr)
        return
    for letter, number in CLASS.items():
        split = pre_tokenizers.Split(Regex(r"\p{%s}" % letter), "isolated")
        found = set()
        for base in range(0, MAX, 0x1000):
            text = "".join("\0" + chr(c) for c in range(base, base + 0x1000) if is_scalar(c))
            found |= {ord(p) for p, (a, _) in split.pre_tokenize_str(text) if len(p) == 1 and a % 2}
        assert found == {c for c in range(MAX) if is_scalar(c) and category(c) == number}, letter


def array(name, kind, values, doc, hexadecimal=False):
    values = list(values)
    show = (lambda v: hex(v)) if hexadecimal else str
    lines, line = [], "   "
    for v in values:
        item = f" {show(v)},"
        if len(line) + len(item) > 108:
            lines.append(line)
            line = "   "
        line += item
    lines.append(line)
    return f"/// {doc}\npub(super) static {name}: [{kind}; {len(values)}] = [\n" + "\n".join(lines) + "\n];\n"


# Classes: runs of code points of one class, in unique blocks of 256 that are found through one index byte a block.
BLOCK = 256


def runs(classes):
    """A byte for each run of up to 64: its length less 1, and its class in the two low bits."""
    out = []
    for of in classes:
        if out and out[-1] & 3 == of and out[-1] >> 2 < 63:
            out[-1] += 4
        else:
            out.append(of)
    return bytes(out)


def class_tables():
    last = max(c for c in range(0xE0000) if category(c)) // BLOCK
    blocks, index = [], []
    for b in range(last + 1):
        block = runs(category(b * BLOCK + j) for j in range(BLOCK))
        if block not in blocks:
            blocks.append(block)
        index.append(blocks.index(block))
    assert len(blocks) <= 256
    starts = [sum(map(len, blocks[:i])) for i in range(len(blocks))]
    beyond = [c for c in range((last + 1) * BLOCK, MAX) if category(c)]
    assert beyond == list(range(0xE0100, 0xE01F0)) and category(0xE0100) == 3, "class() states this range"
    return (
        array("CLASS_INDEX", "u8", index, f"Which of `CLASS_BLOCKS` code points `{BLOCK} * i ..` are.")
        + array("CLASS_BLOCKS", "u16", starts, f"Where the runs of each block of {BLOCK} code points begin in `CLASS_RUNS`.")
        + array("CLASS_RUNS", "u8", b"".join(blocks), "The length of each run less 1, times 4, plus its class.")
    )


def nfc_tables():
    raw = {}
    for c in range(MAX):
        d = ucd.decomposition(chr(c))
        if d and not d.startswith("<"):
            raw[c] = [int(x, 16) for x in d.split()]
    assert all(len(d) in (1, 2) for d in raw.values())
    pairs = sorted(
        (*d, c) for c, d in raw.items() if len(d) == 2 and ucd.normalize("NFC", "".join(map(chr, d))) == chr(c)
    )
    out = ""
    for name, rows, doc in [
        ("DECOMPOSE", [(c, *d, 0)[:3] for c, d in sorted(raw.items())], "Three by three: code point, what it decomposes into (second 0: into one); rising."),
        ("COMPOSE", pairs, "Three by three: two code points and what they compose into; rising."),
    ]:
        for part, kind, keep in [("", "u16", lambda r: max(r) < 0x10000), ("_WIDE", "u32", lambda r: max(r) >= 0x10000)]:
            kept = [r for r in rows if keep(r)]
            values = [v for r in kept for v in r]
            out += array(name + part, kind, values, doc, hexadecimal=True)
    runs, last = [], 0
    for c in range(MAX):
        if ucd.combining(chr(c)) != last:
            last = ucd.combining(chr(c))
            runs.append(c << 8 | last)
    return out + array("COMBINING", "u32", runs, "Where runs of one combining class start: code point << 8 | class.", True)


def fnv(text, h):
    for b in text.encode():
        h = (h ^ b) * 0x100000001B3 & (1 << 64) - 1
    return h


def nfc_checksums():
    """What the test in nfc.rs must find over every code point, alone and among marks."""
    sums = []
    for before, after in [("", ""), ("a", "\u0301"), ("", "\u0345\u0323\u0301"), ("\u1100", "\u11a8")]:
        h = 0xCBF29CE484222325
        for c in range(MAX):
            if is_scalar(c):
                h = fnv(ucd.normalize("NFC", before + chr(c) + after), h)
        sums.append(hex(h))
    return sums


def write(name, tables):
    path = OUT / name
    path.write_text(
        f"//! Generated by tests/oracle/unicode_tables.py from Unicode {ucd.unidata_version}; do not edit.\n"
        "#![forbid(unsafe_code)]\n\n" + tables
    )
    subprocess.run(["rustfmt", "--edition", "2024", "--config", "max_width=110", str(path)], check=True)


def main():
    check_with_huggingface()
    write("unicode_tables.rs", class_tables())
    write("nfc_tables.rs", nfc_tables())
    print("NFC checksums:", *nfc_checksums())


if __name__ == "__main__":
    main()
