"""Packs a checkpoint into a GGUF file, losslessly: the fake-quantized weights are the packed ones.

    python export.py --checkpoint run/last.pt --tokenizer tokenizer.json --name Sprout --out sprout.gguf

Ternary models become PQ2_0 (type 142; --type q2_0 writes mainline's type 42 in groups of 64), 1-bit models Q1_0.
Metadata keys are those of the released Bonsai files, without YaRN: these models are used at the length they
were trained at.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch

import container as gg
import tokenizer as tk
from model import Config, codes

KINDS = {"q1_0": gg.Q1_0, "q2_0": gg.Q2_0, "pq2_0": gg.PQ2_0}
FILE_TYPE = {gg.Q1_0: 40, gg.Q2_0: 41, gg.PQ2_0: 141}


def metadata(c: Config, tok, name: str, kind: int) -> dict[str, Any]:
    tokens, types, merges = tk.gguf_fields(tok)
    return {
        "general.architecture": "qwen3",
        "general.type": "model",
        "general.name": name,
        "general.license": "Apache-2.0 OR MIT",
        "general.languages": ["en"],
        "qwen3.block_count": c.layers,
        "qwen3.context_length": c.context,
        "qwen3.embedding_length": c.hidden,
        "qwen3.feed_forward_length": c.ffn,
        "qwen3.attention.head_count": c.heads,
        "qwen3.attention.head_count_kv": c.kv_heads,
        "qwen3.rope.freq_base": c.rope_base,
        "qwen3.attention.layer_norm_rms_epsilon": c.eps,
        "qwen3.attention.key_length": c.head_dim,
        "qwen3.attention.value_length": c.head_dim,
        "general.quantization_version": 2,
        "general.file_type": FILE_TYPE[kind],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": gg.Int32(types),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": tok.token_to_id("<|im_end|>"),
        "tokenizer.ggml.padding_token_id": tok.token_to_id("<|endoftext|>"),
        "tokenizer.ggml.bos_token_id": tok.token_to_id("<|endoftext|>"),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": tk.CHAT_TEMPLATE,
    }


def gguf_name(key: str) -> str:
    return key + ".weight"


def tensors(state: dict[str, torch.Tensor], mode: str, kind: int) -> list[tuple[str, tuple[int, ...], int, bytes]]:
    order = ["token_embd", "output_norm"] + sorted((k for k in state if k.startswith("blk.")),
                                                   key=lambda k: (int(k.split(".")[1]), k))
    out = []
    for key in order:
        v = state[key]
        if v.ndim == 1:
            out.append((gguf_name(key), tuple(v.shape), gg.F32, v.float().numpy().astype("<f4").tobytes()))
        else:
            q, d = codes(v, mode)
            raw = gg.pack(kind, q.reshape(v.shape).numpy().astype(np.int8), d.squeeze(-1).numpy())
            out.append((gguf_name(key), tuple(v.shape), kind, raw))
    return out


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--checkpoint", required=True)
    p.add_argument("--tokenizer", required=True)
    p.add_argument("--name", required=True)
    p.add_argument("--type", choices=KINDS)
    p.add_argument("--out", required=True)
    a = p.parse_args()
    s = torch.load(a.checkpoint)
    assert s["mode"] != "f32", "only quantized runs are exported"
    kind = KINDS[a.type or ("q1_0" if s["mode"] == "1bit" else "pq2_0")]
    c = Config(**s["config"])
    gg.write(a.out, metadata(c, tk.load(a.tokenizer), a.name, kind), tensors(s["model"], s["mode"], kind))
    print(f"{a.out}: {s['mode']}, {s['tokens'] / 1e6:.2f} M tokens seen")


if __name__ == "__main__":
    main()
