"""Hugging Face folders of small random models, and what transformers computes of them, as the oracle of `convert`.

Writes to tests/fixtures/hf/NAME/ what `save_pretrained` writes: config.json, safetensors (several of them for
`llama`), tokenizer.json, and beside them logits.f32 (one row of the vocabulary per token of ids.json) and texts.json:
texts and their tokens. `mlx-*` hold the weights of a Qwen3 as MLX packs them (groups of 128), with the logits of the
unpacked weights.

    pip install torch transformers tokenizers safetensors numpy
    python tests/oracle/hf_folder.py
"""

import copy
import json
import shutil
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

OUT = Path(__file__).parent.parent / "fixtures" / "hf"
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|")
TEXTS = ["The fox ran home, all alone.", "don't\n\n  stop 1234", "<|im_start|>user\nthe hen<|im_end|> ünï"]
MERGES = [("t", "h"), ("Ġ", "th"), ("h", "e"), ("th", "e"), ("Ġ", "the"), ("Ġ", "a"), ("l", "l"), ("Ġa", "ll")]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def tokenizer(pre, ignore_merges=False):
    vocab = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    for merge in MERGES:
        vocab["".join(merge)] = len(vocab)
    t = Tokenizer(models.BPE(vocab=vocab, merges=MERGES, ignore_merges=ignore_merges))
    t.pre_tokenizer = pre
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([AddedToken(s, special=True) for s in ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]])
    t.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return PreTrainedTokenizerFast(
        tokenizer_object=t, eos_token="<|im_end|>", bos_token="<|endoftext|>", pad_token="<|endoftext|>"
    )


def fill(model, dtype):
    with torch.no_grad():
        for key, p in model.named_parameters():
            if key.endswith("norm.weight"):
                p.copy_((1 + 0.3 * torch.randn_like(p)).to(dtype).float())
            else:
                p.copy_((torch.randn_like(p) * (2.0 / p.shape[-1]) ** 0.5).to(dtype).float())


def finish(folder, model, t):
    ids = t(TEXTS[0], add_special_tokens=False).input_ids
    with torch.no_grad():
        logits = model.double()(torch.tensor([ids])).logits[0]
    (folder / "logits.f32").write_bytes(logits.float().numpy().astype("<f4").tobytes())
    texts = [[text, t(text, add_special_tokens=False).input_ids] for text in TEXTS]
    (folder / "texts.json").write_text(json.dumps(texts) + "\n")
    (folder / "generation_config.json").unlink(missing_ok=True)
    for path in folder.iterdir():
        path.chmod(0o644)
    print(folder.name, tuple(logits.shape), logits.std().item(), sorted(p.name for p in folder.iterdir()))


def start(name, t):
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    t.chat_template = TEMPLATE
    t.save_pretrained(folder)
    return folder


def qwen3(hidden, ffn, layers):
    t = tokenizer(
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(QWEN2), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    )
    config = Qwen3Config(
        # More rows than tokens, as in published models.
        vocab_size=272,
        hidden_size=hidden,
        intermediate_size=ffn,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=hidden // 2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        eos_token_id=t.eos_token_id,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 1e6,
            "factor": 4.0,
            "original_max_position_embeddings": 16,
        },
        attn_implementation="eager",
    )
    return t, Qwen3ForCausalLM(config).eval()


def main():
    torch.manual_seed(1)
    OUT.mkdir(parents=True, exist_ok=True)
    t, model = qwen3(32, 48, 2)
    fill(model, torch.bfloat16)
    folder = start("qwen3", t)
    # A copy: the frequencies would be rounded as well.
    copy.deepcopy(model).bfloat16().save_pretrained(folder)
    finish(folder, model, t)

    t = tokenizer(
        pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    )
    config = LlamaConfig(
        vocab_size=len(t),
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=1,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        eos_token_id=t.eos_token_id,
        attn_implementation="eager",
    )
    model = LlamaForCausalLM(config).eval()
    fill(model, torch.float16)
    folder = start("llama", t)
    copy.deepcopy(model).half().save_pretrained(folder, max_shard_size="60KB")
    finish(folder, model, t)

    for bits in (1, 2, 4):
        t, model = qwen3(128, 128, 1)
        fill(model, torch.float16)
        folder = start(f"mlx-{bits}bit", t)
        tensors = {}
        with torch.no_grad():
            for key, p in model.named_parameters():
                if p.ndim == 1:
                    tensors[key] = p.numpy().astype(np.float16)
                    continue
                w = p.numpy()
                rows, cols = w.shape
                groups = w.reshape(rows, cols // 128, 128)
                if bits == 4:
                    bias = groups.min(-1).astype(np.float16)
                    scale = ((groups.max(-1) - bias) / 15).astype(np.float16)
                    codes = np.clip(np.round((groups - bias[..., None]) / scale[..., None].astype(np.float32)), 0, 15)
                else:
                    d = np.abs(groups).mean(-1).astype(np.float16)
                    # d / 2 and 2 d are exact in f16.
                    scale, bias = (2 * d, -d) if bits == 1 else (d, -d)
                    codes = (groups >= 0) if bits == 1 else np.clip(np.round(groups / d[..., None]) + 1, 0, 2)
                codes = codes.astype(np.uint32).reshape(rows, cols * bits // 32, 32 // bits)
                words = (codes << (bits * np.arange(32 // bits, dtype=np.uint32))).sum(-1).astype(np.uint32)
                name = key.removesuffix(".weight")
                tensors |= {key: words, f"{name}.scales": scale, f"{name}.biases": bias}
                values = scale[..., None].astype(np.float32) * codes.reshape(groups.shape) + bias[..., None]
                p.copy_(torch.from_numpy(values.reshape(rows, cols).astype(np.float32)))
                assert np.isfinite(values).all()
        save_file(tensors, folder / "model.safetensors")
        config = json.loads(model.config.to_json_string())
        config |= {"architectures": ["Qwen3ForCausalLM"], "quantization": {"group_size": 128, "bits": bits}}
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        for key in model.state_dict():
            if key.endswith("norm.weight"):
                with torch.no_grad():
                    p = dict(model.named_parameters())[key]
                    p.copy_(p.half().float())
        finish(folder, model, t)

    t = tokenizer(
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(LLAMA3), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        ),
        ignore_merges=True,
    )
    config = LlamaConfig(
        vocab_size=len(t),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        eos_token_id=t.eos_token_id,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 1e4,
            "factor": 8.0,
            "original_max_position_embeddings": 64,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        },
        attn_implementation="eager",
    )
    model = LlamaForCausalLM(config).eval()
    fill(model, torch.bfloat16)
    folder = start("llama3", t)
    copy.deepcopy(model).bfloat16().save_pretrained(folder)
    finish(folder, model, t)


    t, dense = qwen3(32, 48, 2)
    config = Qwen3MoeConfig(
        **{k: v for k, v in dense.config.to_dict().items() if k not in ("model_type", "architectures")},
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=40,
        norm_topk_prob=True,
        experts_implementation="eager",
    )
    config._attn_implementation = "eager"
    model = Qwen3MoeForCausalLM(config).eval()
    fill(model, torch.bfloat16)
    folder = start("qwen3moe", t)
    copy.deepcopy(model).bfloat16().save_pretrained(folder)
    finish(folder, model, t)


if __name__ == "__main__":
    main()
