// The worker's end of an engine's messages: answers requests by a runtime.
import { abortError, toError } from "../api/errors.js";
import { dispatch, type FromWorker, type Method, type Params, type RequestMessage } from "./protocol.js";
import type { Runtime } from "./runtime.js";

/** @internal */
export class Answering {
  #runtime: Runtime;
  #send: (message: FromWorker) => void;
  #aborts = new Map<number, AbortController>();
  /** Requests that wait for bytes. */
  #readers = new Map<number, (piece: Uint8Array | undefined) => void>();

  constructor(runtime: Runtime, send: (message: FromWorker) => void) {
    this.#runtime = runtime;
    this.#send = send;
  }

  receive(message: RequestMessage): void {
    if ("abort" in message) this.#abort(message.id);
    else if ("piece" in message) this.#readers.get(message.id)?.(message.piece);
    else void this.#answer(message.id, message.method, message.params as Params<Method>);
  }

  /** Aborts all requests. */
  end(): void {
    for (const id of this.#aborts.keys()) this.#abort(id);
  }

  #abort(id: number): void {
    this.#aborts.get(id)?.abort();
    this.#readers.get(id)?.(undefined);
  }

  async #answer(id: number, method: Method, params: Params<Method>): Promise<void> {
    const abort = new AbortController();
    this.#aborts.set(id, abort);
    const { signal } = abort;
    const read = async (at: number) => {
      const piece = await new Promise<Uint8Array | undefined>((resolve) => {
        this.#readers.set(id, resolve);
        this.#send({ id, read: at });
      });
      this.#readers.delete(id);
      if (signal.aborted) throw abortError(signal);
      return piece;
    };
    try {
      const result = dispatch(this.#runtime, method, params, { signal, read, onProgress: (progress) => this.#send({ id, progress }) });
      if (Symbol.asyncIterator in result) {
        let next = await result.next();
        for (; !next.done; next = await result.next()) this.#send({ id, chunk: next.value });
        this.#send({ id, done: next.value });
      } else {
        this.#send({ id, done: await result });
      }
    } catch (thrown) {
      const { code, message } = toError(thrown);
      this.#send({ id, error: { code, message } });
    } finally {
      this.#aborts.delete(id);
    }
  }
}
