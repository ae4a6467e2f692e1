// The worker of an engine: one runtime, called by messages.
import { abortError, toError } from "../api/errors.js";
import { listCache } from "../load/cache.js";
import { filesWithCopies } from "../load/kept.js";
import { host } from "../wasm/host.js";
import { dispatch, type FromWorker, type Method, type Params, type ToWorker } from "./protocol.js";
import { Runtime } from "./runtime.js";

const runtime = new Runtime();
const aborts = new Map<number, AbortController>();
/** Requests that wait for bytes. */
const readers = new Map<number, (piece: Uint8Array | undefined) => void>();

/** Threads that the page is starting. */
const threads = new Map<number, { resolve: (holds: boolean) => void; reject: (error: Error) => void }>();
let threadsAsked = 0;

const send = (message: FromWorker) => postMessage(message);

Object.assign(host, { files: filesWithCopies, copies: listCache } satisfies Partial<typeof host>);
// By the page: if one worker starts another, Firefox may lose the signal that the first waits for, and it waits forever.
host.startThread = (script, message) => {
  const thread = ++threadsAsked;
  const ready = new Promise<boolean>((resolve, reject) => threads.set(thread, { resolve, reject }));
  send({ thread, script: script.href, message });
  return { ready, terminate: () => send({ thread, terminate: true }) };
};
// Only the page can notice: this thread may be blocked until the ended one answers.
host.threadsStarted = (locks) => send({ locks });

self.onmessage = ({ data }: MessageEvent<ToWorker>) => {
  if ("thread" in data) {
    const thread = threads.get(data.thread);
    threads.delete(data.thread);
    if ("failed" in data) thread?.reject(new Error(data.failed));
    else thread?.resolve(data.holds);
  } else if ("abort" in data) {
    aborts.get(data.id)?.abort();
    readers.get(data.id)?.(undefined);
  } else if ("piece" in data) {
    readers.get(data.id)?.(data.piece);
  } else {
    void answer(data.id, data.method, data.params as Params<Method>);
  }
};

async function answer(id: number, method: Method, params: Params<Method>): Promise<void> {
  const abort = new AbortController();
  aborts.set(id, abort);
  const { signal } = abort;
  const read = async (at: number) => {
    const piece = await new Promise<Uint8Array | undefined>((resolve) => {
      readers.set(id, resolve);
      send({ id, read: at });
    });
    readers.delete(id);
    if (signal.aborted) throw abortError(signal);
    return piece;
  };
  try {
    const result = dispatch(runtime, method, params, { signal, read, onProgress: (progress) => send({ id, progress }) });
    if (Symbol.asyncIterator in result) {
      let next = await result.next();
      for (; !next.done; next = await result.next()) send({ id, chunk: next.value });
      send({ id, done: next.value });
    } else {
      send({ id, done: await result });
    }
  } catch (thrown) {
    const { code, message } = toError(thrown);
    send({ id, error: { code, message } });
  } finally {
    aborts.delete(id);
  }
}
