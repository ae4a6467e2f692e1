"""Hugging Face folders of small random models of architectures beyond Qwen3 and Llama, and what transformers computes of them.

Writes to tests/fixtures/hf/NAME/ the same files as hf_folder.py.

    pip install torch transformers tokenizers safetensors numpy
    python tests/oracle/architectures.py [NAME...]
"""

import copy
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
    SmolLM3Config,
    SmolLM3ForCausalLM,
)


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


def theta(base):
    return {"rope_type": "default", "rope_theta": base}


ALL = [qwen2, smollm3, granite, gemma3, bitnet, lfm2]


def main():
    for make in ALL:
        if len(sys.argv) > 1 and make.__name__ not in sys.argv[1:]:
            continue
        torch.manual_seed(1)
        t, model = make()
        model = model.eval()
        fill(model, torch.bfloat16)
        folder = start(make.__name__, t)
        copy.deepcopy(model).bfloat16().save_pretrained(folder)
        finish(folder, model, t)


if __name__ == "__main__":
    main()
