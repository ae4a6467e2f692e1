// The multi-threaded engine: the build with shared memory and, started as a worker, a thread of its pool. A separate file that is
// imported and started by its address, so that it is fetched only when used.
import init, * as glue from "shohin-threads";

export * from "shohin-threads";

/** Name of the workers, by which this script recognizes that it runs in one. */
const THREAD = "shohin-thread";
/** Bytes of a thread's stack. */
const STACK = 1 << 19;

interface Thread {
  postMessage(message: unknown): void;
  terminate(): unknown;
}

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
export async function start(module: WebAssembly.Module, count: number): Promise<string[]> {
  await init({ module_or_path: module });
  const memory = glue.shared_memory();
  const threads: Thread[] = [];
  const node = await workerThreads;
  const pool = crypto.randomUUID();
  const locks = Array.from({ length: count - 1 }, (_, i) => `shohin-${pool}-${i}`);
  try {
    const held = await Promise.all(locks.map((lock) => spawn({ module, memory, lock }, threads, node)));
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

/** Starts a thread; resolves once it waits for work, to whether it holds its lock. */
function spawn(start: Start, threads: Thread[], node: Awaited<typeof workerThreads>): Promise<boolean> {
  return new Promise((resolve, reject) => {
    if (node) {
      const worker = new node.Worker(new URL(import.meta.url), { workerData: THREAD });
      threads.push(worker);
      worker.once("message", () => {
        worker.unref(); // a program may end while its threads sleep
        resolve(false);
      });
      worker.once("error", reject);
      worker.postMessage(start);
      return;
    }
    const home = new URL(import.meta.url);
    const foreign = home.origin !== location.origin;
    // The script of a worker must come from the page's origin, but may import from another.
    const script = foreign
      ? URL.createObjectURL(new Blob([`import ${JSON.stringify(home.href)};`], { type: "text/javascript" }))
      : home;
    const worker = new Worker(script, { type: "module", name: THREAD });
    threads.push(worker);
    worker.onmessage = ({ data }: MessageEvent<boolean>) => {
      if (typeof script === "string") URL.revokeObjectURL(script);
      resolve(data);
    };
    worker.onerror = (event) => reject(new Error(event.message || "a worker could not be started"));
    worker.postMessage(start);
  });
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
