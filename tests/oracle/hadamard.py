"""Models whose weights are stored in a rotated basis (`prism.hadamard.*`), made of those that transformers has computed.

Writes to tests/fixtures/
- qwen35-rotated.gguf: hf/qwen35, with signs, and the value heads of ssm_out side by side; its logits are those of hf/qwen35;
- qwen3-rotated.gguf: qwen3-bytes.gguf, without signs, whose embedding is the output; its hidden states are those of qwen3-bytes, and
  qwen3-rotated.logits has their products with the embedding.

Every matrix W becomes W R^T with R = H diag(s) / sqrt(n), block by block; rows of the embedding become R e. All weights are F32.

    pip install gguf numpy safetensors torch
    python tests/oracle/hadamard.py
"""

import json
from pathlib import Path

import gguf
import numpy as np
from safetensors.torch import load_file

OUT = Path(__file__).parent.parent / "fixtures"
TRANSFORM = "normalized-sylvester-walsh-hadamard"


def rotation(signs, block):
    """R (width, width) in f64."""
    parity = np.array([[bin(r & c).count("1") % 2 for c in range(block)] for r in range(block)])
    h = (1.0 - 2.0 * parity) / np.sqrt(block)
    r = np.kron(np.eye(len(signs) // block), h)
    return r * np.asarray(signs)[None, :]


def rotate(w, signs, block):
    return w.astype(np.float64) @ rotation(signs, block).T


def keys(w, block, version, mode, names):
    w.add_uint32("prism.hadamard.version", version)
    w.add_uint32("prism.hadamard.block_size", block)
    w.add_string("prism.hadamard.transform", TRANSFORM)
    w.add_string("prism.hadamard.axis", "input-last-dimension")
    w.add_string("prism.hadamard.sign_mode", mode)
    w.add_array("prism.hadamard.weight_names", names)
    w.add_array("prism.hadamard.inverse_weight_names", ["token_embd.weight"])


def tensors(w, all, rotated, signs, block):
    """Writes all tensors; `rotated` are the names of matrices whose input is."""
    for name, t in all.items():
        if name in rotated or name == "token_embd.weight":
            t = rotate(t, signs(t.shape[-1]), block)
        w.add_tensor(name, np.ascontiguousarray(t, dtype=np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def qwen35():
    folder, block = OUT / "hf" / "qwen35", 16
    c = json.loads((folder / "config.json").read_text())
    source = {k: t.double().numpy() for k, t in load_file(folder / "model.safetensors").items()}
    keys_heads, heads, dim = c["linear_num_key_heads"], c["linear_num_value_heads"], c["linear_value_head_dim"]
    each = heads // keys_heads
    # Value head h of the file has the keys of head h % keys; in the folder those of h // each.
    order = [h % keys_heads * each + h // keys_heads for h in range(heads)]
    rows = np.array([h * dim + i for h in order for i in range(dim)])
    qk = 2 * keys_heads * c["linear_key_head_dim"]
    mixed = np.concatenate([np.arange(qk), qk + rows])
    names = {
        "input_layernorm.weight": ("attn_norm.weight", lambda t: t + 1),
        "post_attention_layernorm.weight": ("post_attention_norm.weight", lambda t: t + 1),
        "mlp.gate_proj.weight": ("ffn_gate.weight", None),
        "mlp.up_proj.weight": ("ffn_up.weight", None),
        "mlp.down_proj.weight": ("ffn_down.weight", None),
        "self_attn.q_proj.weight": ("attn_q.weight", None),
        "self_attn.k_proj.weight": ("attn_k.weight", None),
        "self_attn.v_proj.weight": ("attn_v.weight", None),
        "self_attn.o_proj.weight": ("attn_output.weight", None),
        "self_attn.q_norm.weight": ("attn_q_norm.weight", lambda t: t + 1),
        "self_attn.k_norm.weight": ("attn_k_norm.weight", lambda t: t + 1),
        "linear_attn.in_proj_qkv.weight": ("attn_qkv.weight", lambda t: t[mixed]),
        "linear_attn.in_proj_z.weight": ("attn_gate.weight", lambda t: t[rows]),
        "linear_attn.in_proj_a.weight": ("ssm_alpha.weight", lambda t: t[order]),
        "linear_attn.in_proj_b.weight": ("ssm_beta.weight", lambda t: t[order]),
        "linear_attn.conv1d.weight": ("ssm_conv1d.weight", lambda t: t[mixed, 0]),
        "linear_attn.dt_bias": ("ssm_dt.bias", lambda t: t[order]),
        "linear_attn.A_log": ("ssm_a", lambda t: -np.exp(t[order])),
        "linear_attn.norm.weight": ("ssm_norm.weight", None),
        # Its columns stay as in the folder: the key gdn_v_grouped says so.
        "linear_attn.out_proj.weight": ("ssm_out.weight", None),
    }
    found = {
        "token_embd.weight": source.pop("model.embed_tokens.weight"),
        "output_norm.weight": source.pop("model.norm.weight") + 1,
        "output.weight": source.pop("lm_head.weight"),
    }
    for name, t in source.items():
        _, _, layer, rest = name.split(".", 3)
        to, change = names[rest]
        found[f"blk.{layer}.{to}"] = change(t) if change else t

    w = gguf.GGUFWriter(OUT / "qwen35-rotated.gguf", "qwen35")
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_block_count(c["num_hidden_layers"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_key_length(c["head_dim"])
    w.add_value_length(c["head_dim"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    rope = c["rope_parameters"]
    w.add_rope_freq_base(rope["rope_theta"])
    w.add_rope_dimension_count(int(c["head_dim"] * rope["partial_rotary_factor"]))
    w.add_uint32("qwen35.ssm.conv_kernel", c["linear_conv_kernel_dim"])
    w.add_uint32("qwen35.ssm.state_size", c["linear_key_head_dim"])
    w.add_uint32("qwen35.ssm.group_count", keys_heads)
    w.add_uint32("qwen35.ssm.time_step_rank", heads)
    w.add_uint32("qwen35.ssm.inner_size", heads * dim)
    w.add_array("qwen35.attention.recurrent_layers", [t == "linear_attention" for t in c["layer_types"]])

    kinds = ["attn_q", "attn_k", "attn_v", "attn_qkv", "attn_gate", "attn_output", "ssm_out"]
    kinds += ["ffn_gate", "ffn_up", "ffn_down", "output"]
    rotated = [name for name in found if name.removesuffix(".weight").split(".")[-1] in kinds]
    rng = np.random.default_rng(2)
    signs = {width: rng.choice([-1, 1], width).tolist() for width in [32, 48]}
    keys(w, block, 1, "explicit", rotated)
    w.add_array("prism.hadamard.sign_widths", list(signs))
    w.add_array("prism.hadamard.sign_values", [s for of in signs.values() for s in of])
    w.add_bool("prism.hadamard.gdn_v_grouped", True)
    tensors(w, found, rotated, lambda width: signs[width], block)


def qwen3():
    block, reader = 16, gguf.GGUFReader(OUT / "qwen3-bytes.gguf")
    w = gguf.GGUFWriter(OUT / "qwen3-rotated.gguf", "qwen3")
    for field in reader.fields.values():
        if field.name.startswith(("qwen3.", "tokenizer.")):
            of = field.types[-1] if len(field.types) > 1 else None
            w.add_key_value(field.name, field.contents(), field.types[0], sub_type=of)
    found = {t.name: gguf.dequantize(t.data, t.tensor_type) for t in reader.tensors}
    # Not all, so that some products of the same input are rotated.
    rotated = [name for name, t in found.items() if t.ndim == 2 and "attn_k" not in name and "embd" not in name]
    keys(w, block, 2, "identity", rotated)
    w.add_bool("prism.hadamard.tied_output", True)
    tensors(w, found, rotated, np.ones, block)
    table = found["token_embd.weight"].astype(np.float64)
    hidden = np.fromfile(OUT / "qwen3-bytes.hidden", np.float32).reshape(-1, table.shape[1])
    (hidden.astype(np.float64) @ table.T).astype(np.float32).tofile(OUT / "qwen3-rotated.logits")


if __name__ == "__main__":
    qwen35()
    qwen3()
