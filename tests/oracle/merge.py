"""Weights merged by mergekit, for convert/src/combine.rs.

    pip install torch mergekit
    python merge.py > ../fixtures/merge.json
"""

import json

import torch
from mergekit.merge_methods.generalized_task_arithmetic import get_mask
from mergekit.merge_methods.slerp import slerp
from mergekit.sparsify import magnitude

torch.manual_seed(3)
base = torch.randn(40).mul(256).round().div(256)
a, b = ((base + torch.randn(40) / 4).mul(256).round().div(256) for _ in range(2))
a[5] = base[5]  # no difference
cases = []


def case(method, expected, weights=(1.0, 1.0), **options):
    cases.append({"method": method, "weights": list(weights), "expected": [float(x) for x in expected], **options})


for weights in [(1.0, 1.0), (0.3, 0.9), (1.5, -0.5)]:
    w = torch.tensor(weights)
    case("linear", (w[0] * a + w[1] * b) / w.sum(), weights)
    case("task", base + w[0] * (a - base) + w[1] * (b - base), weights)
    for density in (1.0, 0.3, 0.01):
        deltas = torch.stack([magnitude(m - base, density) for m in (a, b)]) * w[:, None]
        mask = get_mask(deltas, method="sum")
        divisor = (w[:, None] * mask).sum(0)
        divisor[divisor == 0] = 1
        expected = base + (deltas * mask).sum(0) / divisor
        case("ties", expected, weights, density=density)
        if density == 1.0:
            case("dare", expected, weights, density=density)
for t in (0.0, 0.4, 1.0):
    case("slerp", slerp(torch.tensor([t]), a[None], b[None])[0], t=t)
    case("slerp", slerp(torch.tensor([t]), a[None], 1.5 * a[None])[0], t=t, parallel=True)

print(json.dumps({"a": a.tolist(), "b": b.tolist(), "base": base.tolist(), "cases": cases}))
