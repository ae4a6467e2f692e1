// A conversation in the runtime: turns one after the other, each in slots that leave the thread to others in between.
import type { ChatFinish, Chunk, Finish } from "../api/chunk.js";
import { abortError, ShohinError, spelled, toError } from "../api/errors.js";
import type { Message, Restored, Snapshot } from "../api/message.js";
import type { ChatOptions, GenerateOptions, RestoreOptions } from "../api/options.js";
import { Step, type Chat } from "../wasm/module.js";
import { unlessAborted } from "./abortable.js";
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
  #chat: Chat | undefined;
  #queue: Promise<void> = Promise.resolve();
  #messages: Message[] = [];

  private constructor(loaded: LoadedModel, chat: Chat) {
    this.#loaded = loaded;
    this.#chat = chat;
    this.context = chat.capacity();
  }

  /** `context` 0: as many tokens as the engine's own session. */
  static async open(loaded: LoadedModel, context = 0): Promise<Session> {
    const chat = await loaded.ask<Chat>((model) => model.chat(context));
    return new Session(loaded, loaded.own(chat));
  }

  chat(messages: readonly Message[], options: ChatOptions): AsyncGenerator<Chunk<ChatFinish>, ChatFinish, void> {
    const before = options.continueFinalMessage ? messages.slice(0, -1) : messages;
    const keep = ({ message }: ChatFinish) => (this.#messages = [...before, message]);
    return this.#chunks(options, (chat, options) => chat.respond(messages as Message[], options), keep);
  }

  generate(prompt: string, options: GenerateOptions): AsyncGenerator<Chunk, Finish, void> {
    return this.#chunks(options, (chat, options) => chat.complete(prompt, options), () => {});
  }

  /** Answers a request in the format of OpenAI's chat completions: the chunks, or the whole, as JSON. */
  async *answer(request: string, signal: AbortSignal | undefined): AsyncGenerator<string, void, void> {
    const begin = (chat: Chat) => chat.answer(request);
    const take = (chat: Chat) => chat.take_chunk() as string | undefined;
    const last = yield* this.#run(signal, "snake_case", begin, take, (chat) => {
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

  async restore({ messages, state }: Pick<Snapshot, "state"> & Partial<Snapshot>, options: RestoreOptions): Promise<Restored> {
    const failed = await this.#exclusive(async () => {
      try {
        const kept = this.#call((chat) => chat.restore(state)) as Message[];
        messages ??= kept;
        return undefined;
      } catch (error) {
        return error as ShohinError;
      }
    }, options.signal);
    if (failed || !messages) {
      if (!failed || !messages || !options.recompute || !RECOMPUTED.includes(failed.code)) throw failed;
      // A reply of no tokens computes the prompt.
      for await (const _chunk of this.chat(messages, { maxTokens: 0, ...(options.signal && { signal: options.signal }) }));
    }
    this.#messages = [...messages];
    return { messages: [...messages], recomputed: failed !== undefined };
  }

  dispose(): void {
    if (this.#chat) this.#loaded.free(this.#chat);
    this.#chat = undefined;
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
    begin: (chat: Chat, options: ChatOptions) => void,
    done: (finish: F) => void,
  ): AsyncGenerator<Chunk<F>, F, void> {
    const take = (chat: Chat) => chat.take_chunk() as Chunk<F>;
    const last = yield* this.#run(signal, "camelCase", (chat) => begin(chat, options), take, (chat) => {
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
    style: "camelCase" | "snake_case",
    begin: (chat: Chat) => void,
    take: (chat: Chat) => C | undefined,
    end: (chat: Chat) => E,
  ): AsyncGenerator<C, E, void> {
    const release = await this.#lock(signal);
    try {
      if (signal?.aborted) throw abortError(signal);
      try {
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
      release();
    }
  }
}
