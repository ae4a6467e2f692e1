"""Beam search by Hugging Face transformers over the models of qwen3_logits.py, as the oracle of the engine's.

Writes tests/fixtures/beams.txt: for each case a line of `model length_penalty early_stopping beams max_tokens`, the tokens
that end a reply, and the prompt, then a line for each beam, best first: its score and its tokens, without one that ended
it.

    pip install torch transformers gguf numpy
    python tests/oracle/beams.py
"""

from pathlib import Path

import gguf
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from qwen3_logits import OUT, SHAPES, TOKENS, VOCAB, gguf_name

# Penalty of length, early stopping, beams, most tokens, tokens that end a reply, and tokens of the prompt.
CASES = [
    ("qwen3-untied", 1.0, False, 4, 20, [17], 5),
    ("qwen3-untied", 1.0, True, 4, 20, [17, 40, 41], 5),
    ("qwen3-untied", 0.0, False, 5, 24, [3, 5, 7, 11, 13], 9),
    ("qwen3-untied", -1.5, False, 3, 16, [2, 29], 7),
    ("qwen3-untied", 2.0, False, 6, 12, [17, 60, 61, 62], 1),
    ("qwen3-tied-yarn", 1.0, False, 8, 30, [8, 9], 12),
    ("qwen3-tied-yarn", 0.5, True, 2, 30, [8, 9, 50, 51, 52, 53], 3),
    ("qwen3-tied-yarn", 1.0, False, 1, 10, [8], 4),
]


def model_of(name: str, longest: int = 64, **scaling) -> Qwen3ForCausalLM:
    s = SHAPES[name]
    rope = {"rope_type": "default", "rope_theta": s["base"]}
    if s["yarn"]:
        factor, original = s["yarn"]
        rope |= {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    rope |= scaling
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=s["hidden"],
        intermediate_size=s["ffn"],
        num_hidden_layers=s["layers"],
        num_attention_heads=s["heads"],
        num_key_value_heads=s["kv_heads"],
        head_dim=s["head_dim"],
        max_position_embeddings=longest,
        rms_norm_eps=s["eps"],
        tie_word_embeddings=s["tied"],
        rope_parameters=rope,
        attn_implementation="eager",
    )
    model = Qwen3ForCausalLM(config).eval()
    tensors = {t.name: torch.from_numpy(t.data.copy()).float() for t in gguf.GGUFReader(OUT / f"{name}.gguf").tensors}
    with torch.no_grad():
        for key, p in model.named_parameters():
            p.copy_(tensors[gguf_name(key)].reshape(p.shape))
    return model.double()


def main() -> None:
    models = {name: model_of(name) for name in {case[0] for case in CASES}}
    lines = []
    for name, penalty, early, beams, tokens, ends, seen in CASES:
        prompt = TOKENS[:seen]
        out = models[name].generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, seen, dtype=torch.long),
            num_beams=beams,
            num_return_sequences=beams,
            max_new_tokens=tokens,
            length_penalty=penalty,
            early_stopping=early,
            do_sample=False,
            eos_token_id=ends,
            pad_token_id=95,
            return_dict_in_generate=True,
            output_scores=True,
        )
        numbers = lambda ids: ",".join(map(str, ids))
        lines.append(f"{name} {penalty} {str(early).lower()} {beams} {tokens} {numbers(ends)} {numbers(prompt)}")
        # A search with one beam is greedy, and has no scores.
        scores = [float("nan")] if beams == 1 else out.sequences_scores.tolist()
        for score, ids in zip(scores, out.sequences.tolist()):
            reply = []
            for token in ids[seen:]:
                if token in ends:
                    break
                reply.append(token)
            lines.append(f"{score:.6f} {numbers(reply)}")
    (Path(OUT) / "beams.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
