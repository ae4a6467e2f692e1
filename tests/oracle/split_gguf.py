"""Writes a GGUF file again in several parts, with gguf-py's own splitting.

    python tests/oracle/split_gguf.py tests/fixtures/qwen3-tied-yarn.gguf tests/fixtures/parts/qwen3-tied-yarn.gguf 10

The number is how many tensors a part has at most.
"""

import sys
from pathlib import Path

import gguf

source, target, most = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
target.parent.mkdir(parents=True, exist_ok=True)
reader = gguf.GGUFReader(source)
architecture = reader.fields["general.architecture"].contents()
writer = gguf.GGUFWriter(target, architecture, split_max_tensors=most)
for name, field in reader.fields.items():
    if name.startswith("GGUF.") or name == "general.architecture":
        continue
    sub_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
    writer.add_key_value(name, field.contents(), field.types[0], sub_type=sub_type)
for tensor in reader.tensors:
    writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
