"""Writes sampling.txt: distributions by transformers' logits processors (in f64), penalties and
DRY by their formulas, draws by PCG32. The Rust test core/tests/sampling.rs compares with it.

    pip install torch transformers numpy && python tests/oracle/sampling.py
"""

import os
import numpy as np
import torch
from transformers.generation.logits_process import (
    MinPLogitsWarper, RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper,
    TopPLogitsWarper, TypicalLogitsWarper)

rng = np.random.default_rng(20)
DEFAULT = dict(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, typical_p=1.0, repetition_penalty=1.0,
               presence_penalty=0.0, frequency_penalty=0.0, penalty_last_n=64, dry_multiplier=0.0,
               dry_base=1.75, dry_allowed_length=2, dry_last_n=1024)


def dry(history, c, breakers):
    """The longest copy of the text's end before each token: by definition, over all pairs."""
    text = history[-c["dry_last_n"]:] if c["dry_last_n"] else []
    best = {}
    for end in range(1, len(text)):  # text[end] followed text[..end]
        if text[end] in breakers:
            continue
        for n in range(1, min(50, end) + 1):
            copy, suffix = text[end - n:end], text[len(text) - n:]
            if copy == suffix and not set(copy) & breakers:
                best[text[end]] = max(best.get(text[end], 0), n)
    return {t: c["dry_multiplier"] * c["dry_base"] ** (n - c["dry_allowed_length"])
            for t, n in best.items() if n >= c["dry_allowed_length"]}


def distribution(logits, history, c, breakers):
    scores = torch.tensor(logits, dtype=torch.float64)[None]
    window = history[-c["penalty_last_n"]:] if c["penalty_last_n"] else []
    if window:
        scores = RepetitionPenaltyLogitsProcessor(c["repetition_penalty"])(torch.tensor([window]), scores)
        for t in set(window):
            scores[0, t] -= window.count(t) * c["frequency_penalty"] + c["presence_penalty"]
    if c["dry_multiplier"]:
        for t, penalty in dry(history, c, breakers).items():
            scores[0, t] -= penalty
    ids = torch.tensor([[0]])
    if c["temperature"] == 0:
        out = torch.zeros(len(logits), dtype=torch.float64)
        out[scores[0].argmax()] = 1
        return out.numpy()
    scores = TemperatureLogitsWarper(c["temperature"])(ids, scores)
    if c["top_k"]:
        scores = TopKLogitsWarper(c["top_k"])(ids, scores)
    if c["top_p"] < 1:
        scores = TopPLogitsWarper(c["top_p"])(ids, scores)
    if c["min_p"] > 0:
        scores = MinPLogitsWarper(c["min_p"])(ids, scores)
    if c["typical_p"] < 1:
        scores = TypicalLogitsWarper(c["typical_p"])(ids, scores)
    return scores.softmax(-1)[0].numpy()


class Pcg32:
    def __init__(self, seed, stream=54):
        self.inc = stream << 1 | 1
        self.state = ((self.inc + seed) * 6364136223846793005 + self.inc) % 2**64

    def u32(self):
        old = self.state
        self.state = (old * 6364136223846793005 + self.inc) % 2**64
        x, r = (old >> 18 ^ old) >> 27 & 0xffffffff, old >> 59
        return (x >> r | x << (-r & 31)) & 0xffffffff

    def uniform(self):
        high = self.u32()
        return ((high << 32 | self.u32()) >> 11) / 2**53


def draws(p, n, seed):
    """Walks the candidates by falling probability."""
    g = Pcg32(seed)
    order = np.argsort(-p, kind="stable")
    cumulative = np.cumsum(p[order])
    out = []
    while len(out) < n:
        u = g.uniform()
        i = int(np.searchsorted(cumulative, u, side="right"))
        assert min(abs(cumulative - u)) > 1e-6, "too close to call in f32: take another seed"
        out.append(int(order[i]))
    return out


cases = []


def case(name, vocab=64, spread=3.0, history=(), breakers=(), n=0, seed=0, logits=None, **options):
    c = DEFAULT | options
    if logits is None:
        logits = (rng.standard_normal(vocab) * spread).astype(np.float32)
    history, breakers = list(map(int, history)), set(breakers)
    p = distribution(logits.astype(np.float64), history, c, breakers)
    lines = [f"case {name}", "config " + " ".join(f"{k}={v}" for k, v in c.items()),
             "history " + " ".join(map(str, history)), "breakers " + " ".join(map(str, sorted(breakers))),
             "logits " + " ".join(str(l) for l in logits),
             "probs " + " ".join(f"{i}:{p[i]:.12g}" for i in np.flatnonzero(p))]
    lines.append(f"draws {seed} " + " ".join(map(str, draws(p, n, seed))) if n else "draws 0")
    cases.append("\n".join(lines))


case("greedy", temperature=0.0)
case("plain softmax")
case("temperature low", temperature=0.25)
case("temperature high", temperature=3.0)
for k in (1, 2, 7, 20, 63, 64, 200):
    case(f"top-k {k}", top_k=k)
case("top-k of many", vocab=1500, top_k=40)
for p in (0.05, 0.5, 0.85, 0.99):
    case(f"top-p {p}", top_p=p)
case("top-p over many flat tokens", vocab=1500, spread=0.3, top_p=0.7)
case("top-p over many", vocab=1500, spread=2.5, top_p=0.93)
for p in (0.01, 0.1, 0.6):
    case(f"min-p {p}", min_p=p)
for p in (0.1, 0.5, 0.9):
    case(f"typical {p}", typical_p=p)
case("typical over many", vocab=1500, spread=1.5, typical_p=0.4)
case("bonsai", vocab=500, temperature=0.5, top_k=20, top_p=0.85, n=64, seed=7, spread=1.5)
case("balanced", vocab=500, temperature=0.7, top_k=40, top_p=0.9, repetition_penalty=1.1, n=64, seed=11,
     spread=1.5, history=rng.integers(0, 500, 100))
case("creative", vocab=500, temperature=1.0, top_k=100, top_p=0.95, n=64, seed=3, spread=1.5)
case("code", vocab=500, temperature=0.2, top_k=10, top_p=0.8, n=64, seed=99, spread=0.5)
case("everything", vocab=500, temperature=0.8, top_k=120, top_p=0.97, min_p=0.01, typical_p=0.9,
     repetition_penalty=1.15, presence_penalty=0.3, frequency_penalty=0.2, dry_multiplier=0.8,
     history=rng.integers(0, 12, 90), spread=2.0)
h = rng.integers(0, 20, 100)
case("repetition", repetition_penalty=1.3, history=h)
case("repetition rewards", repetition_penalty=0.7, history=h)
case("presence", presence_penalty=0.9, history=h)
case("frequency", frequency_penalty=0.4, history=h)
case("negative frequency", frequency_penalty=-0.2, history=h)
case("short window", repetition_penalty=1.5, frequency_penalty=0.5, penalty_last_n=5, history=h)
case("window of none", repetition_penalty=1.5, penalty_last_n=0, history=h)
case("greedy with penalties", temperature=0.0, repetition_penalty=4.0, presence_penalty=2.0, history=h)
phrase = [5, 6, 7, 8, 9, 10]
case("dry after one copy", dry_multiplier=0.8, history=phrase + [1, 2] + phrase[:4])
case("dry takes the longest copy", dry_multiplier=0.8, history=[7, 8, 9] + phrase + [1, 3, 9, 2] + phrase[:4])
case("dry stops at breakers", dry_multiplier=0.8, breakers=[6], history=phrase + [1, 2] + phrase[:4])
case("dry never touches breakers", dry_multiplier=0.8, breakers=[9], history=phrase + [1, 2] + phrase[:4])
case("dry after a breaker", dry_multiplier=0.8, breakers=[8], history=phrase + [1, 2] + phrase[:4])
case("dry allowed length", dry_multiplier=0.8, dry_allowed_length=5, history=phrase + [1, 2] + phrase[:4])
case("dry base", dry_multiplier=2.0, dry_base=1.1, dry_allowed_length=1, history=rng.integers(0, 4, 200))
case("dry window", dry_multiplier=2.0, dry_last_n=9, history=phrase + [1, 2, 3] + phrase[:4] + [1] + phrase[:4])
case("dry in a loop", dry_multiplier=0.01, history=[3, 4] * 80)
case("dry and penalties", dry_multiplier=0.5, frequency_penalty=0.1, repetition_penalty=1.2,
     history=phrase + [1, 2] + phrase[:4])

with open(os.path.join(os.path.dirname(__file__), "sampling.txt"), "w") as f:
    f.write("\n".join(cases) + "\n")
print(len(cases), "cases")
