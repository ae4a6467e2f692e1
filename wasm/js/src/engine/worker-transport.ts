// The runtime in a worker: the engine's own, which terminating frees all of its memory, or one that several tabs share.
import { abortError, ShohinError } from "../api/errors.js";
import type { CallMethod, FromWorker, Method, Params, Result, StreamMethod, ToTab, ToWorker } from "./protocol.js";
import type { Caller, Runtime } from "./runtime.js";
import { isForeign, startModule, startThread, type Thread } from "../wasm/start-thread.js";
import type { Transport } from "./transport.js";

/** A request without an answer yet. */
interface Pending extends Caller {
  chunk?: (chunk: unknown) => void;
  resolve: (value: unknown) => void;
  reject: (error: ShohinError) => void;
}

/** @internal */
export class WorkerTransport implements Transport {
  readonly shared: boolean;
  #port: Worker | MessagePort;
  #end: () => void;
  #pending = new Map<number, Pending>();
  /** The threads of the worker. */
  #threads = new Map<number, Thread>();
  #nextId = 1;
  #closed: ShohinError | undefined;

  /** `end` is called when the transport is closed. */
  constructor(port: Worker | MessagePort, shared: boolean, end: () => void) {
    this.#port = port;
    this.shared = shared;
    this.#end = end;
    port.onmessage = ({ data }: MessageEvent<ToTab>) => this.#receive(data);
    port.onmessageerror = () => this.close(new ShohinError("worker", "a message to the worker could not be read"));
  }

  /** Starts a worker for one engine. */
  static own(workerUrl: string | URL | undefined): WorkerTransport {
    const worker = startWorker(workerUrl);
    const transport = new WorkerTransport(worker, false, () => worker.terminate());
    worker.onerror = (event) => {
      event.preventDefault();
      transport.close(new ShohinError("worker", `the worker failed: ${event.message || "its script could not be loaded"}`));
    };
    return transport;
  }

  get isClosed(): boolean {
    return this.#closed !== undefined;
  }

  call<M extends CallMethod>(method: M, params: Params<M>, caller: Caller = {}): Promise<Result<M>> {
    return this.#request(method, params, caller) as Promise<Result<M>>;
  }

  stream<M extends StreamMethod>(method: M, params: Params<M>, signal: AbortSignal | undefined): ReturnType<Runtime[M]> {
    return this.#stream(method, params, signal) as AsyncGenerator as ReturnType<Runtime[M]>;
  }

  close(reason: ShohinError): void {
    if (this.#closed) return;
    this.#closed = reason;
    this.#end();
    for (const thread of this.#threads.values()) thread.terminate();
    this.#threads.clear();
    for (const { reject } of this.#pending.values()) reject(reason);
    this.#pending.clear();
  }

  #post(message: ToWorker, transfer: Transferable[] = []): void {
    this.#port.postMessage(message, transfer);
  }

  #receive(message: ToTab): void {
    if ("loaded" in message) return;
    if ("ended" in message) return this.close(new ShohinError(message.ended.code, message.ended.message));
    if ("locks" in message) return this.#watch(message.locks);
    if ("script" in message) return void this.#startThread(message);
    if ("terminate" in message) return void this.#threads.get(message.thread)?.terminate();
    const { id } = message;
    const pending = this.#pending.get(id);
    if (!pending) return;
    if ("progress" in message) pending.onProgress?.(message.progress);
    else if ("read" in message) void this.#read(id, pending, message.read);
    else if ("chunk" in message) pending.chunk?.(message.chunk);
    else {
      this.#pending.delete(id);
      if ("error" in message) pending.reject(new ShohinError(message.error.code, message.error.message));
      else pending.resolve(message.done);
    }
  }

  async #read(id: number, { read }: Caller, at: number): Promise<void> {
    // The caller's array stays usable: its copy is transferred.
    const piece = (await read?.(at))?.slice();
    this.#post({ id, piece }, piece ? [piece.buffer] : []);
  }

  async #startThread({ thread, script, message }: Extract<FromWorker, { script: string }>): Promise<void> {
    if (this.#closed) return;
    try {
      const started = startThread(new URL(script), message);
      this.#threads.set(thread, started);
      this.#post({ thread, holds: await started.ready });
    } catch (error) {
      this.#post({ thread, failed: String(error) });
    }
  }

  /** Closes when a thread of the worker ends, for which it might wait forever. */
  #watch(locks: readonly string[]): void {
    const ended = () => this.close(new ShohinError("crashed", "a thread of the engine was terminated"));
    for (const lock of locks) navigator.locks.request(lock, ended).catch(() => {});
  }

  #request(method: Method, params: unknown, caller: Caller & Pick<Pending, "chunk">, id = this.#nextId++): Promise<unknown> {
    const { signal } = caller;
    if (this.#closed) return Promise.reject(this.#closed);
    if (signal?.aborted) return Promise.reject(abortError(signal));
    const abort = () => {
      this.#post({ id, abort: true });
      // Not when the worker answers: it may be busy for long.
      const pending = this.#pending.get(id);
      this.#pending.delete(id);
      pending?.reject(abortError(signal));
    };
    signal?.addEventListener("abort", abort, { once: true });
    return new Promise((resolve, reject) => {
      this.#pending.set(id, {
        ...caller,
        resolve,
        reject: (error) => reject(error.code === "aborted" ? abortError(signal) : error),
      });
      try {
        this.#post({ id, method, params });
      } catch (cause) {
        this.#pending.delete(id);
        reject(new ShohinError("argument", "an option cannot be sent to the worker", { cause }));
      }
    }).finally(() => signal?.removeEventListener("abort", abort));
  }

  async *#stream(method: StreamMethod, params: unknown, signal: AbortSignal | undefined): AsyncGenerator<unknown, unknown, void> {
    if (signal?.aborted) throw abortError(signal);
    // Aborted by the caller's signal, or when the caller leaves its loop.
    const abort = new AbortController();
    const forward = () => abort.abort(signal?.reason);
    signal?.addEventListener("abort", forward, { once: true });
    const chunks: unknown[] = [];
    let wake = () => {};
    let failed: { error: unknown } | undefined;
    let ended: { result: unknown } | undefined;
    const chunk = (chunk: unknown) => {
      chunks.push(chunk);
      wake();
    };
    const id = this.#nextId++;
    this.#request(method, params, { signal: abort.signal, chunk }, id).then(
      (result) => {
        ended = { result };
        wake();
      },
      (error: unknown) => {
        failed = { error };
        wake();
      },
    );
    try {
      for (;;) {
        if (chunks.length > 0) {
          const next = chunks.shift();
          if (!failed && !ended) this.#post({ id, taken: true });
          yield next;
        } else if (failed) {
          throw failed.error;
        } else if (ended) {
          return ended.result;
        } else {
          await new Promise<void>((resolve) => (wake = resolve));
        }
      }
    } finally {
      signal?.removeEventListener("abort", forward);
      abort.abort();
    }
  }
}

function startWorker(workerUrl: string | URL | undefined): Worker {
  try {
    if (workerUrl !== undefined) return new Worker(workerUrl, { type: "module" });
    const home = new URL(import.meta.url);
    if (isForeign(home)) return startModule(new URL("worker.js", home));
    // Bundlers look for exactly this expression.
    return new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
  } catch (cause) {
    throw new ShohinError("worker", "the worker could not be started", { cause });
  }
}
