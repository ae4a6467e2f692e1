// A SharedWorker: one model for the engines of several tabs. Each has a runtime with conversations of its own, and they compute in turn.
import { abortError, isFinal, ShohinError, toError } from "../api/errors.js";
import type { LoadOptions, Progress } from "../api/options.js";
import type { RemoteSource } from "../load/source.js";
import { host } from "../wasm/host.js";
import { unlessAborted } from "./abortable.js";
import { Answering } from "./answering.js";
import type { LoadedModel } from "./loaded.js";
import { entryLock, modelOf, tabLock, workerLock, type FromTab, type ToTab } from "./protocol.js";
import { loadModel, Runtime, type LoadModel, type Sendable } from "./runtime.js";

/** The model, loaded or being loaded. */
interface Loading {
  model: Promise<LoadedModel>;
  isLoaded: boolean;
  abort: AbortController;
  listeners: Set<(progress: Progress) => void>;
  last: Progress | undefined;
  /** Engines that wait for it. */
  waiting: number;
}

let loading: Loading | undefined;
const tabs = new Set<Tab>();

/** Loads the model once for all tabs. A load that failed or that nobody waits for is forgotten, and can be tried again. */
const share: LoadModel = async (source, options, caller) => {
  const { signal, onProgress = () => {} } = caller;
  if (signal?.aborted) throw abortError(signal);
  loading ??= begin(source, options);
  const mine = loading;
  mine.waiting += 1;
  mine.listeners.add(onProgress);
  if (mine.last) onProgress(mine.last);
  try {
    return await (signal ? unlessAborted(signal, mine.model, abortError) : mine.model);
  } finally {
    mine.waiting -= 1;
    mine.listeners.delete(onProgress);
    if (mine.waiting === 0 && !mine.isLoaded) {
      mine.abort.abort();
      // If the abort came too late.
      mine.model.then((model) => model.dispose(), () => {});
    }
  }
};

function begin(source: RemoteSource, options: Sendable<LoadOptions>): Loading {
  const abort = new AbortController();
  const listeners: Loading["listeners"] = new Set();
  const onProgress = (progress: Progress) => {
    begun.last = progress;
    for (const listen of listeners) listen(progress);
  };
  const model = loadModel(source, options, { signal: abort.signal, onProgress });
  const begun: Loading = { model, isLoaded: false, abort, listeners, last: undefined, waiting: 0 };
  const forget = () => {
    if (loading === begun) loading = undefined;
  };
  model.then(() => (begun.isLoaded = true), forget);
  // Later loads need not wait until the aborted one has ended.
  abort.signal.addEventListener("abort", forget);
  return begun;
}

/** The engine of a tab. */
class Tab {
  #port: MessagePort;
  #runtime = new Runtime(share);
  #answering: Answering;

  constructor(port: MessagePort) {
    this.#port = port;
    this.#answering = new Answering(this.#runtime, (message) => {
      this.send(message);
      if ("error" in message && isFinal(message.error.code)) endAll(message.error);
    });
    port.onmessage = ({ data }: MessageEvent<FromTab>) => {
      if ("tab" in data) this.#watch(data.tab);
      else if ("leave" in data) this.leave();
      else this.#answering.receive(data);
    };
    this.send({ loaded: loading !== undefined });
  }

  send(message: ToTab): void {
    this.#port.postMessage(message);
  }

  /** A port does not say that its tab was closed or killed; the tab's lock does. */
  #watch(tab: string): void {
    navigator.locks.request(tabLock(tab), () => this.leave()).catch(() => {});
  }

  leave(): void {
    if (!tabs.delete(this)) return;
    this.#answering.end();
    void this.#runtime.leave();
    this.#port.close();
    if (tabs.size === 0) void endIfUnused();
  }
}

/** Ends this worker, which frees its memory, unless a tab has come in the meantime: none can while the lock is held. */
async function endIfUnused(): Promise<void> {
  await navigator.locks.request(entryLock(modelOf(self.name)), () => {
    if (tabs.size === 0) end();
  });
}

/** Tells all tabs that the model is lost, and ends this worker: the next load starts another. */
function endAll({ code, message }: Pick<ShohinError, "code" | "message">): void {
  for (const tab of tabs) tab.send({ ended: { code, message } });
  tabs.clear();
  end();
}

let release = () => {};

function end(): void {
  release();
  self.close();
}

/** @internal */
export function serveTabs(): void {
  // Threads would have to be started by a tab, and end with it.
  host.cores = () => 1;
  const held = new Promise<void>((resolve, reject) => {
    navigator.locks.request(workerLock(self.name), () => (resolve(), new Promise<void>((ended) => (release = ended)))).catch(reject);
  });
  (self as unknown as { onconnect: (event: MessageEvent) => void }).onconnect = async ({ ports }) => {
    const port = ports[0]!;
    try {
      await held;
      tabs.add(new Tab(port));
    } catch (thrown) {
      const { code, message } = toError(thrown);
      port.postMessage({ ended: { code, message } } satisfies ToTab);
    }
  };
}
