"""Losses of rows of logits and their gradients by PyTorch's functions and autograd in float64, as the oracle of the losses of
the crate `train`.

    pip install torch numpy
    python tests/oracle/losses.py                writes train/tests/fixtures/losses.txt

The fixture was made with torch 2.15.0 and numpy 2.4.6. Its lines are words between single spaces:

    row NAME TOKEN         a row of logits, and the token that follows
    logits N..             in f32
    teacher N..            as many
    loss LOSS VALUE N..    of the last row, as `shohin_train::loss::Loss` is parsed: the loss and its gradient by the logits

    contrastive NAME ROWS COLS TEMPERATURE VALUE
    anchors N..            (ROWS, COLS) in f32, as are the three lines that follow
    positives N..
    d_anchors N..          the gradients
    d_positives N..

A file has all its rows before the first contrastive loss.
"""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

OUT = Path(__file__).parent.parent.parent / "train" / "tests" / "fixtures" / "losses.txt"


def cross_entropy(z, t, token, smoothing=0.0):
    return F.cross_entropy(z[None], token[None], label_smoothing=smoothing)


def focal(z, t, token, gamma):
    # torch has none. The derivative of the power has no value where p is 1, as it is of a single logit.
    log_p = F.log_softmax(z, 0)[token]
    return -((-torch.expm1(log_p)) ** gamma if len(z) > 1 else 1) * log_p


def kl(z, t, token):
    return F.kl_div(F.log_softmax(z, 0), F.softmax(t, 0), reduction="sum")


def distillation(z, t, token, temperature, hard):
    soft = temperature**2 * kl(z / temperature, t / temperature, token)
    return (1 - hard) * soft + hard * cross_entropy(z, t, token)


def mse(z, t, token):
    return F.mse_loss(z, t)


def huber(z, t, token, delta):
    return F.huber_loss(z, t, delta=delta)


# Parameters are numbers that f32 has.
LOSSES = {
    "cross-entropy": cross_entropy,
    "cross-entropy:0.125": cross_entropy,
    "focal:2": focal,
    "focal:0.5": focal,
    "focal:0": focal,
    "kl": kl,
    "distillation:2:0.5": distillation,
    "distillation:0.75:0.25": distillation,
    "distillation:4:0": distillation,
    "distillation:1:1": distillation,
    "mse": mse,
    "huber:1": huber,
    "huber:0.25": huber,
}


def rows(rng):
    """Names, logits, teachers' logits and tokens."""
    normal = lambda n, size: (size * rng.standard_normal(n)).astype(np.float32)
    for n in (1, 2, 16, 17, 100):
        yield f"random-{n}", normal(n, 2), normal(n, 2), int(rng.integers(n))
    for n in (2, 17, 100):
        z, t = normal(n, 2), normal(n, 2)
        token = int(rng.integers(n))
        z[token] += 14
        t[token] += 9
        yield f"confident-{n}", z, t, token
        yield f"wrong-{n}", z, t, (token + 1) % n
    for size in (1e4, 1e30):
        yield f"huge-{size:g}", normal(17, size), normal(17, size), 3
    z = normal(33, 1)
    yield "shifted", z + np.float32(1e4), normal(33, 1) - np.float32(1e4), 20
    yield "equal", np.full(17, 3, np.float32), np.full(17, -1, np.float32), 16
    for size in (1e-1, 1e-2):
        t = normal(33, 3)
        yield f"near-{size:g}", t + normal(33, size), t, 7


def pairs(rng):
    """Names, anchors, positives and temperatures."""
    normal = lambda *shape: rng.standard_normal(shape).astype(np.float32)
    for n, cols in ((1, 3), (2, 1), (3, 16), (5, 19)):
        yield f"random-{n}", normal(n, cols), normal(n, cols), 0.5
    a = normal(6, 24)
    yield "near", a, a + np.float32(0.25) * normal(6, 24), 0.0625
    yield "large", np.float32(1e6) * normal(4, 17), np.float32(1e-6) * normal(4, 17), 0.125


def contrastive(a, b, temperature):
    similarity = F.cosine_similarity(a[:, None], b[None], dim=2, eps=1e-30) / temperature
    return F.cross_entropy(similarity, torch.arange(len(a)))


def words(values):
    return " ".join(f"{float(x):.9g}" for x in np.asarray(values).ravel())


def main():
    rng = np.random.default_rng(7)
    lines = []
    for name, z, t, token in rows(rng):
        lines += [f"row {name} {token}", f"logits {words(z)}", f"teacher {words(t)}"]
        for text, function in LOSSES.items():
            parameters = [float(word) for word in text.split(":")[1:]]
            logits = torch.tensor(z, dtype=torch.float64, requires_grad=True)
            teacher = torch.tensor(t, dtype=torch.float64)
            value = function(logits, teacher, torch.tensor(token), *parameters)
            (gradient,) = torch.autograd.grad(value, logits)
            assert torch.isfinite(value) and torch.isfinite(gradient).all(), (name, text)
            lines.append(f"loss {text} {float(value.detach()):.12g} {words(gradient)}")
    for name, a, b, temperature in pairs(rng):
        anchors, positives = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (a, b))
        value = contrastive(anchors, positives, temperature)
        gradients = torch.autograd.grad(value, (anchors, positives))
        shape = f"{a.shape[0]} {a.shape[1]}"
        lines.append(f"contrastive {name} {shape} {temperature} {float(value.detach()):.12g}")
        for key, x in zip(("anchors", "positives", "d_anchors", "d_positives"), (a, b, *gradients)):
            lines.append(f"{key} {words(x)}")
    OUT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
