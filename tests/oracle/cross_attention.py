"""Cross-attention by PyTorch's MultiheadAttention, and with shared key-value heads by scaled_dot_product_attention.

Writes tests/fixtures/cross_attention.txt: for each case a line of hidden, width of the encoder, heads, key-value heads,
elements of a head, whether there are biases, rows and states, and then the outputs. All inputs are wave(seed, n, size).

    pip install torch numpy
    python tests/oracle/cross_attention.py
"""

import math
from pathlib import Path

import torch
from torch.nn.functional import linear, scaled_dot_product_attention

OUT = Path(__file__).parent.parent / "fixtures/cross_attention.txt"
CASES = [(32, 20, 4, 4, 8, True, 5, 11), (16, 16, 2, 2, 8, False, 3, 1300), (24, 40, 6, 2, 16, True, 40, 70)]


def wave(seed: int, n: int, size: float) -> torch.Tensor:
    """Numbers that other languages compute, too: size sin(i^2 / 7 + seed), in f32."""
    return torch.tensor([size * math.sin(i * i / 7 + seed) for i in range(n)], dtype=torch.float32).double()


def case(hidden: int, width: int, heads: int, kv: int, dim: int, bias: bool, rows: int, states: int) -> torch.Tensor:
    shapes = [(heads * dim, hidden), (kv * dim, width), (kv * dim, width), (hidden, heads * dim)]
    w = [wave(10 + i, r * c, 2 / math.sqrt(c)).reshape(r, c) for i, (r, c) in enumerate(shapes)]
    b = [wave(20 + i, r, 0.5) if bias else torch.zeros(r).double() for i, (r, _) in enumerate(shapes)]
    x, s = wave(1, rows * hidden, 1).reshape(1, rows, hidden), wave(2, states * width, 1).reshape(1, states, width)
    if kv == heads:
        mha = torch.nn.MultiheadAttention(hidden, heads, bias=bias, kdim=width, vdim=width, batch_first=True).double()
        with torch.no_grad():
            # With one width, torch has the three matrices in one.
            parts = mha.in_proj_weight.chunk(3) if width == hidden else [mha.q_proj_weight, mha.k_proj_weight, mha.v_proj_weight]
            for to, of in zip([*parts, mha.out_proj.weight], w):
                to.copy_(of)
            if bias:
                for to, of in zip([*mha.in_proj_bias.chunk(3), mha.out_proj.bias], b):
                    to.copy_(of)
            return mha(x, s, s, need_weights=False)[0][0]
    q, k, v = (
        linear(a, w[i], b[i]).reshape(1, -1, n, dim).transpose(1, 2) for i, (a, n) in enumerate([(x, heads), (s, kv), (s, kv)])
    )
    attended = scaled_dot_product_attention(q, k, v, enable_gqa=True)
    return linear(attended.transpose(1, 2).reshape(rows, heads * dim), w[3], b[3])


if __name__ == "__main__":
    lines = []
    for numbers in CASES:
        out = case(*numbers)
        lines.append(" ".join(map(str, [*map(int, numbers), *(f"{x:.7e}" for x in out.flatten().tolist())])))
        print(numbers, "std", out.std().item())
    OUT.write_text("\n".join(lines) + "\n")
