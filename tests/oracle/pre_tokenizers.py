#!/usr/bin/env python3
"""Writes core/tests/fixtures/pre_tokenizers.json: ids of texts by Hugging Face tokenizers and by llama.cpp, which agree, with
pre-tokenizers that tokenizer_fixture.py does not have, and the vocabulary of bpe2k.gguf.

    pip install tokenizers transformers gguf xllamacpp
    python tests/oracle/pre_tokenizers.py
"""
import json
import pathlib
import tempfile

import gguf
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

import llama_vocab
import tokenizer_fixture

OUT = pathlib.Path(__file__).resolve().parents[2] / "core/tests/fixtures"
SPLIT = pre_tokenizers.Split(Regex(tokenizer_fixture.REGEX["llama-bpe"]), "isolated")
PRES = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smaug-bpe": pre_tokenizers.Sequence([SPLIT, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
}


def main():
    fields = gguf.GGUFReader(OUT / "bpe2k.gguf").fields
    read = lambda key: fields[f"tokenizer.ggml.{key}"].contents()
    tokens, types = read("tokens"), read("token_type")
    # Without every third merge, so that there are tokens which merges do not reach.
    merges = [merge for i, merge in enumerate(read("merges")) if i % 3]
    vocab = {token: i for i, (token, kind) in enumerate(zip(tokens, types)) if kind == 1}
    texts = list(tokenizer_fixture.texts())
    rows = [{"text": text} for text in texts[:24] + texts[24::5]]
    for pre, splits in PRES.items():
        path = pathlib.Path(tempfile.mkdtemp()) / "vocab.gguf"
        w = gguf.GGUFWriter(path, "llama")
        w.add_tokenizer_model("gpt2")
        w.add_tokenizer_pre(pre)
        w.add_token_list([token if kind == 1 else f"[{i}]" for i, (token, kind) in enumerate(zip(tokens, types))])
        w.add_token_types([1 if kind == 1 else 3 for kind in types])
        w.add_token_merges(merges)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.close()
        llama = llama_vocab.Vocab(path)
        hf = Tokenizer(models.BPE(vocab=vocab, merges=[tuple(merge.split(" ")) for merge in merges]))
        hf.pre_tokenizer = splits
        for row in rows:
            row[pre] = hf.encode(row["text"]).ids
            if row[pre] != llama.encode(row["text"]):
                # Its tables of Unicode's classes are those of another version.
                print("llama.cpp differs:", pre, repr(row["text"]))
    line = lambda x: json.dumps(x, ensure_ascii=True, separators=(",", ":"))
    (OUT / "pre_tokenizers.json").write_text("[\n" + ",\n".join(map(line, rows)) + "\n]\n")
    print(len(rows), "texts")


if __name__ == "__main__":
    main()
