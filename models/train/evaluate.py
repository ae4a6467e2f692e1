"""Asks a model what it should know, through `shohin serve`, and measures the loss of a text that it was not trained on.

    python evaluate.py --program shohin --model sprout-large.gguf --valid valid.txt
    python evaluate.py --program shohin --model sprout.gguf --parts world words
    python evaluate.py --program shohin --model sprout.gguf --parts world --lora taught.gguf --brief

It prints the held-out loss, the share of right greedy answers per topic, all small sums, name recall, whether the hero asked for is
kept in a story, wrong answers and samples; with --brief only the shares. The parts of the exam:

- world: questions of `corpus.py` in words of the training. Its seed is none of the training's; on closed topics (sums, colors, ...) the
  same facts were trained on, often in the same words, so these shares say how much of its world a model has learned.
- words: the same topics in wordings that no training text has.
- functions: the model is given functions; the call must have the right name and arguments, and the answer after it what the function
  returned. Also with unseen wordings, names and parameters, and with functions that do not help.
- json: values from a short text under given keys, all of them, freely and by a schema.
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
from typing import Any, Callable

import calling
import corpus
import extraction

PARTS = ("world", "words", "functions", "json")
SAMPLES = [
    "Hello!", "What is your name?", "What can you do?", "What is 3 plus 4?", "9+8", "What is 12 minus 5?", "What is the opposite of hot?",
    "What does a cow say?", "Where does a bee live?", "What color is a banana?", "Name three fruits.", "What day comes after Monday?",
    "Mia has 3 apples. Mia gets 2 more. How many apples does Mia have?", "Can a penguin fly?", "I am sad.", "Tell me a joke.",
    "What is the capital of France?", "What is 347 plus 981?", "Who was Napoleon?", "What is Shohin?",
    "Tell me a story about a fox and a lantern.", "Tell me a story about a girl named Mia.", "Tell me a story about a robot, a key and a boat.",
]
DIALOG = ["Hi! My name is Zoe.", "What is 2 plus 5?", "And 6 plus 3?", "What does a dog say?", "And a cat?", "What is my name?", "Thank you!"]
TEXTS = ["Extract the name and age as JSON: Mia is seven years old and lives in Rome.",
         "Write JSON with the keys name, city, job: Tom lives in Oslo. He works as a baker.",
         "Zoe, Ben and Keplo went to the park.\nGive me the names as JSON.",
         "JSON, keys apples, eggs: We need three apples and 12 eggs.",
         "Write JSON with the keys name, has_dog: Emma has no dog."]

Message = dict[str, Any]


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

    def reply(self, messages: list[Message], tokens: int = 160, temperature: float = 0.0, **options: Any) -> Message:
        body = {"messages": messages, "max_tokens": tokens, "temperature": temperature, "seed": 1} | options
        request = urllib.request.Request(self.url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as reply:
            return json.load(reply)["choices"][0]["message"]

    def answer(self, messages: list[tuple[str, str]], tokens: int = 160, temperature: float = 0.0) -> str:
        return self.reply([{"role": a, "content": b} for a, b in messages], tokens, temperature)["content"]

    def answers(self, asked: list[list[tuple[str, str]]], tokens: int) -> list[str]:
        return self.all(lambda messages: self.answer(messages, tokens), asked)

    def all(self, ask: Callable[[Any], Any], asked: list[Any]) -> list[Any]:
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            return list(pool.map(ask, asked))


# What was asked, of which topic, what was said, and whether it is right.
Graded = tuple[str, str, str, bool]


def ask_world(server: Server, questions: list[corpus.Question], suffix: str = "") -> list[Graded]:
    said = server.answers([q.messages for q in questions], 90)
    return [(q.topic + suffix, q.messages[-1][1], a, corpus.right(a, q.key)) for q, a in zip(questions, said)]


def shown(message: Message) -> str:
    calls = [f"{c['function']['name']}({c['function']['arguments']})" for c in message.get("tool_calls") or ()]
    return " ".join([message.get("content") or ""] * bool(message.get("content")) + calls)


def ask_function(server: Server, q: calling.Question) -> list[Graded]:
    """The call, or the direct answer; after the right call, whether made or not, also the answer from its result."""
    user = q.messages[-1]["content"]
    first = server.reply(q.messages, 120, tools=q.tools)
    if q.call is None:
        return [(q.topic, user, shown(first), not first.get("tool_calls") and corpus.right(first.get("content") or "", q.key))]
    calls = [calling.call(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in first.get("tool_calls") or ()]
    made = {"role": "assistant", "content": "", "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": q.call["name"], "arguments": json.dumps(q.call["arguments"])}}]}
    second = server.reply([*q.messages, made, {"role": "tool", "tool_call_id": "1", "content": q.result}], 120, tools=q.tools)
    answer = second.get("content") or ""
    return [("call: " + q.topic, user, shown(first), calls == [q.call]), ("after: " + q.topic, user + " -> " + q.result, shown(second), corpus.right(answer, q.key))]


def ask_json(server: Server, labelled: tuple[str, extraction.Extraction]) -> list[Graded]:
    label, e = labelled
    messages = ([{"role": "system", "content": e.system}] if e.system else []) + [{"role": "user", "content": e.user}]
    free = server.reply(messages, 160)["content"]
    schema = {"type": "json_schema", "json_schema": {"name": "answer", "schema": e.schema}}
    bound = server.reply(messages, 160, response_format=schema)["content"]
    return [(label, e.user, free, free == e.answer), (label + ", by schema", e.user, bound, bound == e.answer)]


def hero_kept(server: Server, n: int, seed: int) -> tuple[int, int, int]:
    """Stories about a named hero in which the name comes at least three times, and those without a pronoun of the other kind."""
    r, asked, heroes = random.Random(seed), [], []
    for _ in range(n):
        girl = r.random() < 0.5
        heroes.append((corpus.person(r, girl, 0.5), girl))
        asked.append([("user", f"Tell me a story about a {'girl' if girl else 'boy'} named {heroes[-1][0]}.")])
    texts = server.answers(asked, 160)
    kept = sum(text.count(name) >= 3 for text, (name, _) in zip(texts, heroes))
    # The pronoun that comes first is the hero's: helpers come later.
    first = [re.search(r"\b(he|she|his|her|him)\b", text.lower()) for text in texts]
    agreed = sum(m is None or (m.group() in ("she", "her")) == girl for m, (_, girl) in zip(first, heroes))
    return kept, agreed, n


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
    command = [program, "eval", "-m", model, "--act", "f32", "--kv", "f32", "--special", "--json", "--window", str(window),
               "--stride", str(window - 1), "--limit", str(tokens), valid]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["nats_per_token"]


def graded(server: Server, parts: list[str], seed: int, per_topic: int) -> list[Graded]:
    out: list[Graded] = []
    if "world" in parts:
        out += ask_world(server, corpus.exam(seed, per_topic))
    if "words" in parts:
        out += ask_world(server, corpus.reworded_exam(seed, per_topic), ", new words")
    if "functions" in parts:
        out += [g for gs in server.all(lambda q: ask_function(server, q), calling.exam(seed, per_topic)) for g in gs]
    if "json" in parts:
        out += [g for gs in server.all(lambda e: ask_json(server, e), extraction.exam(seed, 4 * per_topic)) for g in gs]
    return out


def samples(server: Server, parts: list[str], seed: int) -> None:
    if "functions" in parts:
        print("\n## functions, greedy\n")
        for q in calling.exam(seed + 1, 2):
            print(f"F: {', '.join(t['function']['name'] for t in q.tools)}\nU: {q.messages[-1]['content']}")
            for topic, _, said, _ in ask_function(server, q):
                print(f"F: {q.result}\nA: {said}" if topic.startswith("after") else f"A: {said}")
    if "json" in parts:
        print("\n## JSON, greedy\n")
        for text in TEXTS:
            print(f"U: {text}\nA: {server.answer([('user', text)])}")
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


def report(a: argparse.Namespace) -> None:
    if a.valid:
        losses = [loss(a.program, a.model, a.valid, window, a.tokens) for window in (256, 512)]
        print(f"# {a.model}\nheld-out loss, rows of 256: {losses[0]:.4f}; of 512: {losses[1]:.4f} nats a token over {a.tokens:,} tokens")
    with Server(a.program, a.model, a.lora, a.act) as server:
        answers = graded(server, a.parts, a.seed, a.per_topic)
        shares: dict[str, list[bool]] = {}
        for topic, _, _, ok in answers:
            shares.setdefault(topic, []).append(ok)
        total = [ok for *_, ok in answers]
        print(f"\n## right, greedy: {sum(total)} of {len(total)}")
        if a.brief:
            return
        for k, v in shares.items():
            print(f"{k}: {sum(v)}/{len(v)}")
        if "world" in a.parts:
            recall = [x for k, v in shares.items() if k.startswith("recall") for x in v]
            kept, agreed, n = hero_kept(server, 2 * a.per_topic, a.seed)
            print(f"\nrecalled: {sum(recall)}/{len(recall)}; hero kept in {kept}, and called by the right pronoun in {agreed} of {n} stories")
            print(f"all of the table: {sums(server)}")
        print("\n## wrong answers")
        for topic, asked, said in [(t, q, said) for t, q, said, ok in answers if not ok][:a.wrong]:
            print(f"[{topic}] {asked!r} -> {said!r}")
        samples(server, a.parts, a.seed)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--program", default="shohin")
    p.add_argument("--model", required=True)
    p.add_argument("--lora")
    p.add_argument("--valid", help="a text of documents.py with another seed")
    p.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    p.add_argument("--per-topic", type=int, default=10)
    p.add_argument("--tokens", type=int, default=100_000)
    p.add_argument("--seed", type=int, default=7001)
    p.add_argument("--wrong", type=int, default=60, help="wrong answers shown")
    p.add_argument("--act", default="f32", help="int8 is faster, and what people run")
    p.add_argument("--brief", action="store_true")
    report(p.parse_args())


if __name__ == "__main__":
    main()
