// A conversation in the runtime: its cache in the module, and the generations in it.
import type { ChatFinish, Chunk, Finish, FinishReason, TokenLogprob } from "../api/chunk.js";
import { abortError, ShohinError } from "../api/errors.js";
import type { Message, Restored, Snapshot, ToolCall } from "../api/message.js";
import type { ChatOptions, GenerateOptions, RestoreOptions } from "../api/options.js";
import { Step, type AnyModel, type AnyTimeline } from "../wasm/module.js";
import { yieldToEventLoop } from "./event-loop.js";
import type { LoadedModel } from "./loaded.js";
import { budgetOf, chatPrompt, isJson, mayThink, samplingOf, textPrompt, type Prompt } from "./prompt.js";
import { ReplyStream } from "./reply.js";

/** Maximum time without checking for an abort, and minimum between two chunks, in milliseconds. */
const SLOT = 12;

/** Codes after which `recompute` helps. */
const RECOMPUTED = ["snapshot_damaged", "snapshot_foreign", "length", "context_full"];

/** @internal */
export class Session {
  /** Capacity in tokens. */
  readonly context: number;
  #loaded: LoadedModel;
  #timeline: AnyTimeline | undefined;
  #queue: Promise<void> = Promise.resolve();
  #messages: Message[] = [];

  private constructor(loaded: LoadedModel, timeline: AnyTimeline) {
    this.#loaded = loaded;
    this.#timeline = timeline;
    this.context = timeline.capacity();
  }

  /** `context` 0: as many tokens as the engine's own session. */
  static async open(loaded: LoadedModel, context = 0): Promise<Session> {
    const timeline = await loaded.ask<AnyTimeline>((model) => model.timeline(context));
    return new Session(loaded, loaded.own(timeline));
  }

  chat(messages: readonly Message[], options: ChatOptions): AsyncGenerator<Chunk<ChatFinish>, ChatFinish, void> {
    const { module } = this.#loaded;
    // In JSON, and where calls are impossible, text that looks like a marker is text.
    const mayCall = (options.tools ?? []).length > 0 || messages.some(({ toolCalls }) => (toolCalls ?? []).length > 0);
    const parse = (block: string) => module.tool_calls(block) as ToolCall[];
    const reply = new ReplyStream(mayCall && !isJson(options) ? parse : undefined);
    return this.#run<ChatFinish>((model) => chatPrompt(module, model, messages, options, this.context), options, reply, () => {
      const { text, reasoning, toolCalls } = reply.all;
      const message: Message = {
        role: "assistant",
        content: text,
        ...(reasoning !== "" && { reasoning }),
        ...(toolCalls.length > 0 && { toolCalls }),
      };
      this.#messages = [...messages, message];
      return { message };
    });
  }

  generate(prompt: string, options: GenerateOptions): AsyncGenerator<Chunk, Finish, void> {
    return this.#run<Finish>((model) => textPrompt(model, prompt, options, this.context), options, undefined, () => ({}));
  }

  snapshot(): Promise<Snapshot> {
    return this.#exclusive(async () => ({ messages: this.#messages, state: await this.#ask((timeline) => timeline.snapshot()) }));
  }

  async restore({ messages, state }: Snapshot, options: RestoreOptions): Promise<Restored> {
    const failed = await this.#exclusive(async () => {
      try {
        this.#call((timeline) => timeline.restore(state));
        return undefined;
      } catch (error) {
        return error as ShohinError;
      }
    });
    if (failed) {
      if (!options.recompute || !RECOMPUTED.includes(failed.code)) throw failed;
      // A reply of no tokens computes the prompt.
      for await (const _chunk of this.chat(messages, { maxTokens: 0, ...(options.signal && { signal: options.signal }) }));
    }
    this.#messages = [...messages];
    return { messages: [...messages], recomputed: failed !== undefined };
  }

  dispose(): void {
    if (this.#timeline) this.#loaded.free(this.#timeline);
    this.#timeline = undefined;
  }

  #open(): AnyTimeline {
    if (!this.#timeline) throw new ShohinError("disposed", "the conversation was disposed");
    return this.#timeline;
  }

  #call<T>(work: (timeline: AnyTimeline, model: AnyModel) => T): T {
    return this.#loaded.call((model) => work(this.#open(), model));
  }

  async #ask<T>(work: (timeline: AnyTimeline) => T | Promise<T>): Promise<T> {
    const result = await this.#loaded.ask(() => work(this.#open()));
    // It may have been disposed in the meantime.
    this.#open();
    return result;
  }

  async #exclusive<T>(work: () => Promise<T>): Promise<T> {
    const release = await this.#lock();
    try {
      return await work();
    } finally {
      release();
    }
  }

  /** Waits until everything before has finished: all of it uses the same cache. */
  async #lock(): Promise<() => void> {
    const before = this.#queue;
    let release = () => {};
    this.#queue = new Promise((resolve) => (release = resolve));
    await before;
    return release;
  }

  async *#run<F extends Finish>(
    prompt: (model: AnyModel) => Prompt,
    options: ChatOptions,
    reply: ReplyStream | undefined,
    more: () => Omit<F, keyof Finish>,
  ): AsyncGenerator<Chunk<F>, F, void> {
    const { signal, logprobs } = options;
    const budget = budgetOf(options);
    const release = await this.#lock();
    try {
      if (signal?.aborted) throw abortError(signal);
      const seed = options.seed ?? crypto.getRandomValues(new Uint32Array(1))[0]!;
      const began = performance.now();
      const { ids, dropped, cached } = this.#call((timeline, model) => {
        const { ids, dropped, keep } = prompt(model);
        const thinks = reply !== undefined && mayThink(options) && this.#loaded.info.model.template === "qwen3";
        return { ids, dropped, cached: timeline.begin(ids, samplingOf(this.#loaded.module, options, seed, thinks, keep)) };
      });
      let firstToken: number | undefined;
      let lastToken = began;
      let count = 0;
      let thoughts = 0;
      let forced = false;
      let all = "";
      let chunk = emptyChunk<F>(logprobs);
      let slot = began;
      for (;;) {
        const step = await this.#ask((timeline) => timeline.step());
        if (step !== Step.Prefill) {
          const text = this.#call((timeline) => timeline.take_text());
          all += text;
          add(chunk, text, reply, false);
          if (step === Step.Token) {
            this.#call((timeline, model) => {
              chunk.tokens.push(timeline.last_token());
              chunk.logprobs?.push(logprobOf(timeline, model));
            });
            count += 1;
            lastToken = performance.now();
            if (reply?.thinking) thoughts += 1;
            if (reply?.thinking && thoughts >= budget && !forced) {
              forced = true;
              this.#call((timeline, model) => {
                const end = model.tokenize("\n</think>\n\n", true);
                if (!timeline.force(end)) return;
                chunk.tokens.push(...end);
                count += end.length;
              });
            }
          }
          if (step === Step.Done) break;
        }
        const now = performance.now();
        const isFirst = step === Step.Token && firstToken === undefined;
        if (isFirst) firstToken = now;
        if (now - slot < SLOT && !isFirst) continue;
        if (chunk.tokens.length > 0) {
          yield chunk;
          chunk = emptyChunk(logprobs);
        }
        await yieldToEventLoop();
        slot = performance.now();
        this.#loaded.alive();
        if (signal?.aborted) throw abortError(signal);
      }
      add(chunk, "", reply, true);
      const prefillMs = (firstToken ?? lastToken) - began;
      const decodeMs = lastToken - (firstToken ?? lastToken);
      const rate = (n: number, ms: number) => (n > 0 && ms > 0 ? (n * 1000) / ms : 0);
      const finish = {
        reason: this.#call((timeline) => timeline.reason()) as FinishReason,
        text: all,
        ...more(),
        seed,
        usage: {
          promptTokens: ids.length,
          cachedTokens: cached,
          completionTokens: count,
          reasoningTokens: thoughts,
          droppedMessages: dropped,
          forgottenTokens: this.#call((timeline) => timeline.forgotten()),
        },
        timings: {
          prefillMs,
          decodeMs,
          prefillTokensPerSecond: rate(ids.length - cached, prefillMs),
          tokensPerSecond: rate(count - 1, decodeMs),
        },
      } as F;
      yield { ...chunk, finish };
      return finish;
    } finally {
      // Also reached when the consumer leaves its loop early.
      if (!this.#loaded.dead) this.#timeline?.end();
      release();
    }
  }
}

function emptyChunk<F extends Finish>(logprobs: number | undefined): Chunk<F> {
  return { text: "", tokens: [], ...(logprobs !== undefined && { logprobs: [] }) };
}

/** Adds new text to the fields it belongs to. */
function add(chunk: Chunk, text: string, reply: ReplyStream | undefined, end: boolean): void {
  const parts = reply?.push(text, end);
  chunk.text += parts ? parts.text : text;
  if (parts?.reasoning) chunk.reasoning = (chunk.reasoning ?? "") + parts.reasoning;
  if (parts && parts.toolCalls.length > 0) chunk.toolCalls = [...(chunk.toolCalls ?? []), ...parts.toolCalls];
}

function logprobOf(timeline: AnyTimeline, model: AnyModel): TokenLogprob {
  const decoder = new TextDecoder();
  const one = (token: number, logprob: number) => {
    const bytes = model.token_bytes(token);
    return { token, text: decoder.decode(bytes), bytes: [...bytes], logprob };
  };
  const logprobs = timeline.top_logprobs();
  const top = [...timeline.top_tokens()].map((token, i) => one(token, logprobs[i]!));
  return { ...one(timeline.last_token(), timeline.last_logprob() ?? Number.NEGATIVE_INFINITY), top };
}
