// The worker's end of an engine's messages: answers requests by a runtime.
import { abortError, toError } from "../api/errors.js";
import { dispatch, type FromWorker, type Method, type Params, type RequestMessage } from "./protocol.js";
import type { Runtime } from "./runtime.js";

/**
 * Most chunks of a stream that the engine's caller has not taken yet: a caller that pauses is not computed for without end. Almost all replies are
 * shorter, and end even if nobody reads them.
 * @internal
 */
export const AHEAD = 4096;

/** @internal */
export class Answering {
  #runtime: Runtime;
  #send: (message: FromWorker) => void;
  #aborts = new Map<number, AbortController>();
  /** Requests that wait for bytes. */
  #readers = new Map<number, (piece: Uint8Array | undefined) => void>();
  /** Streams, with the number of chunks not taken yet. */
  #streams = new Map<number, { conversation: number | undefined; ahead: number; closed: boolean; wake: () => void }>();

  constructor(runtime: Runtime, send: (message: FromWorker) => void) {
    this.#runtime = runtime;
    this.#send = send;
  }

  receive(message: RequestMessage): void {
    if ("abort" in message) this.#abort(message.id);
    else if ("piece" in message) this.#readers.get(message.id)?.(message.piece);
    else if ("taken" in message) this.#taken(message.id);
    else void this.#answer(message.id, message.method, message.params as Params<Method>);
  }

  /** Aborts all requests. */
  end(): void {
    for (const id of this.#aborts.keys()) this.#abort(id);
  }

  #abort(id: number): void {
    this.#aborts.get(id)?.abort();
    this.#readers.get(id)?.(undefined);
    this.#streams.get(id)?.wake();
  }

  #taken(id: number): void {
    const stream = this.#streams.get(id);
    if (!stream) return;
    stream.ahead--;
    stream.wake();
  }

  /** Lets the streams of a conversation that is disposed end. */
  #closed(conversation: number): void {
    for (const stream of this.#streams.values()) {
      if (stream.conversation !== conversation) continue;
      stream.closed = true;
      stream.wake();
    }
  }

  /** Sends the chunks of a stream as its caller takes them, and returns its result. */
  async #forward(id: number, chunks: AsyncGenerator, conversation: number | undefined, signal: AbortSignal): Promise<unknown> {
    const stream = { conversation, ahead: 0, closed: false, wake: () => {} };
    this.#streams.set(id, stream);
    try {
      for (;;) {
        const { done, value } = await chunks.next();
        if (done) return value;
        this.#send({ id, chunk: value });
        stream.ahead++;
        while (stream.ahead >= AHEAD && !stream.closed && !signal.aborted) await new Promise<void>((resolve) => (stream.wake = resolve));
      }
    } finally {
      this.#streams.delete(id);
    }
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
      const { conversation } = params as { conversation?: number };
      const done = Symbol.asyncIterator in result ? await this.#forward(id, result, conversation, signal) : await result;
      if (method === "close") this.#closed(conversation!);
      this.#send({ id, done });
    } catch (thrown) {
      const { code, message } = toError(thrown);
      this.#send({ id, error: { code, message } });
    } finally {
      this.#aborts.delete(id);
    }
  }
}
