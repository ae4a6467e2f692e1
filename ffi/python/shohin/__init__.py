"""Run small language models.

    from shohin import Model

    model = Model.load("sprout.gguf")
    for piece in model.chat().send("What does a cow say?"):
        print(piece, end="", flush=True)
    print(model.chat().ask("What does a dog say?"))

A model may be used by any number of threads, a chat by one at a time. Python's lock is released while the model computes.
"""

from __future__ import annotations

import _thread
import concurrent.futures
import ctypes
import json
import operator
import os
import sys
import threading
import warnings
from ctypes import POINTER, byref, c_char, c_char_p, c_double, c_float
from ctypes import c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, Iterator, List, Literal, Mapping, NamedTuple, Optional, Tuple
from typing import TypeVar, Union, overload

if TYPE_CHECKING:
    import numpy

__all__ = ["Answer", "Chat", "Download", "Error", "Logprob", "Model", "Reply", "Step", "Taught", "download", "version"]

#: A file or folder, or a name of the Hugging Face Hub.
PathLike = Union[str, "os.PathLike[str]", "os.PathLike[bytes]"]
#: A message in OpenAI's form, such as `{"role": "user", "content": "Hi!"}`.
Message = Mapping[str, Any]

_OK, _DONE, _SHORT_BUFFER = 0, 1, 5
_KV_FORMATS = {None: 0, "f32": 1, "f16": 2, "q8": 3, "q4": 4, "fp8_e4m3": 5, "fp8_e5m2": 6}
_DEVICES = {"best": 0, "cpu": 1, "gpu": 2}
_REASONS = {0: None, 1: "stop", 2: "length", 3: "context_full", 4: "cancelled"}
_WHOLE, _LARGE = 2**32 - 1, 2**64 - 1
#: The largest values of options that are whole numbers.
_COUNTS = {"seed": _LARGE, "top_k": _WHOLE, "max_tokens": _WHOLE}
_FORMATS = {"json_object": 1, "json_schema": 2, "regex": 3, "grammar": 4}
_CHOICE = 5
_MOST_LOGPROBS = 20


class _Error(ctypes.Structure):
    _fields_ = [("code", c_int32), ("message", c_char * 508)]


class _Text(ctypes.Structure):
    _fields_ = [("text", c_char_p), ("len", c_size_t)]


class _ToolCall(ctypes.Structure):
    _fields_ = [("name", c_void_p), ("name_len", c_size_t), ("arguments", c_void_p), ("arguments_len", c_size_t)]


class _Logprob(ctypes.Structure):
    _fields_ = [("token", c_uint32), ("logprob", c_float)]


class _TokenLogprob(ctypes.Structure):
    _fields_ = [("chosen", _Logprob), ("top", POINTER(_Logprob)), ("top_count", c_size_t)]


class _Adapter(ctypes.Structure):
    _fields_ = [("path", c_char_p), ("path_len", c_size_t), ("bytes", c_char_p), ("len", c_size_t), ("scale", c_float)]


class _Fact(ctypes.Structure):
    _fields_ = [("question", _Text), ("answer", _Text), ("forms", POINTER(_Text)), ("form_count", c_size_t)]


class _View(ctypes.Structure):
    """A text of the library, which may have a NUL inside."""

    _fields_ = [("text", c_void_p), ("len", c_size_t)]

    def copy(self):
        return ctypes.string_at(self.text, self.len).decode()


class _Answer(ctypes.Structure):
    _fields_ = [(name, _View) for name in "question expected before after".split()] + [("is_right", c_size_t)]


class _Sized(ctypes.Structure):
    def __init__(self):
        super().__init__(ctypes.sizeof(self))


class _LoadOptions(_Sized):
    _fields_ = [("size", c_size_t), ("threads", c_uint32), ("context", c_uint32), ("kv_format", c_int32), ("device", c_int32)]


class _ModelInfo(_Sized):
    _fields_ = [
        (name, c_size_t)
        for name in "size vocab_size embedding_size max_context context weight_bytes threads can_think can_call adapters".split()
    ]


class _ChatOptions(_Sized):
    _fields_ = [
        ("size", c_size_t),
        ("seed", c_uint64),
        ("temperature", c_float),
        ("top_k", c_uint32),
        ("top_p", c_float),
        ("min_p", c_float),
        ("repetition_penalty", c_float),
        ("max_tokens", c_uint32),
        ("thinking", c_int32),
        ("format", c_int32),
        ("format_text", c_char_p),
        ("format_text_len", c_size_t),
        ("stop", POINTER(_Text)),
        ("stop_count", c_size_t),
        ("tools", POINTER(_Text)),
        ("tool_count", c_size_t),
        ("tool_choice", c_char_p),
        ("tool_choice_len", c_size_t),
        ("presence_penalty", c_float),
        ("frequency_penalty", c_float),
        ("logprobs", c_int32),
        ("describe_tools", c_int32),
        ("choices", POINTER(_Text)),
        ("choice_count", c_size_t),
    ]


class _Piece(_Sized):
    _fields_ = [
        ("size", c_size_t),
        ("text", c_void_p),
        ("text_len", c_size_t),
        ("reasoning", c_void_p),
        ("reasoning_len", c_size_t),
        ("token", c_int32),
        ("reason", c_int32),
        ("tool_calls", POINTER(_ToolCall)),
        ("tool_call_count", c_size_t),
        ("logprobs", POINTER(_TokenLogprob)),
        ("logprob_count", c_size_t),
    ]


class _Usage(_Sized):
    _fields_ = [
        ("size", c_size_t),
        ("prompt_tokens", c_size_t),
        ("cached_tokens", c_size_t),
        ("reply_tokens", c_size_t),
        ("prompt_seconds", c_double),
        ("reply_seconds", c_double),
        ("position", c_size_t),
        ("capacity", c_size_t),
        ("guesses_checked", c_size_t),
        ("guesses_right", c_size_t),
    ]


class _TeachOptions(_Sized):
    _fields_ = [
        ("size", c_size_t),
        ("seed", c_uint64),
        ("learning_rate", c_double),
        ("steps", c_uint32),
        ("rank", c_uint32),
        ("rehearsals", c_size_t),
        ("questions", POINTER(_Text)),
        ("question_count", c_size_t),
        ("name", c_char_p),
        ("name_len", c_size_t),
    ]


class _TeachStep(_Sized):
    _fields_ = [("size", c_size_t), ("step", c_uint64), ("loss", c_double), ("least", c_double)]


_OnStep = ctypes.CFUNCTYPE(c_int32, c_void_p, POINTER(_TeachStep))
_OnDownload = ctypes.CFUNCTYPE(c_int32, c_void_p, c_char_p, c_uint64, c_uint64)


class _TaughtInfo(_Sized):
    _fields_ = [
        ("size", c_size_t),
        ("adapter", c_void_p),
        ("adapter_len", c_size_t),
        ("steps", c_size_t),
        ("is_learned", c_size_t),
        ("facts", POINTER(_Answer)),
        ("fact_count", c_size_t),
        ("wordings", POINTER(_Answer)),
        ("wording_count", c_size_t),
        ("exam", POINTER(_Answer)),
        ("exam_count", c_size_t),
    ]


def _load_library():
    name = {"darwin": "libshohin.dylib", "win32": "libshohin.dll"}.get(sys.platform, "libshohin.so")
    library = ctypes.CDLL(str(Path(__file__).parent / name))
    text = [c_char_p, c_size_t]
    handle, out, error = c_void_p, POINTER(c_void_p), POINTER(_Error)
    arguments = {
        "load_options_default": [POINTER(_LoadOptions), c_size_t],
        "model_load": [*text, POINTER(_LoadOptions), out],
        "download": [*text, _OnDownload, c_void_p, c_void_p, c_size_t, POINTER(c_size_t)],
        "model_load_memory": [*text, POINTER(_LoadOptions), out],
        "model_load_built_in": [POINTER(_LoadOptions), out],
        "model_adapted": [handle, POINTER(_Adapter), c_size_t, out],
        "model_get_info": [handle, POINTER(_ModelInfo)],
        "tokenize": [handle, *text, c_void_p, c_size_t, POINTER(c_size_t)],
        "detokenize": [handle, c_void_p, c_size_t, c_void_p, c_size_t, POINTER(c_size_t)],
        "embed": [handle, *text, c_void_p, c_size_t, POINTER(c_size_t)],
        "embed_texts": [handle, POINTER(_Text), c_size_t, c_void_p, c_size_t, POINTER(c_size_t)],
        "logits": [handle, c_void_p, c_size_t, c_void_p, c_size_t, POINTER(c_size_t)],
        "chat_options_default": [POINTER(_ChatOptions), c_size_t],
        "chat_new": [handle, POINTER(_ChatOptions), out],
        "chat_set_options": [handle, POINTER(_ChatOptions)],
        "chat_system": [handle, *text],
        "chat_send": [handle, *text],
        "chat_set_messages": [handle, *text],
        "chat_get_messages": [handle, c_void_p, c_size_t, POINTER(c_size_t)],
        "chat_send_messages": [handle, *text],
        "chat_request": [handle, *text],
        "chat_next_answer": [handle, POINTER(_View)],
        "chat_send_results": [handle, POINTER(_Text), c_size_t],
        "chat_retry": [handle],
        "chat_speculate": [handle, handle],
        "chat_complete": [handle, c_void_p, c_size_t],
        "chat_next": [handle, POINTER(_Piece)],
        "chat_stop": [handle],
        "chat_interrupt": [handle],
        "chat_get_usage": [handle, POINTER(_Usage)],
        "chat_save": [handle, *text],
        "chat_open": [handle, *text],
        "teach_options_default": [POINTER(_TeachOptions), c_size_t],
        "teach": [handle, POINTER(_Fact), c_size_t, POINTER(_TeachOptions), _OnStep, c_void_p, out],
        "taught_get_info": [handle, POINTER(_TaughtInfo)],
        "taught_save": [handle, *text],
    }
    for function, types in arguments.items():
        getattr(library, f"shohin_{function}").argtypes = [*types, error]
    for function in ["model_free", "chat_free", "taught_free"]:
        getattr(library, f"shohin_{function}").argtypes = [handle]
    library.shohin_code_name.argtypes = [c_int32]
    library.shohin_code_name.restype = library.shohin_version.restype = c_char_p
    return library


_library = _load_library()


class Error(Exception):
    """A call failed; `code` is its stable name, such as "context_full"."""

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code


class Download(NamedTuple):
    """How far a download is."""

    #: The file; empty while it waits to try again.
    file: str
    #: Bytes that are there.
    have: int
    #: Bytes that there will be, if that is known.
    total: Optional[int]


def version() -> str:
    """The library's version."""
    return _library.shohin_version().decode()


def _call(function, *arguments, allowed=()):
    error = _Error()
    code = getattr(_library, f"shohin_{function}")(*arguments, byref(error))
    if code != _OK and code not in allowed:
        raise Error(_library.shohin_code_name(code).decode(), error.message.decode())
    return code


def download(name: PathLike, on_download: Optional[Callable[[Download], Optional[bool]]] = None) -> str:
    """The path of a model that has a name of the Hugging Face Hub, as `Model.load` takes it: it is downloaded unless it was before. What is
    no such name is the path already.

    `on_download` is told each `Download`, and ends it with False, which is the `Error` "hub"; so do Ctrl-C and an exception. What has
    arrived is kept for the next time.
    """
    raised = []

    def tell(_, file, have, total):
        try:
            now = Download(file.decode(), have, total or None)
            return 0 if on_download is None or on_download(now) is not False else 1
        except BaseException as error:
            # It cannot pass through the library.
            raised.append(error)
            return 1

    try:
        return _buffer("download", c_char, 1024, *_path(name), _OnDownload(tell), None).decode()
    except Error:
        if raised:
            raise raised[0] from None
        raise
    finally:
        # The error has this frame.
        raised.clear()


def _text(name, text):
    if not isinstance(text, str):
        raise TypeError(f"{name} is {text!r}, expected a str")
    data = text.encode()
    return data, len(data)


def _path(path):
    return _text("path", os.fsdecode(path))


def _texts(name, texts):
    array = (_Text * len(texts))()
    for place, text in zip(array, texts):
        place.text, place.len = _text(name, text)
    return array, len(texts)


def _list(name, texts):
    if isinstance(texts, str):
        raise TypeError(f"{name} is {texts!r}, expected a list of texts")
    return list(texts)


def _whole(name, value, most):
    """A whole number; ctypes would take others modulo a power of two."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} is {value!r}, expected a whole number")
    value = operator.index(value)
    if not 0 <= value <= most:
        raise ValueError(f"{name} is {value}, expected a whole number from 0 to {most}")
    return value


def _float(name, value):
    if isinstance(value, (bool, str)) or not hasattr(value, "__float__"):
        raise TypeError(f"{name} is {value!r}, expected a number")
    return float(value)


def _buffer(function, kind, expected, *arguments):
    """An array that a call fills, first with the expected length."""
    count = c_size_t(expected)
    while True:
        array = (kind * count.value)()
        room = count.value
        code = _call(function, *arguments, array, room, byref(count), allowed=[_SHORT_BUFFER])
        if code == _OK:
            return array[: count.value]


def _fulfil(future, call):
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(call())
    except BaseException as error:
        future.set_exception(error)
    # The error has this frame, and the future the error.
    future = call = None


def _tokens(tokens):
    if isinstance(tokens, str):
        raise TypeError(f"tokens is {tokens!r}, expected token ids, as tokenize returns them")
    ids = [_whole("token", token, _WHOLE) for token in tokens]
    return (c_uint32 * len(ids))(*ids), len(ids)


def _adapters(adapters, scale):
    array = (_Adapter * len(adapters))()
    for place, adapter in zip(array, adapters):
        place.scale = _float("scale", scale)
        if isinstance(adapter, tuple):
            if len(adapter) != 2:
                raise ValueError(f"adapter is {adapter!r}, expected a pair of an adapter and its scale")
            adapter, place.scale = adapter[0], _float("scale", adapter[1])
        if isinstance(adapter, Taught):
            adapter = adapter.adapter
        if isinstance(adapter, (bytes, bytearray, memoryview)):
            place.bytes = data = bytes(adapter)
            place.len = len(data)
        else:
            place.path, place.path_len = _path(adapter)
    return array, len(adapters)


def _facts(facts):
    if isinstance(facts, Mapping):
        facts = [{"question": question, "answer": answer} for question, answer in facts.items()]
    elif isinstance(facts, str):
        raise TypeError(f"facts is {facts!r}, expected a dict of questions and answers")
    facts = list(facts)
    array = (_Fact * len(facts))()
    for place, fact in zip(array, facts):
        if not isinstance(fact, Mapping):
            raise TypeError(f"a fact is {fact!r}, expected a dict with question, answer, and forms if there are any")
        if not {"question", "answer"} <= set(fact) <= {"question", "answer", "forms"}:
            raise ValueError(f"a fact has {list(fact)}, expected question, answer, and forms if there are any")
        for name in ["question", "answer"]:
            text = getattr(place, name)
            text.text, text.len = _text(name, fact[name])
        place.forms, place.form_count = _texts("form", _list("forms", fact.get("forms", ())))
    return array, len(facts)


def _json(name, value):
    try:
        return _text(name, json.dumps(value))
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} has what JSON has not: {error}") from None


def _messages(messages):
    """A list of messages, of one or several."""
    messages = [messages] if isinstance(messages, Mapping) else messages
    if isinstance(messages, str):
        raise TypeError(f"messages is {messages!r}, expected a list of messages such as {{'role': 'user', 'content': 'Hi!'}}")
    found = [dict(message) if isinstance(message, Mapping) else message for message in messages]
    for message in found:
        if not isinstance(message, dict):
            raise TypeError(f"a message is {message!r}, expected a dict such as {{'role': 'user', 'content': 'Hi!'}}")
    return found


def _format(format):
    """The number of a format, and its text."""
    if format is None:
        return 0, ""
    if hasattr(format, "model_json_schema"):
        format = format.model_json_schema()
    if isinstance(format, Mapping):
        kind = format.get("type")
        if kind == "text":
            return 0, ""
        if kind == "json_object":
            return _FORMATS[kind], ""
        if kind == "json_schema":
            named = format.get("json_schema")
            if not isinstance(named, Mapping) or "schema" not in named:
                raise ValueError(f"format is {format!r}, expected a schema in its json_schema")
            format = named["schema"]
        return _FORMATS["json_schema"], _json("format", format)[0].decode()
    pair = (format, "") if isinstance(format, str) else tuple(format)
    if len(pair) != 2:
        raise ValueError(f"format is {format!r}, expected a name, a dict, or a pair of a name and its text")
    text = pair[1] if isinstance(pair[1], str) else _json("format", pair[1])[0].decode()
    return _chosen("format", pair[0], _FORMATS), text


def _chosen(name, value, choices):
    if value not in choices:
        known = ", ".join(str(choice) for choice in choices)
        raise ValueError(f"{name} is {value!r}, expected one of {known}")
    return choices[value]


class _Pointer(c_void_p):
    """A handle of the library, which is freed with the last reference: a call that another thread makes holds one, too."""

    _free = ""

    def __del__(self):
        if self.value and _library:
            getattr(_library, self._free)(self)


class _ModelPointer(_Pointer):
    _free = "shohin_model_free"


class _ChatPointer(_Pointer):
    _free = "shohin_chat_free"


class _TaughtPointer(_Pointer):
    _free = "shohin_taught_free"


_Self = TypeVar("_Self", bound="_Handle")


class _Handle:
    """Has a handle of the library, which is not copied."""

    _pointer = None

    @property
    def _handle(self):
        if self._pointer is None:
            raise ValueError(f"the {type(self).__name__} is closed")
        return self._pointer

    def close(self) -> None:
        """Frees its memory, once what still uses it has ended. It cannot be used any more."""
        self._pointer = None

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __reduce_ex__(self, protocol):
        raise TypeError(f"a {type(self).__name__} cannot be copied or pickled")


class Model(_Handle):
    """A loaded model, which is freed by `close`, after a `with` block, or with the last reference."""

    def __init__(self, pointer, name=""):
        self._pointer = pointer
        self._name = name

    def __repr__(self):
        if self._pointer is None:
            return f"<Model {self._name}: closed>"
        info = self.info
        return f"<Model {self._name}: {info['weight_bytes'] / 1e6:.1f} MB, context {min(info['context'], info['max_context'])}>"

    @classmethod
    def _load(cls, name, function, *arguments, threads=0, context=0, kv_format=None, device="best", adapters=()):
        if isinstance(adapters, (str, bytes, os.PathLike)):
            raise TypeError(f"adapters is {adapters!r}, expected a list of adapters")
        adapters = list(adapters)
        # A model that takes adapters later runs on the CPU.
        device = "cpu" if adapters and device == "best" else device
        options, pointer = _LoadOptions(), _ModelPointer()
        _call("load_options_default", byref(options), ctypes.sizeof(options))
        options.threads = _whole("threads", threads, _WHOLE)
        options.context = _whole("context", context, _WHOLE)
        options.kv_format = _chosen("kv_format", kv_format, _KV_FORMATS)
        options.device = _chosen("device", device, _DEVICES)
        _call(function, *arguments, byref(options), byref(pointer))
        model = cls(pointer, name)
        longest = model.info["max_context"]
        if options.context > longest:
            text = f"context is {options.context}, and the longest that the model supports is {longest}: its chats have {longest} tokens"
            warnings.warn(text, stacklevel=3)
        return model.adapted(*adapters) if adapters else model

    @classmethod
    def load(
        cls,
        path: PathLike,
        *,
        threads: int = 0,
        context: int = 0,
        kv_format: Optional[str] = None,
        device: str = "best",
        adapters: Iterable[Any] = (),
        on_download: Optional[Callable[[Download], Optional[bool]]] = None,
    ) -> Model:
        """Loads a GGUF file, a folder of Hugging Face, or a name of the Hub: "hf:OWNER/REPOSITORY/FILE", or "bonsai-1.7b" and others
        that `shohin list --published` names, is downloaded unless it was before.

        threads: 0 is one per core. context: of each chat in tokens; 0 is 4096, or less if the model supports less. kv_format: "f32",
        "f16", "q8", "q4", "fp8_e4m3" or "fp8_e5m2". device: "cpu" or "gpu". adapters: a list, as for `adapted`. on_download: see
        `download`.
        """
        options = dict(threads=threads, context=context, kv_format=kv_format, device=device, adapters=adapters)
        return cls._load(os.fsdecode(path), "model_load", *_path(download(path, on_download)), **options)

    @classmethod
    def from_bytes(
        cls,
        data: Any,
        *,
        threads: int = 0,
        context: int = 0,
        kv_format: Optional[str] = None,
        device: str = "best",
        adapters: Iterable[Any] = (),
    ) -> Model:
        """Loads a GGUF file that is in memory, with options as for `load`."""
        if isinstance(data, int):
            raise TypeError(f"data is {data!r}, expected bytes")
        data = bytes(data)
        options = dict(threads=threads, context=context, kv_format=kv_format, device=device, adapters=adapters)
        return cls._load("in memory", "model_load_memory", data, len(data), **options)

    @classmethod
    def built_in(
        cls,
        *,
        threads: int = 0,
        context: int = 0,
        kv_format: Optional[str] = None,
        device: str = "best",
        adapters: Iterable[Any] = (),
    ) -> Model:
        """Loads the small model that is built into the library, with options as for `load`."""
        options = dict(threads=threads, context=context, kv_format=kv_format, device=device, adapters=adapters)
        return cls._load("built in", "model_load_built_in", **options)

    def adapted(self, *adapters: _AdapterLike | tuple[_AdapterLike, float], scale: float = 1.0) -> Model:
        """The same model with adapters (LoRA), in addition to those that it has: paths of GGUF files, their bytes, or what
        `teach` returned, each also in a pair with a scale of its own. At 1 it is applied as it was trained.

        Both models share the weights, and run side by side. This one must run on the CPU.
        """
        pointer = _ModelPointer()
        _call("model_adapted", self._handle, *_adapters(adapters, scale), byref(pointer))
        return Model(pointer, f"{self._name} with adapters" if adapters else self._name)

    def teach(
        self,
        facts: Mapping[str, str] | Iterable[Mapping],
        on_step: Optional[Callable[[Step], Optional[bool]]] = None,
        *,
        seed: int = 0,
        steps: Optional[int] = None,
        rank: Optional[int] = None,
        learning_rate: Optional[float] = None,
        rehearsals: Optional[int] = None,
        questions: Iterable[str] = (),
        name: Optional[str] = None,
    ) -> Taught:
        """Teaches facts, answers by their questions: they become an adapter, and this model stays as it is.

            taught = model.teach({"What is the door code?": "4711"})
            taught.save("house.gguf")
            model = model.adapted(taught)

        A fact is also a dict with "question", "answer" and "forms", other wordings of the question. The model rehearses its own
        answers to `questions` (built-in ones that suit the built-in model), and keeps more with more `rehearsals` in a step.
        `on_step` is told each `Step`, and ends the teaching with False: what was learned so far is kept. An exception of `on_step`
        ends it, too, as does Ctrl-C once the steps have begun, and is raised here; then nothing is kept.
        """
        options, pointer = _TeachOptions(), _TaughtPointer()
        _call("teach_options_default", byref(options), ctypes.sizeof(options))
        options.seed = _whole("seed", seed, _LARGE)
        for option, value in [("steps", steps), ("rank", rank), ("rehearsals", rehearsals)]:
            if value is not None:
                setattr(options, option, _whole(option, value, _WHOLE))
        if learning_rate is not None:
            options.learning_rate = _float("learning_rate", learning_rate)
        options.questions, options.question_count = _texts("question", _list("questions", questions))
        if name is not None:
            options.name, options.name_len = _text("name", name)
        raised = []

        def step(_, report):
            try:
                report = report.contents
                go_on = on_step is None or on_step(Step(report.step, report.loss, report.least)) is not False
                return 0 if go_on else 1
            except BaseException as error:
                # It cannot pass through the library.
                raised.append(error)
                return 1

        try:
            _call("teach", self._handle, *_facts(facts), byref(options), _OnStep(step), None, byref(pointer))
            taught = Taught(pointer)
            if raised:
                raise raised[0]
        finally:
            # The error has this frame.
            raised.clear()
        return taught

    @property
    def info(self) -> Dict[str, int]:
        """Facts about the model, by name."""
        info = _ModelInfo()
        _call("model_get_info", self._handle, byref(info))
        return {name: getattr(info, name) for name, _ in info._fields_[1:]}

    def tokenize(self, text: str) -> List[int]:
        """The tokens of a text."""
        return _buffer("tokenize", c_uint32, 256, self._handle, *_text("text", text))

    def detokenize(self, tokens: Iterable[int]) -> str:
        """The text of tokens."""
        return _buffer("detokenize", c_char, 256, self._handle, *_tokens(tokens)).decode()

    @overload
    def embed(self, text: str) -> List[float]: ...

    @overload
    def embed(self, text: Iterable[str]) -> List[List[float]]: ...

    def embed(self, text):
        """The embedding of a text, of length 1; of several texts, a list of embeddings."""
        size = self.info["embedding_size"]
        if isinstance(text, str):
            return _buffer("embed", c_float, size, self._handle, *_text("text", text))
        texts = self._texts(text)
        numbers = (c_float * (len(texts) * size))()
        self._embed(texts, numbers, len(numbers))
        return [numbers[at : at + size] for at in range(0, len(numbers), size)]

    def embed_array(self, texts: Iterable[str]) -> numpy.ndarray:
        """The embeddings of texts as a NumPy array of float32, one in each row. Needs NumPy."""
        import numpy

        texts = self._texts(texts)
        vectors = numpy.empty((len(texts), self.info["embedding_size"]), numpy.float32)
        self._embed(texts, vectors.ctypes.data, vectors.size)
        return vectors

    @staticmethod
    def _texts(texts):
        if isinstance(texts, str) or not isinstance(texts, Iterable):
            raise TypeError(f"texts is {texts!r}, expected a list of texts")
        return list(texts)

    def _embed(self, texts, numbers, room):
        count = c_size_t()
        _call("embed_texts", self._handle, *_texts("text", texts), numbers, room, byref(count))

    def logits(self, tokens: Iterable[int]) -> List[float]:
        """The logits of the token after some tokens."""
        return _buffer("logits", c_float, self.info["vocab_size"], self._handle, *_tokens(tokens))

    def chat(self, system: Optional[str] = None, *, messages: Iterable[Message] = (), **options: Any) -> Chat:
        """Begins a conversation, with instructions and the options of `Chat.set_options`; or goes on from `messages` of another one,
        in OpenAI's form."""
        return Chat(self, system, messages=messages, **options)

    @overload
    def create_chat_completion(
        self, messages: Iterable[Message], *, stream: Literal[False] = False, **fields: Any
    ) -> Dict[str, Any]: ...

    @overload
    def create_chat_completion(
        self, messages: Iterable[Message], *, stream: Literal[True], **fields: Any
    ) -> Iterator[Dict[str, Any]]: ...

    def create_chat_completion(self, messages, *, stream=False, **fields):
        """Answers a request of OpenAI's chat completions in one call; with `stream` the chunks of the answer.

            answer = model.create_chat_completion([{"role": "user", "content": "Hi!"}], max_tokens=20)
            print(answer["choices"][0]["message"]["content"])

        Fields are those of OpenAI's API: max_tokens, temperature, top_p, presence_penalty, frequency_penalty, seed, stop, logprobs,
        top_logprobs, tools, tool_choice, parallel_tool_calls, response_format, and so on. Others are an `Error`.
        """
        request = {"messages": list(messages), **fields}
        if stream:
            request["stream"] = True
        chat = Chat(self)
        chat._change("chat_request", *_json("request", request))
        return _answers(chat) if stream else next(_answers(chat))


def _answers(chat):
    """The texts of an answer, read."""
    answer, first = _View(), True
    while True:
        with chat._alone:
            code = chat._compute(first, "chat_next_answer", byref(answer))
            if code == _DONE:
                return
            found = json.loads(answer.copy())
        first = False
        yield found


class Step(NamedTuple):
    """What a step of `Model.teach` did."""

    #: Its number, from 1.
    step: int
    #: Before it, of facts and rehearsals.
    loss: float
    #: Before it, the probability of the least probable token of an answer.
    least: float


class Answer(NamedTuple):
    """What a model says to a question before and after it was taught."""

    question: str
    #: What it should be now.
    expected: str
    before: str
    after: str

    @property
    def right(self) -> bool:
        """Whether it is, word for word, what it should be."""
        return self.after.strip() == self.expected.strip()


class Taught(_Handle):
    """What a model was taught."""

    def __init__(self, pointer):
        self._pointer = pointer
        info = _TaughtInfo()
        _call("taught_get_info", pointer, byref(info))
        #: The adapter, bytes of a GGUF file.
        self.adapter: bytes = ctypes.string_at(info.adapter, info.adapter_len)
        #: Steps of the training.
        self.steps: int = info.steps
        #: Whether every fact is answered word for word.
        self.learned: bool = bool(info.is_learned)

        def answers(array, count):
            return [Answer(*(getattr(answer, name).copy() for name in Answer._fields)) for answer in array[:count]]

        #: To the questions of the facts, in their order.
        self.answers: list[Answer] = answers(info.facts, info.fact_count)
        #: To two wordings of each that were not taught: in small letters, and as a second turn.
        self.wordings: list[Answer] = answers(info.wordings, info.wording_count)
        #: To questions that were neither taught nor rehearsed, whose answers should be what they were.
        self.exam: list[Answer] = answers(info.exam, info.exam_count)

    def __repr__(self):
        right = sum(answer.right for answer in self.answers)
        return f"<Taught: {right} of {len(self.answers)} facts learned in {self.steps} steps>"

    def save(self, path: PathLike) -> None:
        """Writes the adapter to a file, which only its owner can read if it is new."""
        _call("taught_save", self._handle, *_path(path))


#: What `Model.adapted` takes.
_AdapterLike = Union[str, os.PathLike, bytes, bytearray, memoryview, Taught]


class _Alone:
    """Lets one thread use a chat."""

    def __init__(self):
        self._lock = threading.Lock()
        self._thread = None

    def __enter__(self):
        if not self._lock.acquire(blocking=False):
            raise Error("busy", "the chat is in use")
        self._thread = threading.get_ident()

    def __exit__(self, *_):
        self._thread = None
        self._lock.release()

    def is_mine(self):
        """Whether this thread uses the chat: it does only where a signal handler asks."""
        return self._thread == threading.get_ident()


class Chat(_Handle):
    """A conversation. It does one thing at a time: calls by other threads meanwhile raise `Error` "busy", except `interrupt`."""

    def __init__(self, model: Model, system: Optional[str] = None, *, messages: Iterable[Message] = (), **options: Any):
        pointer = _ChatPointer()
        # The texts of a piece are valid until the next call, whichever thread makes it: a thread has the chat until it has copied them.
        self._alone = _Alone()
        _call("chat_new", model._handle, None, byref(pointer))
        self._pointer = pointer
        # The number of the reply in progress; the reply holds the chat, and not the chat the reply.
        self._turn = 0
        if options:
            self.set_options(**options)
        if system is not None:
            _call("chat_system", self._handle, *_text("system", system))
        messages = _messages(messages)
        if messages:
            # The system's message is the first.
            self.messages = self.messages + messages

    def __repr__(self):
        if self._pointer is None:
            return "<Chat: closed>"
        try:
            return f"<Chat of {len(self.messages)} messages>"
        except Error:
            return "<Chat: in use>"

    def _change(self, function, *arguments):
        """A call that ends the reply in progress."""
        with self._alone:
            self._turn += 1
            _call(function, self._handle, *arguments)
            return self._turn

    @property
    def messages(self) -> List[Dict[str, Any]]:
        """The messages so far, in OpenAI's form; set it to go on from others. A reply in progress is not among them."""
        with self._alone:
            return json.loads(_buffer("chat_get_messages", c_char, 1024, self._handle).decode())

    @messages.setter
    def messages(self, messages: Iterable[Message]) -> None:
        self._change("chat_set_messages", *_json("messages", _messages(messages)))

    def set_options(
        self,
        *,
        seed: Optional[int] = None,
        temperature: Optional[float] = None,
        top_k: Optional[int] = None,
        top_p: Optional[float] = None,
        min_p: Optional[float] = None,
        repetition_penalty: Optional[float] = None,
        presence_penalty: Optional[float] = None,
        frequency_penalty: Optional[float] = None,
        max_tokens: Optional[int] = None,
        stop: Union[str, Iterable[str]] = (),
        format: Any = None,
        choices: Optional[Iterable[str]] = None,
        logprobs: Union[None, bool, int] = None,
        thinking: Union[bool, int] = False,
        tools: Iterable[Any] = (),
        tool_choice: str = "auto",
        describe_tools: bool = False,
    ) -> None:
        """Sets the options of the next replies; others are the defaults.

        format: "json_object"; a dict, which is a JSON Schema or OpenAI's response_format; a class of Pydantic; or a pair of
        "json_schema", "regex" or "grammar" and its text. choices: texts of which the reply is one. stop: texts that end a reply.
        logprobs: True, or how many of the most likely tokens to measure beside the one that was chosen; see `Reply.logprobs`.
        thinking: True, False, or the most tokens of reasoning. tools: functions that the model may call, as in OpenAI's API;
        tool_choice: "auto", "required" or the name of a function; describe_tools: whether a model whose template has no tools gets
        them described in the system message.
        """
        found = _ChatOptions()
        _call("chat_options_default", byref(found), ctypes.sizeof(found))
        numbers = dict(seed=seed, top_k=top_k, max_tokens=max_tokens)
        for name, value in numbers.items():
            if value is not None:
                setattr(found, name, _whole(name, value, _COUNTS[name]))
        numbers = dict(temperature=temperature, top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty)
        numbers.update(presence_penalty=presence_penalty, frequency_penalty=frequency_penalty)
        for name, value in numbers.items():
            if value is not None:
                setattr(found, name, _float(name, value))
        # For the library -1 is as much as the model likes.
        found.thinking = -int(thinking) if isinstance(thinking, bool) else _whole("thinking", thinking, 2**31 - 1)
        if logprobs is not None and logprobs is not False:
            found.logprobs = 0 if logprobs is True else _whole("logprobs", logprobs, _MOST_LOGPROBS)
        kind, text = _format(format)
        found.format = kind
        found.format_text, found.format_text_len = _text("format", text)
        if choices is not None:
            if kind:
                raise ValueError("format and choices are both given, expected one of them")
            found.format = _CHOICE
            found.choices, found.choice_count = _texts("choice", _list("choices", choices))
        found.stop, found.stop_count = _texts("stop", [stop] if isinstance(stop, str) else list(stop))
        descriptions = [tool if isinstance(tool, str) else json.dumps(tool) for tool in tools]
        found.tools, found.tool_count = _texts("tools", descriptions)
        found.tool_choice, found.tool_choice_len = _text("tool_choice", tool_choice)
        found.describe_tools = bool(describe_tools)
        self._change("chat_set_options", byref(found))

    def send(self, text: Union[str, Message, Iterable[Message]]) -> Reply:
        """Sends a message, or several in OpenAI's form; gives the pieces of the reply as they are computed. Leaving the loop keeps the
        text so far."""
        if isinstance(text, str):
            return Reply(self, self._change("chat_send", *_text("text", text)))
        if not isinstance(text, (Mapping, Iterable)):
            raise TypeError(f"text is {text!r}, expected a str, a message or a list of messages")
        return Reply(self, self._change("chat_send_messages", *_json("messages", _messages(text))))

    def ask(self, text: Union[str, Message, Iterable[Message]]) -> str:
        """As `send`, with the whole reply as one text."""
        return self.send(text).text()

    def send_results(self, results: Iterable[str]) -> Reply:
        """Sends what the functions returned that the last reply called, one text for each call."""
        if isinstance(results, str):
            raise TypeError(f"results is {results!r}, expected one text for each call, in a list")
        return Reply(self, self._change("chat_send_results", *_texts("results", list(results))))

    def retry(self) -> Reply:
        """Another reply to the last message, in the place of the last one: the same unless the options have changed, such as the seed.

        A message whose reply ended before any text was not kept, and is the `Error` "argument": send it again.
        """
        return Reply(self, self._change("chat_retry"))

    def speculate(self, draft: Optional[Model] = None) -> None:
        """Decodes with guesses of a smaller model from now on, or of what was said before: the same replies, often faster.

        On a GPU, near ties may be decided otherwise.
        """
        self._change("chat_speculate", draft._handle if draft else None)

    def interrupt(self) -> None:
        """Ends the reply in progress, from any thread."""
        _call("chat_interrupt", self._handle)

    def complete(self, tokens: Iterable[int]) -> Reply:
        """Continues tokens, as `Model.tokenize` returns them, as plain text; the conversation stays as it is."""
        return Reply(self, self._change("chat_complete", *_tokens(tokens)))

    @property
    def usage(self) -> Dict[str, Union[int, float]]:
        """Token counts and times of the last reply, by name."""
        usage = _Usage()
        with self._alone:
            _call("chat_get_usage", self._handle, byref(usage))
        return {name: getattr(usage, name) for name, _ in usage._fields_[1:]}

    def save(self, path: PathLike) -> None:
        """Writes the conversation to a file."""
        self._change("chat_save", *_path(path))

    def open(self, path: PathLike) -> None:
        """Goes on with the conversation of a file."""
        self._change("chat_open", *_path(path))

    def _compute(self, first, function, place):
        """The code of a call that computes. The first one computes the prompt, which may take long: Ctrl-C ends it if another thread
        computes."""

        handle = self._handle

        def compute():
            return _call(function, handle, place, allowed=[_DONE])

        if not first or threading.current_thread() is not threading.main_thread():
            return compute()
        computing = concurrent.futures.Future()
        try:
            # Thread.start would wait for the thread, and might be what Ctrl-C ends.
            try:
                _thread.start_new_thread(_fulfil, (computing, compute))
            except RuntimeError:
                # Python starts no threads when it exits. An exception of a signal handler may come once the thread runs.
                if not computing.cancel():
                    raise
            if computing.cancelled():
                return compute()
            while True:
                try:
                    # Not for long: a signal that comes just before it waits does not end the waiting.
                    return computing.result(0.2)
                except concurrent.futures.TimeoutError:
                    pass
        except BaseException:
            # Nothing else may use the chat and the place before the other thread has ended.
            while not (computing.cancel() or computing.done()):
                try:
                    self.interrupt()
                    concurrent.futures.wait([computing])
                except BaseException:
                    pass
            raise
        finally:
            # An error has this frame, and the future the error.
            del computing


class Logprob(NamedTuple):
    """A token of a reply with the natural logarithm of its probability."""

    token: int
    logprob: float
    #: The most likely tokens in its place, best first, with theirs.
    top: List[Tuple[int, float]]


class Reply:
    """The pieces of a reply: an iterator of texts."""

    def __init__(self, chat: Chat, turn: int):
        self._chat, self._turn = chat, turn
        self._begun = False
        self._characters = 0
        #: The model's reasoning so far.
        self.reasoning: str = ""
        #: Its function calls so far: pairs of a name and arguments, which are a JSON text.
        self.tool_calls: List[Tuple[str, str]] = []
        #: Its tokens so far with their log-probabilities, if the options ask for `logprobs`; none of those that a stop text cut off.
        self.logprobs: List[Logprob] = []
        #: Why it ended: "stop", "length", "context_full" or "cancelled"; None before.
        self.reason: Optional[str] = None

    def __repr__(self):
        return f"<Reply: {self._characters} characters so far, {self.reason or 'in progress'}>"

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        with self._chat._alone:
            return self._next()

    def _next(self):
        # A later message has ended this reply.
        if self._chat._turn != self._turn:
            raise StopIteration
        piece = _Piece()
        while self._compute(piece) == _OK:
            for one in piece.logprobs[: piece.logprob_count]:
                top = [(likely.token, likely.logprob) for likely in one.top[: one.top_count]]
                self.logprobs.append(Logprob(one.chosen.token, one.chosen.logprob, top))
            self.reasoning += ctypes.string_at(piece.reasoning, piece.reasoning_len).decode()
            for call in piece.tool_calls[: piece.tool_call_count]:
                name = ctypes.string_at(call.name, call.name_len).decode()
                self.tool_calls.append((name, ctypes.string_at(call.arguments, call.arguments_len).decode()))
            self.reason = _REASONS.get(piece.reason) or self.reason
            if piece.text_len:
                text = ctypes.string_at(piece.text, piece.text_len).decode()
                self._characters += len(text)
                return text
        raise StopIteration

    def _compute(self, piece):
        """The code of `chat_next`."""
        first, self._begun = not self._begun, True
        return self._chat._compute(first, "chat_next", byref(piece))

    def stop(self) -> None:
        """Ends the reply; text that was held back still follows. A signal handler may call it while its thread waits for a piece."""
        if self._chat._alone.is_mine():
            if self._chat._turn == self._turn:
                self._chat.interrupt()
            return
        with self._chat._alone:
            if self._chat._turn == self._turn:
                _call("chat_stop", self._chat._handle)

    def text(self) -> str:
        """The rest of the reply as one text."""
        return "".join(self)
