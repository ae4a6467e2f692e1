"""Asks a model what it should know, through `shohin serve`, and measures the loss of a text that it was not trained on.

    python evaluate.py --program shohin --model sprout.gguf --valid valid.txt
    python evaluate.py --program shohin --model sprout.gguf --lora taught.gguf --brief

It prints the held-out loss, the share of right greedy answers per topic, all small sums, name recall, whether the hero asked for is
kept in a story, wrong answers and samples; with --brief only the shares. Exam questions come from seeds that training does not use;
on closed topics (sums, colors, ...) the same facts were trained on, often in the same words, so those shares say how much of its
world a model has learned, not how far it reaches beyond.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import random
import re
import subprocess
import tempfile
import urllib.request

import corpus

SAMPLES = [
    "Hello!", "What is your name?", "What can you do?", "What is 3 plus 4?", "9+8", "What is 12 minus 5?", "What is the opposite of hot?",
    "What does a cow say?", "Where does a bee live?", "What color is a banana?", "Name three fruits.", "What day comes after Monday?",
    "Mia has 3 apples. Mia gets 2 more. How many apples does Mia have?", "Can a penguin fly?", "I am sad.", "Tell me a joke.",
    "What is the capital of France?", "What is 347 plus 981?", "Who was Napoleon?", "What is Shohin?",
    "Tell me a story about a fox and a lantern.", "Tell me a story about a girl named Mia.", "Tell me a story about a robot, a key and a boat.",
]
DIALOG = ["Hi! My name is Zoe.", "What is 2 plus 5?", "And 6 plus 3?", "What does a dog say?", "And a cat?", "What is my name?", "Thank you!"]


class Server:
    """A model that is asked: greedy answers, several at a time."""

    def __init__(self, program: str, model: str, lora: str | None, act: str):
        command = [program, "serve", "-m", model, "--port", "0", "--device", "cpu", "--act", act, "--parallel", "16"]
        command += ["--lora", lora] if lora else []
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in self.process.stdout:
            if found := re.search(r"http://[^ /]+", line):
                self.url = found.group() + "/v1/chat/completions"
                break
        else:
            raise SystemExit("the server did not start")

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_) -> None:
        self.process.terminate()
        self.process.wait()

    def answer(self, messages: list[tuple[str, str]], tokens: int = 160, temperature: float = 0.0) -> str:
        body = {"messages": [{"role": a, "content": b} for a, b in messages], "max_tokens": tokens,
                "temperature": temperature, "seed": 1}
        request = urllib.request.Request(self.url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as reply:
            return json.load(reply)["choices"][0]["message"]["content"]

    def answers(self, asked: list[list[tuple[str, str]]], tokens: int) -> list[str]:
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            return list(pool.map(lambda messages: self.answer(messages, tokens), asked))


def hero_kept(server: Server, n: int, seed: int) -> tuple[int, int]:
    """Stories about a named hero in which the name comes at least three times."""
    r, asked, names = random.Random(seed), [], []
    for _ in range(n):
        girl = r.random() < 0.5
        names.append(corpus.person(r, girl, 0.5))
        asked.append([("user", f"Tell me a story about a {'girl' if girl else 'boy'} named {names[-1]}.")])
    return sum(text.count(name) >= 3 for text, name in zip(server.answers(asked, 160), names)), n


def sums(server: Server) -> str:
    """Every sum and difference of the model's world, asked in one form each."""
    w = corpus.NUMBERS
    groups = {
        "sums": [(f"What is {a} plus {b}?", str(a + b)) for a in range(21) for b in range(21 - a)],
        "differences": [(f"What is {a} minus {b}?", str(a - b)) for a in range(21) for b in range(a + 1)],
        "sums in words": [(f"What is {w[a]} plus {w[b]}?", w[a + b]) for a in range(11) for b in range(11)],
    }
    shares = []
    for name, group in groups.items():
        said = server.answers([[("user", q)] for q, _ in group], 12)
        shares.append(f"{name} {sum(a.endswith(f' is {v}.') for a, (_, v) in zip(said, group))}/{len(group)}")
    return "; ".join(shares)


def loss(program: str, model: str, valid: str, window: int, tokens: int) -> float:
    # What separates documents is no part of them.
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as text:
        with open(valid, encoding="utf-8") as f:
            text.write(f.read().replace(corpus.END + "\n", corpus.END))
        text.flush()
        return measured(program, model, text.name, window, tokens)


def measured(program: str, model: str, valid: str, window: int, tokens: int) -> float:
    command = [program, "eval", "-m", model, "--act", "f32", "--kv", "f32", "--special", "--json", "--window", str(window),
               "--stride", str(window - 1), "--limit", str(tokens), valid]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["nats_per_token"]


def report(a: argparse.Namespace) -> None:
    if a.valid:
        losses = [loss(a.program, a.model, a.valid, window, a.tokens) for window in (256, 512)]
        print(f"# {a.model}\nheld-out loss, rows of 256: {losses[0]:.4f}; of 512: {losses[1]:.4f} nats a token over {a.tokens:,} tokens")
    with Server(a.program, a.model, a.lora, a.act) as server:
        questions = corpus.exam(a.seed, a.per_topic)
        shares: dict[str, list[bool]] = {}
        wrong = []
        for q, said in zip(questions, server.answers([q.messages for q in questions], 90)):
            ok = corpus.right(said, q.key)
            shares.setdefault(q.topic, []).append(ok)
            if not ok:
                wrong.append((q.topic, q.messages[-1][1], said))
        total = [x for v in shares.values() for x in v]
        print(f"\n## right, greedy: {sum(total)} of {len(total)}")
        if a.brief:
            return
        for k, v in shares.items():
            print(f"{k}: {sum(v)}/{len(v)}")
        recall = [x for k, v in shares.items() if k.startswith("recall") for x in v]
        print(f"\nrecalled: {sum(recall)}/{len(recall)}; hero kept in %d of %d stories" % hero_kept(server, 2 * a.per_topic, a.seed))
        print(f"all of the table: {sums(server)}")
        print("\n## wrong answers")
        for t, q, said in wrong[:60]:
            print(f"[{t}] {q!r} -> {said!r}")
        for temperature in (0.0, 0.7):
            print(f"\n## samples, T = {temperature}\n")
            for q in SAMPLES:
                print(f"U: {q}\nA: {server.answer([('user', q)], temperature=temperature)}")
            print()
            messages: list[tuple[str, str]] = []
            for q in DIALOG:
                messages.append(("user", q))
                messages.append(("assistant", server.answer(messages, temperature=temperature)))
                print(f"U: {q}\nA: {messages[-1][1]}")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--program", default="shohin")
    p.add_argument("--model", required=True)
    p.add_argument("--lora")
    p.add_argument("--valid", help="a text of corpus.py with another seed")
    p.add_argument("--per-topic", type=int, default=10)
    p.add_argument("--tokens", type=int, default=100_000)
    p.add_argument("--seed", type=int, default=7001)
    p.add_argument("--act", default="f32", help="int8 is faster, and what people run")
    p.add_argument("--brief", action="store_true")
    report(p.parse_args())


if __name__ == "__main__":
    main()
