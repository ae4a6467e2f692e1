// The multi-threaded engine: the build with shared memory and, started as a worker, a thread of its pool. A separate file that is
// imported and started by its address, so that it is fetched only when used.
import init, * as glue from "shohin-threads";
import { THREAD, type StartThread } from "./start-thread.js";

export * from "shohin-threads";

/** Bytes of a thread's stack. */
const STACK = 1 << 19;

/** The first message to a thread. */
interface Start {
  module: WebAssembly.Module;
  memory: WebAssembly.Memory;
  /** Name of the lock that the thread holds until it ends. */
  lock: string;
}

// Not awaited: bundlers minify this file as a script, without top-level await.
const workerThreads = typeof process === "object" && process.versions?.node ? import("node:worker_threads") : undefined;

/**
 * Instantiates `module` and starts a pool of `count` threads, including the calling one. Returns the names of locks that are released
 * when a thread ends; none in Node.
 */
export async function start(module: WebAssembly.Module, count: number, startThread: StartThread): Promise<string[]> {
  await init({ module_or_path: module });
  const memory = glue.shared_memory();
  const pool = crypto.randomUUID();
  const locks = Array.from({ length: count - 1 }, (_, i) => `shohin-${pool}-${i}`);
  const threads = locks.map((lock) => startThread(new URL(import.meta.url), { module, memory, lock } satisfies Start));
  try {
    const held = await Promise.all(threads.map(({ ready }) => ready));
    return locks.filter((_, i) => held[i]);
  } catch (error) {
    for (const thread of threads) thread.terminate();
    throw error;
  }
}

export async function compile(wasm: BufferSource | URL): Promise<WebAssembly.Module> {
  if (!(wasm instanceof URL)) return WebAssembly.compile(wasm);
  const response = await fetch(wasm);
  if (!response.ok) throw new Error(`${wasm}: ${response.status}`);
  // Streaming compilation requires the right type.
  return response.headers.get("Content-Type") === "application/wasm"
    ? WebAssembly.compileStreaming(response)
    : WebAssembly.compile(await response.arrayBuffer());
}

async function run({ module, memory, lock }: Start, ready: (holds: boolean) => void): Promise<void> {
  await init({ module_or_path: module, memory, thread_stack_size: STACK });
  ready(!workerThreads && (await hold(lock)));
  try {
    glue.work();
  } catch {
    glue.worker_crashed();
  }
}

/** Takes a lock that is released only when this thread ends, if the browser has locks. */
function hold(lock: string): Promise<boolean> {
  return new Promise((resolve) => {
    const forever = () => {
      resolve(true);
      return new Promise(() => {});
    };
    if (navigator.locks) navigator.locks.request(lock, forever).catch(() => resolve(false));
    else resolve(false);
  });
}

if (workerThreads) {
  void workerThreads.then(({ parentPort, workerData }) => {
    if (workerData === THREAD) parentPort?.once("message", (start: Start) => run(start, (holds) => parentPort.postMessage(holds)));
  });
} else if ((globalThis as { name?: string }).name === THREAD) {
  globalThis.onmessage = ({ data }: MessageEvent<Start>) => void run(data, (holds) => postMessage(holds));
}
