// The engine on several threads: the build with shared memory, and, started as a worker, a member of its team. A file of
// its own that is imported, and started, by its address, so that it is fetched only when used.
import init, * as glue from "shohin-threads";

export * from "shohin-threads";

/** How a member knows what it is. */
const MEMBER = "shohin-team";
/** Bytes of stack of a member. */
const STACK = 1 << 19;

/** @internal */
interface Member {
  postMessage(message: unknown): void;
  terminate(): unknown;
}

/** What a member starts with. */
interface Start {
  module: WebAssembly.Module;
  memory: WebAssembly.Memory;
  /** Name of the lock that the member holds for as long as it lives. */
  life: string;
}

// Not awaited here: bundlers minify this file as a script, in which only functions may wait.
const workerThreads = typeof process === "object" && process.versions?.node ? import("node:worker_threads") : undefined;

/**
 * Instantiates `module` and starts a team of `count` threads, the calling one included. Returns the names of locks: who is
 * given one knows that a member is gone. In Node there are none.
 */
export async function start(module: WebAssembly.Module, count: number): Promise<string[]> {
  await init({ module_or_path: module });
  const memory = glue.shared_memory();
  const members: Member[] = [];
  const node = await workerThreads;
  const team = crypto.randomUUID();
  const lives = Array.from({ length: count - 1 }, (_, i) => `shohin-${team}-${i}`);
  try {
    const held = await Promise.all(lives.map((life) => join({ module, memory, life }, members, node)));
    return lives.filter((_, i) => held[i]);
  } catch (error) {
    for (const member of members) member.terminate();
    throw error;
  }
}

export async function compile(wasm: BufferSource | URL): Promise<WebAssembly.Module> {
  if (!(wasm instanceof URL)) return WebAssembly.compile(wasm);
  const response = await fetch(wasm);
  if (!response.ok) throw new Error(`${wasm}: ${response.status}`);
  // As a stream only if the server calls it what it is.
  return response.headers.get("Content-Type") === "application/wasm"
    ? WebAssembly.compileStreaming(response)
    : WebAssembly.compile(await response.arrayBuffer());
}

/** Starts a member; resolves once it waits for work, to whether it holds its lock. */
function join(start: Start, members: Member[], node: Awaited<typeof workerThreads>): Promise<boolean> {
  return new Promise((resolve, reject) => {
    if (node) {
      const worker = new node.Worker(new URL(import.meta.url), { workerData: MEMBER });
      members.push(worker);
      worker.once("message", () => {
        worker.unref(); // a program may end while its team sleeps
        resolve(false);
      });
      worker.once("error", reject);
      worker.postMessage(start);
      return;
    }
    const home = new URL(import.meta.url);
    const foreign = home.origin !== location.origin;
    // A worker's own script must come from the page's origin, but may import from another.
    const script = foreign
      ? URL.createObjectURL(new Blob([`import ${JSON.stringify(home.href)};`], { type: "text/javascript" }))
      : home;
    const worker = new Worker(script, { type: "module", name: MEMBER });
    members.push(worker);
    worker.onmessage = ({ data }: MessageEvent<boolean>) => {
      if (typeof script === "string") URL.revokeObjectURL(script);
      resolve(data);
    };
    worker.onerror = (event) => reject(new Error(event.message || "a worker could not be started"));
    worker.postMessage(start);
  });
}

async function member({ module, memory, life }: Start, ready: (holds: boolean) => void): Promise<void> {
  await init({ module_or_path: module, memory, thread_stack_size: STACK });
  ready(!workerThreads && (await hold(life)));
  try {
    glue.work();
  } catch {
    glue.worker_crashed();
  }
}

/** Takes a lock that is given up only with this thread, where the browser knows locks. */
function hold(life: string): Promise<boolean> {
  return new Promise((resolve) => {
    const forEver = () => {
      resolve(true);
      return new Promise(() => {});
    };
    if (navigator.locks) navigator.locks.request(life, forEver).catch(() => resolve(false));
    else resolve(false);
  });
}

if (workerThreads) {
  void workerThreads.then(({ parentPort, workerData }) => {
    if (workerData === MEMBER) parentPort?.once("message", (start: Start) => member(start, (holds) => parentPort.postMessage(holds)));
  });
} else if ((globalThis as { name?: string }).name === MEMBER) {
  globalThis.onmessage = ({ data }: MessageEvent<Start>) => void member(data, (holds) => postMessage(holds));
}
