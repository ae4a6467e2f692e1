import type { ChatFinish, ChatMessage, ChatOptions, Chunk, ConversationOptions, EmbedOptions, EngineInfo, Finish, FinishReason, GenerateOptions, LoadOptions, Message, ModelSource, Restored, RestoreOptions, Snapshot, TemplateOptions, TokenizeOptions, TokenLogprob, ToolCall } from "./api.js";
import { complete, type ChatCompletion, type ChatCompletionChunk, type ChatCompletionRequest } from "./completion.js";
import { ReplyStream } from "./reply.js";
import { keep, kept } from "./snapshots.js";
import { abortError, converted, ShohinError, toError } from "./error.js";
import { steady } from "./download.js";
import { begun, chatArguments, checkName, completionOptions, conversationOptions, embedArguments, generateArguments, loadArguments, restoreArguments, templateArguments, tokenizeArguments, tokensOf } from "./arguments.js";
import { host } from "./host.js";
import { joined } from "./parts.js";
import { first, runnable, type Simd } from "./simd.js";
import { kindOf, openKind, pour, type Kind, type Pieces } from "./source.js";
import type { GpuEmbedder, GpuModel, GpuTimeline } from "shohin-webgpu";
import init, * as alone from "../../pkg/shohin_wasm.js";

export * from "./api.js";
export type * from "./completion.js";
export { deleteSnapshot, listSnapshots } from "./snapshots.js";
export { ShohinError } from "./error.js";

/** A compiled module's classes and functions. */
type Glue = Omit<typeof alone, "default" | "initSync">;

let instance: Promise<Glue> | undefined;
let team: Promise<Glue | undefined> | undefined;

/** Loads the WebAssembly module, once: the one for several threads where they can be had. */
async function instantiate(options: LoadOptions): Promise<Glue> {
  const { simd } = options;
  const builds = runnable(simd);
  if (builds.length === 0) throw new ShohinError("wasm", `there is no WebAssembly SIMD of the kind ${simd} here`);
  const glue = await instantiated(options, builds);
  const found = glue.isa();
  if (simd !== undefined && !found.startsWith(simd)) throw new ShohinError("wasm", `the WebAssembly module that is loaded has ${found}, not ${simd}`);
  return glue;
}

async function instantiated({ threads, wasmUrl }: LoadOptions, builds: Simd[]): Promise<Glue> {
  const count = Math.min(threads ?? Infinity, host.cores());
  if (count >= 2) {
    // Whatever is amiss with threads, one is enough.
    const glue = await (team ??= startTeam(count, builds).catch(() => undefined));
    if (glue) return glue;
  }
  instance ??= (async () => {
    // Where it is given, it is the same one for all.
    const some = wasmUrl === undefined ? builds : builds.slice(0, 1);
    await first(some, async (simd) => init({ module_or_path: await host.module(simd, wasmUrl) }));
    return alone;
  })();
  try {
    return await instance;
  } catch (cause) {
    instance = undefined;
    const reason = cause instanceof WebAssembly.CompileError ? "this browser lacks WebAssembly SIMD" : String(cause);
    throw new ShohinError("wasm", `the WebAssembly module could not be loaded: ${reason}`, { cause });
  }
}

async function startTeam(count: number, builds: Simd[]): Promise<Glue> {
  const { href } = host.teamScript();
  const script = (await import(/* @vite-ignore */ /* webpackIgnore: true */ href)) as typeof import("./threads.js");
  const module = await first(builds, async (simd) => script.compile(await host.teamModule(simd)));
  host.teamStarted(await script.start(module, count));
  return script;
}

type GpuGlue = typeof import("shohin-webgpu");
/** A model, and a conversation, on either. */
type AnyModel = alone.Model | GpuModel;
type AnyTimeline = alone.Timeline | GpuTimeline;

/** As much of WebGPU as is used here. */
interface AdapterSource {
  requestAdapter(): Promise<{ info?: { isFallbackAdapter?: boolean }; isFallbackAdapter?: boolean } | null>;
}

let gpuInstance: Promise<GpuGlue> | undefined;

/** Loads the module with both engines, once. */
async function instantiateGpu(software: boolean): Promise<GpuGlue> {
  const gpu = typeof navigator === "undefined" ? undefined : (navigator as { gpu?: AdapterSource }).gpu;
  if (!gpu) throw new ShohinError("gpu_absent", "this browser has no WebGPU");
  // Asked before the module is fetched for nothing.
  const adapter = await gpu.requestAdapter().catch(() => null);
  if (!adapter) throw new ShohinError("gpu_absent", "the browser offers no GPU");
  if (!software && (adapter.info?.isFallbackAdapter ?? adapter.isFallbackAdapter)) throw new ShohinError("gpu_absent", "there is only a GPU in software");
  gpuInstance ??= (async () => {
    const { href } = host.gpuScript();
    const script = (await import(/* @vite-ignore */ /* webpackIgnore: true */ href)) as GpuGlue;
    await script.default({ module_or_path: host.gpuModule() });
    return script;
  })();
  try {
    return await gpuInstance;
  } catch (cause) {
    gpuInstance = undefined;
    throw new ShohinError("gpu_absent", `the module for WebGPU could not be loaded: ${String(cause)}`, { cause });
  }
}

/** Whether the CPU should be tried instead. */
function isGpuTrouble(thrown: unknown): boolean {
  return toError(thrown).code.startsWith("gpu_");
}

const channel = typeof setImmediate === "undefined" ? new MessageChannel() : undefined;

const waiting: (() => void)[] = [];
if (channel) channel.port1.onmessage = () => waiting.shift()?.();

/** Lets messages and timers in; unlike `setTimeout(0)` it does not take milliseconds. */
function breathe(): Promise<void> {
  return new Promise((resolve) => {
    if (!channel) {
      setImmediate(resolve);
      return;
    }
    waiting.push(resolve);
    channel.port2.postMessage(undefined);
  });
}

/** Longest time without looking for an abort, and shortest between two chunks, in milliseconds. */
const SLOT = 12;

/** Tokens at the beginning that models rest their attention on, whatever they say. */
const SINKS = 4;

interface Prompt {
  ids: Uint32Array;
  /** Messages that were left out. */
  dropped: number;
  /** Tokens that stay when the oldest are forgotten. Without it none are. */
  keep?: number;
}

/** Something of the module's that must be freed. */
interface Owned {
  free(): void;
}

/** A model in the module's memory or on a GPU, and whether it can still be used. */
class Loaded {
  readonly glue: Glue;
  readonly info: EngineInfo;
  #model: AnyModel | undefined;
  #dead: ShohinError | undefined;
  #owned = new Set<Owned>();

  constructor(glue: Glue, model: AnyModel) {
    this.glue = glue;
    this.#model = this.own(model);
    this.info = model.info() as EngineInfo;
  }

  get dead(): boolean {
    return this.#dead !== undefined;
  }

  alive(): AnyModel {
    if (this.#dead) throw this.#dead;
    return this.#model as AnyModel;
  }

  /** Calls into the module. */
  call<T>(work: (model: AnyModel) => T): T {
    const model = this.alive();
    try {
      return work(model);
    } catch (thrown) {
      throw this.#failed(thrown);
    }
  }

  /** Calls into the module and waits, where a GPU has to be waited for. */
  async ask<T>(work: (model: AnyModel) => T | Promise<T>): Promise<T> {
    const model = this.alive();
    try {
      return await work(model);
    } catch (thrown) {
      throw this.#failed(thrown);
    }
  }

  #failed(thrown: unknown): ShohinError {
    // What is disposed while a GPU is at it fails in its own way.
    if (this.#dead) return this.#dead;
    const error = toError(thrown);
    if (error.code === "crashed") {
      // The module's memory is in an unknown state: touch it no more.
      this.#dead = error;
      this.#model = undefined;
      this.#owned.clear();
    }
    return error;
  }

  /** Keeps something until it is freed, or the model is. */
  own<T extends Owned>(object: T): T {
    if (this.#dead) {
      object.free();
      throw this.#dead;
    }
    this.#owned.add(object);
    return object;
  }

  free(object: Owned): void {
    if (!this.#owned.delete(object)) return;
    try {
      object.free();
    } catch {
      // A step on a GPU is under way and keeps it; it is freed with the page's garbage.
    }
  }

  dispose(): void {
    this.#dead ??= new ShohinError("disposed", "the engine was disposed");
    for (const object of this.#owned) this.free(object);
    this.#model = undefined;
  }
}

/** One of several conversations over a model, each with what it remembers. */
export class LocalConversation {
  /** Tokens it can hold. */
  readonly context: number;
  #loaded: Loaded;
  #timeline: AnyTimeline | undefined;
  #queue: Promise<void> = Promise.resolve();
  #messages: Message[] = [];

  private constructor(loaded: Loaded, timeline: AnyTimeline) {
    this.#loaded = loaded;
    this.#timeline = timeline;
    this.context = timeline.capacity();
  }

  /** @internal */
  static async open(loaded: Loaded, context = 0): Promise<LocalConversation> {
    const timeline = await loaded.ask<AnyTimeline>((model) => model.timeline(context));
    return new LocalConversation(loaded, loaded.own(timeline));
  }

  /** Streams the model's reply to a conversation. Turns that were seen before are not computed again. */
  chat(messages: readonly ChatMessage[], options: ChatOptions = {}): AsyncGenerator<Chunk<ChatFinish>, ChatFinish, void> {
    return begun(() => {
      const given = chatArguments(messages, options);
      return this.#chat(given.messages, given.options);
    });
  }

  #chat(messages: readonly Message[], options: ChatOptions): AsyncGenerator<Chunk<ChatFinish>, ChatFinish, void> {
    // In JSON, and where no call can be meant, what looks like a mark is text.
    const mayCall = (options.tools ?? []).length > 0 || messages.some(({ toolCalls }) => (toolCalls ?? []).length > 0);
    const parse = (block: string) => this.#loaded.glue.tool_calls(block) as ToolCall[];
    const reply = new ReplyStream(mayCall && !isJson(options) ? parse : undefined);
    return this.#run<ChatFinish>((model) => this.#chatPrompt(model, messages, options), options, reply, () => {
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

  /** Streams the continuation of a plain text. */
  generate(prompt: string, options: GenerateOptions = {}): AsyncGenerator<Chunk, Finish, void> {
    return begun(() => {
      const { options: given } = generateArguments(prompt, options);
      const keep = given.overflow === "shift" && { keep: Math.min(SINKS, this.context >> 1) };
      return this.#run<Finish>((model) => ({ ids: model.tokenize(prompt, false), dropped: 0, ...keep }), given, undefined, () => ({}));
    });
  }

  /** Answers a request of OpenAI's form. */
  createChatCompletion(request: ChatCompletionRequest & { stream: true }, options?: { signal?: AbortSignal }): Promise<AsyncIterable<ChatCompletionChunk>>;
  createChatCompletion(request: ChatCompletionRequest & { stream?: false | null }, options?: { signal?: AbortSignal }): Promise<ChatCompletion>;
  async createChatCompletion(request: ChatCompletionRequest, options: { signal?: AbortSignal } = {}): Promise<ChatCompletion | AsyncIterable<ChatCompletionChunk>> {
    return complete(this, this.#loaded.info, request, completionOptions(options));
  }

  /** What it remembers, to be kept outside the engine. */
  snapshot(): Promise<Snapshot> {
    return this.#alone(async () => ({ messages: this.#messages, state: await this.#ask((timeline) => timeline.snapshot()) }));
  }

  /** Goes on where a snapshot, or the one that `save` kept under a name, was taken. */
  async restore(from: Snapshot | string, options: RestoreOptions = {}): Promise<Restored> {
    const { from: found, options: given } = restoreArguments(from, options);
    const { messages, state } = typeof found === "string" ? await kept(found) : found;
    const failed = await this.#alone(async () => {
      try {
        this.#call((timeline) => timeline.restore(state));
        return undefined;
      } catch (error) {
        return error as ShohinError;
      }
    });
    if (failed) {
      if (!given.recompute || !["snapshot_damaged", "snapshot_foreign", "length", "context_full"].includes(failed.code)) throw failed;
      // A reply of no tokens computes the prompt.
      for await (const _chunk of this.#chat(messages, { maxTokens: 0, ...(given.signal && { signal: given.signal }) }));
    }
    this.#messages = [...messages];
    return { messages: [...messages], recomputed: failed !== undefined };
  }

  /** Keeps a snapshot in IndexedDB, in place of one of the same name. */
  async save(name: string): Promise<void> {
    checkName(name);
    await keep(name, await this.snapshot());
  }

  /** Frees what it remembers. What is under way ends with code `disposed`. */
  async dispose(): Promise<void> {
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
    // It may have been disposed meanwhile.
    this.#open();
    return result;
  }

  /** One thing at a time: they share the cache. Later ones wait for their turn. */
  async #alone<T>(work: () => Promise<T>): Promise<T> {
    const release = await this.#turn();
    try {
      return await work();
    } finally {
      release();
    }
  }

  async #turn(): Promise<() => void> {
    const before = this.#queue;
    let release = () => {};
    this.#queue = new Promise((resolve) => (release = resolve));
    await before;
    return release;
  }

  #chatPrompt(model: AnyModel, messages: readonly Message[], options: ChatOptions): Prompt {
    const { glue } = this.#loaded;
    let kept = [...messages];
    let ids = encode(glue, model, kept, options);
    if (options.overflow === "shift") {
      // Instructions stay in sight.
      const other = encode(glue, model, kept.slice(0, kept.findIndex(({ role }) => role !== "system")), options);
      const differs = ids.findIndex((id, i) => id !== other[i]);
      return { ids, dropped: 0, keep: Math.min(Math.max(differs, SINKS), this.context >> 1) };
    }
    if (options.overflow !== "trim") return { ids, dropped: 0 };
    const room = Math.min(options.maxTokens ?? 256, this.context >> 1);
    while (ids.length + room > this.context) {
      const shorter = withoutOldestTurn(kept);
      if (!shorter) break;
      kept = shorter;
      ids = encode(glue, model, kept, options);
    }
    return { ids, dropped: messages.length - kept.length };
  }

  async *#run<F extends Finish>(
    prompt: (model: AnyModel) => Prompt,
    options: ChatOptions,
    reply: ReplyStream | undefined,
    more: () => Omit<F, keyof Finish>,
  ): AsyncGenerator<Chunk<F>, F, void> {
    const { signal, logprobs } = options;
    const budget = budgetOf(options);
    const release = await this.#turn();
    try {
      if (signal?.aborted) throw abortError(signal);
      const seed = options.seed ?? crypto.getRandomValues(new Uint32Array(1))[0]!;
      const began = performance.now();
      const { ids, dropped, cached } = this.#call((timeline, model) => {
        const { ids, dropped, keep } = prompt(model);
        const thinks = reply !== undefined && mayThink(options) && this.#loaded.info.model.template === "qwen3";
        return { ids, dropped, cached: timeline.begin(ids, samplingOf(this.#loaded.glue, options, seed, thinks, keep)) };
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
        if (step !== alone.Step.Prefill) {
          const text = this.#call((timeline) => timeline.take_text());
          all += text;
          add(chunk, text, reply, false);
          if (step === alone.Step.Token) {
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
          if (step === alone.Step.Done) break;
        }
        const now = performance.now();
        const isFirst = step === alone.Step.Token && firstToken === undefined;
        if (isFirst) firstToken = now;
        if (now - slot < SLOT && !isFirst) continue;
        if (chunk.tokens.length > 0) {
          yield chunk;
          chunk = emptyChunk(logprobs);
        }
        await breathe();
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

/** Puts new text where it belongs. */
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

function budgetOf({ thinking }: ChatOptions): number {
  return typeof thinking === "object" ? thinking.budget : Infinity;
}

/** Whether the model may think at all. */
function mayThink({ thinking }: TemplateOptions): boolean {
  return typeof thinking === "object" ? thinking.budget > 0 : (thinking ?? false);
}

/**
 * The engine on this thread. It computes between `await`s, so a page should use `Engine`, which runs this class in a
 * worker; workers and Node programs can use it directly.
 */
export class LocalEngine {
  readonly info: EngineInfo;
  #loaded: Loaded;
  #first: LocalConversation;

  private constructor(loaded: Loaded, first: LocalConversation) {
    this.#loaded = loaded;
    this.info = loaded.info;
    this.#first = first;
  }

  static async #over(glue: Glue, model: AnyModel): Promise<LocalEngine> {
    const loaded = new Loaded(glue, model);
    return new LocalEngine(loaded, await LocalConversation.open(loaded));
  }

  /** Loads a model. The bytes go straight into the engine's memory and are held there once. */
  static async load(source: ModelSource, options: LoadOptions = {}): Promise<LocalEngine> {
    const kind = kindOf(source);
    const given = loadArguments(options, kind);
    if (given.signal?.aborted) throw abortError(given.signal);
    return LocalEngine.#load(kind, given);
  }

  static async #load(kind: Kind, options: LoadOptions): Promise<LocalEngine> {
    const open = () => openKind(kind, (name, brief) => host.open(name, options, brief));
    if (options.backend === "auto") {
      try {
        return await steady(() => LocalEngine.#readOnGpu(open, options));
      } catch (thrown) {
        if (!isGpuTrouble(thrown)) throw thrown;
      }
      return LocalEngine.#load(kind, { ...options, backend: "cpu" });
    }
    if (options.backend === "webgpu") return steady(() => LocalEngine.#readOnGpu(open, options));
    const module = instantiate(options);
    module.catch(() => {});
    return steady(async () => LocalEngine.read(await open(), options, module));
  }

  static async #readOnGpu(open: () => Pieces | Promise<Pieces>, options: LoadOptions): Promise<LocalEngine> {
    let unfinished: Owned | undefined;
    let source: Pieces | undefined;
    try {
      const glue = await instantiateGpu(options.backend === "webgpu");
      source = await open();
      const pieces = (source = await joined(source, glue));
      const total = pieces.total ?? options.bytes;
      if (total === undefined) throw new ShohinError("gpu_unsupported", "WebGPU needs to know the file's length");
      const loader = (unfinished = await glue.GpuLoader.open(total, options.backend === "webgpu", true));
      await pourInto(glue, pieces, (piece) => loader.append(piece), options);
      unfinished = undefined; // finish() takes it over, also when it fails
      const model = await loader.finish(options.context ?? 0, options.kv ?? "f16", options.activations ?? "int8");
      return await LocalEngine.#over(glue, model);
    } catch (thrown) {
      throw toError(thrown);
    } finally {
      unfinished?.free();
      await source?.close();
    }
  }

  /** @internal */
  static async read(pieces: Pieces, options: LoadOptions, module?: Promise<Glue>): Promise<LocalEngine> {
    // Bytes that come from elsewhere come once: whoever sends them can send them again.
    if (!module && options.backend !== undefined && options.backend !== "cpu") return LocalEngine.#readOnGpu(() => pieces, options);
    let buffer: alone.FileBuffer | undefined;
    try {
      const glue = await (module ?? instantiate(options));
      pieces = await joined(pieces, glue);
      const file = (buffer = new glue.FileBuffer(pieces.total ?? options.bytes ?? 0));
      await pourInto(glue, pieces, (piece) => file.append(piece), options);
      buffer = undefined; // load() takes it over, also when it fails
      const model = glue.Model.load(file, options.context ?? 0, options.kv ?? "f16", options.activations ?? "int8");
      return await LocalEngine.#over(glue, model);
    } catch (thrown) {
      throw toError(thrown);
    } finally {
      buffer?.free();
      await pieces.close();
    }
  }

  /** Streams the model's reply to a conversation. Turns that were seen before are not computed again. */
  chat(messages: readonly ChatMessage[], options: ChatOptions = {}): AsyncGenerator<Chunk<ChatFinish>, ChatFinish, void> {
    return this.#first.chat(messages, options);
  }

  /** Streams the continuation of a plain text. */
  generate(prompt: string, options: GenerateOptions = {}): AsyncGenerator<Chunk, Finish, void> {
    return this.#first.generate(prompt, options);
  }

  /** Answers a request of OpenAI's form. */
  createChatCompletion(request: ChatCompletionRequest & { stream: true }, options?: { signal?: AbortSignal }): Promise<AsyncIterable<ChatCompletionChunk>>;
  createChatCompletion(request: ChatCompletionRequest & { stream?: false | null }, options?: { signal?: AbortSignal }): Promise<ChatCompletion>;
  async createChatCompletion(request: ChatCompletionRequest, options: { signal?: AbortSignal } = {}): Promise<ChatCompletion | AsyncIterable<ChatCompletionChunk>> {
    return complete(this, this.info, request, completionOptions(options));
  }

  /** A further conversation over the same model, which takes memory for what it remembers only. */
  async conversation(options: ConversationOptions = {}): Promise<LocalConversation> {
    return LocalConversation.open(this.#loaded, conversationOptions(options).context);
  }

  /** What `conversation.snapshot` gives, of the engine's own conversation. */
  snapshot(): Promise<Snapshot> {
    return this.#first.snapshot();
  }

  /** As `conversation.restore`, into the engine's own conversation. */
  restore(from: Snapshot | string, options: RestoreOptions = {}): Promise<Restored> {
    return this.#first.restore(from, options);
  }

  /** As `conversation.save`, of the engine's own conversation. */
  save(name: string): Promise<void> {
    return this.#first.save(name);
  }

  /** A text as a vector: the model's final hidden states, pooled. No conversation is touched. */
  async embed(text: string, options: EmbedOptions = {}): Promise<Float32Array> {
    const { signal, pooling = "mean", normalize = true } = embedArguments(text, options).options;
    if (signal?.aborted) throw abortError(signal);
    const embedder = this.#loaded.own(
      await this.#loaded.ask<alone.Embedder | GpuEmbedder>((model) => model.embedder(model.tokenize(text, false), pooling)),
    );
    try {
      while (!(await this.#loaded.ask<boolean>(() => embedder.step()))) {
        await breathe();
        if (signal?.aborted) throw abortError(signal);
      }
      return this.#loaded.call(() => embedder.result(normalize));
    } finally {
      this.#loaded.free(embedder);
    }
  }

  /** Text to token ids. Control tokens such as `<|im_end|>` are plain text unless `special` is set. */
  async tokenize(text: string, options: TokenizeOptions = {}): Promise<Uint32Array> {
    const { special } = tokenizeArguments(text, options);
    return this.#loaded.call((model) => model.tokenize(text, special));
  }

  /** Token ids to text; bytes that are no UTF-8 become U+FFFD. */
  async detokenize(ids: ArrayLike<number>): Promise<string> {
    const tokens = tokensOf(ids);
    return this.#loaded.call((model) => model.detokenize(tokens));
  }

  /** Token ids of a conversation, ready for the model's reply. */
  async tokenizeChat(messages: readonly ChatMessage[], options: TemplateOptions = {}): Promise<Uint32Array> {
    const given = templateArguments(messages, options);
    return this.#loaded.call((model) => encode(this.#loaded.glue, model, given.messages, given.options));
  }

  /** Frees the model's memory. What is under way ends with code `disposed`. */
  async dispose(): Promise<void> {
    this.#loaded.dispose();
  }
}

/** Pours a file into `sink`, and checks that it is the one that was asked for. */
async function pourInto(
  glue: Glue,
  pieces: Pieces,
  sink: (piece: Uint8Array) => void | Promise<void>,
  options: LoadOptions,
): Promise<void> {
  const { bytes, sha256, signal } = options;
  const notIt = (what: string, found: unknown) =>
    new ShohinError("integrity", `the file is not the one that was asked for: its ${what} is ${found}`);
  const sum = sha256 === undefined ? undefined : new glue.Checksum();
  try {
    const check = (piece: Uint8Array) => {
      const size = pieces.total;
      if (bytes !== undefined && size !== undefined && size !== bytes) throw notIt("size", size);
      sum?.push(piece);
      return sink(piece);
    };
    const loaded = await pour(pieces, check, options);
    if (bytes !== undefined && loaded !== bytes) throw notIt("size", loaded);
    const digits = sum?.digits();
    if (digits !== sha256?.toLowerCase()) throw notIt("SHA-256", digits);
    options.onProgress?.({ stage: "prepare", loaded, total: loaded });
    // The last report should be seen before the thread is busy.
    await breathe();
    if (signal?.aborted) throw abortError(signal);
  } finally {
    sum?.free();
  }
}

function jsonOf(what: string, value: unknown): string {
  const text = converted(what, () => JSON.stringify(value) as string | undefined);
  if (text === undefined) throw new ShohinError("argument", `${what} is no object`);
  return text;
}

function encode(
  glue: Glue,
  model: AnyModel,
  messages: readonly Message[],
  options: TemplateOptions,
): Uint32Array {
  const conversation = new glue.Conversation();
  try {
    for (const { role, content, reasoning, toolCalls } of messages) {
      conversation.push(role, content, reasoning);
      for (const call of toolCalls ?? []) conversation.push_call(call.name, call.arguments);
    }
    for (const tool of options.tools ?? []) conversation.push_tool(jsonOf("a tool", tool));
    return model.encode_chat(conversation, mayThink(options));
  } finally {
    conversation.free();
  }
}

/** The conversation without its first turn: everything from the first non-system message up to the next user message. */
function withoutOldestTurn(messages: Message[]): Message[] | undefined {
  const first = messages.findIndex((message) => message.role !== "system");
  const next = messages.findIndex((message, i) => i > first && message.role === "user");
  if (first < 0 || next < 0) return undefined;
  return [...messages.slice(0, first), ...messages.slice(next)];
}

const SETTINGS = [
  "maxTokens",
  "logprobs",
  "temperature",
  "topK",
  "topP",
  "minP",
  "typicalP",
  "repetitionPenalty",
  "presencePenalty",
  "frequencyPenalty",
  "penaltyLastN",
  "dryMultiplier",
  "dryBase",
  "dryAllowedLength",
  "dryLastN",
] as const satisfies readonly (keyof GenerateOptions)[];

/** Whether the reply is kept to JSON. */
function isJson({ responseFormat }: GenerateOptions): boolean {
  return (responseFormat?.type ?? "text") !== "text";
}

/** Keeps the reply to the form that was asked for; `thinks` says that thoughts may come before it. */
function keepToForm(sampling: alone.Sampling, options: ChatOptions, thinks: boolean): void {
  const { responseFormat: format, tools = [], toolChoice: choice = "auto" } = options;
  if (tools.length > 0 && isJson(options)) throw new ShohinError("argument", "tools and a responseFormat exclude each other");
  const type = format?.type ?? "text";
  if (type === "json_object") sampling.json_object();
  else if (format?.type === "json_schema") sampling.json_schema(jsonOf("responseFormat's schema", format.schema));
  const nameOf = (tool: { name?: string; function?: { name?: string } }) => tool.function?.name ?? tool.name;
  const chosen = typeof choice === "string" ? tools : tools.filter((tool) => nameOf(tool) === choice.name);
  if (chosen.length === 0 && choice !== "auto") throw new ShohinError("argument", "toolChoice asks for a tool that there is not");
  if (chosen.length > 0) sampling.tool_calls(chosen.map((tool) => jsonOf("a tool", tool)), choice !== "auto");
  if (thinks) sampling.after_thoughts();
}

/** Taken over by `Model.begin`. */
function samplingOf(glue: Glue, options: GenerateOptions, seed: number, thinks: boolean, keep: number | undefined): alone.Sampling {
  const sampling = glue.Sampling.preset(options.preset ?? "bonsai");
  try {
    for (const name of SETTINGS) {
      const value = options[name];
      if (value !== undefined) sampling.set(name, value);
    }
    sampling.set("seed", seed);
    if (keep !== undefined) sampling.set("keep", keep);
    const stop = options.stop ?? [];
    for (const text of typeof stop === "string" ? [stop] : stop) sampling.add_stop(text);
    keepToForm(sampling, options, thinks);
    return sampling;
  } catch (thrown) {
    sampling.free();
    throw thrown;
  }
}
