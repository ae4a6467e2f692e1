"""Quick checks of the scripts, without a trained model: `python test_train.py`.

`python test_train.py --fixture ../../core/tests/fixtures/function_chats.json` writes chats with functions and their text, which a
test of the runtime renders.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from itertools import islice

import jinja2

import calling
import corpus
import documents
import extraction
import grow
import tokenizer as tk
import wording


def some(seed: int, mix: str, n: int = 300) -> str:
    return "".join(islice(documents.documents(seed, mix), n))


def test_corpus_is_a_function_of_its_seed() -> None:
    for mix in documents.MIXES:
        assert some(1, mix) == some(1, mix) != some(2, mix), mix
    text = some(1, "plain").replace("<|im_start|>", "").replace("<|im_end|>", "")
    assert not re.search(r"[{}\[\]|]", text), "a template was left unfilled"
    assert not re.search(r"\b[Aa] [aeio]\w", some(1, "story")), "a before a vowel"


def test_answers_hold_their_keys() -> None:
    assert all(corpus.right(q.answer, q.key) for q in corpus.exam(3, 20) + corpus.reworded_exam(3, 20))


def test_sums_are_right() -> None:
    r = random.Random(4)
    for topic in ("addition", "subtraction"):
        for _ in range(500):
            t = corpus.pick(r, topic)
            w = t.answer.rstrip(".").lower().split()
            a, b, s = (corpus.NUMBERS.index(x) if x.isalpha() else int(x) for x in (w[0], w[2], w[4]))
            assert s == (a + b if w[1] == "plus" else a - b), t


def test_results_of_calculators_are_right() -> None:
    r = random.Random(5)
    for _ in range(2000):
        use = calling.calculator(r, False).ask(r)
        (expression,) = use.arguments.values()
        assert re.fullmatch(r"[0-9+*/() -]+", expression) and eval(expression) == int(use.key), use
        assert re.findall(r"-?\d+", use.result)[-1] == use.key and use.key in use.answer, use


def test_pronouns_are_those_of_the_hero() -> None:
    r = random.Random(6)
    for _ in range(2000):
        s = corpus.story(r, kind=r.choice(("girl", "boy")), plot=corpus._try)
        assert not re.search(r"\b(He|His|his|him)\b" if s.girl else r"\b(She|Her|her)\b", s.text), s.text
    assert {corpus.story(r, kind="fox", name="Pip").girl for _ in range(50)} == {False}


def held_out() -> list[re.Pattern]:
    """Wordings of the exam, as patterns of what a user says."""
    patterns = wording.held_out()
    for words in (calling.SUMS, calling.NOW, calling.THERE, calling.DAY, calling.DATE, *calling.NAMED.values(), extraction.ASK, extraction.ASK_KEYS):
        for template in words[1].strip("[]").split("|"):
            numbers = re.sub(r"\\\{[ab]\\\}", r"\\d+", re.escape(template))
            patterns.append(re.compile(re.sub(r"\\\{\w\\\}", "(.+)", numbers), re.I))
    return patterns


def test_wordings_of_the_exam_are_not_trained() -> None:
    asked = set()
    for mix in ("plain", "copy", "drill", "tools", "json"):
        for part in some(8, mix, 4000).split("<|im_start|>user\n")[1:]:
            asked.add(part.split("<|im_end|>")[0].split(": ")[0].rstrip(".").split("\n")[0])
            asked.add(part.split("<|im_end|>")[0])
    for pattern in held_out():
        bad = [a for a in asked if pattern.fullmatch(a) or pattern.fullmatch(a + ".") or pattern.fullmatch(a + "?")]
        assert not bad, (pattern.pattern, bad[:3])
    names = {q.call["name"] for q in calling.exam(9, 60) if q.call and q.topic.endswith("new words")}
    trained = {m for m in re.findall(r'"name": "(\w+)"', some(8, "tools", 4000))}
    assert len(names) > 12 and len(names & trained) <= 2, names & trained


def chats(seed: int, n: int) -> list[calling.Chat]:
    r = random.Random(seed)
    return [calling.chat(r) for _ in range(n)]


def test_the_chat_template_writes_what_is_trained() -> None:
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False}
    environment.filters["tojson"] = json.dumps
    template = environment.from_string(tk.CHAT_TEMPLATE)
    for c in chats(10, 500):
        assert template.render(messages=c.messages, tools=c.tools) == calling.render(c.messages, c.tools)
        assert template.render(messages=c.messages[:1], tools=c.tools, add_generation_prompt=True).endswith("<|im_end|>\n<|im_start|>assistant\n")
    r = random.Random(11)
    for _ in range(300):
        text = corpus.chat(r)
        messages = [dict(zip(("role", "content"), part.split("<|im_end|>")[0].split("\n", 1))) for part in text.split("<|im_start|>")[1:]]
        assert template.render(messages=messages) == text


def test_answers_in_json_satisfy_their_schemas() -> None:
    r = random.Random(12)
    kinds = {"string": str, "integer": int, "boolean": bool}
    for held in (False, True):
        for _ in range(1000):
            e = extraction.extraction(r, held)
            value = json.loads(e.answer)
            assert extraction.compact(value) == e.answer and list(value) == e.schema["required"]
            for key, schema in e.schema["properties"].items():
                assert value[key] is None or schema["type"] == "array" or type(value[key]) is kinds[schema["type"]], e
            said = (e.system or "") + e.user
            assert all(key in said or key.replace("_", " ") in said or key in ("people",) for key in value), e


def test_tokens_of_a_base_keep_their_numbers() -> None:
    base = grow.gg.read("../sprout.gguf")[0]
    tok = tk.extended(base, [some(1, "tools", 200)], 2100)
    old = [t for t in base["tokenizer.ggml.tokens"] if not t.startswith("<|")]
    assert [tok.id_to_token(i) for i in range(len(old))] == old
    assert [tok.id_to_token(i) for i in range(2100 - len(tk.SPECIAL), 2100)] == tk.SPECIAL
    text = some(2, "all", 50)
    assert tok.decode(tok.encode(text).ids, skip_special_tokens=False) == text


def write_fixture(path: str) -> None:
    cases = []
    for c in chats(13, 8):
        messages = [m | {"tool_calls": [{"type": "function", "function": f | {"arguments": json.dumps(f["arguments"])}} for f in m["tool_calls"]]} if "tool_calls" in m else m for m in c.messages]
        cases.append({"messages": messages, "tools": [json.dumps(t) for t in c.tools], "prompt": False, "text": calling.render(c.messages, c.tools)})
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"chat_template": tk.CHAT_TEMPLATE, "chats": cases}, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--fixture")
    if fixture := p.parse_args().fixture:
        write_fixture(fixture)
    else:
        for name, test in list(globals().items()):
            if name.startswith("test_"):
                test()
                print(name, "ok")
