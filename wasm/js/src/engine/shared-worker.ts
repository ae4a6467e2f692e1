// How an engine reaches the worker that several tabs share.
import { abortError, ShohinError } from "../api/errors.js";
import { isForeign } from "../wasm/start-thread.js";
import { unlessAborted } from "./abortable.js";
import type { SharedTransport } from "./engine.js";
import { entryLock, modelOf, tabLock, workerLock, workerName, type FromTab, type Params, type ToTab } from "./protocol.js";
import { WorkerTransport } from "./worker-transport.js";

/** Milliseconds after which a worker that does not answer is given up: the tab then has its own. */
const PATIENCE = 30_000;

/** Connects to the worker of all tabs that load the same, and starts it if it is the first; nothing if the tab must have its own. @internal */
export async function connectShared(workerUrl: string | URL | undefined, params: Params<"load">, signal: AbortSignal | undefined): Promise<SharedTransport | undefined> {
  const { source, options } = params;
  const urls = "url" in source ? [source.url] : "files" in source ? source.files.map((file) => ("url" in file ? file.url : undefined)) : [];
  if (urls.length === 0 || !urls.every((url) => url !== undefined && /^https?:/i.test(url))) return undefined;
  if (options.backend === "webgpu" || typeof SharedWorker !== "function" || typeof navigator.locks === "undefined") return undefined;
  if (workerUrl === undefined && isForeign(new URL(import.meta.url))) return undefined;
  const { context, kv = "f16", attention = "full", activations = "int8", backend = "cpu", id42 = "auto", simd, sha256, bytes, request, wasmUrl } = options;
  const model = JSON.stringify([PACKAGE_VERSION, urls, context, kv, attention, activations, backend, id42, simd, sha256?.toLowerCase(), bytes, request, wasmUrl]);
  // Where the browser blocks storage, it also refuses locks and shared workers. An error in the script is reported by the tab's own worker.
  const connecting = connect(workerUrl, model).catch(() => undefined);
  if (!signal) return connecting;
  const release = (signal: AbortSignal) => {
    void connecting.then((connected) => connected?.transport.close(abortError(signal)));
    return abortError(signal);
  };
  return unlessAborted(signal, connecting, release);
}

async function connect(workerUrl: string | URL | undefined, model: string): Promise<SharedTransport | undefined> {
  const tab = crypto.randomUUID();
  let leave = () => {};
  await new Promise<void>((resolve, reject) => {
    navigator.locks.request(tabLock(tab), () => (resolve(), new Promise<void>((release) => (leave = release)))).catch(reject);
  });
  try {
    // The worker ends under the same lock, so that it does not end just now.
    const connected = await navigator.locks.request(entryLock(model), () => enter(workerUrl, model, tab, () => leave()));
    if (!connected) leave();
    return connected;
  } catch (error) {
    leave();
    throw error;
  }
}

async function enter(workerUrl: string | URL | undefined, model: string, tab: string, leave: () => void): Promise<SharedTransport | undefined> {
  const { held = [] } = await navigator.locks.query();
  const prefix = workerLock("");
  const running = held.map(({ name = "" }) => (name.startsWith(prefix) ? name.slice(prefix.length) : "")).find((name) => modelOf(name) === model);
  const name = running ?? workerName(crypto.randomUUID(), model);
  const worker = startShared(workerUrl, name);
  const { port } = worker;
  const post = (message: FromTab) => port.postMessage(message);
  // At once: if this tab is killed now, the worker notices.
  post({ tab });
  let timer: ReturnType<typeof setTimeout> | undefined;
  const hello = await new Promise<ToTab | undefined>((resolve) => {
    timer = setTimeout(() => resolve(undefined), PATIENCE);
    port.onmessage = ({ data }: MessageEvent<ToTab>) => resolve(data);
    worker.onerror = (event) => {
      event.preventDefault();
      resolve(undefined);
    };
  }).finally(() => clearTimeout(timer));
  if (!hello || !("loaded" in hello)) {
    post({ leave: true });
    port.close();
    return undefined;
  }
  const ended = new AbortController();
  const transport = new WorkerTransport(port, true, () => {
    ended.abort();
    post({ leave: true });
    port.close();
    leave();
  });
  const crashed = () => {
    // After the worker's last messages, which say more.
    setTimeout(() => transport.close(new ShohinError("crashed", "the worker that the tabs share was terminated")), 100);
  };
  navigator.locks.request(workerLock(name), { signal: ended.signal }, crashed).catch(() => {});
  return { transport, loaded: hello.loaded };
}

function startShared(workerUrl: string | URL | undefined, name: string): SharedWorker {
  if (workerUrl !== undefined) return new SharedWorker(workerUrl, { type: "module", name });
  // Bundlers look for exactly this expression.
  return new SharedWorker(new URL("./worker.js", import.meta.url), { type: "module", name });
}
