"""Which formats llama.cpp gives the tensors of two models in each of its mixes, as the oracle of `shohin quantize`.

Writes tests/fixtures/mixes.json: by model and mix the number of the type, and the formats of each kind of matrix, by
layer.

    pip install llama-cpp-python==0.3.36 gguf
    python tests/oracle/mixes.py
"""

import ctypes
import json
import subprocess
import tempfile
from pathlib import Path

import llama_cpp
from gguf import GGUFReader

ROOT = Path(__file__).parents[2]
MIXES = {"q3_k_s": 11, "q3_k_m": 12, "q3_k_l": 13, "q4_k_s": 14, "q4_k_m": 15, "q5_k_s": 16, "q5_k_m": 17}
MODELS = {"tied": ["--layers", "30"], "untied": ["--layers", "17", "--untied"]}


def quantized(source: Path, out: Path, number: int) -> dict:
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = number
    assert llama_cpp.llama_model_quantize(str(source).encode(), str(out).encode(), ctypes.byref(params)) == 0
    file = GGUFReader(out)
    formats = {"file_type": int(file.fields["general.file_type"].contents())}
    order = lambda tensor: int(tensor.name.split(".")[1]) if tensor.name.startswith("blk.") else -1
    for tensor in sorted(file.tensors, key=order):
        if "norm" in tensor.name:
            continue
        name = tensor.name.removesuffix(".weight")
        kind = name.split(".", 2)[2] if name.startswith("blk.") else name
        formats[kind] = f"{formats.get(kind, '')} {tensor.tensor_type.name}".strip()
    return formats


with tempfile.TemporaryDirectory() as folder:
    source, out = Path(folder, "f32.gguf"), Path(folder, "out.gguf")
    found = {}
    for model, options in MODELS.items():
        synth = ["cargo", "run", "-rqp", "shohin-tests", "--bin", "synth", "--", "--shape", "tiny", "--format", "f32"]
        subprocess.run([*synth, *options, str(source)], cwd=ROOT, check=True)
        found[model] = {name: quantized(source, out, number) for name, number in MIXES.items()}
(ROOT / "tests/fixtures/mixes.json").write_text(json.dumps(found, indent=1) + "\n")
