"""Rotary frequencies of every scaling by Hugging Face transformers, and logits of models with dynamic NTK and LongRoPE.

Writes to tests/fixtures/: rope_scaling.txt, for each case a line of its name, the elements of a head, the base, numbers
that the name says, the factor of cos and sin, and then the frequencies; qwen3-longrope.gguf (F16 matrices), the logits of
TOKENS (qwen3-longrope.long), which are more than the original context of 8, and of its first 8 (qwen3-longrope.short);
and qwen3-untied.dynamic, the logits of TOKENS by the model of qwen3_logits.py with dynamic NTK over a context of 8.
hf/qwen3/logits.longrope and logits.dynamic are those of that folder's first text with these scalings in its config.json.

    pip install torch transformers gguf numpy
    python tests/oracle/rope_scaling.py
"""

import json

import gguf
import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from beams import model_of
from qwen3_logits import OUT, TOKENS, VOCAB, gguf_name

LONG = [1.0 + 0.37 * i for i in range(8)]
SHORT = [1.0 + 0.05 * (i % 3) for i in range(8)]


def frequencies(lines: list[str]) -> None:
    def case(name: str, head_dim: int, base: float, longest: int, seq_len: int, numbers: list[float], **rope) -> None:
        config = Qwen3Config(head_dim=head_dim, max_position_embeddings=longest)
        config.rope_parameters = {"rope_theta": base, **rope}
        config.standardize_rope_params()
        speeds, magnitude = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, "cpu", seq_len=seq_len)
        line = [name, head_dim, base, *numbers, magnitude, *(f"{x:.9e}" for x in speeds.tolist())]
        lines.append(" ".join(map(str, line)))

    for head_dim, base in [(64, 1e4), (128, 1e6), (96, 5e5)]:
        case("linear", head_dim, base, 4096, 1, [2.5], rope_type="linear", factor=2.5)
        # Original context, factor, and the context that it is for.
        for seq_len in [100, 2048, 2049, 5000, 8192]:
            numbers = [2048, 4.0, seq_len]
            case("dynamic", head_dim, base, 2048, seq_len, numbers, rope_type="dynamic", factor=4.0)
        case(
            "yarn", head_dim, base, 16384, 1, [4096, 4.0], rope_type="yarn", factor=4.0,
            original_max_position_embeddings=4096,
        )
        case(
            "llama3", head_dim, base, 65536, 1, [8192, 8.0], rope_type="llama3", factor=8.0, low_freq_factor=1.0,
            high_freq_factor=4.0, original_max_position_embeddings=8192,
        )


def save(name: str, logits: torch.Tensor) -> None:
    (OUT / name).write_bytes(logits.float().numpy().astype("<f4").tobytes())


def longrope() -> None:
    torch.manual_seed(5)
    hidden, heads, head_dim = 32, 4, 16
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=hidden,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=2,
        head_dim=head_dim,
        max_position_embeddings=64,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        rope_parameters={
            "rope_type": "longrope", "rope_theta": 1e4, "long_factor": LONG, "short_factor": SHORT,
            "original_max_position_embeddings": 8,
        },
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
        long = model(torch.tensor([TOKENS])).logits[0]
        short = model(torch.tensor([TOKENS[:8]])).logits[0]
    assert (long[:8] - short).abs().max() > 0.1
    save("qwen3-longrope.long", long)
    save("qwen3-longrope.short", short)
    w = gguf.GGUFWriter(OUT / "qwen3-longrope.gguf", "qwen3")
    w.add_context_length(64)
    w.add_embedding_length(hidden)
    w.add_block_count(2)
    w.add_feed_forward_length(64)
    w.add_head_count(heads)
    w.add_head_count_kv(2)
    w.add_key_length(head_dim)
    w.add_value_length(head_dim)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_rope_freq_base(1e4)
    # As llama.cpp's converter writes them for Phi-3, whose files have no type of scaling.
    w.add_rope_scaling_orig_ctx_len(8)
    w.add_rope_scaling_attn_factors(model.model.rotary_emb.attention_scaling)
    w.add_tensor("rope_factors_long.weight", np.array(LONG, dtype=np.float32))
    w.add_tensor("rope_factors_short.weight", np.array(SHORT, dtype=np.float32))
    for key, p in model.named_parameters():
        a = p.detach().float().numpy()
        w.add_tensor(gguf_name(key), a if a.ndim == 1 else np.ascontiguousarray(a.astype(np.float16)))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def dynamic() -> None:
    model = model_of("qwen3-untied", longest=8, rope_type="dynamic", factor=4.0)
    with torch.no_grad():
        scaled = model(torch.tensor([TOKENS])).logits[0]
        plain = model_of("qwen3-untied")(torch.tensor([TOKENS])).logits[0]
    assert (scaled - plain).abs().max() > 0.1
    save("qwen3-untied.dynamic", scaled)


def folder() -> None:
    path = OUT / "hf/qwen3"
    ids = torch.tensor([json.loads((path / "texts.json").read_text())[0][1]])
    for name, longest, rope in [
        (
            "longrope", 64,
            {"rope_type": "longrope", "long_factor": LONG, "short_factor": SHORT, "original_max_position_embeddings": 4},
        ),
        ("dynamic", 4, {"rope_type": "dynamic", "factor": 8.0}),
    ]:
        config = Qwen3Config.from_pretrained(path)
        config.max_position_embeddings = longest
        config.rope_parameters = {"rope_theta": 1e6, **rope}
        config.standardize_rope_params()
        model = Qwen3ForCausalLM.from_pretrained(path, config=config, dtype=torch.float32, attn_implementation="eager")
        with torch.no_grad():
            save(f"hf/qwen3/logits.{name}", model.double()(ids).logits[0])
    print("tokens of the text", ids.shape[1])


if __name__ == "__main__":
    lines: list[str] = []
    frequencies(lines)
    (OUT / "rope_scaling.txt").write_text("\n".join(lines) + "\n")
    longrope()
    dynamic()
    folder()
