// How an engine reaches its runtime.
import type { ShohinError } from "../api/errors.js";
import type { CallMethod, Params, Result, StreamMethod } from "./protocol.js";
import type { Caller, Runtime } from "./runtime.js";

/** @internal */
export interface Transport {
  call<M extends CallMethod>(method: M, params: Params<M>, caller?: Caller): Promise<Result<M>>;
  /** Leaving the loop early ends the request. */
  stream<M extends StreamMethod>(method: M, params: Params<M>, signal: AbortSignal | undefined): ReturnType<Runtime[M]>;
  /** An address as the runtime can use it, which may resolve relative ones differently. */
  resolve(url: string): string;
  /** Frees the runtime; pending requests fail with `reason`. */
  close(reason: ShohinError): void;
}
