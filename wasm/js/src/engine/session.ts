// A conversation in the runtime: turns one after the other, each in slots that leave the thread to others in between.
import type { ChatFinish, Chunk, Finish } from "../api/chunk.js";
import { abortError, ShohinError, spelled, toError } from "../api/errors.js";
import type { Message, Restored, Snapshot } from "../api/message.js";
import type { ChatOptions, GenerateOptions, RestoreOptions } from "../api/options.js";
import { Step, type Chat, type CpuChat, type CpuModel } from "../wasm/module.js";
import { unlessAborted } from "./abortable.js";
import type { Adapted, AdaptedModels, SentAdapter } from "./adapted.js";
import { yieldToEventLoop } from "./event-loop.js";
import type { LoadedModel } from "./loaded.js";

/** Maximum time without checking for an abort, and minimum between two chunks, in milliseconds. */
const SLOT = 12;

/** Codes after which `recompute` helps. */
const RECOMPUTED = ["snapshot_damaged", "snapshot_foreign", "length", "context_full"];

/** @internal */
export class Session {
  /** Capacity in tokens. */
  readonly context: number;
  #loaded: LoadedModel;
  #models: AdaptedModels;
  #chat: Chat | undefined;
  /** The model that it was opened with, if that has adapters, and the one that its cache is of. */
  #own: Adapted | undefined;
  #current: Adapted | undefined;
  #queue: Promise<void> = Promise.resolve();
  #messages: Message[] = [];

  private constructor(models: AdaptedModels, chat: Chat, own: Adapted | undefined, current: Adapted | undefined) {
    this.#loaded = models.loaded;
    this.#models = models;
    this.#chat = chat;
    this.#own = own;
    this.#current = current;
    this.context = chat.capacity();
  }

  /** `context` 0: as many tokens as the engine's own session. */
  static async open(models: AdaptedModels, context = 0, adapters: readonly SentAdapter[] = []): Promise<Session> {
    const { loaded } = models;
    const [own, current] = [models.take(adapters), models.take(adapters)];
    try {
      const chat = await loaded.ask<Chat>((model) => (own?.model ?? model).chat(context));
      return new Session(models, loaded.own(chat), own, current);
    } catch (error) {
      for (const adapted of [own, current]) models.give(adapted);
      throw error;
    }
  }

  chat(messages: readonly Message[], options: ChatOptions, adapters: readonly SentAdapter[]): AsyncGenerator<Chunk<ChatFinish>, ChatFinish, void> {
    const before = options.continueFinalMessage ? messages.slice(0, -1) : messages;
    const keep = ({ message }: ChatFinish) => (this.#messages = [...before, message]);
    return this.#chunks(options, adapters, (chat, options) => chat.respond(messages as Message[], options), keep);
  }

  generate(prompt: string, options: GenerateOptions, adapters: readonly SentAdapter[]): AsyncGenerator<Chunk, Finish, void> {
    return this.#chunks(options, adapters, (chat, options) => chat.complete(prompt, options), () => {});
  }

  /** Answers a request in the format of OpenAI's chat completions: the chunks, or the whole, as JSON. */
  async *answer(request: string, signal: AbortSignal | undefined, adapters: readonly SentAdapter[]): AsyncGenerator<string, void, void> {
    const begin = (chat: Chat) => chat.answer(request);
    const take = (chat: Chat) => chat.take_chunk() as string | undefined;
    const last = yield* this.#run(signal, adapters, "snake_case", begin, take, (chat) => {
      const rest = take(chat);
      const { answers, messages } = chat.finish() as { answers: string[]; messages: Message[] };
      this.#messages = messages;
      return rest === undefined ? answers : [rest, ...answers];
    });
    yield* last;
  }

  snapshot(): Promise<Snapshot> {
    return this.#exclusive(async () => ({ messages: this.#messages, state: await this.#ask((chat) => chat.snapshot(this.#messages)) }));
  }

  async restore(
    { messages, state }: Pick<Snapshot, "state"> & Partial<Snapshot>,
    options: RestoreOptions,
    adapters: readonly SentAdapter[],
  ): Promise<Restored> {
    const adapted = this.#models.take(adapters);
    const failed = await this.#exclusive(async () => {
      try {
        this.#adapt(adapted);
        const kept = this.#call((chat) => chat.restore(state)) as Message[];
        messages ??= kept;
        return undefined;
      } catch (error) {
        return error as ShohinError;
      }
    }, options.signal).finally(() => this.#models.give(adapted));
    if (failed || !messages) {
      if (!failed || !messages || !options.recompute || !RECOMPUTED.includes(failed.code)) throw failed;
      // A reply of no tokens computes the prompt.
      for await (const _chunk of this.chat(messages, { maxTokens: 0, ...(options.signal && { signal: options.signal }) }, adapters));
    }
    this.#messages = [...messages];
    return { messages: [...messages], recomputed: failed !== undefined };
  }

  dispose(): void {
    if (this.#chat) this.#loaded.free(this.#chat);
    this.#chat = undefined;
    for (const adapted of [this.#own, this.#current]) this.#models.give(adapted);
    this.#own = this.#current = undefined;
  }

  #open(): Chat {
    if (!this.#chat) throw new ShohinError("disposed", "the conversation was disposed");
    return this.#chat;
  }

  #call<T>(work: (chat: Chat) => T): T {
    return this.#loaded.call(() => work(this.#open()));
  }

  async #ask<T>(work: (chat: Chat) => T | Promise<T>): Promise<T> {
    const result = await this.#loaded.ask(() => work(this.#open()));
    // It may have been disposed in the meantime.
    this.#open();
    return result;
  }

  /** Goes on with this model, or with that without adapters. */
  #adapt(adapted: Adapted | undefined): void {
    if (adapted === this.#current) return;
    const model = adapted?.model ?? (this.#loaded.alive() as CpuModel);
    this.#call((chat) => (chat as CpuChat).change_to(model));
    this.#models.give(this.#current);
    this.#current = this.#models.more(adapted);
  }

  async #exclusive<T>(work: () => Promise<T>, signal?: AbortSignal): Promise<T> {
    const release = await this.#lock(signal);
    try {
      return await work();
    } finally {
      release();
    }
  }

  /** Waits until everything before has finished: all of it uses the same cache. */
  async #lock(signal?: AbortSignal): Promise<() => void> {
    const before = this.#queue;
    let release = () => {};
    this.#queue = new Promise((resolve) => (release = resolve));
    try {
      await (signal ? unlessAborted(signal, before, abortError) : before);
    } catch (error) {
      // What follows still waits for those before.
      void before.then(release);
      throw error;
    }
    return release;
  }

  /** A turn as chunks, of which the last says how it ended. */
  async *#chunks<F extends Finish>(
    { signal, ...options }: ChatOptions,
    adapters: readonly SentAdapter[],
    begin: (chat: Chat, options: ChatOptions) => void,
    done: (finish: F) => void,
  ): AsyncGenerator<Chunk<F>, F, void> {
    const take = (chat: Chat) => chat.take_chunk() as Chunk<F>;
    const last = yield* this.#run(signal, adapters, "camelCase", (chat) => begin(chat, options), take, (chat) => {
      const chunk = take(chat);
      const finish = chat.finish() as F;
      done(finish);
      return { ...chunk, finish };
    });
    yield last;
    return last.finish;
  }

  /** Runs a turn from `begin` to `end`; `take` makes a chunk of what is new, or undefined. `style` is that of its options. */
  async *#run<C, E>(
    signal: AbortSignal | undefined,
    adapters: readonly SentAdapter[],
    style: "camelCase" | "snake_case",
    begin: (chat: Chat) => void,
    take: (chat: Chat) => C | undefined,
    end: (chat: Chat) => E,
  ): AsyncGenerator<C, E, void> {
    // Now: one of them may be removed while others before use the cache.
    const adapted = this.#models.take(adapters);
    const release = await this.#lock(signal).catch((error: unknown) => {
      this.#models.give(adapted);
      throw error;
    });
    try {
      if (signal?.aborted) throw abortError(signal);
      try {
        this.#adapt(adapted);
        this.#call(begin);
      } catch (thrown) {
        throw spelled(toError(thrown), style);
      }
      let isFirst = true;
      let unsent = false;
      let slot = performance.now();
      for (;;) {
        const step = await this.#ask((chat) => chat.step());
        if (step === Step.Done) break;
        const isToken = step === Step.Token;
        unsent ||= isToken;
        if (performance.now() - slot < SLOT && !(isToken && isFirst)) continue;
        isFirst &&= !isToken;
        const chunk = unsent ? this.#call(take) : undefined;
        unsent = false;
        if (chunk !== undefined) yield chunk;
        await yieldToEventLoop();
        slot = performance.now();
        this.#loaded.alive();
        if (signal?.aborted) throw abortError(signal);
      }
      return this.#call(end);
    } finally {
      // Also reached when the consumer leaves its loop early.
      if (!this.#loaded.dead) this.#chat?.end();
      this.#models.give(adapted);
      release();
    }
  }
}
