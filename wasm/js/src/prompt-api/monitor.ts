// Progress of a download, as events.
import type { Progress } from "../index.js";
import { EventHandlers, type EventHandler } from "./event-handlers.js";

/** Steps of reported progress, as in browsers: exact sizes would identify the model. */
const STEPS = 2 ** 16;

/** Progress of a download; a `ProgressEvent` in browsers. */
export interface DownloadProgressEvent extends Event {
  readonly lengthComputable: boolean;
  /** From 0 to 1. */
  readonly loaded: number;
  /** 1. */
  readonly total: number;
}

/** The listener's types. */
export interface CreateMonitor {
  addEventListener(type: "downloadprogress", listener: (event: DownloadProgressEvent) => unknown): void;
  addEventListener(...args: Parameters<EventTarget["addEventListener"]>): void;
}

/** Reports the download of a model in `downloadprogress` events. */
export class CreateMonitor extends EventTarget {
  #handlers = new EventHandlers<DownloadProgressEvent>(this);
  #loaded = -1;

  /** Called with `downloadprogress` events. */
  get ondownloadprogress(): EventHandler<DownloadProgressEvent> {
    return this.#handlers.get("downloadprogress");
  }

  set ondownloadprogress(handler: EventHandler<DownloadProgressEvent>) {
    this.#handlers.set("downloadprogress", handler);
  }

  /** Reports a fraction that is larger than the last one. @internal */
  reach(fraction: number): void {
    const loaded = Math.floor(fraction * STEPS) / STEPS;
    if (loaded <= this.#loaded) return;
    this.#loaded = loaded;
    const state = { lengthComputable: true, loaded, total: 1 };
    // Node has no ProgressEvent.
    const event = typeof ProgressEvent === "function" ? new ProgressEvent("downloadprogress", state) : Object.assign(new Event("downloadprogress"), state);
    this.dispatchEvent(event);
  }

  /** Reports progress of loading, except the end, which `create` reports. @internal */
  progress({ loaded, total }: Progress): void {
    if (total) this.reach(Math.min(loaded / total, 1 - 1 / STEPS));
  }
}
