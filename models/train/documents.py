"""Writes the training text from a seed.

    python documents.py --seed 1 --megabytes 60 --mix plain --out train.txt
    python documents.py --seed 2 --megabytes 2  --mix all   --out valid.txt   # held out
    python documents.py --seed 3 --megabytes 12 --mix copy  --out copy.txt    # what must be repeated from the context
    python documents.py --seed 4 --megabytes 12 --mix drill --out drill.txt   # questions that need practice
    python documents.py --seed 5 --megabytes 40 --mix tools --out tools.txt   # chats with functions
    python documents.py --seed 7 --megabytes 24 --mix tool  --out tool.txt    # with one function, for short rows
    python documents.py --seed 6 --megabytes 16 --mix json  --out json.txt    # JSON from short texts

Each document ends with `<|endoftext|>`, and the next follows at once. The same seed gives the same bytes.
"""

from __future__ import annotations

import argparse
from typing import Callable, Iterator

import calling
import corpus
import extraction
from corpus import END, Rng

# Characters of a document of the copying curriculum, which is trained in short rows.
SHORT = 230
# Those of a chat with one function, for rows of 256 tokens.
LONG = 1000


def plain(r: Rng) -> str:
    x = r.random()              # stories are about four times as long as chats
    return corpus.story(r).text if x < 0.10 else (corpus.copy_doc(r) if x < 0.15 else corpus.chat(r))


def copying(r: Rng) -> str:
    if r.random() < 0.65:
        return corpus.copy_doc(r)
    while len(text := extraction.document(r)) > SHORT:
        pass
    return text


def one_tool(r: Rng) -> str:
    while len(text := calling.document(r, 1)) > LONG:
        pass
    return text


def everything(r: Rng) -> str:
    return r.choices((plain, calling.document, extraction.document), (60, 15, 25))[0](r)


MIXES: dict[str, Callable[[Rng], str]] = {
    "plain": plain, "copy": copying, "drill": corpus.drill_doc, "story": lambda r: corpus.story(r).text, "tools": calling.document, "tool": one_tool,
    "json": extraction.document, "all": everything}


def documents(seed: int, mix: str = "plain") -> Iterator[str]:
    r = Rng(seed)
    while True:
        yield MIXES[mix](r)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--megabytes", type=float, default=1.0)
    p.add_argument("--mix", choices=MIXES, default="plain")
    p.add_argument("--out", required=True)
    a = p.parse_args()
    size, limit = 0, int(a.megabytes * 1e6)
    with open(a.out, "w", encoding="utf-8") as f:
        for d in documents(a.seed, a.mix):
            f.write(d + END)
            size += len(d) + len(END)
            if size >= limit:
                break


if __name__ == "__main__":
    main()
