"""Measures llama.cpp through llama-cpp-python: llama.py FILE THREADS REPEAT LIMIT DECODE PREFILL...

Prints one line for each repetition: what, tokens, wall seconds, processor seconds. A prompt whose estimate exceeds LIMIT
seconds is left out; "cannot" and the reason stand for everything if the file is not readable.
"""

import ctypes
import sys
import time

import llama_cpp as l

log = []
keep = l.llama_log_callback(lambda level, text, _: log.append(text.decode(errors="replace").strip()))
l.llama_log_set(keep, ctypes.c_void_p(0))

file, threads, repeat, limit, decode, *prefill = sys.argv[1:]
threads, repeat, limit, decode, prefill = int(threads), int(repeat), float(limit), int(decode), [int(n) for n in prefill]

print("version", l.__version__)
if file == "-":
    sys.exit(0)
l.llama_backend_init()
model = l.llama_model_load_from_file(file.encode(), l.llama_model_default_params())
if not model:
    said = [line for line in log if "invalid" in line or "unknown" in line or "failed to read" in line] or log or ["?"]
    print("cannot", said[0])
    sys.exit(0)
params = l.llama_context_default_params()
params.n_ctx = max([*prefill, decode + 8]) + 8
params.n_batch = params.n_ubatch = 512
params.n_threads = params.n_threads_batch = threads
context = l.llama_init_from_model(model, params)
vocab = l.llama_vocab_n_tokens(l.llama_model_get_vocab(model))
tokens = (l.llama_token * params.n_ctx)(*[i * 7919 % vocab for i in range(params.n_ctx)])


def feed(first, count):
    part = (l.llama_token * count)(*tokens[first : first + count])
    if l.llama_decode(context, l.llama_batch_get_one(part, count)) != 0:
        sys.exit("llama_decode failed")
    l.llama_get_logits(context)[0]  # waits for the end


def measure(what, count, work):
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(what, count, wall, cpu, flush=True)
    return wall


def clear():
    l.llama_memory_clear(l.llama_get_memory(context), True)


feed(0, 8)  # brings the weights in
slowest = 0
for count in prefill:
    for _ in range(repeat):
        if slowest * count > limit:
            break
        clear()
        slowest = measure("prefill", count, lambda: feed(0, count)) / count
# Its slowest format takes a second for a token.
decode = decode if slowest < 0.2 else min(decode, 8)
for _ in range(repeat):
    clear()
    feed(0, 1)
    measure("decode", decode, lambda: [feed(1 + i, 1) for i in range(decode)])
