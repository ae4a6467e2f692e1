// How an engine reaches its runtime.
import { ShohinError } from "../api/errors.js";
import type { CallMethod, Params, Result, StreamMethod } from "./protocol.js";
import type { Caller, Runtime } from "./runtime.js";

/** An address relative to that of the page or worker; in Node as it is. @internal */
export function absolute(url: string): string {
  if (typeof location === "undefined") return url;
  const base = typeof document === "undefined" ? location.href : document.baseURI;
  try {
    return new URL(url, base).href;
  } catch (cause) {
    throw new ShohinError("argument", `${url} is not a URL`, { cause });
  }
}

/** @internal */
export interface Transport {
  /** Whether other tabs use the same model. */
  readonly shared?: boolean;
  readonly isClosed: boolean;
  call<M extends CallMethod>(method: M, params: Params<M>, caller?: Caller): Promise<Result<M>>;
  /** Leaving the loop early ends the request. */
  stream<M extends StreamMethod>(method: M, params: Params<M>, signal: AbortSignal | undefined): ReturnType<Runtime[M]>;
  /** Frees the runtime; pending requests fail with `reason`. */
  close(reason: ShohinError): void;
}
