"""A small random BitNet whose ternary weights are packed, as transformers packs them and as bitnet.cpp does.

Writes to tests/fixtures/
- hf/bitnet-packed/: a folder with weights in bytes and their scales (`weight_scale`), and what transformers computes in float64 of the
  unpacked weights, as architectures.py does;
- bitnet-i2s.gguf: the same weights in type 36 (I2_S): codes in blocks of 128, then the scale.

    pip install gguf numpy torch transformers tokenizers safetensors
    TORCHDYNAMO_DISABLE=1 python tests/oracle/bitnet.py
"""

import json

import gguf
import numpy as np
import torch
from architectures import common, split, theta
from hf_folder import LLAMA3, OUT, fill, finish, start, tokenizer
from safetensors.torch import save_file
from transformers import BitNetConfig, BitNetForCausalLM
from transformers.integrations.bitnet import pack_weights, unpack_weights

NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.attn_sub_norm": "attn_sub_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.ffn_sub_norm": "ffn_sub_norm",
}
FIXED = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}


def gguf_name(name):
    if name in FIXED:
        return FIXED[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"


def i2s(ternary, scale):
    """The bytes of type 36: of a block of 128 weights, weight j is in byte j % 32, from bit 6 - 2 * (j // 32)."""
    codes = (ternary.flatten().numpy().astype(np.int64) + 1).reshape(-1, 4, 32)
    packed = sum(codes[:, i] << (6 - 2 * i) for i in range(4)).astype(np.uint8)
    tail = np.zeros(8, "<f4")
    tail[0] = scale
    return np.concatenate([packed.flatten(), tail.view(np.uint8)])


def main():
    torch.manual_seed(6)
    t = tokenizer(split(LLAMA3))
    more = dict(hidden_size=128, intermediate_size=256, num_hidden_layers=2, tie_word_embeddings=True)
    config = BitNetConfig(**common(t, **more, rope_parameters=theta(5e5)))
    model = BitNetForCausalLM(config).eval()
    fill(model, torch.bfloat16)
    packed, types = {}, {}
    with torch.no_grad():
        for i, (name, p) in enumerate(model.named_parameters()):
            if "_proj" not in name:
                packed[name] = p.bfloat16()
                continue
            # One of them is a number that float16 has, too.
            scale = (p.abs().mean() * (1 + 0.1 * (i % 3))).bfloat16() if "layers.1.mlp.up" not in name else torch.tensor(0.125)
            scale = scale.double() if "layers.1.mlp.up" in name else scale.double() * (1 + 2.0**-20)
            ternary = (p / p.abs().mean()).round().clamp(-1, 1)
            packed[name] = pack_weights(ternary.clone())
            assert (unpack_weights(packed[name], torch.float32) == ternary).all()
            packed[name + "_scale"] = scale.float().reshape(1)
            types[name] = (ternary, scale.float().item())
            p.copy_(ternary)
    folder = start("bitnet-packed", t)
    config.save_pretrained(folder)
    text = json.loads((folder / "config.json").read_text())
    text["architectures"] = ["BitNetForCausalLM"]
    text["quantization_config"] = {
        "quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline",
        "modules_to_not_convert": None,
    }
    (folder / "config.json").write_text(json.dumps(text, indent=2) + "\n")
    save_file({name: p.contiguous() for name, p in packed.items()}, folder / "model.safetensors", {"format": "pt"})
    model.double()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name in types:
                p.mul_(types[name][1])
    finish(folder, model, t)

    w = gguf.GGUFWriter(OUT.parent / "bitnet-i2s.gguf", "bitnet-b1.58")
    w.add_context_length(config.max_position_embeddings)
    w.add_embedding_length(config.hidden_size)
    w.add_block_count(config.num_hidden_layers)
    w.add_feed_forward_length(config.intermediate_size)
    w.add_head_count(config.num_attention_heads)
    w.add_head_count_kv(config.num_key_value_heads)
    w.add_layer_norm_rms_eps(config.rms_norm_eps)
    w.add_rope_freq_base(5e5)
    w.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("llama-bpe")
    vocab = json.loads((folder / "tokenizer.json").read_text())
    tokens = {i: token for token, i in vocab["model"]["vocab"].items()}
    kinds = {}
    for added in vocab["added_tokens"]:
        tokens[added["id"]] = added["content"]
        kinds[added["id"]] = 3 if added["special"] else 4
    w.add_token_list([tokens[i] for i in range(len(tokens))])
    w.add_token_types([kinds.get(i, 1) for i in range(len(tokens))])
    w.add_token_merges([" ".join(pair) for pair in vocab["model"]["merges"]])
    w.add_bos_token_id(t.bos_token_id)
    w.add_eos_token_id(t.eos_token_id)
    for name, p in packed.items():
        if name.endswith("_scale"):
            continue
        to = gguf_name(name)
        if name in types:
            ternary, scale = types[name]
            data = i2s(ternary, scale)
            # gguf-py does not know the type.
            w.add_tensor_info(to, tuple(ternary.shape), np.dtype(np.float32), data.nbytes, raw_dtype=36)
            w.tensors[-1][to].tensor = data
        else:
            kind = np.float32 if p.ndim == 1 else np.float16
            w.add_tensor(to, p.float().numpy().astype(kind))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    main()
