"""ONNX models as `onnx-community` publishes them, and what onnxruntime computes of them, as the oracle of `convert`.

Writes to tests/fixtures/hf/onnx-*/ what a repository has: config.json, tokenizer.json and onnx/model_*.onnx, and beside
them logits.f32 and texts.json as hf_folder.py does. `onnx-ternary` has 2-bit weights with zero point 1 in a second file
and a head that shares the weights of the embedding; `onnx-mixed` has weights of 8, 4 and 2 bits, floats, and rows that
end within a block.
`gather_block_quantized.json` beside them has the numbers that codes without zero points and with the scale 1 stand for.

    pip install torch transformers tokenizers safetensors numpy onnx onnxruntime
    python tests/oracle/onnx_model.py
"""

import json

import numpy as np
import onnx
import onnxruntime
import torch
from hf_folder import OUT, TEXTS, fill, qwen3, start
from onnx import TensorProto, helper, numpy_helper

MS = "com.microsoft"


def pack(codes, bits):
    """Codes along the last axis to bytes, the first in the lowest bits."""
    each = 8 // bits
    tail = -codes.shape[-1] % each
    codes = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, tail)])
    parts = codes.reshape(*codes.shape[:-1], -1, each).astype(np.uint8)
    return (parts << (bits * np.arange(each, dtype=np.uint8))).sum(-1).astype(np.uint8)


class Graph:
    def __init__(self):
        self.nodes, self.weights = [], []

    def node(self, op, inputs, name, domain="", outputs=1, **attributes):
        outs = [f"{name}/output_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, outs, name=name, domain=domain, **attributes))
        return outs[0]

    def weight(self, name, array):
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def quantized(self, name, w, bits, block, zero, flat=False):
        """Initializers of a quantized matrix: codes, scales and zero points."""
        rows, cols = w.shape
        groups = np.pad(w, [(0, 0), (0, -cols % block)]).reshape(rows, -1, block)
        if bits == 2:
            scale = np.abs(groups).mean(-1)
        else:
            scale = (groups.max(-1) - groups.min(-1)) / (2**bits - 1)
        scale = scale.astype(np.float16).astype(np.float32)
        if zero == "ternary":
            codes, zeros = np.clip(np.round(groups / scale[..., None]), -1, 1) + 1, np.ones_like(scale)
        elif zero == "binary":
            codes, zeros = np.where(groups < 0, 1, 3), np.full_like(scale, 2)
        elif zero == "middle":
            zeros = np.full_like(scale, 2 ** (bits - 1))
            codes = np.clip(np.round(groups / scale[..., None]) + zeros[..., None], 0, 2**bits - 1)
        else:
            zeros = np.clip(np.round(-groups.min(-1) / scale), 0, 2**bits - 1)
            codes = np.clip(np.round(groups / scale[..., None]) + zeros[..., None], 0, 2**bits - 1)
        data = pack(codes, bits)
        data = data.reshape(rows, -1) if flat else data
        names = [self.weight(f"{name}_quant", data), self.weight(f"{name}_scales", scale)]
        if zero in ("ternary", "least"):
            names.append(self.weight(f"{name}_zp", pack(zeros, bits)))
        return names


def build(config, tensors, ids, quantize, tied):
    """The graph of a Qwen3; `quantize` says how a module's weights are stored."""
    g = Graph()
    hidden, heads, kv = config.hidden_size, config.num_attention_heads, config.num_key_value_heads
    dim, length = config.head_dim, len(ids)
    embedding = []

    def shape(name, *dims):
        return g.weight(f"{name}/shape", np.array(dims, np.int64))

    def linear(x, path, w):
        name = path.strip("/").replace("/", "_").replace(".", "_")
        how = quantize(path)
        rows, cols = w.shape
        if path == "/lm_head" and tied:
            data, *rest = embedding
            bits, block, _ = how
            data = g.node("Reshape", [data, shape(path, rows, -1, block * bits // 8)], f"{path}/Reshape")
            return g.node("MatMulNBits", [x, data, *rest], f"{path}/MatMul_Quant", MS, K=cols, N=rows, bits=bits,
                          block_size=block)
        if how is None:
            return g.node("MatMul", [x, g.weight(f"onnx::MatMul_{len(g.weights)}", w.T)], f"{path}/MatMul")
        bits, block, zero = how
        data, scales, *zeros = g.quantized(f"{name}_MatMul_weight", w, bits, block, zero)
        zeros = [g.weight(zeros[0] + "_", numpy_helper.to_array(g.weights.pop()))] if zeros else []
        return g.node("MatMulNBits", [x, data, scales, *zeros], f"{path}/MatMul_Quant", MS, K=cols, N=rows, bits=bits,
                      block_size=block)

    def norm(x, name, path):
        weight = name if any(w.name == name for w in g.weights) else g.weight(name, tensors[path])
        return g.node("SimplifiedLayerNormalization", [x, weight], f"/{name}/LayerNorm", epsilon=1e-6, axis=-1)

    w = tensors["model.embed_tokens.weight"]
    how = quantize("/model/embed_tokens")
    if how is None:
        x = g.node("Gather", [g.weight("model.embed_tokens.weight", w), "input_ids"], "/model/embed_tokens/Gather")
    else:
        bits, block, zero = how
        embedding = g.quantized("model_embed_tokens_weight", w, bits, block, zero, flat=True)
        x = g.node("GatherBlockQuantized", [embedding[0], "input_ids", *embedding[1:]],
                   "/model/embed_tokens/Gather_Quant", MS, bits=bits, block_size=block, gather_axis=0, quantize_axis=1)
    theta, factor = rope(config, length)
    g.weight("cos_cache", np.cos(theta) * factor)
    g.weight("sin_cache", np.sin(theta) * factor)
    g.weight("positions", np.arange(length, dtype=np.int64)[None])
    g.weight("mask", np.triu(np.full((length, length), -1e9, np.float32), 1))
    g.weight("root", np.float32(dim**-0.5))
    for i in range(config.num_hidden_layers):
        layer, here = f"/model/layers.{i}", f"model.layers.{i}"
        y = norm(x, f"{here}.input_layernorm.weight", f"{here}.input_layernorm.weight")
        parts = []
        for part, n in (("q", heads), ("k", kv), ("v", kv)):
            p = linear(y, f"{layer}/attn/{part}_proj", tensors[f"{here}.self_attn.{part}_proj.weight"])
            p = g.node("Reshape", [p, shape(f"{layer}/{part}", 1, length, n, dim)], f"{layer}/attn/{part}/Reshape")
            if part != "v":
                p = norm(p, f"{here}.attn.{part}_norm.layernorm.weight", f"{here}.self_attn.{part}_norm.weight")
            p = g.node("Transpose", [p], f"{layer}/attn/{part}/Transpose", perm=[0, 2, 1, 3])
            if part != "v":
                p = g.node("RotaryEmbedding", [p, "positions", "cos_cache", "sin_cache"],
                           f"{layer}/attn/{part}/RotaryEmbedding", MS)
            if n != heads:
                p = g.node("Concat", [p] * (heads // kv), f"{layer}/attn/{part}/Concat", axis=1)
            parts.append(p)
        q, k, v = parts
        k = g.node("Transpose", [k], f"{layer}/attn/k/Transpose_1", perm=[0, 1, 3, 2])
        s = g.node("MatMul", [q, k], f"{layer}/attn/MatMul")
        s = g.node("Mul", [s, "root"], f"{layer}/attn/Mul")
        s = g.node("Add", [s, "mask"], f"{layer}/attn/Add")
        s = g.node("Softmax", [s], f"{layer}/attn/Softmax", axis=-1)
        s = g.node("MatMul", [s, v], f"{layer}/attn/MatMul_1")
        s = g.node("Transpose", [s], f"{layer}/attn/Transpose", perm=[0, 2, 1, 3])
        s = g.node("Reshape", [s, shape(layer, 1, length, heads * dim)], f"{layer}/attn/Reshape")
        s = linear(s, f"{layer}/attn/o_proj", tensors[f"{here}.self_attn.o_proj.weight"])
        x = g.node("Add", [x, s], f"{layer}/Add")
        y = norm(x, f"{here}.post_attention_layernorm.weight", f"{here}.post_attention_layernorm.weight")
        gate = linear(y, f"{layer}/mlp/gate_proj", tensors[f"{here}.mlp.gate_proj.weight"])
        up = linear(y, f"{layer}/mlp/up_proj", tensors[f"{here}.mlp.up_proj.weight"])
        act = g.node("Sigmoid", [gate], f"{layer}/mlp/act_fn/Sigmoid")
        act = g.node("Mul", [gate, act], f"{layer}/mlp/act_fn/Mul")
        act = g.node("Mul", [act, up], f"{layer}/mlp/Mul")
        act = linear(act, f"{layer}/mlp/down_proj", tensors[f"{here}.mlp.down_proj.weight"])
        x = g.node("Add", [x, act], f"{layer}/Add_1")
    last = f"model.layers.{config.num_hidden_layers}.final_norm_layernorm.weight"
    x = norm(x, last, "model.norm.weight")
    head = "model.embed_tokens.weight" if tied else "lm_head.weight"
    logits = linear(x, "/lm_head", tensors[head])
    rows = config.vocab_size
    graph = helper.make_graph(
        g.nodes,
        "model",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, length])],
        [helper.make_tensor_value_info(logits, TensorProto.FLOAT, [1, length, rows])],
        g.weights,
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MS, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def rope(config, length):
    """Angles [length, dim / 2] and the factor of YaRN."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    inverse, factor = ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")
    return np.outer(np.arange(length), inverse.numpy()).astype(np.float32), np.float32(factor)


def finish(folder, file, model, ids, t, external):
    path = folder / "onnx" / file
    path.parent.mkdir(exist_ok=True)
    (path.parent / f"{file}_data").unlink(missing_ok=True)
    if external:
        onnx.save(model, path, save_as_external_data=True, location=f"{file}_data", size_threshold=1024)
    else:
        onnx.save(model, path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"input_ids": np.array([ids], np.int64)})
    (folder / "logits.f32").write_bytes(logits[0].astype("<f4").tobytes())
    texts = [[text, t(text, add_special_tokens=False).input_ids] for text in TEXTS]
    (folder / "texts.json").write_text(json.dumps(texts) + "\n")
    for each in folder.rglob("*"):
        each.chmod(0o755 if each.is_dir() else 0o644)
    print(folder.name, file, path.stat().st_size, logits.shape, logits.std())


def codes():
    """What `GatherBlockQuantized` makes of the codes 0 to 15 without zero points."""
    values = {}
    for kind in ("UINT4", "UINT8"):
        if kind == "UINT4":
            data = helper.make_tensor("data", TensorProto.UINT4, [1, 16], list(range(16)))
        else:
            data = numpy_helper.from_array(pack(np.arange(16)[None], 4), "data")
        scales = numpy_helper.from_array(np.ones((1, 1), np.float32), "scales")
        node = helper.make_node("GatherBlockQuantized", ["data", "row", "scales"], ["values"], domain=MS, bits=4,
                                block_size=16, gather_axis=0, quantize_axis=1)
        graph = helper.make_graph([node], "codes", [helper.make_tensor_value_info("row", TensorProto.INT64, [1])],
                                  [helper.make_tensor_value_info("values", TensorProto.FLOAT, [1, 16])],
                                  [data, scales])
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MS, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        values[kind] = session.run(None, {"row": np.zeros(1, np.int64)})[0][0].tolist()
    (OUT / "gather_block_quantized.json").write_text(json.dumps(values) + "\n")


def main():
    codes()
    torch.manual_seed(2)
    for name in ("onnx-ternary", "onnx-mixed"):
        t, model = qwen3(128, 128 if name == "onnx-ternary" else 80, 1)
        tied = name == "onnx-ternary"
        config = model.config
        fill(model, torch.float16)
        tensors = {key: p.detach().numpy().astype(np.float32) for key, p in model.named_parameters()}
        tensors["lm_head.weight"] = (np.random.default_rng(1).normal(size=(272, 128)) / 8).astype(np.float32)
        ids = t(TEXTS[0], add_special_tokens=False).input_ids
        folder = start(name, t)
        if tied:

            def quantize(path):
                return (2, 128, "ternary")

        else:

            def quantize(path):
                return {
                    "/model/embed_tokens": (4, 32, "middle"),
                    "/model/layers.0/attn/q_proj": (4, 32, "middle"),
                    "/model/layers.0/attn/k_proj": (8, 32, "middle"),
                    "/model/layers.0/attn/v_proj": (4, 64, "least"),
                    "/model/layers.0/attn/o_proj": (2, 128, "binary"),
                    "/model/layers.0/mlp/gate_proj": (8, 64, "least"),
                    "/model/layers.0/mlp/up_proj": (2, 64, "ternary"),
                    # 80 columns: the last block of a row is half empty.
                    "/model/layers.0/mlp/down_proj": (4, 32, "least"),
                    "/lm_head": None,
                }[path]

        graph = build(config, tensors, ids, quantize, tied)
        settings = json.loads(config.to_json_string()) | {"architectures": ["Qwen3ForCausalLM"]}
        settings["tie_word_embeddings"] = tied
        (folder / "config.json").write_text(json.dumps(settings, indent=2) + "\n")
        finish(folder, "model_q2.onnx" if tied else "model.onnx", graph, ids, t, external=tied)


if __name__ == "__main__":
    main()
