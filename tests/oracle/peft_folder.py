"""Checks with PEFT and transformers that folders which `shohin convert` and `shohin train` write are adapters, and that these say
what --lora says.

    pip install peft transformers
    cargo build -r -p shohin-cli
    python tests/oracle/peft_folder.py [shohin]
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

ROOT = Path(__file__).parent.parent.parent
SHOHIN = sys.argv[1] if len(sys.argv) > 1 else ROOT / "target" / "release" / "shohin"
BASE = ROOT / "tests" / "fixtures" / "hf" / "llama"


def shohin(*args):
    return subprocess.run([SHOHIN, *map(str, args)], check=True, stdout=subprocess.PIPE).stdout


def peft(folder, tokens):
    base = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)
    with torch.no_grad():
        plain = base(torch.tensor([tokens])).logits[0].numpy().copy()
        adapted = PeftModel.from_pretrained(base, folder).eval()
        missing = [n for n, p in adapted.named_parameters() if "lora_B" in n and not p.any()]
        assert not missing, missing
        return plain, adapted(torch.tensor([tokens])).logits[0].numpy()


def check(name, folder, tokens, want):
    plain, found = peft(folder, tokens)
    effect, error = np.abs(plain - want).max(), np.abs(found - want).max()
    print(f"{name}: changes logits by up to {effect:.4f}, differs by up to {error:.2g}")
    assert effect > 0.01 and error < 1e-4


def main():
    _, tokens = json.loads((BASE / "texts.json").read_text())[0]
    with tempfile.TemporaryDirectory() as place:
        place = Path(place)
        lora, folder, trained = place / "lora.gguf", place / "folder", place / "trained"
        shohin("convert", BASE.parent / "llama-lora", "--base", BASE, "--out", lora)
        shohin("convert", lora, "--base", BASE, "--out", folder)
        want = np.fromfile(BASE.parent / "llama-lora" / "logits.f32", "<f4").reshape(len(tokens), -1)
        check("convert", folder, tokens, want)

        text, ids = place / "text.txt", place / "ids.txt"
        text.write_text("The hen is in the garden, and the dog sleeps. " * 20)
        ids.write_text(" ".join(map(str, tokens)))
        train = ["--text", text, "--method", "lora", "--rank", 4, "--row-tokens", 16, "--steps", 20, "--lr", 1e-2]
        shohin("train", "-m", BASE, *train, "--out", trained)
        exact = ["--act", "f32", "--kv", "f32", "--out", "-"]
        logits = shohin("logits", "-m", BASE, "--lora", trained, "--tokens", ids, *exact)
        check("train", trained, tokens, np.frombuffer(logits, "<f4").reshape(len(tokens), -1))


if __name__ == "__main__":
    main()
