// What options can be: refused are those that cannot, before anything is fetched.
import type { LoadOptions } from "./api.js";
import { converted, ShohinError, type ErrorCode } from "./error.js";
import { partsOf } from "./parts.js";
import type { Kind } from "./source.js";

/** Throws if an option is given and is not what it must be. */
function demand<T>(code: ErrorCode, name: string, given: T | null | undefined, right: (given: T) => boolean, must: string): void {
  if (given == null || right(given)) return;
  throw new ShohinError(code, `${name} is ${typeof given === "string" ? JSON.stringify(given) : String(given)}, but must be ${must}`);
}

function isCount(value: unknown): boolean {
  return Number.isSafeInteger(value) && (value as number) > 0;
}

function isOneOf(...known: unknown[]): (value: unknown) => boolean {
  return (value) => known.includes(value);
}

/** @internal */
export function checkContext(context: number | undefined): void {
  demand("option", "context", context, isCount, "a whole number of tokens, at least 1");
}

/** Refuses before anything is fetched what else would be refused when all of it is there. @internal */
export function checkLoad(options: LoadOptions, kind: Kind): void {
  const { backend, kv, activations, cache, threads, sha256, bytes, stallTimeout, onProgress, signal, request } = options;
  demand("unsupported", "backend", backend, isOneOf("cpu", "webgpu", "auto"), "cpu, webgpu or auto");
  demand("unsupported", "kv", kv, isOneOf("f16", "f32", "q8"), "f16, f32 or q8");
  demand("unsupported", "activations", activations, isOneOf("int8", "f32"), "int8 or f32");
  checkContext(options.context);
  demand("argument", "threads", threads, (n) => n === Infinity || isCount(n), "a whole number, at least 1");
  demand("argument", "cache", cache, isOneOf(true, false, "require"), "true, false or require");
  demand("option", "stallTimeout", stallTimeout, (ms) => typeof ms === "number" && ms > 0, "a number of milliseconds above 0");
  // No file can have them.
  demand("integrity", "sha256", sha256, (digits) => typeof digits === "string" && /^[\da-f]{64}$/i.test(digits), "64 hexadecimal digits");
  demand("integrity", "bytes", bytes, isCount, "the size of a file");
  const parts = "files" in kind ? kind.files.length > 1 : "url" in kind && partsOf(kind.url) !== undefined;
  if (parts && (sha256 != null || bytes != null)) throw new ShohinError("argument", "sha256 and bytes are those of one file, and this model is in parts");
  demand("argument", "onProgress", onProgress, (call) => typeof call === "function", "a function");
  demand("argument", "signal", signal, (signal) => typeof signal.addEventListener === "function" && typeof signal.aborted === "boolean", "an AbortSignal");
  converted("request.headers", () => new Headers(request?.headers ?? {}));
}
