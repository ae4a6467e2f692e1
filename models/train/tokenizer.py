"""Trains the byte-level BPE tokenizer: GPT-2 alphabet, Qwen2 pre-tokenizer, special tokens last.

    python tokenizer.py --text train.txt --vocab 2048 --out tokenizer.json

Qwen3's `<think>` and `</think>` are left out on purpose: these models do not reason before they
answer, and no token is spent on it. The chat template (`CHAT_TEMPLATE`) is plain ChatML; for system, user and
assistant messages it renders what Qwen3's own template renders when thinking is not asked for.
"""

from __future__ import annotations

import argparse
import json

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")

CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|im_start|>assistant\\n' }}"
    "{%- endif %}"
)


def train(text: str, vocab: int, limit: int) -> Tokenizer:
    """`text`: a corpus file. Special tokens are cut out first, so that no merge crosses them."""
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN2), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tok.decoder = decoders.ByteLevel()
    with open(text, encoding="utf-8") as f:
        data = f.read(limit)
    for s in SPECIAL:
        data = data.replace(s, "\x00")
    trainer = trainers.BpeTrainer(
        vocab_size=vocab - len(SPECIAL), initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[], show_progress=False)
    tok.train_from_iterator((p for p in data.split("\x00") if p), trainer)
    assert tok.get_vocab_size() == vocab - len(SPECIAL), "the text has too few distinct words for this vocabulary"
    tok.add_special_tokens(SPECIAL)
    return tok


def load(path: str) -> Tokenizer:
    return Tokenizer.from_file(path)


def gguf_fields(tok: Tokenizer) -> tuple[list[str], list[int], list[str]]:
    """Tokens, token types (1 normal, 3 control) and merges, as tokenizer.ggml.* holds them."""
    state = json.loads(tok.to_str())
    size = tok.get_vocab_size()
    tokens = [tok.id_to_token(i) for i in range(size)]
    types = [3 if t in SPECIAL else 1 for t in tokens]
    merges = [m if isinstance(m, str) else " ".join(m) for m in state["model"]["merges"]]
    return tokens, types, merges


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--text", required=True)
    p.add_argument("--vocab", type=int, default=2048)
    p.add_argument("--limit", type=int, default=20_000_000, help="characters read")
    p.add_argument("--out", required=True)
    a = p.parse_args()
    tok = train(a.text, a.vocab, a.limit)
    tok.save(a.out)
    print(f"{tok.get_vocab_size()} tokens; last: {[tok.id_to_token(a.vocab - i) for i in (3, 2, 1)]}")


if __name__ == "__main__":
    main()
