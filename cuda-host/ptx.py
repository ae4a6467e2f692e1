#!/usr/bin/env python3
"""ptx.py LIBNVRTC: writes kernels/shohin.ptx (compute capability 7.5) and shohin_90.ptx (9.0) from kernels/*.cu*, with the library
of `pip install --no-deps --target DIR nvidia-cuda-nvrtc-cu12==12.3.107` (PTX 8.3: drivers from 545 on). No GPU is needed. Their
first lines have a hash of the sources."""
import ctypes, pathlib, sys

folder = pathlib.Path(__file__).parent / "kernels"
text = b"".join(path.read_bytes() for path in sorted(folder.glob("*.cu*")))
fnv = 0xCBF29CE484222325
for byte in text:
    fnv = ((fnv ^ byte) * 0x100000001B3) % 2**64
nvrtc = ctypes.CDLL(sys.argv[1])


def compile(capability):
    program, size = ctypes.c_void_p(), ctypes.c_size_t()

    def text_of(get_size, get):
        get_size(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        get(program, buffer)
        return buffer.value

    source = (folder / "shohin.cu").read_bytes()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"shohin.cu", 0, None, None) == 0
    options = [b"--gpu-architecture=compute_" + capability, b"--std=c++17", f"-I{folder}".encode()]
    if nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options)):
        sys.exit(text_of(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog).decode())
    return text_of(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)


for name, capability in [("shohin.ptx", b"75"), ("shohin_90.ptx", b"90")]:
    (folder / name).write_bytes(b"// sources: %016x\n" % fnv + compile(capability))
