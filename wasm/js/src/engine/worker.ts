// The worker of an engine, or of the engines of several tabs: runtimes called by messages.
import { copies } from "../load/cache.js";
import { filesWithCopies } from "../load/kept.js";
import { host } from "../wasm/host.js";
import { Answering } from "./answering.js";
import type { FromWorker, ToWorker } from "./protocol.js";
import { Runtime } from "./runtime.js";
import { serveTabs } from "./tabs.js";

Object.assign(host, { files: filesWithCopies, copies } satisfies Partial<typeof host>);
if ("onconnect" in self) serveTabs();
else serveEngine();

/** Serves the one engine that started this worker. */
function serveEngine(): void {
  const send = (message: FromWorker) => postMessage(message);
  const answering = new Answering(new Runtime(), send);

  /** Threads that the page is starting. */
  const threads = new Map<number, { resolve: (holds: boolean) => void; reject: (error: Error) => void }>();
  let threadsAsked = 0;
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
    if (!("thread" in data)) return answering.receive(data);
    const thread = threads.get(data.thread);
    threads.delete(data.thread);
    if ("failed" in data) thread?.reject(new Error(data.failed));
    else thread?.resolve(data.holds);
  };
}
