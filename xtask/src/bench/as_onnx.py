"""as_onnx.py MODEL.gguf DIRECTORY: writes a Qwen3 GGUF file as transformers.js reads models: ONNX with 4-bit weights.

The weights are the same numbers: 1-bit and ternary ones are codes 7, 8 and 9 of 4 bits around a zero of 8, with the scale
of their block, which is checked for every weight. There is no smaller form that ONNX Runtime computes with in a browser.
"""

import json
import math
import sys
from pathlib import Path

import gguf
import numpy as np
import onnx
from onnx import TensorProto, helper

BLOCK = 128
ROWS = 4096
FLOAT = TensorProto.FLOAT

reader = gguf.GGUFReader(sys.argv[1])
directory = Path(sys.argv[2])
(directory / "onnx").mkdir(parents=True, exist_ok=True)
data_name = "model_q4.onnx_data"
data = open(directory / "onnx" / data_name, "wb")
meta = {name: field.contents() for name, field in reader.fields.items() if name.startswith(("qwen3.", "general."))}
tensors = {tensor.name: tensor for tensor in reader.tensors}

hidden, layers = meta["qwen3.embedding_length"], meta["qwen3.block_count"]
heads, kv_heads = meta["qwen3.attention.head_count"], meta["qwen3.attention.head_count_kv"]
head = meta["qwen3.attention.key_length"]
eps = meta["qwen3.attention.layer_norm_rms_epsilon"]
vocabulary = int(tensors["token_embd.weight"].shape[1])
context = min(meta["qwen3.context_length"], 4096)

nodes, initializers, values = [], [], []


def stored(name, array):
    """An initializer in the file beside the model's."""
    array = np.ascontiguousarray(array)
    data.write(bytes(-data.tell() % 4096))
    kind = {"uint8": TensorProto.UINT8, "float32": FLOAT, "int64": TensorProto.INT64}[array.dtype.name]
    tensor = TensorProto(name=name, data_type=kind, dims=array.shape, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": data_name, "offset": data.tell(), "length": array.nbytes}.items():
        tensor.external_data.add(key=key, value=str(value))
    initializers.append(tensor)
    array.tofile(data)
    data.flush()
    return name


def constant(name, array):
    initializers.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return name


def node(kind, inputs, output, domain="", outputs=1, **attributes):
    names = [output] if outputs == 1 else list(output)
    nodes.append(helper.make_node(kind, inputs, names, name=names[0], domain=domain, **attributes))
    return output


def weights_of(raw, kind):
    """Rows as numbers. gguf-py lists Q1_0 and does not read it: 18 bytes, a scale and the signs of 128 weights."""
    if kind != gguf.GGMLQuantizationType.Q1_0:
        return gguf.quants.dequantize(raw, kind)
    blocks = raw.reshape(-1, 18)
    scale = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    signs = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little").astype(np.float32) * 2 - 1
    return signs * scale


def packed(name):
    """Codes (rows, blocks, 64), two to a byte, the first one low, and scales (rows, blocks)."""
    tensor = tensors[name]
    cols, rows = (int(n) for n in tensor.shape)
    codes = np.empty((rows, cols // BLOCK, BLOCK // 2), np.uint8)
    scales = np.empty((rows, cols // BLOCK), np.float32)
    raw = np.asarray(tensor.data).reshape(rows, -1)
    for at in range(0, rows, ROWS):
        weights = weights_of(raw[at : at + ROWS], tensor.tensor_type).reshape(-1, cols // BLOCK, BLOCK)
        scale = np.abs(weights).max(2)
        signs = np.sign(weights).astype(np.int8)
        assert np.array_equal(signs * scale[:, :, None], weights), f"{name} is neither 1-bit nor ternary"
        code = (signs + 8).astype(np.uint8)
        codes[at : at + ROWS] = code[:, :, 0::2] | code[:, :, 1::2] << 4
        scales[at : at + ROWS] = scale
    return codes, scales


def product(x, name, output):
    codes, scales = packed(name)
    rows, blocks, _ = codes.shape
    weight = stored(f"{name}.quant", codes)
    scale = stored(f"{name}.scales", scales.reshape(-1))
    attributes = {"K": blocks * BLOCK, "N": rows, "bits": 4, "block_size": BLOCK, "accuracy_level": 4}
    return node("MatMulNBits", [x, weight, scale], output, "com.microsoft", **attributes)


def norm(x, name, output):
    weight = stored(name, np.asarray(tensors[name].data, np.float32).reshape(-1))
    return node("SimplifiedLayerNormalization", [x, weight], output, axis=-1, epsilon=eps)


def rotations():
    """Cosines and sines (context, head / 2), stretched as YaRN has it."""
    base = meta["qwen3.rope.freq_base"]
    i = np.arange(head // 2)
    step = base ** (-2.0 * i / head)
    size = 1.0
    if meta.get("qwen3.rope.scaling.type") == "yarn":
        factor, original = meta["qwen3.rope.scaling.factor"], meta["qwen3.rope.scaling.original_context_length"]
        corner = lambda turns: head * math.log(original / (2 * math.pi * turns)) / (2 * math.log(base))
        low, high = max(0, math.floor(corner(32))), min(head - 1, math.ceil(corner(1)))
        ramp = np.clip((i - low) / max(0.001, high - low), 0, 1)
        step = step * ((1 - ramp) + ramp / factor)
        size = 0.1 * math.log(factor) + 1
    angle = np.arange(context)[:, None] * step[None, :]
    return (np.cos(angle) * size).astype(np.float32), (np.sin(angle) * size).astype(np.float32)


codes, scales = packed("token_embd.weight")
embedding = stored("embedding.quant", codes.reshape(vocabulary, -1))
embedding_scales = stored("embedding.scales", scales)
# ONNX Runtime for the browser has no GatherBlockQuantized on the CPU, so the row's codes are taken apart step by step.
bytes_ = node("Cast", [node("Gather", [embedding, "input_ids"], "row", axis=0)], "row_bytes", to=FLOAT)
high = node("Floor", [node("Mul", [bytes_, constant("sixteenth", np.float32(1 / 16))], "row_shifted")], "row_high")
low = node("Sub", [bytes_, node("Mul", [high, constant("sixteen", np.float32(16))], "row_upper")], "row_low")
end = constant("end", np.array([-1], np.int64))
halves = [node("Unsqueeze", [half, end], f"{half}_1") for half in (low, high)]
codes_ = node("Concat", halves, "row_pairs", axis=-1)
codes_ = node("Reshape", [codes_, constant("by_block", np.array([0, 0, -1, BLOCK], np.int64))], "row_codes")
signs = node("Sub", [codes_, constant("zero_point", np.float32(8))], "row_signs")
scale = node("Unsqueeze", [node("Gather", [embedding_scales, "input_ids"], "row_scales", axis=0), end], "row_scale")
row = node("Mul", [signs, scale], "row_weights")
x = node("Reshape", [row, constant("as_row", np.array([0, 0, hidden], np.int64))], "x")

one = constant("one", np.array([1], np.int64))
counted = node("ReduceSum", ["attention_mask", one], "counted", keepdims=1)
last = node("Sub", [counted, one], "last_of_each")
last = node("Cast", [last], "seqlens_k", to=TensorProto.INT32)
shape = node("Shape", ["attention_mask"], "mask_shape")
length = node("Gather", [shape, constant("index_1", np.array(1, np.int64))], "length", axis=0)
length = node("Cast", [length], "total_length", to=TensorProto.INT32)
cosines, sines = (stored(name, array) for name, array in zip(("cos_cache", "sin_cache"), rotations()))
by_head = {n: constant(f"heads_{n}", np.array([0, -1, n, head], np.int64)) for n in {heads, kv_heads}}
flat = {n: constant(f"flat_{n}", np.array([0, -1, n * head], np.int64)) for n in {heads, kv_heads}}


def normed_heads(x, n, name, output):
    x = node("Reshape", [x, by_head[n]], f"{output}_heads")
    return node("Reshape", [norm(x, name, f"{output}_normed"), flat[n]], output)


for i in range(layers):
    at, past, present = f"blk.{i}.", f"past_key_values.{i}.", f"present.{i}."
    n = norm(x, f"{at}attn_norm.weight", f"{at}n")
    q = normed_heads(product(n, f"{at}attn_q.weight", f"{at}q0"), heads, f"{at}attn_q_norm.weight", f"{at}q")
    k = normed_heads(product(n, f"{at}attn_k.weight", f"{at}k0"), kv_heads, f"{at}attn_k_norm.weight", f"{at}k")
    v = product(n, f"{at}attn_v.weight", f"{at}v")
    inputs = [q, k, v, past + "key", past + "value", last, length, cosines, sines]
    outputs = [f"{at}o", present + "key", present + "value"]
    attributes = {"num_heads": heads, "kv_num_heads": kv_heads, "do_rotary": 1, "rotary_interleaved": 0}
    node("GroupQueryAttention", inputs, outputs, "com.microsoft", 3, **attributes)
    x = node("Add", [x, product(f"{at}o", f"{at}attn_output.weight", f"{at}ao")], f"{at}x1")
    m = norm(x, f"{at}ffn_norm.weight", f"{at}m")
    gate = product(m, f"{at}ffn_gate.weight", f"{at}gate")
    gate = node("Mul", [gate, node("Sigmoid", [gate], f"{at}sigmoid")], f"{at}silu")
    gate = node("Mul", [gate, product(m, f"{at}ffn_up.weight", f"{at}up")], f"{at}product")
    x = node("Add", [x, product(gate, f"{at}ffn_down.weight", f"{at}down")], f"{at}x2")

# Only the last position's logits are asked for.
minus, most, axis = (constant(name, np.array([n], np.int64)) for name, n in (("minus", -1), ("most", 2**62), ("axis", 1)))
x = node("Slice", [x, minus, most, axis], "last_x")
x = norm(x, "output_norm.weight", "normed")
product(x, "output.weight" if "output.weight" in tensors else "token_embd.weight", "logits")


def value(name, kind, shape):
    return helper.make_tensor_value_info(name, kind, shape)


cache = lambda name, length: [value(f"{name}.{i}.{part}", FLOAT, ["batch_size", kv_heads, length, head]) for i in range(layers) for part in ("key", "value")]
ids = [value("input_ids", TensorProto.INT64, ["batch_size", "sequence_length"]), value("attention_mask", TensorProto.INT64, ["batch_size", "total_sequence_length"])]
logits = [value("logits", FLOAT, ["batch_size", 1, vocabulary])]
graph = helper.make_graph(nodes, "qwen3", ids + cache("past_key_values", "past_sequence_length"), logits + cache("present", "total_sequence_length"), initializers)
opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
data.close()
onnx.save(model, directory / "onnx" / "model_q4.onnx")

config = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": hidden, "num_hidden_layers": layers,
    "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head, "vocab_size": vocabulary,
    "intermediate_size": meta["qwen3.feed_forward_length"], "max_position_embeddings": context, "rms_norm_eps": eps,
    "transformers.js_config": {"use_external_data_format": {"model_q4.onnx": True}},
}
(directory / "config.json").write_text(json.dumps(config))
(directory / "generation_config.json").write_text(json.dumps({"do_sample": False}))
# The ids of the digits, which prompts are made of.
tokens = reader.fields.get("tokenizer.ggml.tokens")
if tokens:
    tokens = tokens.contents()
    (directory / "digits.json").write_text(json.dumps([tokens.index(str(digit)) for digit in range(10)]))
