"""Asks a model: python chat.py MODEL.gguf."""

import sys

from shohin import Model

model = Model.load(sys.argv[1])
for piece in model.chat().send("What does a cow say?"):
    print(piece, end="", flush=True)
print()
