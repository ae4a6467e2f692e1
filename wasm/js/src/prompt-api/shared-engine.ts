// One engine for all sessions of a model.
import { isFinal } from "../api/errors.js";
import { unlessAborted } from "../engine/abortable.js";
import { Engine, type Conversation, type LoadOptions, type ModelSource, type Progress } from "../index.js";
import { isOfEngine, reasonOf } from "./exceptions.js";

/** An engine that is loaded, or being loaded. */
interface Loading {
  engine: Promise<Engine>;
  isLoaded: boolean;
  abort: AbortController;
  listeners: Set<(progress: Progress) => void>;
  users: number;
  /** Whether a session uses the conversation that the engine itself is. */
  isTaken: boolean;
}

/** A session's share of an engine. @internal */
export interface Share {
  engine: Engine;
  conversation: Conversation;
  /** Frees the conversation, and the engine if it was the last one. */
  release(): void;
}

/** Also true for an engine of `shohin/local`, whose class is another one. */
function isEngine(model: ModelSource | Engine): model is Engine {
  return typeof (model as Partial<Engine> | null | undefined)?.conversation === "function";
}

/** An engine that is loaded by its first session and disposed with its last one, or that belongs to the page. @internal */
export class SharedEngine {
  #model: ModelSource | Engine;
  #options: LoadOptions;
  #loading: Loading | undefined;

  constructor(model: ModelSource | Engine, options: LoadOptions) {
    this.#model = model;
    this.#options = options;
  }

  /** The engine, if it is loaded. */
  async loaded(): Promise<Engine | undefined> {
    if (isEngine(this.#model)) return this.#model.isClosed ? undefined : this.#model;
    return this.#loading?.isLoaded ? this.#loading.engine : undefined;
  }

  async availability(): Promise<"available" | "downloadable" | "downloading" | "unavailable"> {
    if (await this.loaded()) return "available";
    if (isEngine(this.#model)) return "unavailable";
    return (await Engine.availability(this.#model, this.#options)).status;
  }

  /** Loads the engine if necessary and opens a conversation. Aborts loading if nobody else waits for it. */
  async open(signal: AbortSignal | undefined, onProgress: (progress: Progress) => void = () => {}): Promise<Share> {
    if (isEngine(this.#model)) {
      const engine = this.#model;
      const conversation = await engine.conversation();
      return { engine, conversation, release: () => void conversation.dispose().catch(() => {}) };
    }
    const loading = (this.#loading ??= this.#load());
    loading.users += 1;
    loading.listeners.add(onProgress);
    try {
      const engine = await (signal ? unlessAborted(signal, loading.engine, reasonOf) : loading.engine);
      if (loading.isTaken) {
        const conversation = await engine.conversation();
        return { engine, conversation, release: () => (void conversation.dispose().catch(() => {}), this.#leave(loading)) };
      }
      loading.isTaken = true;
      return { engine, conversation: engine, release: () => ((loading.isTaken = false), this.#leave(loading)) };
    } catch (error) {
      this.#leave(loading);
      throw error;
    } finally {
      loading.listeners.delete(onProgress);
    }
  }

  /** Lets later sessions load the engine again, if this error has ended it. */
  failed(error: unknown): void {
    if (isOfEngine(error) && isFinal(error.code)) this.#loading = undefined;
  }

  #load(): Loading {
    const abort = new AbortController();
    const listeners = new Set<(progress: Progress) => void>();
    const onProgress = (progress: Progress) => listeners.forEach((listen) => listen(progress));
    const engine = Engine.load(this.#model as ModelSource, { ...this.#options, signal: abort.signal, onProgress });
    const loading: Loading = { engine, abort, listeners, isLoaded: false, users: 0, isTaken: false };
    engine.then(
      () => (loading.isLoaded = true),
      () => this.#forget(loading),
    );
    return loading;
  }

  #leave(loading: Loading): void {
    loading.users -= 1;
    if (loading.users > 0) return;
    this.#forget(loading);
    loading.abort.abort();
    void loading.engine.then((engine) => engine.dispose()).catch(() => {});
  }

  #forget(loading: Loading): void {
    if (this.#loading === loading) this.#loading = undefined;
  }
}
