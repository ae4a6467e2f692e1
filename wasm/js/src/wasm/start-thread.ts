// Threads of the multi-threaded engine, as workers.

/** Name of the workers, by which `threads.js` recognizes that it runs in one. @internal */
export const THREAD = "shohin-thread";

/** A thread that has been started. @internal */
export interface Thread {
  /** Resolves once the thread waits for work, to whether it holds its lock. */
  ready: Promise<boolean>;
  terminate(): unknown;
}

/** Starts the script of a thread and sends it its first message. @internal */
export type StartThread = (script: URL, message: unknown) => Thread;

/** @internal */
export const startThread: StartThread = (script, message) => {
  const worker = startModule(script, THREAD);
  const ready = new Promise<boolean>((resolve, reject) => {
    worker.onmessage = ({ data }: MessageEvent<boolean>) => resolve(data);
    worker.onerror = (event) => {
      event.preventDefault();
      reject(new Error(event.message || "a worker could not be started"));
    };
  });
  worker.postMessage(message);
  return { ready, terminate: () => worker.terminate() };
};

/**
 * Starts a module as a worker. The script of a worker must come from the page's origin, but may import from another, such as a
 * CDN. @internal
 */
export function startModule(script: URL, name?: string): Worker {
  const options: WorkerOptions = { type: "module", ...(name && { name }) };
  if (!isForeign(script)) return new Worker(script, options);
  const url = URL.createObjectURL(new Blob([`import ${JSON.stringify(script.href)};`], { type: "text/javascript" }));
  const worker = new Worker(url, options);
  // Once the worker sends something, it has loaded the script.
  worker.addEventListener("message", () => URL.revokeObjectURL(url), { once: true });
  return worker;
}

/** Whether a script comes from another origin. @internal */
export function isForeign(script: URL): boolean {
  return /^https?:$/.test(script.protocol) && script.origin !== location.origin;
}
