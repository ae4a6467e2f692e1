// Says that the page works offline, where that is so: its files and the loaded model are kept here as a whole.
import { onFinish } from "./chat.js";
import { loadedEngine, modelIsKept, onDeleted, onReady } from "./models.js";
import { page } from "./page.js";

/** Milliseconds for the service worker to answer: one of an earlier version does not. */
const PATIENCE = 3000;

let asked = 0;
/** Whether a reply came while there was no network. */
let answered = false;

/** Whether the service worker keeps what the page needs to open and to run this engine. */
async function pageIsKept(): Promise<boolean> {
  const engine = loadedEngine();
  const worker = "serviceWorker" in navigator ? navigator.serviceWorker.controller : null;
  if (!engine || !worker) return false;
  const { backend, threads, isa } = engine.info;
  const { port1, port2 } = new MessageChannel();
  return new Promise((resolve) => {
    const timer = setTimeout(() => resolve(false), PATIENCE);
    port1.onmessage = ({ data }) => {
      clearTimeout(timer);
      resolve(data === true);
    };
    worker.postMessage({ webgpu: backend === "webgpu", threads: threads > 1, relaxed: isa.startsWith("relaxed") }, [port2]);
  });
}

/** Looks at what is kept, and says so beside the speed. */
async function showAirplane(): Promise<void> {
  const mine = ++asked;
  const kept = (await Promise.all([pageIsKept(), modelIsKept()])).every(Boolean);
  if (mine !== asked) return;
  const now = answered && !navigator.onLine;
  page.gaugeOffline.textContent = now ? "offline now" : kept ? "works offline" : "";
  page.gaugeOffline.title = now ? "There is no network; the last reply came without it." : kept ? "The page and this model are kept in this browser." : "";
}

export function initAirplane(): void {
  onReady.add(() => void showAirplane());
  onDeleted.add(() => void showAirplane());
  onFinish.add(() => {
    answered = !navigator.onLine;
    void showAirplane();
  });
  for (const name of ["online", "offline"]) {
    addEventListener(name, () => {
      answered = false;
      void showAirplane();
    });
  }
  if ("serviceWorker" in navigator) navigator.serviceWorker.addEventListener("controllerchange", () => void showAirplane());
  void showAirplane();
}
