"""Tokens a second of a step of models/train in PyTorch: `train.py ROWS ROW_TOKENS THREADS STEPS`.

Prints JSON: the best of the steps, compiled and not, in f32 and with bf16 autocast as models/train has it.
"""

import json
import sys
import time

import torch

sys.path.insert(0, "models/train")
from model import SIZES, Model  # noqa: E402

rows, row_tokens, threads, steps = map(int, sys.argv[1:])
torch.set_num_threads(threads)
torch.manual_seed(0)
ids = torch.randint(0, SIZES["sprout"].vocab, (rows, row_tokens + 1))
best = {"torch": torch.__version__}
for name, compiled, bf16 in [("compiled f32", True, False), ("compiled bf16", True, True), ("eager f32", False, False)]:
    model = Model(SIZES["sprout"], "ternary")
    loss_of = torch.compile(model.loss) if compiled else model.loss
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    fastest = 0.0
    for step in range(steps + 1):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = loss_of(ids[:, :-1], ids[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        # The first one compiles.
        if step > 0:
            fastest = max(fastest, rows * row_tokens / (time.perf_counter() - start))
    best[name] = fastest
print(json.dumps(best))
