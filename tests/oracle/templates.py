"""Writes host/tests/fixtures/templates.json, what transformers renders with the templates of the folder beside it, and
templates.gguf, a vocabulary with the control tokens of all of them, of which it has the ids.

    pip install transformers jinja2 tokenizers gguf
    python tests/oracle/templates.py
"""
import json
import pathlib

import gguf
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "host/tests/fixtures"
CONTROL = (
    "<s> </s> <|im_start|> <|im_end|> <|begin_of_text|> <|start_header_id|> <|end_header_id|> <|eot_id|> <|eom_id|> <|python_tag|> [INST] "
    "[/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_CALLS] [TOOL_RESULTS] [/TOOL_RESULTS] <|system|> <|user|> <|assistant|> <|end|> "
    "<start_of_turn> <end_of_turn> <|start_of_role|> <|end_of_role|> <|end_of_text|> <|start|> <|message|> <|channel|> <|call|> "
    "<|return|> <|tool_call|> <｜User｜> <｜Assistant｜> <｜end▁of▁sentence｜> <｜tool▁outputs▁begin｜> <｜tool▁outputs▁end｜> "
    "<｜tool▁output▁begin｜> <｜tool▁output▁end｜>"
).split()
USER = "<think> </think> <tool_call> </tool_call> <tool_response> </tool_response>".split()
QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def vocabulary():
    """A byte-level vocabulary of the words of the documentation."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(QWEN2), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator([(ROOT / "README.md").read_text(), (ROOT / "docs/SERVER.md").read_text()], trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in CONTROL])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in USER])
    state = json.loads(tokenizer.to_str())
    merges = [" ".join(m) for m in state["model"]["merges"]]
    tokens = [tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size())]
    types = [3 if t in CONTROL else 4 if t in USER else 1 for t in tokens]
    writer = gguf.GGUFWriter(OUT / "templates.gguf", "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(tokens.index("<s>"))
    writer.add_eos_token_id(tokens.index("</s>"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


def tool(name, description, properties, **more):
    parameters = {"type": "object", "properties": properties, **more}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


WEATHER = tool(
    "get_weather", "Weather <now> & \"here\"; it's 'fine'",
    {"city": {"type": "string", "description": "A city, such as Zürich 東京"}, "unit": {"type": "string", "enum": ["C", "F"], "default": "C"}},
    required=["city"],
)
ADD = tool(
    "add", "Adds numbers.",
    {"terms": {"type": "array", "items": {"type": "number"}, "description": "What is added"}, "exact": {"type": "boolean", "description": "Without rounding", "default": False},
     "more": {"type": "object", "properties": {"n": {"type": "integer", "maximum": 1e16}}, "description": "More"}},
)


def call(name, **arguments):
    return {"name": name, "arguments": arguments}


def conversations():
    """Messages, tools and thinking."""
    system, user = (lambda content, role=role: {"role": role, "content": content} for role in ("system", "user"))
    result = lambda content: {"role": "tool", "content": content}

    def says(content, reasoning=None, calls=()):
        return {"role": "assistant", "content": content, **({"reasoning": reasoning} if reasoning else {}), **({"calls": list(calls)} if calls else {})}

    weather, both = call("get_weather", city="Zürich \"x\"", days=[1, 2.5, None, True]), [WEATHER, ADD]
    yield [user("Hi")], [], None
    yield [user("Hi")], [], True
    yield [user("Hi")], [], False
    yield [user("")], [], None
    yield [system("Be brief."), user("Hi")], [], None
    yield [system(" Be brief.\n"), user(" \n Hi\u00a0\u2003\x1c ")], [], False
    yield [system(""), user("x")], [], None
    yield [system("/no_think Answer."), user("x")], [], None
    yield [system("only a system message")], [], None
    yield [user("one"), says("two"), user("three")], [], None
    yield [system("s"), user("one"), says(" two\n\n"), user("three"), says("four"), user("five")], [], True
    yield [user("one"), says("two")], [], None
    yield [user("one"), user("two")], [], None
    yield [says("I speak first"), user("ok")], [], None
    yield [user("q"), says("<think>\nlong thought\n</think>\n\nanswer"), user("again")], [], None
    yield [user("q"), says("answer", "why\n"), user("again")], [], True
    yield [user("q"), says("answer", "why")], [], True
    yield [user("q"), says("no tags</think>\n\n\nanswer\n"), user("r")], [], None
    yield [user("<tool_response>\nby hand\n</tool_response>"), says("x"), user("y")], [], None
    yield [user("naïve e\u0301 한국 🦙 {{ 7*7 }} {% raw %} it's 'a' \"b\" \\n")], [], None
    yield [user("secret a b c"), says("The secret.")], [], None
    yield [user("weather?")], [WEATHER], None
    yield [system("sys"), user("weather?")], both, False
    yield [user("w?"), says("", calls=[weather])], [WEATHER], None
    yield [user("w?"), says("Let me see.", calls=[weather]), result("12 °C")], [WEATHER], True
    yield [user("w?"), says("", calls=[weather]), result('{"t": 12}'), says("It is 12."), user("thanks")], both, None
    yield [user("w?"), says("", "need it", calls=[weather]), result("rain"), says("It rains.", "so")], [WEATHER], True
    yield [user("w?"), says("", calls=[weather, call("add", terms=[1, -2]), call("none")]), result("1"), result("2"), result(""), says("ok"), user("x")], both, None
    yield [system("s"), user("w?"), says("", calls=[call("text", s="line\nbreak </parameter>", n=1e-7, o={"k": ["v"]})]), result("a\n")], both, None
    yield [user("q"), result("stray")], [], None


def for_transformers(messages):
    """Names and numbers of calls as templates see them here."""
    out, calls, results, names = [], 0, 0, []
    for message in messages:
        new = {"role": message["role"], "content": message["content"]}
        if "reasoning" in message:
            new["reasoning_content"] = new["thinking"] = message["reasoning"]
        if message.get("calls"):
            results, names, begun = calls, [c["name"] for c in message["calls"]], calls
            new["tool_calls"] = []
            for c in message["calls"]:
                calls += 1
                new["tool_calls"].append({"id": f"{calls:09}", "type": "function", "function": c})
        if message["role"] == "tool":
            before, results = calls - len(names), results + 1
            if 0 <= results - before - 1 < len(names):
                new["name"] = names[results - before - 1]
            new["tool_call_id"] = f"{results:09}"
        out.append(new)
    return out


def main():
    tokenizer = vocabulary()
    talks = list(conversations())
    cases, refused = [], 0
    for path in sorted((OUT / "templates").glob("*.jinja")):
        template = path.read_text()
        for number, (messages, tools, thinking) in enumerate(talks):
            # What the last one shows depends little on the conversation.
            for prompt in (True, False) if path.stem != "python" else (True,) * (number in (20, 21, 22)):
                given = for_transformers(messages)
                # Thoughts in replies are shown as the model wrote them where a template knows no field for them.
                for message in given:
                    reasoning = message.pop("reasoning_content", None)
                    message.pop("thinking", None)
                    for key in ("reasoning_content", "thinking"):
                        if reasoning and f".{key}" in template:
                            message[key] = reasoning
                            break
                    else:
                        if reasoning and "</think>" in template:
                            message["content"] = f"<think>\n{reasoning}\n</think>\n\n{message['content']}"
                more = {} if thinking is None else {"enable_thinking": thinking, "thinking": thinking}
                case = {"template": path.stem, "talk": number, "prompt": prompt}
                try:
                    text = tokenizer.apply_chat_template(
                        given, chat_template=template, tools=tools or None, add_generation_prompt=prompt, tokenize=False, date_string="26 Jul 2024", **more
                    )
                except Exception as error:
                    case["error"] = str(error)
                    refused += 1
                else:
                    case["text"] = text
                    # Texts of messages form no tokens of the template here.
                    if prompt and not any(t in json.dumps(messages, ensure_ascii=False) for t in CONTROL + USER):
                        ids = tokenizer.encode(text, add_special_tokens=False)
                        case["ids"] = "".join(f"{i:03x}" for i in ids)
                cases.append(case)
    texts = lambda m: {**m, "calls": [{**c, "arguments": json.dumps(c["arguments"])} for c in m["calls"]]} if "calls" in m else m
    shown = [{"messages": [texts(m) for m in messages], "tools": [json.dumps(t) for t in tools], "thinking": thinking} for messages, tools, thinking in talks]
    rows = [f'"{name}": [\n' + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]" for name, rows in (("talks", shown), ("cases", cases))]
    OUT.joinpath("templates.json").write_text("{" + ", ".join(rows) + "}\n")
    print(len(cases), "conversations,", refused, "refused")


if __name__ == "__main__":
    main()
