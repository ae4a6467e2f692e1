"""llama.cpp's tokenizer: its C interface, which the library in PyPI's `xllamacpp` exports."""
import ctypes
import glob
import os

import xllamacpp

lib = ctypes.CDLL(glob.glob(os.path.dirname(xllamacpp.__file__) + "/*.so")[0])


class Params(ctypes.Structure):
    """`llama_model_params`, whose size depends on the version: large enough for any, and passed on the stack."""

    _fields_ = [("bytes", ctypes.c_uint8 * 512)]


VOCAB_ONLY = 72  # offset of the flag, in b11549
LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
QUIET = LOG(lambda *_: None)
lib.llama_model_default_params.restype = Params
lib.llama_model_load_from_file.argtypes = [ctypes.c_char_p, Params]
lib.llama_model_load_from_file.restype = ctypes.c_void_p
lib.llama_model_get_vocab.argtypes = [ctypes.c_void_p]
lib.llama_model_get_vocab.restype = ctypes.c_void_p
lib.llama_tokenize.argtypes = [
    ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.POINTER(ctypes.c_int32), ctypes.c_int32, ctypes.c_bool, ctypes.c_bool,
]
lib.llama_detokenize.argtypes = [
    ctypes.c_void_p, ctypes.POINTER(ctypes.c_int32), ctypes.c_int32, ctypes.c_char_p, ctypes.c_int32, ctypes.c_bool, ctypes.c_bool,
]


class Vocab:
    """The vocabulary of a GGUF file, which may have no tensors."""

    def __init__(self, path):
        lib.llama_log_set(QUIET, None)
        params = lib.llama_model_default_params()
        params.bytes[VOCAB_ONLY] = 1
        self.model = lib.llama_model_load_from_file(str(path).encode(), params)
        assert self.model, f"{path} was not loaded"
        self.vocab = lib.llama_model_get_vocab(self.model)

    def encode(self, text, parse=False, whole=False):
        """The ids; `whole` adds BOS and EOS as the file says, `parse` makes tokens of the names of control tokens."""
        text = text.encode() if isinstance(text, str) else text
        ids = (ctypes.c_int32 * (len(text) + 16))()
        n = lib.llama_tokenize(self.vocab, text, len(text), ids, len(ids), whole, parse)
        assert n >= 0, n
        return list(ids[:n])

    def decode(self, ids, whole=False, control=True):
        """The bytes; `whole` takes the space and the special tokens off that encoding adds."""
        given = (ctypes.c_int32 * len(ids))(*ids)
        out = ctypes.create_string_buffer(64 * len(ids) + 64)
        n = lib.llama_detokenize(self.vocab, given, len(ids), out, len(out), whole, control)
        assert n >= 0, n
        return out.raw[:n]
