/** Codes of the engine itself: what is wrong with a file, an option or a request. */
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
  | "token"
  | "context_full"
  | "memory"
  | "logits"
  /** There is no GPU, or none but in software. */
  | "gpu_absent"
  /** The GPU cannot run this model; the CPU can. */
  | "gpu_unsupported"
  /** The GPU has no room for this model. */
  | "gpu_memory"
  /** The GPU was taken away while it was in use. */
  | "gpu_lost"
  /** The GPU's driver refused a command. */
  | "gpu_device"
  /** A snapshot's checksum is wrong. */
  | "snapshot_damaged"
  /** A snapshot was made by another model, with other settings or on another backend. */
  | "snapshot_foreign";

/** Codes of the host around it. */
export type HostErrorCode =
  /** The signal was aborted. `cause` holds its reason. */
  | "aborted"
  /** The engine was disposed. */
  | "disposed"
  /** The model could not be fetched: no connection, or the server does not allow this origin. */
  | "network"
  /** The server answered with an error status. */
  | "http"
  /** The server sent nothing for as long as `stallTimeout` says, again and again. */
  | "timeout"
  /** A file, blob or stream could not be read. */
  | "read"
  /** An argument is of the wrong kind, or there is no such option. */
  | "argument"
  /** A file is not the one that `sha256` and `bytes` describe, or a kept copy of it is damaged. */
  | "integrity"
  /** There is no room to keep a model or a conversation. */
  | "quota"
  /** There is no snapshot of this name. */
  | "snapshot_missing"
  /** The WebAssembly module could not be loaded, or this browser lacks WebAssembly SIMD. */
  | "wasm"
  /** The worker could not be started. */
  | "worker"
  /** The engine hit a bug or ran out of memory, and cannot be used any more. */
  | "crashed";

/** A stable, machine-readable name of what went wrong. More may be added. */
export type ErrorCode = EngineErrorCode | HostErrorCode | (string & {});

/** The only error this package throws. */
export class ShohinError extends Error {
  /** Stable across versions; the message is for people and is not. */
  readonly code: ErrorCode;

  constructor(code: ErrorCode, message: string, options?: { cause?: unknown }) {
    super(message, options);
    this.name = "ShohinError";
    this.code = code;
  }
}

/** The file of several that an error is about, where it is about one of them by itself. */
const blamed = new WeakMap<object, string>();

/** Says which of several files is wrong by itself. @internal */
export function blameOn(name: string, error: ShohinError): ShohinError {
  blamed.set(error, name);
  return error;
}

/** The file that `blameOn` has told. @internal */
export function blamedBy(error: ShohinError): string | undefined {
  return blamed.get(error);
}

/** Turns whatever was thrown into a {@link ShohinError}. @internal */
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
 * What `convert` makes of an argument. Errors of JavaScript's own would be taken for the engine's: a RangeError is also
 * what ends a module whose stack is full. @internal
 */
export function converted<T>(what: string, convert: () => T): T {
  try {
    return convert();
  } catch (cause) {
    throw new ShohinError("argument", `${what} cannot be used: ${String(cause)}`, { cause });
  }
}

/** The error for an aborted signal. @internal */
export function abortError(signal: AbortSignal | undefined): ShohinError {
  return new ShohinError("aborted", "the request was aborted", { cause: signal?.reason });
}
