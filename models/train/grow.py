"""Makes a larger model of a trained one: at first it computes nearly what the small one does.

    python grow.py --base ../sprout.gguf --tokenizer tokenizer --out grown.gguf

The stream is widened, and heads and neurons are added. Groups of 128 weights stay whole, so the packed weights of the small
model are found in the large one; what is new reads the stream with random weights and writes to it with small ones. Norms see a
wider stream with the same square sum, which their weights make up for. Tokens that are new begin as the mean of the tokens
that they consist of. `shohin train -m grown.gguf --weights ternary` goes on from there.
"""

from __future__ import annotations

import argparse
import json
import os

import numpy as np
from tokenizers import Tokenizer

import container as gg
import tokenizer as tk

# How much smaller new weights are that write to the stream than those of a new model.
SMALL = 0.15


def grow(old: np.ndarray, rows: int, columns: int, fan: float, new_rows: float, new_columns: float, r: np.random.Generator) -> np.ndarray:
    """`old` in the first rows and columns; deviations of the rest are `fan` times those of its rows and columns."""
    out = r.standard_normal((rows, columns)).astype(np.float32) * np.float32(fan)
    out[len(old):] *= np.float32(new_rows)
    out[:len(old), old.shape[1]:] *= np.float32(new_columns)
    out[:len(old), :old.shape[1]] = old
    return out


def embedding(old: np.ndarray, base: dict, tok: Tokenizer, hidden: int, r: np.random.Generator) -> np.ndarray:
    small = tk.of_gguf(base)
    ids = {t: i for i, t in enumerate(base["tokenizer.ggml.tokens"])}
    rows = np.zeros((tok.get_vocab_size(), old.shape[1]), dtype=np.float32)
    for i in range(len(rows)):
        token = tok.id_to_token(i)
        parts = [ids[token]] if token in ids else (small.encode(token).ids if token in tk.SPECIAL else [t.id for t in small.model.tokenize(token)])
        rows[i] = old[parts].mean(0)
    wide = r.standard_normal((len(rows), hidden)).astype(np.float32) * np.float32(SMALL * np.abs(old).mean())
    wide[:, :old.shape[1]] = rows
    return wide


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--base", required=True)
    p.add_argument("--tokenizer", required=True, help="a folder of tokenizer.py with the same --base")
    p.add_argument("--out", required=True)
    p.add_argument("--name", default="Sprout Large")
    p.add_argument("--hidden", type=int, default=384)
    p.add_argument("--ffn", type=int, default=1152)
    p.add_argument("--heads", type=int, default=6)
    p.add_argument("--kv-heads", type=int, default=3)
    p.add_argument("--context", type=int, default=1024)
    a = p.parse_args()
    r = np.random.default_rng(1)
    base, tensors = gg.read(a.base)
    tok = Tokenizer.from_file(os.path.join(a.tokenizer, "tokenizer.json"))
    dim, layers, was = base["qwen3.attention.key_length"], base["qwen3.block_count"], base["qwen3.embedding_length"]
    assert a.heads * base["qwen3.attention.head_count_kv"] == a.kv_heads * base["qwen3.attention.head_count"], "as many heads to a key/value head"
    q, kv, fan = a.heads * dim, a.kv_heads * dim, a.hidden ** -0.5
    down = 1 / np.sqrt(2 * layers)
    shapes = {"attn_q": (q, a.hidden, fan, 1, 1), "attn_k": (kv, a.hidden, fan, 1, 1), "attn_v": (kv, a.hidden, fan, 1, 1), "ffn_gate": (a.ffn, a.hidden, fan, 1, 1),
              "ffn_up": (a.ffn, a.hidden, fan, 1, 1), "attn_output": (a.hidden, q, q ** -0.5 * down, SMALL, SMALL), "ffn_down": (a.hidden, a.ffn, a.ffn ** -0.5 * down, SMALL, SMALL)}
    out = []
    for name, (_, old) in tensors.items():
        kind = name.removesuffix(".weight").rsplit(".", 1)[-1]
        if name == "token_embd.weight":
            new = embedding(old, base, tok, a.hidden, r)
        elif kind in shapes:
            new = grow(old, *shapes[kind], r)
        elif len(old) == was:
            scale = np.float32(np.sqrt(was / a.hidden))
            new = np.concatenate((old, np.full(a.hidden - was, old.mean(), dtype=np.float32))) * scale
        else:
            new = old                                   # norms of queries and keys
        out.append((name, new.shape, gg.F32, new.astype("<f4").tobytes()))
    with open(os.path.join(a.tokenizer, "chat_template.jinja"), encoding="utf-8") as f:
        template = f.read()
    state = json.loads(tok.to_str())
    tokens = [tok.id_to_token(i) for i in range(tok.get_vocab_size())]
    meta = base | {
        "general.name": a.name, "general.file_type": 0, "qwen3.context_length": a.context, "qwen3.embedding_length": a.hidden, "qwen3.feed_forward_length": a.ffn,
        "qwen3.attention.head_count": a.heads, "qwen3.attention.head_count_kv": a.kv_heads,
        "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": gg.Int32([3 if t in tk.CONTROL else 4 if t in tk.CALLS else 1 for t in tokens]),
        "tokenizer.ggml.merges": [m if isinstance(m, str) else " ".join(m) for m in state["model"]["merges"]],
        "tokenizer.ggml.eos_token_id": tok.token_to_id("<|im_end|>"), "tokenizer.ggml.padding_token_id": tok.token_to_id("<|endoftext|>"),
        "tokenizer.ggml.bos_token_id": tok.token_to_id("<|endoftext|>"), "tokenizer.chat_template": template}
    gg.write(a.out, meta, out)
    print(f"{a.out}: {sum(int(np.prod(shape)) for _, shape, *_ in out):,} parameters, {len(tokens)} tokens")


if __name__ == "__main__":
    main()
