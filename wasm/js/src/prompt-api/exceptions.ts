// The exceptions of the Prompt API.
import type { ShohinError } from "../index.js";

/** A DOMException. @internal */
export function exception(name: string, message: string): DOMException {
  return new DOMException(message, name);
}

/** The exception, with the error that caused it. @internal */
export function causedBy(cause: unknown, error: DOMException): DOMException {
  return Object.defineProperty(error, "cause", { value: cause, configurable: true, writable: true });
}

/** The error for a prompt that needs more tokens than there are, as far as they are known. @internal */
export function quotaExceeded(message: string, amounts: { requested?: number; quota?: number } = {}): DOMException {
  const { QuotaExceededError } = globalThis as { QuotaExceededError?: new (message: string, options: typeof amounts) => DOMException };
  if (QuotaExceededError) return new QuotaExceededError(message, amounts);
  return Object.assign(exception("QuotaExceededError", message), { requested: null, quota: null, ...amounts });
}

/** Names of exceptions by the code of the error that causes them; `OperationError` for others. */
const NAMES: Readonly<Record<string, string>> = {
  aborted: "AbortError",
  disposed: "InvalidStateError",
  network: "NetworkError",
  http: "NetworkError",
  timeout: "NetworkError",
  read: "NotReadableError",
  unsupported: "NotSupportedError",
  gpu_absent: "NotSupportedError",
  gpu_unsupported: "NotSupportedError",
  wasm: "NotSupportedError",
};

/** Whether an engine threw this. That of `shohin/local` has an error class of its own. @internal */
export function isOfEngine(thrown: unknown): thrown is ShohinError {
  return thrown instanceof Error && typeof (thrown as { code?: unknown }).code === "string" && ["ShohinError", "AbortError"].includes(thrown.name);
}

/** Converts an error of the engine. @internal */
export function toException(thrown: unknown): unknown {
  if (!isOfEngine(thrown)) return thrown;
  const { code, message } = thrown;
  if (code === "argument") return new TypeError(message, { cause: thrown });
  // Of storage for the model, or of the context between calls of tools.
  if (code === "quota" || code === "context_full") return causedBy(thrown, quotaExceeded(message));
  // The error names an option that only sessions of an engine have.
  if (code === "tool_rounds") return causedBy(thrown, exception("OperationError", "the model went on calling tools instead of replying"));
  return causedBy(thrown, exception(NAMES[code] ?? "OperationError", message));
}

/** The reason of an aborted signal. @internal */
export const reasonOf = (signal: AbortSignal): unknown => signal.reason;
