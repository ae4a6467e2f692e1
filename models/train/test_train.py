"""Quick checks of the scripts, without a trained model: `python test_train.py`."""

from __future__ import annotations

import os
import random
import re
import tempfile

import numpy as np
import torch

import container as gg
import corpus
import export
import tokenizer as tk
from model import Config, Model

SMALL = Config(hidden=128, layers=1, heads=2, kv_heads=2, ffn=128, vocab=512, context=32)


def test_corpus_is_a_function_of_its_seed() -> None:
    first, again, other = ("".join(d for d, _ in zip(corpus.documents(s), range(300))) for s in (1, 1, 2))
    assert first == again != other
    assert not re.search(r"[{}\[\]|](?!im_)", first.replace("<|im_start|>", "").replace("<|im_end|>", "")), "a template was left unfilled"
    stories = " ".join(d for d, _ in zip(corpus.documents(1, "story"), range(300)))
    assert not re.search(r"\b[Aa] [aeio]\w", stories), "a before a vowel"


def test_answers_hold_their_keys() -> None:
    assert all(corpus.right(q.answer, q.key) for q in corpus.exam(3, 20))


def test_sums_are_right() -> None:
    r = random.Random(4)
    for topic in ("addition", "subtraction"):
        for _ in range(500):
            t = corpus.pick(r, topic)
            w = t.answer.rstrip(".").lower().split()
            a, b, s = (corpus.NUMBERS.index(x) if x.isalpha() else int(x) for x in (w[0], w[2], w[4]))
            assert s == (a + b if w[1] == "plus" else a - b), t


def test_files_hold_the_trained_weights() -> None:
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as d:
        text, path = os.path.join(d, "t.txt"), os.path.join(d, "t.gguf")
        with open(text, "w", encoding="utf-8") as f:
            f.writelines(x + corpus.END + "\n" for x, _ in zip(corpus.documents(1), range(200)))
        tok = tk.train(text, 512, 10**6)
        for mode, kind in (("ternary", gg.PQ2_0), ("ternary", gg.Q2_0), ("1bit", gg.Q1_0)):
            m = Model(SMALL, mode)
            gg.write(path, export.metadata(SMALL, tok, "Test", kind), export.tensors(m.state_dict(), mode, kind))
            meta, tensors = gg.read(path)
            assert meta["qwen3.block_count"] == 1 and len(meta["tokenizer.ggml.tokens"]) == 512
            for key, want in m.freeze().state_dict().items():
                assert np.array_equal(tensors[key + ".weight"][1], want.numpy()), key


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print(name, "ok")
