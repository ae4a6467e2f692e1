"""Writes what another runtime must reproduce of exported GGUF files, computed in PyTorch: an oracle for the tests.

    python expected.py --valid valid.txt --out sprout.expected.json sprout.gguf sprout-q1.gguf sprout-nano.gguf

The packed weights are unpacked and run in f32: the ids and the mean next-token loss of a held-out text, and greedy answers to five
chats with the smallest distance between the two best logits on the way.
"""

from __future__ import annotations

import argparse
import json

import torch
from tokenizers import Tokenizer

import container as gg
import corpus
import tokenizer as tk
from model import Config, Model

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
    tok = tk.of_gguf(meta)
    tk.add_special(tok, [t for t in tk.CALLS if t in meta["tokenizer.ggml.tokens"]])
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
def expected(path: str, valid: str) -> dict:
    chat = Chat(path)
    docs = open(valid, encoding="utf-8").read(200_000).split(corpus.END)[3:]
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
    p.add_argument("--valid", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("models", nargs="+")
    a = p.parse_args()
    torch.set_num_threads(1)
    note = ("f32 activations over the unpacked weights; loss in nats, the mean over ids[1:] given all ids before; "
            "greedy continuations without the token that stopped them; smallest_margin is the smallest distance "
            "between the two best logits on the way")
    out = {"note": note, "models": {m.rsplit("/", 1)[-1]: expected(m, a.valid) for m in a.models}}
    with open(a.out, "w", encoding="utf-8") as f:
        json.dump(out, f, ensure_ascii=False, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
