"""Quantization-aware training on a CPU core (bf16 autocast, torch.compile).

    python train.py --size sprout --mode ternary --tokenizer tokenizer.json --train train.txt --copy copy.txt \
        --valid valid.txt --tokens 20e6 --out run/

Stages: rows of 64 tokens with 25% copying curriculum until --short tokens are seen, then 256, then 512 for the
last --long share. The learning rate warms up, stays, and falls linearly to 2% over the last --decay share.
The words of users count --user-weight in the loss: what a user asks cannot be predicted, and its noise
costs more than it teaches.

`last.pt` is written every --save-every steps; the same command with --resume goes on from it (also with another
--tokens). --init takes masters of another run, e.g. ternary masters to begin a 1-bit model with.
Logged: loss, validation loss (all tokens alike, rows of 256) and the share of answers that greedy decoding would get right
word by word, per topic, on questions from a seed of their own.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch

import corpus
import tokenizer as tk
from model import MODES, SIZES, Config, Model

PROBE = ("addition", "subtraction", "word sums", "opposites", "colors", "days", "months", "spelling", "size", "reading",
         "homes", "unknown", "unknown thing", "recall name", "recall dog", "system persona")


def encode(tok, path: str) -> np.ndarray:
    """The corpus as ids, cached beside the text for each tokenizer."""
    cache = f"{path}.{hashlib.sha256(tok.to_str().encode()).hexdigest()[:16]}.u16.npy"
    if os.path.exists(cache) and os.path.getmtime(cache) > os.path.getmtime(path):
        return np.load(cache, mmap_mode="r")
    out = []
    with open(path, encoding="utf-8") as f:
        docs = f.read().split(corpus.END + "\n")
    for i in range(0, len(docs), 2000):
        part = [d + corpus.END for d in docs[i:i + 2000] if d]
        out += [np.array(e.ids, dtype=np.uint16) for e in tok.encode_batch(part)]
    ids = np.concatenate(out)
    np.save(cache, ids)
    return ids


class Data:
    def __init__(self, ids: np.ndarray, tok, user_weight: float):
        end, start = tok.token_to_id("<|endoftext|>"), tok.token_to_id("<|im_start|>")
        self.ids = np.asarray(ids)
        ends = np.flatnonzero(self.ids == end)
        self.starts = np.concatenate(([0], ends[:-1] + 1))
        # The role of each position: that of the last <|im_start|>; <|endoftext|> begins plain text.
        user = tok.encode("user").ids[0]
        mark = np.full(len(self.ids), -1, dtype=np.int8)
        mark[self.ids == end] = 0
        at = np.flatnonzero(self.ids == start)
        mark[at] = self.ids[np.minimum(at + 1, len(self.ids) - 1)] == user
        last = np.maximum.accumulate(np.where(mark >= 0, np.arange(len(mark)), 0))
        self.weight = np.where(mark[last] == 1, user_weight, 1.0).astype(np.float32)
        self.weight[at] = user_weight

    def rows(self, rng: np.random.Generator, n: int, t: int) -> tuple[np.ndarray, np.ndarray]:
        hi = len(self.ids) - t - 1
        at = np.where(rng.random(n) < 0.85, rng.choice(self.starts, n), rng.integers(0, hi, n))
        idx = np.minimum(at, hi)[:, None] + np.arange(t + 1)
        return self.ids[idx].astype(np.int64), self.weight[idx[:, 1:]]


def lr_at(x: float, base: float, decay: float) -> float:
    return base if x < 1 - decay else base * max(0.02, 1 - 0.98 * (x - 1 + decay) / decay)


def build_probe(tok, per_topic: int, length: int = 160):
    rows, marks, topics = [], [], []
    for q in corpus.exam(99, per_topic):
        if q.topic not in PROBE:
            continue
        answer = q.answer
        for stop in (corpus.DONT,):  # what follows "I do not know that." is free
            answer = stop if answer.startswith(stop) else answer
        prompt = tok.encode(corpus.chatml(q.messages) + "<|im_start|>assistant\n").ids
        ids = prompt + tok.encode(answer).ids
        if len(ids) > length:
            continue
        mark = [False] * (len(prompt) - 1) + [True] * (len(ids) - len(prompt))
        rows.append(ids + [0] * (length + 1 - len(ids)))
        marks.append(mark + [False] * (length - len(mark)))
        topics.append(q.topic)
    return torch.tensor(rows), torch.tensor(marks), topics


@torch.no_grad()
def probe(model: Model, data) -> dict[str, float]:
    rows, marks, topics = data
    hits: dict[str, list[bool]] = {}
    for i in range(0, len(rows), 32):
        r, m = rows[i:i + 32], marks[i:i + 32]
        with torch.autocast("cpu", torch.bfloat16):
            ok = (model(r[:, :-1]).argmax(-1) == r[:, 1:]) | ~m
        for j, good in enumerate(ok.all(-1).tolist()):
            hits.setdefault(topics[i + j], []).append(good)
    return {k: round(sum(v) / len(v), 2) for k, v in hits.items()}


@torch.no_grad()
def validate(model: Model, ids: np.ndarray, t: int, rows: int) -> float:
    ids = np.asarray(ids[: rows * t + 1]).astype(np.int64)
    x, y = torch.tensor(ids[:-1]).view(-1, t), torch.tensor(ids[1:]).view(-1, t)
    total = 0.0
    for i in range(0, len(x), 16):
        with torch.autocast("cpu", torch.bfloat16):
            total += float(model.loss(x[i:i + 16], y[i:i + 16])) * len(x[i:i + 16])
    return total / len(x)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--size", choices=SIZES, default="sprout")
    p.add_argument("--mode", choices=MODES, default="ternary")
    p.add_argument("--tokenizer", required=True)
    p.add_argument("--train", required=True)
    p.add_argument("--copy", required=True)
    p.add_argument("--valid", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--tokens", type=float, default=20e6)
    p.add_argument("--short", type=float, default=2.5e6, help="tokens in rows of 64")
    p.add_argument("--long", type=float, default=0.25, help="share of the tokens in rows of 512")
    p.add_argument("--decay", type=float, default=0.5)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--warmup", type=int, default=80)
    p.add_argument("--user-weight", type=float, default=0.2)
    p.add_argument("--copy-share", type=float, default=0.25)
    p.add_argument("--drill", help="text with more of what needs practice")
    p.add_argument("--drill-share", type=float, default=0.4)
    p.add_argument("--drill-from", type=float, default=0.0, help="tokens seen before the drill begins")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--eval-every", type=int, default=500)
    p.add_argument("--save-every", type=int, default=250)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--init", help="checkpoint whose masters to start from")
    p.add_argument("--resume", action="store_true")
    p.add_argument("--no-compile", action="store_true")
    a = p.parse_args()

    torch.set_num_threads(a.threads)
    torch.manual_seed(a.seed)
    os.makedirs(a.out, exist_ok=True)
    last = os.path.join(a.out, "last.pt")
    tok = tk.load(a.tokenizer)
    plain, copy = (Data(encode(tok, f), tok, a.user_weight) for f in (a.train, a.copy))
    drill = Data(encode(tok, a.drill), tok, a.user_weight) if a.drill else None
    valid = encode(tok, a.valid)
    exam = build_probe(tok, 16)

    cfg: Config = SIZES[a.size]
    model = Model(cfg, a.mode)
    matrices = [v for v in model.parameters() if v.ndim == 2]
    norms = [v for v in model.parameters() if v.ndim == 1]
    opt = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}],
                            lr=a.lr, betas=(0.9, 0.95), fused=True)
    step, seen, spent = 0, 0, 0.0
    if a.resume and os.path.exists(last):
        s = torch.load(last)
        model.load_state_dict(s["model"])
        opt.load_state_dict(s["opt"])
        step, seen, spent = s["step"], s["tokens"], s["seconds"]
    elif a.init:
        model.load_state_dict(torch.load(a.init)["model"])
    loss_fn = model.loss if a.no_compile else torch.compile(model.loss, dynamic=False)

    def save() -> None:
        torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "config": cfg.dict(), "mode": a.mode,
                    "step": step, "tokens": seen, "seconds": spent}, last + ".tmp")
        os.replace(last + ".tmp", last)

    log = open(os.path.join(a.out, "log.jsonl"), "a")
    print(f"{sum(v.numel() for v in model.parameters()):,} parameters, {len(plain.ids):,} + {len(copy.ids):,} tokens of text", flush=True)
    t0, window, since = time.time(), [], seen
    while seen < a.tokens:
        x = seen / a.tokens
        t, n = (64, 16) if seen < a.short else (512, 4) if x > 1 - a.long else (256, 8)
        share = a.copy_share if seen < a.short else 0.06
        rng = np.random.default_rng((a.seed, step))
        k = int(rng.binomial(n, share))
        j = int(rng.binomial(n - k, a.drill_share)) if drill and seen >= a.drill_from else 0
        parts = [d.rows(rng, m, t) for d, m in ((plain, n - k - j), (copy, k), (drill, j)) if m]
        ids = torch.from_numpy(np.concatenate([q[0] for q in parts]))
        weight = torch.from_numpy(np.concatenate([q[1] for q in parts]))
        lr = lr_at(x, a.lr, a.decay) * min(1.0, (step + 1) / a.warmup)
        for g in opt.param_groups:
            g["lr"] = lr
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_fn(ids[:, :-1].contiguous(), ids[:, 1:].contiguous(), weight)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        step, seen = step + 1, seen + n * t
        window.append(float(loss.detach()))
        if step % 50 == 0:
            dt = time.time() - t0
            spent += dt
            print(f"step {step} tokens {seen / 1e6:.2f}M loss {np.mean(window):.4f} lr {lr:.2e} {(seen - since) / dt:.0f} tok/s {spent / 60:.1f} min", flush=True)
            t0, window, since = time.time(), [], seen
        if step % a.eval_every == 0 or seen >= a.tokens:
            v, shares = validate(model, valid, 256, 128), probe(model, exam)
            log.write(json.dumps({"step": step, "tokens": seen, "valid": v, "probe": shares, "minutes": spent / 60}) + "\n")
            log.flush()
            print(f"  valid {v:.4f} " + " ".join(f"{k}:{s}" for k, s in shares.items()), flush=True)
        if step % a.save_every == 0 or seen >= a.tokens:
            save()
    save()


if __name__ == "__main__":
    main()
