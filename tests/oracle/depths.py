"""Logits of a small random Qwen3 model with a mixture of depths, by the formulas in f64, token by token.

The formulas without routers are first compared with the logits by transformers in qwen3-untied.logits. Then writes to
tests/fixtures/: qwen3-depths.gguf (F16 matrices, a token for each byte, blk.N.depth_router.weight for N in ROUTED), logits
after each token of TEXT (qwen3-depths.logits), and qwen3-depths.shifted: those after the last tokens where the first SEEN
were cached, DROP of them behind the first KEEP were removed, and the others moved to the front.

    pip install gguf numpy
    python tests/oracle/depths.py
"""

from pathlib import Path

import gguf
import numpy as np

OUT = Path(__file__).parent.parent / "fixtures"
TEXT = b"The fox ran home, all alone."
SEEN, KEEP, DROP = 20, 4, 7
LAYERS, ROUTED = 5, (0, 2, 3)
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB, BASE, EPS = 32, 4, 2, 16, 48, 257, 1e4, 1e-6


def norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def rotate(x, position, base):
    half = x.shape[-1] // 2
    angle = position * base ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)


class Model:
    """One sequence: for each layer the position, the key before rotation and the value of each token that took part."""

    def __init__(self, tensors, base, eps):
        self.w = {name: np.asarray(w, dtype=np.float64) for name, w in tensors.items()}
        self.base, self.eps, self.position = base, eps, 0
        self.layers = 1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("blk."))
        self.cache = [[] for _ in range(self.layers)]
        self.routes = [[] for _ in range(self.layers)]

    def block(self, layer, x):
        w = lambda name: self.w[f"blk.{layer}.{name}.weight"]
        n = norm(x, w("attn_norm"), self.eps)
        d = len(w("attn_q_norm"))
        q, k, v = ((w(f"attn_{name}") @ n).reshape(-1, d) for name in "qkv")
        q = rotate(norm(q, w("attn_q_norm"), self.eps), self.position, self.base)
        self.cache[layer].append((self.position, norm(k, w("attn_k_norm"), self.eps), v))
        keys = np.array([rotate(k, position, self.base) for position, k, _ in self.cache[layer]])
        values = np.array([v for *_, v in self.cache[layer]])
        heads = []
        for h, query in enumerate(q):
            scores = keys[:, h * len(k) // len(q)] @ query / np.sqrt(d)
            e = np.exp(scores - scores.max())
            heads.append(e @ values[:, h * len(k) // len(q)] / e.sum())
        x = x + w("attn_output") @ np.concatenate(heads)
        m = norm(x, w("ffn_norm"), self.eps)
        gate = w("ffn_gate") @ m
        return x + w("ffn_down") @ (gate / (1 + np.exp(-gate)) * (w("ffn_up") @ m))

    def forward(self, token):
        x = self.w["token_embd.weight"][token]
        for layer in range(self.layers):
            router = self.w.get(f"blk.{layer}.depth_router.weight")
            if router is None:
                x = self.block(layer, x)
                continue
            r = router @ x
            self.routes[layer].append(r)
            # sigmoid(r) > 1/2
            if r > 0:
                x = x + r * (self.block(layer, x) - x)
        self.position += 1
        head = self.w.get("output.weight", self.w["token_embd.weight"])
        return head @ norm(x, self.w["output_norm.weight"], self.eps)

    def shift(self):
        for layer, cached in enumerate(self.cache):
            kept = [c for c in cached if not KEEP <= c[0] < KEEP + DROP]
            self.cache[layer] = [(p if p < KEEP else p - DROP, k, v) for p, k, v in kept]
        self.position -= DROP


def check_formulas():
    file = gguf.GGUFReader(OUT / "qwen3-untied.gguf")
    model = Model({t.name: t.data for t in file.tensors}, 1e4, 1e-5)
    want = np.fromfile(OUT / "qwen3-untied.logits", "<f4").reshape(24, 96)
    got = [model.forward((7 * i * i + 3 * i + 1) % 96) for i in range(24)]
    assert np.abs(got - want).max() < 1e-5


def random_tensors():
    rng = np.random.default_rng(34)
    matrix = lambda rows, cols: (rng.standard_normal((rows, cols)) * (2 / cols) ** 0.5).astype(np.float16)
    vector = lambda n: (1 + 0.3 * rng.standard_normal(n)).astype(np.float32)
    tensors = {"token_embd": matrix(VOCAB, HIDDEN)}
    for layer in range(LAYERS):
        q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
        block = {
            "attn_norm": vector(HIDDEN),
            "attn_q": matrix(q, HIDDEN),
            "attn_k": matrix(kv, HIDDEN),
            "attn_v": matrix(kv, HIDDEN),
            "attn_q_norm": vector(HEAD_DIM),
            "attn_k_norm": vector(HEAD_DIM),
            "attn_output": matrix(HIDDEN, q),
            "ffn_norm": vector(HIDDEN),
            "ffn_gate": matrix(FFN, HIDDEN),
            "ffn_up": matrix(FFN, HIDDEN),
            "ffn_down": matrix(HIDDEN, FFN),
        }
        if layer in ROUTED:
            block["depth_router"] = (0.2 * rng.standard_normal(HIDDEN)).astype(np.float32)
        tensors |= {f"blk.{layer}.{name}": w for name, w in block.items()}
    tensors["output_norm"] = vector(HIDDEN)
    return {f"{name}.weight": w for name, w in tensors.items()}


def write(tensors):
    w = gguf.GGUFWriter(OUT / "qwen3-depths.gguf", "qwen3")
    w.add_context_length(64)
    w.add_embedding_length(HIDDEN)
    w.add_block_count(LAYERS)
    w.add_feed_forward_length(FFN)
    w.add_head_count(HEADS)
    w.add_head_count_kv(KV_HEADS)
    w.add_key_length(HEAD_DIM)
    w.add_value_length(HEAD_DIM)
    w.add_layer_norm_rms_eps(EPS)
    w.add_rope_freq_base(BASE)
    # The tokenizer of another file with a token for each byte.
    fields = gguf.GGUFReader(OUT / "qwen3-bytes.gguf").fields
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen2")
    w.add_token_list(fields["tokenizer.ggml.tokens"].contents())
    w.add_token_types(fields["tokenizer.ggml.token_type"].contents())
    w.add_token_merges(fields["tokenizer.ggml.merges"].contents())
    for name, tensor in tensors.items():
        w.add_tensor(name, tensor)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    check_formulas()
    tensors = random_tensors()
    model = Model(tensors, BASE, EPS)
    logits = np.array([model.forward(token) for token in TEXT])
    everywhere = Model({name: w for name, w in tensors.items() if "router" not in name}, BASE, EPS)
    assert np.abs(logits - [everywhere.forward(token) for token in TEXT]).max() > 0.1
    moved = Model(tensors, BASE, EPS)
    for token in TEXT[:SEEN]:
        moved.forward(token)
    moved.shift()
    shifted = np.array([moved.forward(token) for token in TEXT[SEEN:]])
    assert np.abs(shifted - logits[SEEN:]).max() > 0.1
    for layer in ROUTED:
        routes = np.array(model.routes[layer])
        print(layer, "".join("x" if r > 0 else "." for r in routes))
        # Some tokens take part and some do not, and no rounding decides which.
        assert 8 <= (routes > 0).sum() <= 20
        assert min(np.abs(routes).min(), np.abs(moved.routes[layer]).min()) > 0.02
    write(tensors)
    logits.astype("<f4").tofile(OUT / "qwen3-depths.logits")
    shifted.astype("<f4").tofile(OUT / "qwen3-depths.shifted")
    print("std", logits.std(), shifted.std())


if __name__ == "__main__":
    main()
