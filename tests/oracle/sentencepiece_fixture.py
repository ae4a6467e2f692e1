#!/usr/bin/env python3
"""Writes core/tests/fixtures/{sentencepiece.gguf,sentencepiece.json}: a small vocabulary of SentencePiece's BPE, and what
sentencepiece and llama.cpp make of texts with it; and tests/fixtures/hf/sentencepiece/{tokenizer.json,texts.json}: the same
vocabulary as transformers converts it, and what Hugging Face tokenizers make of texts, in the form of Gemma and that of Llama 2.

    pip install sentencepiece gguf xllamacpp tokenizers transformers jinja2
    python tests/oracle/sentencepiece_fixture.py

Each text has `ids` without a space before it, of a third also `prefixed` with one, and `parse` with control tokens where that
differs: all by llama.cpp. sentencepiece agrees, except where a token that is cut out is followed by text (llama.cpp adds the
space there, too), where the space makes such a token with the text, and where the text has U+2581 itself.
"""
import io
import json
import pathlib
import random
import sys
import tempfile

import gguf
import sentencepiece as spm
from sentencepiece import sentencepiece_model_pb2 as proto
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers.tokenization_utils_base import generate_merges

import llama_vocab
import tokenizer_fixture

OUT = pathlib.Path(__file__).resolve().parents[2] / "core/tests/fixtures"
FOLDER = pathlib.Path(__file__).resolve().parents[1] / "fixtures/hf/sentencepiece"
CONTROL = ["<start_of_turn>", "<end_of_turn>"]
USER_DEFINED = ["\n", "\n\n", "\n\n\n", "▁▁", "▁▁▁", "▁▁▁▁", "<b>", "</b>", "[x]"]
ADDED = CONTROL + USER_DEFINED + ["<s>", "</s>", "<unk>"]
SIZE = 700
rng = random.Random(31)


def train():
    out = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=(line for text in tokenizer_fixture.corpus() for line in text.split("\n")), model_writer=out,
        model_type="bpe", vocab_size=SIZE, byte_fallback=True, character_coverage=0.995, split_digits=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=False,
        allow_whitespace_only_pieces=True, user_defined_symbols=USER_DEFINED, control_symbols=CONTROL,
        num_threads=1, minloglevel=2,
    )
    model = proto.ModelProto()
    model.ParseFromString(out.getvalue())
    return model


def write_gguf(model, path, prefix):
    """As llama.cpp's converter does: user-defined tokens with spaces in place of U+2581."""
    w = gguf.GGUFWriter(path, "llama")
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    kinds = [piece.type for piece in model.pieces]
    text = lambda p: p.piece.replace("▁", " ") if p.type == 4 else p.piece
    w.add_token_list([text(p) for p in model.pieces])
    w.add_token_scores([p.score for p in model.pieces])
    w.add_token_types(kinds)
    w.add_unk_token_id(0)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_add_space_prefix(prefix)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()


def texts():
    yield from list(tokenizer_fixture.texts())[::2]
    pool = CONTROL + USER_DEFINED + ["<s>", "</s>", "<unk>", "<0x41>", "▁", " ", "  ", "     ", "the", " the", "<b", "b>", "[x", "é", "字", "\x00"]
    for _ in range(60):
        yield "".join(rng.choices(pool, k=rng.randint(1, 8)))


def hugging_face(model, prefix):
    """As transformers' converters of Gemma and, with `prefix`, of Llama 2 do."""
    vocab = {piece.piece: i for i, piece in enumerate(model.pieces)}
    merges = generate_merges(vocab, {piece.piece: piece.score for piece in model.pieces})
    t = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    replace = normalizers.Replace(" ", "▁")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix:
        t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        t.normalizer = replace
        t.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    t.decoder = decoders.Sequence(steps)
    added = [AddedToken(p.piece, normalized=False, special=p.type != 4) for p in model.pieces if p.type in (2, 3, 4)]
    t.add_tokens(added)
    t.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    return t


def write_folder(model):
    forms = [hugging_face(model, False), hugging_face(model, True)]
    rows = []
    for text in list(texts())[::2]:
        # These tokens of spaces it forms by merges, the others cut them out.
        if "  " in text or "▁" in text or text.startswith(" ") or any(token + " " in text for token in ADDED):
            continue
        rows.append([text] + [t.encode(text, add_special_tokens=False).ids for t in forms])
        assert forms[1].decode(rows[-1][2], skip_special_tokens=False) == text or any(c in text for c in CONTROL + USER_DEFINED), text
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "tokenizer.json").write_text(forms[0].to_str() + "\n")
    (FOLDER / "texts.json").write_text("[\n" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "\n]\n")
    print(len(rows), "texts for folders")


def main():
    model = train()
    folder = pathlib.Path(tempfile.mkdtemp())
    write_gguf(model, OUT / "sentencepiece.gguf", False)
    write_gguf(model, folder / "prefixed.gguf", True)
    llama = [llama_vocab.Vocab(OUT / "sentencepiece.gguf"), llama_vocab.Vocab(folder / "prefixed.gguf")]
    pieces = []
    for prefix in (False, True):
        model.normalizer_spec.add_dummy_prefix = prefix
        pieces.append(spm.SentencePieceProcessor(model_proto=model.SerializeToString()))
    rows, agreed = [], [0, 0]
    for i, text in enumerate(texts()):
        ids = [vocab.encode(text) for vocab in llama]
        theirs = [sp.encode(text) for sp in pieces]
        same = [a == b for a, b in zip(ids, theirs)]
        agreed = [n + s for n, s in zip(agreed, same)]
        cut = any(u.replace("▁", " ") in " " + text for u in USER_DEFINED)
        assert same[0] or "▁" in text, (text, ids[0], theirs[0])
        assert same[1] or cut or "▁" in text, (text, ids[1], theirs[1])
        if "▁" not in text:
            assert llama[0].decode(ids[0]) == text.encode(), text
        row = {"text": text, "ids": ids[0]}
        if i % 3 == 0:
            row["prefixed"] = ids[1]
        parse = llama[0].encode(text, parse=True)
        if parse != ids[0]:
            row["parse"] = parse
        rows.append(row)
    line = lambda x: json.dumps(x, ensure_ascii=True, separators=(",", ":"))
    (OUT / "sentencepiece.json").write_text("[\n" + ",\n".join(map(line, rows)) + "\n]\n")
    model.normalizer_spec.add_dummy_prefix = False
    write_folder(model)
    print(len(model.pieces), "pieces,", len(rows), "texts, as sentencepiece", agreed)


if __name__ == "__main__":
    main()
