"""Qwen3 in a few lines of PyTorch, with fake quantization of every matrix.

Per group of 128 weights along the input: ternary w = d * clamp(round(w / d), -1, 1), 1-bit w = d * sign(w)
(0 counts as +), both with d = mean|w|. d is rounded to bfloat16: that is exact in the float16 of the GGUF
blocks as well as in bf16 matrix products, so the weights trained on are the weights shipped.
The gradient passes straight through to the f32 masters.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

GROUP = 128
MODES = ("f32", "ternary", "1bit")


@dataclass(frozen=True)
class Config:
    hidden: int = 256
    layers: int = 6
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    ffn: int = 768
    vocab: int = 2048
    context: int = 512
    rope_base: float = 10_000.0
    eps: float = 1e-6

    def dict(self) -> dict:
        return asdict(self)


SIZES = {
    "sprout": Config(),
    "nano": Config(layers=3, ffn=384, context=512),
    "small": Config(layers=4, ffn=512),
}


def scales(w: Tensor) -> Tensor:
    """One scale per group, [rows, columns / 128, 1]; bfloat16 values kept in f32."""
    return w.view(w.shape[0], -1, GROUP).abs().mean(-1, keepdim=True).bfloat16().float()


def codes(w: Tensor, mode: str) -> tuple[Tensor, Tensor]:
    g = w.view(w.shape[0], -1, GROUP)
    d = scales(w)
    if mode == "ternary":
        return (g / d.clamp_min(1e-12)).round().clamp(-1, 1), d
    return torch.where(g >= 0, 1.0, -1.0), d


def quantize(w: Tensor, mode: str) -> Tensor:
    if mode == "f32":
        return w
    q, d = codes(w, mode)
    return w + ((q * d).view_as(w) - w).detach()


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


class Layer(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        h, q, kv = c.hidden, c.heads * c.head_dim, c.kv_heads * c.head_dim
        resid = (2 * c.layers) ** -0.5

        def matrix(out: int, inp: int, gain: float = 1.0) -> nn.Parameter:
            return nn.Parameter(torch.randn(out, inp) * inp**-0.5 * gain)

        self.attn_q, self.attn_k, self.attn_v = matrix(q, h), matrix(kv, h), matrix(kv, h)
        self.attn_output = matrix(h, q, resid)
        self.ffn_gate, self.ffn_up = matrix(c.ffn, h), matrix(c.ffn, h)
        self.ffn_down = matrix(h, c.ffn, resid)
        self.attn_norm, self.ffn_norm = nn.Parameter(torch.ones(h)), nn.Parameter(torch.ones(h))
        self.attn_q_norm, self.attn_k_norm = nn.Parameter(torch.ones(c.head_dim)), nn.Parameter(torch.ones(c.head_dim))


class Model(nn.Module):
    def __init__(self, c: Config, mode: str):
        super().__init__()
        assert mode in MODES
        self.c, self.mode = c, mode
        self.token_embd = nn.Parameter(torch.randn(c.vocab, c.hidden) * 0.05)
        self.blk = nn.ModuleList(Layer(c) for _ in range(c.layers))
        self.output_norm = nn.Parameter(torch.ones(c.hidden))
        inv = c.rope_base ** (-torch.arange(0, c.head_dim, 2).double() / c.head_dim)
        angle = torch.outer(torch.arange(c.context).double(), inv)
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)

    def rope(self, x: Tensor) -> Tensor:
        """NeoX style: element i of a head pairs with i + head_dim / 2. x: [batch, heads, time, head_dim]."""
        t = x.shape[2]
        a, b = x.chunk(2, -1)
        cos, sin = self.cos[:t], self.sin[:t]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def forward(self, ids: Tensor) -> Tensor:
        c, mode = self.c, self.mode
        b, t = ids.shape
        embd = quantize(self.token_embd, mode)
        x = F.embedding(ids, embd).float()
        mask = torch.ones(t, t, dtype=torch.bool, device=ids.device).triu(1)
        for layer in self.blk:
            h = rms_norm(x, layer.attn_norm, c.eps)
            q = F.linear(h, quantize(layer.attn_q, mode)).view(b, t, c.heads, c.head_dim)
            k = F.linear(h, quantize(layer.attn_k, mode)).view(b, t, c.kv_heads, c.head_dim)
            v = F.linear(h, quantize(layer.attn_v, mode)).view(b, t, c.kv_heads, c.head_dim)
            q = self.rope(rms_norm(q, layer.attn_q_norm, c.eps).transpose(1, 2)).to(v.dtype)
            k = self.rope(rms_norm(k, layer.attn_k_norm, c.eps).transpose(1, 2)).to(v.dtype)
            n = c.heads // c.kv_heads
            k = k.repeat_interleave(n, 1)
            v = v.transpose(1, 2).repeat_interleave(n, 1)
            # Faster here than PyTorch's fused attention, whose bf16 kernel for CPUs is slow on short rows.
            p = (q @ k.transpose(-1, -2)).float() * c.head_dim**-0.5
            o = p.masked_fill(mask, float("-inf")).softmax(-1).to(v.dtype) @ v
            o = o.transpose(1, 2).reshape(b, t, -1)
            x = x + F.linear(o, quantize(layer.attn_output, mode)).float()
            h = rms_norm(x, layer.ffn_norm, c.eps)
            g = F.silu(F.linear(h, quantize(layer.ffn_gate, mode))) * F.linear(h, quantize(layer.ffn_up, mode))
            x = x + F.linear(g, quantize(layer.ffn_down, mode)).float()
        return F.linear(rms_norm(x, self.output_norm, c.eps), embd)

    def loss(self, ids: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
        logits = self(ids).float().view(-1, self.c.vocab)
        nll = F.cross_entropy(logits, target.reshape(-1), reduction="none")
        if weight is None:
            return nll.mean()
        weight = weight.reshape(-1)
        return (nll * weight).sum() / weight.sum()

    @torch.no_grad()
    def freeze(self) -> "Model":
        """The same model with the quantized values as plain f32 weights."""
        m = Model(self.c, "f32")
        m.load_state_dict({k: quantize(v, self.mode) if v.ndim == 2 else v for k, v in self.state_dict().items()})
        return m.eval()

    @torch.no_grad()
    def generate(self, ids: list[int], n: int, stop: set[int], temperature: float = 0.0, top_p: float = 1.0,
                 rng: torch.Generator | None = None) -> list[int]:
        """Plain decoding without a cache: short texts only. Call it on a frozen model."""
        ids, start = list(ids), len(ids)
        while len(ids) - start < n and len(ids) < self.c.context:
            logits = self(torch.tensor([ids]))[0, -1].float()
            if temperature == 0.0:
                nxt = int(logits.argmax())
            else:
                p = (logits / temperature).softmax(-1)
                s, i = p.sort(descending=True)
                s[(s.cumsum(0) - s) > top_p] = 0
                nxt = int(i[torch.multinomial(s, 1, generator=rng)])
            ids.append(nxt)
            if nxt in stop:
                break
        return ids[start:]
