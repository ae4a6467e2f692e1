/** Codes of the engine itself: errors in a file, an option or a request. */
export type EngineErrorCode =
  | "truncated"
  | "limit"
  | "malformed"
  | "duplicate"
  | "missing_key"
  | "key_type"
  | "key_value"
  | "unsupported"
  | "missing_tensor"
  | "tensor_shape"
  | "tensor_type"
  | "tensor_range"
  | "length"
  | "option"
  /** A grammar in GBNF cannot be read. */
  | "grammar"
  | "token"
  | "context_full"
  | "memory"
  | "logits"
  /** A device failed at its work, or a weight could not be read from where the model is. */
  | "device"
  /** There is no GPU, or only a software adapter. */
  | "gpu_absent"
  /** The GPU cannot run this model; the CPU can. */
  | "gpu_unsupported"
  /** The GPU does not have enough memory for this model. */
  | "gpu_memory"
  /** The GPU was lost while it was in use. */
  | "gpu_lost"
  /** The GPU's driver refused a command. */
  | "gpu_device"
  /** A snapshot's checksum is wrong. */
  | "snapshot_damaged"
  /** A snapshot was made by another model, with other settings or on another backend. */
  | "snapshot_foreign";

/** Codes of the host. */
export type HostErrorCode =
  /** The signal was aborted. The error's `name` is `AbortError`, as that of `fetch`, and its `cause` the signal's reason. */
  | "aborted"
  /** The engine was disposed. */
  | "disposed"
  /** The model could not be fetched: no connection, or the server does not allow requests from this origin. */
  | "network"
  /** The server answered with an error status. */
  | "http"
  /** The server repeatedly sent nothing for `stallTimeout` milliseconds. */
  | "timeout"
  /** A file, blob or stream could not be read. */
  | "read"
  /** An argument has the wrong type, or there is no such option. */
  | "argument"
  /** A file is not the one that `sha256` and `bytes` describe, or a kept copy of it is damaged. */
  | "integrity"
  /** Not enough storage to keep a model or a conversation. */
  | "quota"
  /** The model called a session's tools in more rounds than `maxToolRounds`. */
  | "tool_rounds"
  /** There is no snapshot of this name. */
  | "snapshot_missing"
  /** The WebAssembly module could not be loaded, or this browser lacks WebAssembly SIMD. */
  | "wasm"
  /** The worker could not be started. */
  | "worker"
  /** The engine hit a bug or ran out of memory, and can no longer be used. */
  | "crashed";

/** A stable, machine-readable error code. More may be added. */
export type ErrorCode = EngineErrorCode | HostErrorCode | (string & {});

/** The only error class of this package. Its `name` is `ShohinError`, or `AbortError` for code `aborted`. */
export class ShohinError extends Error {
  /** Stable across versions; the message is not. */
  readonly code: ErrorCode;

  constructor(code: ErrorCode, message: string, options?: { cause?: unknown }) {
    super(message, options);
    // Generic code recognizes aborts by their name.
    this.name = code === "aborted" ? "AbortError" : "ShohinError";
    this.code = code;
  }
}

/** Whether an error of this code ends the engine: it answers nothing more, and its model can be loaded again. @internal */
export function isFinal(code: ErrorCode): boolean {
  return code === "crashed" || code === "gpu_lost" || code === "worker";
}

/** Errors that one file of several caused by itself, and the name of that file. */
const blamed = new WeakMap<object, string>();

/** Records which of several files caused the error. @internal */
export function blameOn(name: string, error: ShohinError): ShohinError {
  blamed.set(error, name);
  return error;
}

/** The file recorded by `blameOn`. @internal */
export function blamedBy(error: ShohinError): string | undefined {
  return blamed.get(error);
}

/** Converts anything thrown to a {@link ShohinError}. @internal */
export function toError(thrown: unknown): ShohinError {
  if (thrown instanceof ShohinError) return thrown;
  if (thrown instanceof Error) {
    const code = (thrown as { code?: unknown }).code;
    // Errors made by the engine are plain Error objects that carry their code.
    if (thrown.name === "Error" && typeof code === "string") {
      return new ShohinError(code, thrown.message);
    }
    if (thrown instanceof WebAssembly.RuntimeError || thrown instanceof RangeError) {
      return new ShohinError("crashed", `the engine stopped: ${thrown.message}`, { cause: thrown });
    }
    return new ShohinError("read", thrown.message, { cause: thrown });
  }
  return new ShohinError("read", String(thrown), { cause: thrown });
}

/**
 * Converts an argument; failures become code `argument`. JavaScript's own errors would be mistaken for the engine's: a
 * RangeError also ends a module whose stack overflows. @internal
 */
export function converted<T>(what: string, convert: () => T): T {
  try {
    return convert();
  } catch (cause) {
    if (cause instanceof ShohinError) throw cause;
    throw new ShohinError("argument", `${what} cannot be used: ${String(cause)}`, { cause });
  }
}

/** The error with the name of an option as its caller writes it: the engine's are `top_p` and `tool_choice`. @internal */
export function spelled(error: ShohinError, style: "camelCase" | "snake_case"): ShohinError {
  if (error.code !== "option" && error.code !== "argument") return error;
  const message = error.message.replace(/^[a-z]+(?:_[a-z]+)+(?= )/, (name) =>
    style === "snake_case" ? name : name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase()),
  );
  return message === error.message ? error : new ShohinError(error.code, message, { cause: error });
}

/** The error for an aborted signal. @internal */
export function abortError(signal: AbortSignal | undefined): ShohinError {
  return new ShohinError("aborted", "the request was aborted", { cause: signal?.reason });
}
