// The runtime on the thread of the engine.
import { abortError } from "../api/errors.js";
import { dispatch, type CallMethod, type Params, type Result, type StreamMethod } from "./protocol.js";
import { Runtime, type Caller } from "./runtime.js";
import type { Transport } from "./transport.js";

/** @internal */
export class InProcess implements Transport {
  isClosed = false;
  #runtime = new Runtime();

  async call<M extends CallMethod>(method: M, params: Params<M>, caller: Caller = {}): Promise<Result<M>> {
    // As by a worker, also for methods that do not look at it.
    if (caller.signal?.aborted) throw abortError(caller.signal);
    return (await dispatch(this.#runtime, method, params, caller)) as Result<M>;
  }

  stream<M extends StreamMethod>(method: M, params: Params<M>, signal: AbortSignal | undefined): ReturnType<Runtime[M]> {
    return dispatch(this.#runtime, method, params, { signal });
  }

  close(): void {
    this.isClosed = true;
    void this.#runtime.dispose();
  }
}
