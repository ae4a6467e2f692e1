// A session of the Prompt API.
import type { Engine, EngineInfo, Message, Preset, SessionOptions, SessionTool, Tool } from "../index.js";
import { unlessAborted } from "../engine/abortable.js";
import { EventHandlers, type EventHandler } from "./event-handlers.js";
import { exception, quotaExceeded, reasonOf, toException } from "./exceptions.js";
import type {
  LanguageModelAppendOptions,
  LanguageModelCloneOptions,
  LanguageModelCreateCoreOptions,
  LanguageModelParams,
  LanguageModelPrompt,
  LanguageModelPromptOptions,
  LanguageModelSamplingMode,
  LanguageModelTool,
} from "./options.js";
import { checkedOptions, constrained, hasPrefix, messagesOf, promptOf } from "./prompt.js";
import type { Share, SharedEngine } from "./shared-engine.js";

/** Above, replies are noise. */
const MAX_TEMPERATURE = 2;

const PRESETS: Readonly<Record<LanguageModelSamplingMode, Preset>> = {
  "most-predictable": "greedy",
  predictable: "code",
  balanced: "balanced",
  creative: "creative",
  "most-creative": "creative",
};
/** Temperature of the mode beyond the presets. */
const MOST_CREATIVE = 1.2;

/** What a session is made of. @internal */
export class Parts {
  constructor(
    readonly shared: SharedEngine,
    readonly share: Share,
    readonly options: LanguageModelCreateCoreOptions,
    readonly messages: Message[],
    /** Number of initial messages. */
    readonly initial: number,
    readonly usage: number,
  ) {}
}

/** Defaults and limits of a model. @internal */
export function paramsOf({ presets, model }: EngineInfo): LanguageModelParams {
  const { topK, temperature } = presets.bonsai;
  return { defaultTopK: topK, maxTopK: model.vocabulary, defaultTemperature: temperature, maxTemperature: MAX_TEMPERATURE };
}

/** Sampling settings of a session. */
function sampling(options: LanguageModelCreateCoreOptions, info: EngineInfo): { preset: Preset; topK: number; temperature: number } {
  const { maxTopK } = paramsOf(info);
  // The interface's default is spelled out by some callers.
  const mode = options.samplingMode as LanguageModelSamplingMode | "default" | undefined;
  const preset = mode === undefined || mode === "default" ? "bonsai" : PRESETS[mode];
  const temperature = options.temperature ?? (mode === "most-creative" ? MOST_CREATIVE : info.presets[preset].temperature);
  return { preset, topK: Math.min(Math.floor(options.topK ?? info.presets[preset].topK), maxTopK), temperature: Math.min(temperature, MAX_TEMPERATURE) };
}

/** The functions as a session runs them, and as the template shows them. */
function toolsOf(tools: readonly LanguageModelTool[]): { run: Record<string, SessionTool>; shown: Tool[] } {
  const run: Record<string, SessionTool> = {};
  const shown: Tool[] = [];
  for (const { name: called, description: described, inputSchema: parameters, execute } of tools) {
    const [name, description] = [String(called), String(described)];
    run[name] = { description, parameters, run: (args) => execute(args) };
    shown.push({ type: "function", function: { name, description, parameters } });
  }
  return { run, shown };
}

/** Tokens of messages with the header of the reply. */
async function tokensOf(engine: Engine, messages: readonly Message[], tools: readonly Tool[]): Promise<number> {
  return messages.length > 0 ? (await engine.tokenizeChat(messages, { ...(tools.length > 0 && { tools }) })).length : 0;
}

/** A session with a model, as in the Prompt API. Made by `create` and `clone`. */
export class LanguageModel extends EventTarget {
  #parts: Parts;
  #messages: Message[];
  #usage: number;
  #tools: ReturnType<typeof toolsOf>;
  #sampling: ReturnType<typeof sampling>;
  #handlers = new EventHandlers(this);
  #destroyed = new AbortController();
  #queue: Promise<unknown> = Promise.resolve();

  /** @internal */
  constructor(parts: Parts) {
    super();
    if (!(parts instanceof Parts)) throw new TypeError("Illegal constructor: use LanguageModel.create()");
    this.#parts = parts;
    this.#messages = parts.messages;
    this.#usage = parts.usage;
    this.#tools = toolsOf(parts.options.tools ?? []);
    this.#sampling = sampling(parts.options, parts.share.engine.info);
  }

  /** Loads the initial messages into the context. @internal */
  async start(initial: LanguageModelPrompt | undefined, signal: AbortSignal | undefined): Promise<void> {
    // Also tells whether the model can call tools.
    if (!initial) await this.#count([{ role: "user", content: "" }]);
    else await this.append(initial, signal ? { signal } : {});
    this.#parts = new Parts(this.#parts.shared, this.#parts.share, this.#parts.options, this.#messages, this.#messages.length, this.#usage);
  }

  /** The reply to a prompt. An aborted or failed prompt leaves the session as it was. */
  async prompt(input: LanguageModelPrompt, options: LanguageModelPromptOptions = {}): Promise<string> {
    let reply = "";
    await this.#prompt(input, options, (text) => (reply += text));
    return reply;
  }

  /** Streams the reply to a prompt, in pieces. Cancelling the stream aborts the prompt. */
  promptStreaming(input: LanguageModelPrompt, options: LanguageModelPromptOptions = {}): ReadableStream<string> {
    const cancelled = new AbortController();
    return new ReadableStream<string>({
      start: (controller) => {
        this.#prompt(input, options, (text) => text && !cancelled.signal.aborted && controller.enqueue(text), cancelled.signal).then(
          () => cancelled.signal.aborted || controller.close(),
          (error: unknown) => controller.error(error),
        );
      },
      cancel: (reason) => cancelled.abort(reason),
    });
  }

  /** Adds messages to the context without a reply. */
  async append(input: LanguageModelPrompt, options: LanguageModelAppendOptions = {}): Promise<void> {
    const given = promptOf(input);
    await this.#exclusive(options, async (signal) => {
      const added = messagesOf(given, this.#messages.length === 0);
      const { history, requested } = await this.#fit(added);
      const messages = [...history, ...added];
      const { conversation } = this.#parts.share;
      const { shown: tools } = this.#tools;
      // A reply of no tokens computes the prompt.
      for await (const _chunk of conversation.chat(messages, { maxTokens: 0, signal, ...(tools.length > 0 && { tools }) }));
      this.#messages = messages;
      this.#usage = requested;
    });
  }

  /** Number of tokens that a prompt would add to the context. */
  async measureContextUsage(input: LanguageModelPrompt, options: LanguageModelPromptOptions = {}): Promise<number> {
    const given = checkedOptions(options);
    const prompt = promptOf(input);
    const { messages } = constrained(messagesOf(prompt, this.#messages.length === 0, true), hasPrefix(prompt), given);
    const signal = this.#signal(given.signal);
    return this.#converted(signal, async () => Math.max(0, (await this.#count([...this.#messages, ...messages])) - (await this.#count(this.#messages))));
  }

  /** Tokens of the context that are in use. */
  get contextUsage(): number {
    return this.#usage;
  }

  /** Capacity of the context in tokens. */
  get contextWindow(): number {
    return this.#parts.share.conversation.context;
  }

  /** Called when the oldest messages were dropped because the context was full. */
  get oncontextoverflow(): EventHandler {
    return this.#handlers.get("contextoverflow");
  }

  set oncontextoverflow(handler: EventHandler) {
    this.#handlers.set("contextoverflow", handler);
  }

  /** @deprecated Use `measureContextUsage`. */
  async measureInputUsage(input: LanguageModelPrompt, options: LanguageModelPromptOptions = {}): Promise<number> {
    return this.measureContextUsage(input, options);
  }

  /** @deprecated Use `contextUsage`. */
  get inputUsage(): number {
    return this.contextUsage;
  }

  /** @deprecated Use `contextWindow`. */
  get inputQuota(): number {
    return this.contextWindow;
  }

  /** @deprecated Use `oncontextoverflow`. */
  get onquotaoverflow(): EventHandler {
    return this.#handlers.get("quotaoverflow");
  }

  set onquotaoverflow(handler: EventHandler) {
    this.#handlers.set("quotaoverflow", handler);
  }

  get topK(): number {
    return this.#sampling.topK;
  }

  get temperature(): number {
    return this.#sampling.temperature;
  }

  /** As passed to `create`. */
  get samplingMode(): LanguageModelSamplingMode | null {
    return this.#parts.options.samplingMode ?? null;
  }

  /** A session that continues from the same context on its own, which is not computed again. */
  async clone(options: LanguageModelCloneOptions = {}): Promise<this> {
    return this.#exclusive(options, async (signal) => {
      const { shared, share, options: core, initial } = this.#parts;
      const copy = await shared.open(signal);
      try {
        if (this.#messages.length > 0) await copy.conversation.restore(await share.conversation.snapshot(), { signal, recompute: true });
        signal.throwIfAborted();
        const Class = this.constructor as new (parts: Parts) => this;
        return new Class(new Parts(shared, copy, core, this.#messages, initial, this.#usage));
      } catch (error) {
        copy.release();
        throw error;
      }
    });
  }

  /** Frees the session. Pending and later calls fail with `AbortError`. */
  destroy(): void {
    if (this.#destroyed.signal.aborted) return;
    this.#destroyed.abort(exception("AbortError", "the session was destroyed"));
    this.#parts.share.release();
  }

  async #prompt(input: LanguageModelPrompt, options: LanguageModelPromptOptions, write: (text: string) => void, cancelled?: AbortSignal): Promise<void> {
    const prompt = promptOf(input);
    await this.#exclusive(
      options,
      async (signal, given) => {
        const continueFinalMessage = hasPrefix(prompt);
        const { messages, format } = constrained(messagesOf(prompt, this.#messages.length === 0, true), continueFinalMessage, given);
        const { history } = await this.#fit(messages);
        const settings: SessionOptions = { ...this.#sampling, messages: history, tools: this.#tools.run };
        const session = this.#parts.share.conversation.session(settings);
        for await (const { text } of session.send(messages, { signal, continueFinalMessage, ...(format.type !== "text" && { responseFormat: format }) })) write(text);
        this.#messages = session.messages;
        // The header of the next reply may no longer fit.
        this.#usage = Math.min(await this.#count(this.#messages), this.contextWindow);
      },
      cancelled,
    );
  }

  /** Tokens of messages in this session. */
  #count(messages: readonly Message[]): Promise<number> {
    return tokensOf(this.#parts.share.engine, messages, this.#tools.shown);
  }

  /** The messages before `added`, without the oldest turns if there is no room for them, and the tokens of all. */
  async #fit(added: readonly Message[]): Promise<{ history: Message[]; requested: number }> {
    const { initial } = this.#parts;
    const window = this.contextWindow;
    const whole = await this.#count([...this.#messages, ...added]);
    let history = this.#messages;
    let requested = whole;
    // A reply takes a token at least.
    while (requested >= window) {
      if (history.length <= initial) throw quotaExceeded(`the prompt needs ${whole} tokens, but the context has ${window}`, { requested: whole, quota: window });
      const next = history.findIndex(({ role }, i) => i > initial && role === "user");
      history = [...history.slice(0, initial), ...(next < 0 ? [] : history.slice(next))];
      requested = await this.#count([...history, ...added]);
    }
    if (requested < whole) for (const type of ["contextoverflow", "quotaoverflow"]) this.dispatchEvent(new Event(type));
    return { history, requested };
  }

  #signal(...signals: (AbortSignal | undefined)[]): AbortSignal {
    return AbortSignal.any([this.#destroyed.signal, ...signals.filter((signal) => signal !== undefined)]);
  }

  /** Does something that changes the context, after everything before. */
  async #exclusive<T, O extends { signal?: AbortSignal }>(options: O, work: (signal: AbortSignal, options: O) => Promise<T>, cancelled?: AbortSignal): Promise<T> {
    const given = checkedOptions(options);
    const signal = this.#signal(given.signal, cancelled);
    const before = this.#queue;
    const result = this.#converted(signal, async () => {
      await before;
      signal.throwIfAborted();
      return work(signal, given);
    });
    this.#queue = result.working;
    return result;
  }

  /** The result of `work`, its error as an exception, or at once the reason of an abort; `working` ends with the work itself. */
  #converted<T>(signal: AbortSignal, work: () => Promise<T>): Promise<T> & { working: Promise<unknown> } {
    const working = work().catch((error: unknown) => {
      this.#parts.shared.failed(error);
      throw signal.aborted ? signal.reason : toException(error);
    });
    return Object.assign(unlessAborted(signal, working, reasonOf), { working: working.catch(() => {}) });
  }
}
