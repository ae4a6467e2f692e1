"""Trains the byte-level BPE tokenizer: GPT-2 alphabet, Qwen2 pre-tokenizer, special tokens last.

    python tokenizer.py --vocab 2048 --out tokenizer train.txt=12 tools.txt=8 json.txt=4
    python tokenizer.py --base ../sprout.gguf --vocab 2304 --out tokenizer tools.txt=8 json.txt=4

With --base the tokens of a model are kept, and more are learned: the model can then go on with them.
NAME=M reads the first M million characters of a file. The folder gets `tokenizer.json`, `tokenizer_config.json` and
`chat_template.jinja`, which `shohin train --tokenizer tokenizer/tokenizer.json` reads.

Qwen3's `<think>` and `</think>` are left out on purpose: these models do not reason before they answer, and no token is
spent on it. `CHAT_TEMPLATE` writes what Qwen3's Instruct models of 2507, which do not reason either, are given: ChatML, functions in
the system message, calls and their results.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections import Counter
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import container as gg

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CALLS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]  # text that is one token each, as in Qwen3
SPECIAL = CALLS + CONTROL
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")

CHAT_TEMPLATE = """\
{%- set first = messages[0].content if messages and messages[0].role == 'system' else none %}
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if first is not none %}{{- first + '\\n\\n' }}{%- endif %}
{{- '# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\n' }}
{{- 'You are provided with function signatures within <tools></tools> XML tags:\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
{{- '\\n</tools>\\n\\nFor each function call, return a json object with function name and arguments within ' }}
{{- '<tool_call></tool_call> XML tags:\\n<tool_call>\\n{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call><|im_end|>\\n' }}
{%- elif first is not none %}
{{- '<|im_start|>system\\n' + first + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'system' and loop.first %}
{%- elif message.role == 'tool' %}
{%- if loop.first or loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{%- set function = call.function or call %}
{%- if message.content or not loop.first %}{{- '\\n' }}{%- endif %}
{{- '<tool_call>\\n{"name": "' + function.name + '", "arguments": ' }}
{{- function.arguments if function.arguments is string else function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


def train(texts: list[str], vocab: int) -> Tokenizer:
    """Special tokens are cut out first, so that no merge crosses them."""
    tok = byte_level({}, [])
    for s in SPECIAL:
        texts = [text.replace(s, "\x00") for text in texts]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab - len(SPECIAL), initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[], show_progress=False)
    tok.train_from_iterator((p for text in texts for p in text.split("\x00") if p), trainer)
    assert tok.get_vocab_size() == vocab - len(SPECIAL), "the texts have too few distinct words for this vocabulary"
    add_special(tok)
    return tok


def of_gguf(meta: dict[str, Any]) -> Tokenizer:
    """The tokenizer of a GGUF file without its special tokens."""
    tokens = [t for t, kind in zip(meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]) if kind == 1]
    merges = [tuple(x.split(" ")) for x in meta["tokenizer.ggml.merges"]]
    return byte_level({t: i for i, t in enumerate(tokens)}, merges)


def byte_level(vocab: dict[str, int], merges: list[tuple[str, str]]) -> Tokenizer:
    tok = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN2), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tok.decoder = decoders.ByteLevel()
    return tok


def extended(base: dict[str, Any], texts: list[str], vocab: int) -> Tokenizer:
    """The tokenizer of a GGUF file with more merges, learned from `texts`: tokens that it has keep their numbers."""
    old = of_gguf(base)
    tokens = old.get_vocab()
    merges = [tuple(x.split(" ")) for x in base["tokenizer.ggml.merges"]]
    words: Counter[str] = Counter()
    for text in texts:
        for part in re.split("|".join(map(re.escape, SPECIAL)), text):
            words.update(piece for piece, _ in old.pre_tokenizer.pre_tokenize_str(part))
    words = Counter({w: n for w, n in words.items() if n >= 8})
    # A word that is cut out before is cut again by the same rules only if its bytes are text, so it is encoded as a model does.
    split = {w: [old.id_to_token(i) for i in _ids(old, w)] for w in words}
    while len(tokens) < vocab - len(SPECIAL):
        pairs: Counter[tuple[str, str]] = Counter()
        for w, n in words.items():
            for pair in zip(split[w], split[w][1:]):
                pairs[pair] += n
        (a, b), _ = max(pairs.items(), key=lambda item: (item[1], item[0]))
        merges.append((a, b))
        tokens[a + b] = len(tokens)
        for w, parts in split.items():
            i = 0
            while i + 1 < len(parts):
                if parts[i] == a and parts[i + 1] == b:
                    parts[i:i + 2] = [a + b]
                i += 1
    tok = byte_level(tokens, merges)
    add_special(tok)
    return tok


def _ids(tok: Tokenizer, word: str) -> list[int]:
    """The ids of a word that the pre-tokenizer has cut out and written in the alphabet of bytes."""
    return [t.id for t in tok.model.tokenize(word)]


def add_special(tok: Tokenizer, calls: list[str] = CALLS) -> None:
    tok.add_tokens([AddedToken(t, special=False, normalized=False) for t in calls])
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in CONTROL])


def save(tok: Tokenizer, folder: str) -> None:
    os.makedirs(folder, exist_ok=True)
    tok.save(os.path.join(folder, "tokenizer.json"))
    settings = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "add_bos_token": False, "clean_up_tokenization_spaces": False}
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump(settings, f, indent=1)
        f.write("\n")
    with open(os.path.join(folder, "chat_template.jinja"), "w", encoding="utf-8") as f:
        f.write(CHAT_TEMPLATE)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--vocab", type=int, default=2048)
    p.add_argument("--base", help="a GGUF file whose tokens are kept, with their numbers")
    p.add_argument("--out", required=True)
    p.add_argument("texts", nargs="+", metavar="FILE=M")
    a = p.parse_args()
    texts = []
    for name, _, millions in (text.partition("=") for text in a.texts):
        with open(name, encoding="utf-8") as f:
            texts.append(f.read(int(float(millions or 20) * 1e6)))
    tok = extended(gg.read(a.base)[0], texts, a.vocab) if a.base else train(texts, a.vocab)
    save(tok, a.out)
    print(f"{tok.get_vocab_size()} tokens; last: {[tok.id_to_token(a.vocab - i) for i in (3, 2, 1)]}")


if __name__ == "__main__":
    main()
