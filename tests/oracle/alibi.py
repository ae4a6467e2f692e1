"""Slopes of ALiBi by transformers' Bloom and MPT, and logits of a small random model with them.

Writes to tests/fixtures/: alibi_slopes.txt, for each case a line of the number of heads, the largest slope's exponent and
the slopes; qwen3-alibi.gguf (F16 matrices, 6 heads, a token for each byte, attention.max_alibi_bias), and logits of the
first COUNT tokens of TEXT by transformers' Qwen3 with Bloom's bias in its mask: without rotation (qwen3-alibi.logits), with
it (qwen3-alibi.both), and with rotation only (qwen3-alibi.rope).

    pip install torch transformers gguf numpy
    python tests/oracle/alibi.py
"""

import gguf
import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

from qwen3_logits import OUT, TEXT, gguf_name, letters

HEADS, KV_HEADS, HEAD_DIM, HIDDEN, LAYERS, FFN, VOCAB = 6, 2, 16, 32, 2, 64, 257
COUNT = 16


def slopes() -> list[str]:
    lines = []
    for heads in [1, 2, 3, 6, 8, 9, 12, 16, 25, 32, 71]:
        cases = [(8.0, build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1])]
        # Theirs counts back from the last position.
        cases += [(bias, -build_mpt_alibi_tensor(heads, 2, bias)[:, 0, 0]) for bias in [4.0, 8.0, 16.0]]
        lines += [f"{heads} {bias} " + " ".join(f"{x:.9e}" for x in found.tolist()) for bias, found in cases]
    return lines


class Unrotated(torch.nn.Module):
    def forward(self, x, position_ids):
        shape = (1, position_ids.shape[1], HEAD_DIM)
        return torch.ones(shape, dtype=x.dtype), torch.zeros(shape, dtype=x.dtype)


def main() -> None:
    (OUT / "alibi_slopes.txt").write_text("\n".join(slopes()) + "\n")
    torch.manual_seed(6)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=FFN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=64,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        attn_implementation="eager",
    )
    model = Qwen3ForCausalLM(config).eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            if key.endswith("norm.weight"):
                p.copy_(1 + 0.3 * torch.randn_like(p))
            else:
                p.copy_((torch.randn_like(p) * (2.0 / p.shape[-1]) ** 0.5).half().float())
    model = model.double()
    ids = torch.tensor([list(TEXT.encode())[:COUNT]])
    causal = torch.full((COUNT, COUNT), float("-inf"), dtype=torch.float64).triu(1)[None, None]
    bias = build_alibi_tensor(torch.ones(1, COUNT), HEADS, torch.float64)[None] + causal
    all_logits = {}
    with torch.no_grad():
        all_logits["rope"] = model(ids).logits[0]
        all_logits["both"] = model(ids, attention_mask={"full_attention": bias}).logits[0]
        model.model.rotary_emb = Unrotated()
        all_logits["logits"] = model(ids, attention_mask={"full_attention": bias}).logits[0]
        neither = model(ids).logits[0]
    found = [*all_logits.values(), neither]
    assert all((a - b).abs().max() > 0.1 for i, a in enumerate(found) for b in found[:i])
    for kind, logits in all_logits.items():
        (OUT / f"qwen3-alibi.{kind}").write_bytes(logits.float().numpy().astype("<f4").tobytes())
    w = gguf.GGUFWriter(OUT / "qwen3-alibi.gguf", "qwen3")
    w.add_context_length(64)
    w.add_embedding_length(HIDDEN)
    w.add_block_count(LAYERS)
    w.add_feed_forward_length(FFN)
    w.add_head_count(HEADS)
    w.add_head_count_kv(KV_HEADS)
    w.add_key_length(HEAD_DIM)
    w.add_value_length(HEAD_DIM)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_rope_freq_base(1e4)
    w.add_max_alibi_bias(8.0)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen2")
    # A merge there must be.
    w.add_token_list([*letters(), "zz"])
    w.add_token_types([gguf.TokenType.NORMAL] * VOCAB)
    w.add_token_merges(["z z"])
    for key, p in model.named_parameters():
        a = p.detach().float().numpy()
        w.add_tensor(gguf_name(key), a if a.ndim == 1 else np.ascontiguousarray(a.astype(np.float16)))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    main()
