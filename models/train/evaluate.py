"""Evaluates an exported GGUF file: its packed weights are unpacked and run in f32.

    python evaluate.py --model sprout.gguf --valid valid.txt
    python evaluate.py --expected sprout.expected.json --valid valid.txt sprout.gguf sprout-q1.gguf sprout-nano.gguf

The first form prints the held-out loss (all tokens alike), the share of right greedy answers per topic, all small sums,
name recall, whether the hero asked for is kept in a story, and samples. Exam questions come from seeds that training does
not use; on closed topics (sums, colors, ...) the same facts were trained on, often in the same words, so
those shares say how much of its world a model has learned, not how far it reaches beyond. The second form writes what
another runtime must reproduce.
"""

from __future__ import annotations

import argparse
import json
import random

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

import container as gg
import corpus
import tokenizer as tk
from model import Config, Model

SAMPLES = [
    "Hello!", "What is your name?", "What can you do?", "What is 3 plus 4?", "9+8", "What is 12 minus 5?", "What is the opposite of hot?",
    "What does a cow say?", "Where does a bee live?", "What color is a banana?", "Name three fruits.", "What day comes after Monday?",
    "Mia has 3 apples. Mia gets 2 more. How many apples does Mia have?", "Can a penguin fly?", "I am sad.", "Tell me a joke.",
    "What is the capital of France?", "What is 347 plus 981?", "Who was Napoleon?", "What is Shohin?",
    "Tell me a story about a fox and a lantern.", "Tell me a story about a girl named Mia.", "Tell me a story about a robot, a key and a boat.",
]
DIALOG = ["Hi! My name is Zoe.", "What is 2 plus 5?", "And 6 plus 3?", "What does a dog say?", "And a cat?", "What is my name?", "Thank you!"]
PROMPTS = [
    [("user", "Hello!")],
    [("user", "What is 3 plus 4?")],
    [("user", "My name is Zoe."), ("assistant", "Nice to meet you, Zoe!"), ("user", "What is my name?")],
    [("user", "What is the capital of France?")],
    [("user", "Tell me a story about a fox and a lantern.")],
]


def load(path: str) -> tuple[Model, Tokenizer, dict]:
    meta, tensors = gg.read(path)
    q = lambda k: meta["qwen3." + k]  # noqa: E731
    embd = tensors["token_embd.weight"][1]
    c = Config(hidden=q("embedding_length"), layers=q("block_count"), heads=q("attention.head_count"),
               kv_heads=q("attention.head_count_kv"), head_dim=q("attention.key_length"), ffn=q("feed_forward_length"),
               vocab=len(embd), context=q("context_length"), rope_base=q("rope.freq_base"),
               eps=q("attention.layer_norm_rms_epsilon"))
    m = Model(c, "f32")
    m.load_state_dict({k.removesuffix(".weight"): torch.tensor(w) for k, (_, w) in tensors.items()})
    tok = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(meta["tokenizer.ggml.tokens"])},
                               merges=[tuple(x.split(" ")) for x in meta["tokenizer.ggml.merges"]]))
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(tk.QWEN2), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens(tk.SPECIAL)
    return m.eval(), tok, meta


class Chat:
    def __init__(self, path: str):
        self.model, self.tok, self.meta = load(path)
        self.stop = {self.meta["tokenizer.ggml.eos_token_id"], self.meta["tokenizer.ggml.bos_token_id"]}

    def prompt(self, messages: list[tuple[str, str]]) -> list[int]:
        return self.tok.encode(corpus.chatml(messages) + "<|im_start|>assistant\n").ids

    def answer(self, messages, n: int = 220, **kw) -> str:
        out = self.model.generate(self.prompt(messages), n, self.stop, **kw)
        return self.tok.decode(out)


@torch.no_grad()
def loss(model: Model, ids: np.ndarray, t: int) -> float:
    rows = (len(ids) - 1) // t
    x = torch.tensor(ids[: rows * t].astype(np.int64)).view(rows, t)
    y = torch.tensor(ids[1:rows * t + 1].astype(np.int64)).view(rows, t)
    return float(np.mean([float(model.loss(x[i:i + 8], y[i:i + 8])) * len(x[i:i + 8]) for i in range(0, rows, 8)])
                 * len(range(0, rows, 8)) / rows)


def hero_kept(chat: Chat, n: int, seed: int) -> tuple[int, int]:
    """Stories about a named hero in which the name comes at least three times."""
    r, good = random.Random(seed), 0
    for _ in range(n):
        girl = r.random() < 0.5
        name = corpus.person(r, girl, 0.5)
        text = chat.answer([("user", f"Tell me a story about a {'girl' if girl else 'boy'} named {name}.")], 160)
        good += text.count(name) >= 3
    return good, n


def sums(chat: Chat) -> str:
    """Every sum and difference of the model's world, asked in one form each."""
    w = corpus.NUMBERS
    groups = {
        "sums": [(f"What is {a} plus {b}?", str(a + b)) for a in range(21) for b in range(21 - a)],
        "differences": [(f"What is {a} minus {b}?", str(a - b)) for a in range(21) for b in range(a + 1)],
        "sums in words": [(f"What is {w[a]} plus {w[b]}?", w[a + b]) for a in range(11) for b in range(11)],
    }
    return "; ".join(f"{k} {sum(chat.answer([('user', q)], 12).endswith(f' is {v}.') for q, v in g)}/{len(g)}"
                     for k, g in groups.items())


def report(path: str, valid: str, per_topic: int, tokens: int, seed: int) -> None:
    chat = Chat(path)
    text = open(valid, encoding="utf-8").read(tokens * 6)
    ids = np.array(chat.tok.encode(text.replace(corpus.END + "\n", corpus.END)).ids[:tokens])
    print(f"# {path}\nheld-out loss, rows of 256: {loss(chat.model, ids, 256):.4f}; of 512: {loss(chat.model, ids, 512):.4f} "
          f"nats a token over {len(ids):,} tokens")
    shares: dict[str, list[bool]] = {}
    wrong = []
    for q in corpus.exam(seed, per_topic):
        a = chat.answer(q.messages, 90)
        ok = corpus.right(a, q.key)
        shares.setdefault(q.topic, []).append(ok)
        if not ok:
            wrong.append((q.topic, q.messages[-1][1], a))
    total = [x for v in shares.values() for x in v]
    print(f"\n## right, greedy: {sum(total)} of {len(total)}")
    for k, v in shares.items():
        print(f"{k}: {sum(v)}/{len(v)}")
    recall = [x for k, v in shares.items() if k.startswith("recall") for x in v]
    print(f"\nrecalled: {sum(recall)}/{len(recall)}; hero kept in %d of %d stories" % hero_kept(chat, 2 * per_topic, seed))
    print(f"all of the table: {sums(chat)}")
    print("\n## wrong answers")
    for t, q, a in wrong[:60]:
        print(f"[{t}] {q!r} -> {a!r}")
    for temperature in (0.0, 0.7):
        rng = torch.Generator().manual_seed(1)
        print(f"\n## samples, T = {temperature}\n")
        for q in SAMPLES:
            print(f"U: {q}\nA: {chat.answer([('user', q)], temperature=temperature, top_p=0.95, rng=rng)}")
        print()
        messages: list[tuple[str, str]] = []
        for q in DIALOG:
            messages.append(("user", q))
            messages.append(("assistant", chat.answer(messages, temperature=temperature, top_p=0.95, rng=rng)))
            print(f"U: {q}\nA: {messages[-1][1]}")


@torch.no_grad()
def expected(path: str, valid: str) -> dict:
    chat = Chat(path)
    docs = open(valid, encoding="utf-8").read(200_000).split(corpus.END + "\n")[3:]
    text = ""
    while len(chat.tok.encode(text + docs[0] + corpus.END).ids) <= 480:
        text += docs.pop(0) + corpus.END
    ids = chat.tok.encode(text).ids
    t = torch.tensor([ids])
    value = float(chat.model.loss(t[:, :-1], t[:, 1:]))
    prompts = []
    for messages in PROMPTS:
        start = chat.prompt(messages)
        out = chat.model.generate(start, 120, chat.stop)
        logits = chat.model(torch.tensor([start + out]))[0, len(start) - 1:-1]
        top = logits.topk(2).values
        ended = out[-1] in chat.stop
        prompts.append({
            "messages": [{"role": a, "content": b} for a, b in messages], "prompt_ids": start,
            "continuation_ids": out[:-1] if ended else out, "stopped_by": out[-1] if ended else None,
            "text": chat.tok.decode(out), "smallest_margin": round(float((top[:, 0] - top[:, 1]).min()), 4),
        })
    return {"text": text, "ids": ids, "mean_next_token_loss": round(value, 6), "chats": prompts}


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model")
    p.add_argument("--valid", required=True)
    p.add_argument("--per-topic", type=int, default=10)
    p.add_argument("--tokens", type=int, default=100_000)
    p.add_argument("--seed", type=int, default=7001)
    p.add_argument("--expected")
    p.add_argument("models", nargs="*")
    a = p.parse_args()
    torch.set_num_threads(1)
    if a.model:
        report(a.model, a.valid, a.per_topic, a.tokens, a.seed)
    if a.expected:
        note = ("f32 activations over the unpacked weights; loss in nats, the mean over ids[1:] given all ids before; "
                "greedy continuations without the token that stopped them; smallest_margin is the smallest distance "
                "between the two best logits on the way")
        out = {"note": note, "models": {m.rsplit("/", 1)[-1]: expected(m, a.valid) for m in a.models}}
        with open(a.expected, "w", encoding="utf-8") as f:
            json.dump(out, f, ensure_ascii=False, indent=1)
            f.write("\n")


if __name__ == "__main__":
    main()
