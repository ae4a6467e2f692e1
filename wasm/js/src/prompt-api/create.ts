// The static side of the Prompt API.
import type { Engine, LoadOptions, ModelSource } from "../index.js";
import { exception, toException } from "./exceptions.js";
import { LanguageModel, paramsOf, Parts } from "./language-model.js";
import { CreateMonitor } from "./monitor.js";
import type { LanguageModelCreateCoreOptions, LanguageModelCreateOptions, LanguageModelMessage, LanguageModelParams } from "./options.js";
import { checkCallback, checkCore, checkedOptions, listOf, messagesOf } from "./prompt.js";
import { SharedEngine, type Share } from "./shared-engine.js";

/** The model behind a `LanguageModel`: an engine that the page has loaded, or the model to load and options of `Engine.load`. */
export interface LanguageModelSettings extends Omit<LoadOptions, "signal" | "onProgress"> {
  /** The model. An `Engine` remains the page's, and is not disposed. */
  model: ModelSource | Engine;
}

/** The interface `LanguageModel` of the Prompt API, for one model. */
export interface LanguageModelClass {
  /** Throws: `create` opens sessions. */
  new (illegal: never): LanguageModel;
  readonly prototype: LanguageModel;
  /** Opens a session, and loads the model if no other session has. It is disposed with the last session. */
  create(options?: LanguageModelCreateOptions): Promise<LanguageModel>;
  /** Whether `create` can succeed, and whether it has to download the model. */
  availability(options?: LanguageModelCreateCoreOptions): Promise<"available" | "downloadable" | "downloading" | "unavailable">;
  /** Defaults and limits of sampling; null unless the model is loaded. */
  params(): Promise<LanguageModelParams | null>;
}

/** The interface of the Prompt API over a model: `const LanguageModel = createLanguageModel({ model: "bonsai-1.7b" })`. */
export function createLanguageModel(settings: LanguageModelSettings): LanguageModelClass {
  // Without a model, the promises of `create` and `availability` say what it must be.
  const { model, ...options } = settings ?? {};
  const shared = new SharedEngine(model, options);

  class Bound extends LanguageModel {
    static async create(options: LanguageModelCreateOptions = {}): Promise<LanguageModel> {
      const { signal, monitor, initialPrompts, ...core } = checkedOptions(options);
      const unsupported = checkCore(core);
      checkCallback("monitor", monitor);
      const initial = initialPrompts === undefined ? undefined : (messagesOf(listOf("initialPrompts", initialPrompts) as LanguageModelMessage[], true) as LanguageModelMessage[]);
      signal?.throwIfAborted();
      const progress = new CreateMonitor();
      monitor?.(progress);
      if (unsupported) throw exception("NotSupportedError", unsupported);
      let share: Share | undefined;
      try {
        progress.reach(0);
        share = await shared.open(signal, (loaded) => progress.progress(loaded));
        const session = new Bound(new Parts(shared, share, core, [], 0, 0));
        await session.start(initial, signal);
        progress.reach(1);
        return session;
      } catch (error) {
        share?.release();
        throw signal?.aborted ? signal.reason : toException(error);
      }
    }

    static async availability(options: LanguageModelCreateCoreOptions = {}): Promise<"available" | "downloadable" | "downloading" | "unavailable"> {
      const unsupported = checkCore({ ...checkedOptions(options as LanguageModelCreateOptions) });
      if (unsupported) return "unavailable";
      return shared.availability().catch((error: unknown) => {
        throw toException(error);
      });
    }

    static async params(): Promise<LanguageModelParams | null> {
      const engine = await shared.loaded();
      return engine ? paramsOf(engine.info) : null;
    }
  }
  Object.defineProperty(Bound, "name", { value: "LanguageModel" });
  return Bound;
}
