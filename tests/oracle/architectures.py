"""Hugging Face folders of small random models of architectures beyond Qwen3 and Llama, and what transformers computes of them.

Writes to tests/fixtures/hf/NAME/ the same files as hf_folder.py.

    pip install torch transformers tokenizers safetensors numpy
    python tests/oracle/architectures.py [NAME...]
"""

import copy
import inspect
import sys

import torch
from hf_folder import LLAMA3, QWEN2, Regex, fill, finish, pre_tokenizers, start, tokenizer
from transformers import (
    BitNetConfig,
    BitNetForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GraniteConfig,
    GraniteForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

# Marks belong to words.
QWEN35 = QWEN2.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")


def split(expression):
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(expression), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def common(t, **more):
    return dict(
        vocab_size=len(t),
        hidden_size=32,
        intermediate_size=48,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        bos_token_id=t.bos_token_id,
        eos_token_id=t.eos_token_id,
        pad_token_id=t.pad_token_id,
        attn_implementation="eager",
    ) | more


def qwen2():
    t = tokenizer(split(QWEN2))
    return t, Qwen2ForCausalLM(
        Qwen2Config(**common(t, num_hidden_layers=2, tie_word_embeddings=True, rope_parameters=theta(1e6)))
    )


def smollm3():
    t = tokenizer(split(LLAMA3))
    # A layer without rotation, and one after it.
    return t, SmolLM3ForCausalLM(
        SmolLM3Config(**common(t, num_hidden_layers=5, tie_word_embeddings=True, rope_parameters=theta(5e4)))
    )


def granite():
    t = tokenizer(split(QWEN2))
    factors = dict(
        attention_multiplier=0.1, embedding_multiplier=3.0, residual_multiplier=0.22, logits_scaling=2.5
    )
    return t, GraniteForCausalLM(
        GraniteConfig(**common(t, num_hidden_layers=2, tie_word_embeddings=False, rope_parameters=theta(1e4)), **factors)
    )


def gemma3():
    t = tokenizer(split(QWEN2))
    # A layer without a window, and one after it; a window that is shorter than the text.
    more = dict(num_hidden_layers=7, tie_word_embeddings=True, head_dim=16, query_pre_attn_scalar=16, sliding_window=5)
    rope = {"full_attention": theta(1e6), "sliding_attention": theta(1e4)}
    return t, Gemma3ForCausalLM(Gemma3TextConfig(**common(t, **more, rope_parameters=rope)))


def bitnet():
    t = tokenizer(split(LLAMA3))
    return t, BitNetForCausalLM(
        BitNetConfig(**common(t, num_hidden_layers=2, tie_word_embeddings=True, rope_parameters=theta(5e5)))
    )


def lfm2():
    t = tokenizer(split(LLAMA3))
    kinds = ["conv", "full_attention", "conv", "conv", "full_attention"]
    more = dict(num_hidden_layers=5, tie_word_embeddings=True, layer_types=kinds, intermediate_size=64, block_multiple_of=16)
    return t, Lfm2ForCausalLM(Lfm2Config(**common(t, **more, rope_parameters=theta(1e6))))


def qwen35():
    t = tokenizer(split(QWEN35))
    more = dict(num_hidden_layers=5, tie_word_embeddings=False, head_dim=16, linear_conv_kernel_dim=4)
    linear = dict(linear_key_head_dim=8, linear_value_head_dim=8, linear_num_key_heads=2, linear_num_value_heads=6)
    rope = theta(1e7) | {"partial_rotary_factor": 0.25}
    kinds = ["linear_attention", "linear_attention", "full_attention", "linear_attention", "full_attention"]
    model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**common(t, **more, **linear, rope_parameters=rope, layer_types=kinds)))
    return t, model


def in_double(model):
    """Computes in float64 what transformers computes in float32 in models of any type: the delta rule and its gates."""
    module = sys.modules[type(model).__module__]
    for name in ("torch_chunk_gated_delta_rule", "Qwen3_5RMSNormGated"):
        source = inspect.getsource(getattr(module, name)).replace("torch.float32", "torch.float64")
        source = source[source.index("class" if name[0] == "Q" else "def") :]
        exec(compile(source, name, "exec"), module.__dict__)
    torch.Tensor.float = torch.Tensor.double
    for layer in model.model.layers:
        if hasattr(layer, "linear_attn"):
            mixer = layer.linear_attn
            norm = module.Qwen3_5RMSNormGated(mixer.norm.weight.shape[0], eps=mixer.norm.variance_epsilon)
            norm.weight = mixer.norm.weight
            mixer.norm = norm


def theta(base):
    return {"rope_type": "default", "rope_theta": base}


ALL = [qwen2, smollm3, granite, gemma3, bitnet, lfm2, qwen35]


def main():
    for make in ALL:
        if len(sys.argv) > 1 and make.__name__ not in sys.argv[1:]:
            continue
        torch.manual_seed(1)
        t, model = make()
        model = model.eval()
        fill(model, torch.bfloat16)
        with torch.no_grad():
            for key, p in model.named_parameters():
                # As published models have it: decays between 1 and 16.
                if key.endswith("A_log"):
                    p.copy_(p.uniform_(1, 16).log().to(torch.bfloat16).float())
        folder = start(make.__name__, t)
        copy.deepcopy(model).bfloat16().save_pretrained(folder)
        if make is qwen35:
            in_double(model)
        finish(folder, model, t)


if __name__ == "__main__":
    main()
