"""Steps of PyTorch's optimizers, and rates of PyTorch's and transformers' schedules, as the oracle of the crate `train`.

    pip install torch transformers numpy
    python tests/oracle/optimizers.py            writes train/tests/fixtures/optimizers.txt and schedules.txt

They were made with torch 2.15.0, transformers 5.24.0 and numpy 2.4.6.

Files
=====

Both have lines of words between single spaces. Numbers have as many digits as it takes to parse the same number.

optimizers.txt: weights are two tensors, one after the other, in f32.

    tensors N N             their lengths
    weights W..             before the first step
    gradients G..           of a step, for each of the 100 steps
    case OPTIMIZER RATE DECAY CLIP
                            OPTIMIZER as `shohin train --optimizer` parses it; the learning rate of step t (from 0) is
                            RATE (1 - t / 200); weights decay if DECAY is 1; CLIP is `none`, `norm:MAX` or `value:LIMIT`
    norm X..                with `norm:MAX`: that of all gradients of every tenth step before clipping
    after STEP W..          the weights after every tenth step
    m M..                   the moments after the last step, as many as the optimizer has
    v V..

in this order; the lines from `case` on are repeated.

schedules.txt:

    schedule TEXT BASE TOTAL    as `shohin train --schedule` parses it
    rates R..                   from step 0
    losses L..                  what plateau schedules observe: the first before step 1
    plateau TEXT BASE           whose rates are those of the steps from 0, after as many losses of the line before
    rates R..
"""

from pathlib import Path

import numpy as np
import torch
from torch.optim import lr_scheduler
from transformers import optimization

FIXTURES = Path(__file__).resolve().parents[2] / "train/tests/fixtures"
STEPS = 100
TENSORS = [20, 17]


def words(numbers):
    return " ".join(repr(x.item()) if isinstance(x, torch.Tensor) else repr(float(x)) for x in numbers)


def f32_words(tensor):
    """The fewest digits that parse to the same f32."""
    return " ".join(str(x) for x in tensor.detach().numpy().astype(np.float32))


def sgd(momentum, nesterov, decay):
    text = f"sgd:{momentum}{':nesterov' if nesterov else ''}:{decay}"
    return text, lambda w, d: torch.optim.SGD(w, momentum=momentum, nesterov=nesterov, weight_decay=decay * d)


def adam(kind, betas, eps, decay):
    optimizer = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[kind]
    text = f"{kind}:{betas[0]}:{betas[1]}:{eps}:{decay}"
    return text, lambda w, d: optimizer(w, betas=betas, eps=eps, weight_decay=decay * d)


CASES = [
    (sgd(0.0, False, 0.0), 0.01, 1, "none"),
    (sgd(0.0, False, 0.05), 0.01, 1, "none"),
    (sgd(0.9, False, 0.0), 0.01, 1, "none"),
    (sgd(0.9, False, 0.05), 0.01, 1, "none"),
    (sgd(0.9, False, 0.05), 0.01, 0, "norm:1.2"),
    (sgd(0.9, True, 0.0), 0.01, 1, "none"),
    (sgd(0.8, True, 0.05), 0.01, 1, "value:0.3"),
    (adam("adam", (0.9, 0.999), 1e-8, 0.0), 0.01, 1, "none"),
    (adam("adam", (0.9, 0.95), 1e-8, 0.1), 0.003, 1, "none"),
    (adam("adam", (0.3, 0.7), 0.001, 0.1), 0.003, 0, "norm:0.5"),
    (adam("adamw", (0.9, 0.95), 1e-8, 0.1), 0.01, 1, "none"),
    (adam("adamw", (0.9, 0.95), 1e-8, 0.1), 0.01, 0, "none"),
    (adam("adamw", (0.9, 0.999), 1e-6, 0.01), 0.001, 1, "norm:1.0"),
    (adam("adamw", (0.5, 0.99), 1e-8, 0.5), 0.02, 1, "value:0.1"),
    (adam("adamw", (0.0, 0.9), 1e-8, 0.1), 0.01, 1, "norm:100.0"),
]


def problem():
    """Weights, and gradients of each step, of magnitudes from 1e-6 to 1."""
    rng = np.random.default_rng(7)
    n = sum(TENSORS)
    weights = rng.normal(size=n)
    scale = 10.0 ** rng.uniform(-6, 0, size=n)
    gradients = scale * (rng.normal(size=n) + rng.normal(size=(STEPS, n)))
    return torch.tensor(weights, dtype=torch.float32), torch.tensor(gradients, dtype=torch.float32)


def run(case, weights, gradients):
    (text, make), rate, decay, clip = case
    yield f"case {text} {rate} {decay} {clip}"
    tensors = [torch.nn.Parameter(w.clone()) for w in weights.split(TENSORS)]
    for w in tensors:
        w.grad = torch.zeros_like(w)
    optimizer = make(tensors, decay)
    norms, after = [], []
    for t in range(STEPS):
        for w, g in zip(tensors, gradients[t].split(TENSORS)):
            w.grad = g.clone()
        kind, _, limit = clip.partition(":")
        if kind == "norm":
            norms.append(torch.nn.utils.clip_grad_norm_(tensors, float(limit)))
        if kind == "value":
            torch.nn.utils.clip_grad_value_(tensors, float(limit))
        optimizer.param_groups[0]["lr"] = rate * (1 - t / 200)
        optimizer.step()
        if (t + 1) % 10 == 0:
            after.append(f"after {t + 1} {f32_words(torch.cat(tensors))}")
    if norms:
        yield f"norm {f32_words(torch.stack(norms[9::10]))}"
    yield from after
    for name, keys in (("m", ["momentum_buffer", "exp_avg"]), ("v", ["exp_avg_sq"])):
        states = [optimizer.state[w][key] for w in tensors for key in keys if key in optimizer.state[w]]
        if states and states[0] is not None:
            yield f"{name} {f32_words(torch.cat(states))}"


def write_optimizers():
    weights, gradients = problem()
    lines = [f"tensors {TENSORS[0]} {TENSORS[1]}", f"weights {f32_words(weights)}"]
    lines += [f"gradients {f32_words(g)}" for g in gradients]
    for case in CASES:
        lines += run(case, weights, gradients)
    (FIXTURES / "optimizers.txt").write_text("\n".join(lines) + "\n")


def schedules():
    """Texts, the scheduler of an optimizer with a rate, the rate, the steps, and how many of them have a rate."""
    o, s = optimization, lr_scheduler
    one_cycle, cyclic = s.OneCycleLR, s.CyclicLR
    yield "constant:0", lambda z: o.get_constant_schedule_with_warmup(z, 0), 0.001, 60, 61
    yield "constant:25", lambda z: o.get_constant_schedule_with_warmup(z, 25), 0.001, 60, 61
    yield "cosine:0:0", lambda z: o.get_cosine_schedule_with_warmup(z, 0, 120), 0.01, 120, 121
    yield "cosine:20:0", lambda z: o.get_cosine_schedule_with_warmup(z, 20, 120), 0.01, 120, 121
    yield "cosine:13:0.1", lambda z: o.get_cosine_with_min_lr_schedule_with_warmup(z, 13, 120, min_lr_rate=0.1), 0.01, 120, 121
    yield "linear:0:0", lambda z: o.get_linear_schedule_with_warmup(z, 0, 120), 0.003, 120, 121
    yield "linear:30:0", lambda z: o.get_linear_schedule_with_warmup(z, 30, 120), 0.003, 120, 121
    # With an end, it is the polynomial one of power 1.
    yield "linear:30:0.2", lambda z: o.get_polynomial_decay_schedule_with_warmup(z, 30, 120, lr_end=0.0006), 0.003, 120, 121
    wsd = lambda z, warmup, decay, least: o.get_wsd_schedule(
        z, warmup, decay, num_training_steps=120, decay_type="linear", min_lr_ratio=least
    )
    yield "hold:10:0.4:0", lambda z: wsd(z, 10, 48, 0.0), 0.002, 120, 121
    yield "hold:0:0.25:0.1", lambda z: wsd(z, 0, 30, 0.1), 0.002, 120, 121
    yield "hold:50:1:0", lambda z: wsd(z, 50, 70, 0.0), 0.002, 120, 121
    yield "onecycle", lambda z: one_cycle(z, 0.05, 120, cycle_momentum=False), 0.05, 120, 120
    yield (
        "onecycle:0.45:10:100:linear",
        lambda z: one_cycle(z, 0.05, 117, 0, 0, 0.45, "linear", False, div_factor=10, final_div_factor=100),
        0.05,
        117,
        117,
    )
    yield (
        "onecycle:0:4:50:cosine",
        lambda z: one_cycle(z, 0.05, 120, pct_start=0.0, cycle_momentum=False, div_factor=4, final_div_factor=50),
        0.05,
        120,
        120,
    )
    polynomial = o.get_polynomial_decay_schedule_with_warmup
    yield "polynomial:0:1:0", lambda z: polynomial(z, 0, 120, lr_end=0.0), 0.004, 120, 121
    yield "polynomial:20:2:0.05", lambda z: polynomial(z, 20, 120, lr_end=0.0002, power=2.0), 0.004, 120, 121
    yield "polynomial:7:0.5:0.5", lambda z: polynomial(z, 7, 120, lr_end=0.002, power=0.5), 0.004, 120, 121
    cycle = lambda z, base, up, down, mode, gamma=1.0: cyclic(
        z, base, 0.008, up, down, mode=mode, gamma=gamma, cycle_momentum=False
    )
    yield "cyclic:50", lambda z: cycle(z, 0.002, 50, None, "triangular"), 0.008, 200, 200
    yield "cyclic:30:13:0.1:triangular", lambda z: cycle(z, 0.0008, 30, 13, "triangular"), 0.008, 200, 200
    yield "cyclic:13:30:0.1:triangular2", lambda z: cycle(z, 0.0008, 13, 30, "triangular2"), 0.008, 200, 200
    yield "cyclic:20:20:0.5:exp_range:0.98", lambda z: cycle(z, 0.004, 20, 20, "exp_range", 0.98), 0.008, 200, 200


def optimizer_of(rate):
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)


def rates(make, base, count):
    z = optimizer_of(base)
    scheduler = make(z)
    for _ in range(count):
        yield z.param_groups[0]["lr"]
        # A step of the scheduler without one of the optimizer is a warning.
        z.step()
        scheduler.step()


def plateaus(losses):
    """A loss that falls, stays, falls again and stays."""
    for text, base, options in [
        ("plateau:0.1:10:0.0001:0:0", 0.01, {}),
        ("plateau:0.5:3:0.0001:0:0", 0.01, {"factor": 0.5, "patience": 3}),
        ("plateau:0.5:2:0.01:5:0.02", 0.01, {"factor": 0.5, "patience": 2, "threshold": 0.01, "cooldown": 5, "min_lr": 0.0002}),
        ("plateau:0.9:0:0:1:0.3", 0.003, {"factor": 0.9, "patience": 0, "threshold": 0.0, "cooldown": 1, "min_lr": 0.0009}),
    ]:
        z = optimizer_of(base)
        scheduler = lr_scheduler.ReduceLROnPlateau(z, eps=0.0, **options)
        all_rates = [z.param_groups[0]["lr"]]
        for loss in losses:
            scheduler.step(loss)
            all_rates.append(z.param_groups[0]["lr"])
        yield f"plateau {text} {base}"
        yield f"rates {words(all_rates)}"


def write_schedules():
    lines = []
    for text, make, base, total, count in schedules():
        lines.append(f"schedule {text} {base} {total}")
        lines.append(f"rates {words(rates(make, base, count))}")
    rng = np.random.default_rng(11)
    t = np.arange(150)
    losses = 1.5 + 2.0 * np.exp(-t / 12) + np.exp(-np.maximum(t - 75, 0) / 8) + 0.02 * rng.normal(size=150)
    losses = [float(f"{x:.6f}") for x in losses]
    lines.append(f"losses {words(losses)}")
    lines += plateaus(losses)
    (FIXTURES / "schedules.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    write_optimizers()
    write_schedules()
