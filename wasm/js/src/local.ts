import type { ChatFinish, ChatOptions, Chunk, EngineInfo, Finish, FinishReason, GenerateOptions, LoadOptions, Message, ModelSource } from "./api.js";
import { abortError, ShohinError, toError } from "./error.js";
import { blobPieces, bytesPieces, fetchPieces, kindOf, pour, type Pieces } from "./source.js";
import type { GpuModel } from "shohin-webgpu";
import init, * as alone from "../../pkg/shohin_wasm.js";

export * from "./api.js";
export { ShohinError } from "./error.js";

/** More than this only wait for memory. */
export const MOST_THREADS = 16;

declare const WorkerGlobalScope: { new (): unknown } | undefined;

/** What differs between a browser and Node. @internal */
export const host: {
  /** Finds the compiled module when no `wasmUrl` is given. */
  module: () => Promise<BufferSource | string | URL> | BufferSource | string | URL;
  /** How many threads there is room for; 1 where they cannot share memory. */
  cores: () => number;
  /** `threads.js`. */
  teamScript: () => URL;
  /** The module for several threads. */
  teamModule: () => Promise<BufferSource> | URL;
  /** `webgpu.js`. */
  gpuScript: () => URL;
  /** The module with both engines. */
  gpuModule: () => URL;
  /** Opens a string that names the model. */
  open: (name: string, options: LoadOptions) => Promise<Pieces>;
} = {
  module: () => new URL("shohin_wasm_bg.wasm", import.meta.url),
  cores: () => {
    // The thread that shows a page may not wait for others.
    const mayWait = typeof WorkerGlobalScope === "function" && globalThis instanceof WorkerGlobalScope;
    const maySpawn = globalThis.crossOriginIsolated && typeof Worker === "function";
    return mayWait && maySpawn ? Math.min(navigator.hardwareConcurrency, MOST_THREADS) : 1;
  },
  teamScript: () => new URL("threads.js", import.meta.url),
  teamModule: () => new URL("shohin_wasm_threads_bg.wasm", import.meta.url),
  gpuScript: () => new URL("webgpu.js", import.meta.url),
  gpuModule: () => new URL("shohin_wasm_webgpu_bg.wasm", import.meta.url),
  open: (url, options) => fetchPieces(url, options.request, options.signal),
};

/** A compiled module's classes and functions. */
type Glue = Omit<typeof alone, "default" | "initSync">;

let instance: Promise<Glue> | undefined;
let team: Promise<Glue | undefined> | undefined;

/** Loads the WebAssembly module, once: the one for several threads where they can be had. */
async function instantiate({ threads, wasmUrl }: LoadOptions): Promise<Glue> {
  const count = Math.min(threads ?? Infinity, host.cores());
  if (!(count >= 1)) throw new ShohinError("argument", "threads must be at least 1");
  if (count >= 2) {
    // Whatever is amiss with threads, one is enough.
    const glue = await (team ??= startTeam(Math.floor(count)).catch(() => undefined));
    if (glue) return glue;
  }
  instance ??= (async () => {
    await init({ module_or_path: wasmUrl ?? (await host.module()) });
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

async function startTeam(count: number): Promise<Glue> {
  const { href } = host.teamScript();
  const script = (await import(/* @vite-ignore */ /* webpackIgnore: true */ href)) as typeof import("./threads.js");
  await script.start(await host.teamModule(), count);
  return script;
}

type GpuGlue = typeof import("shohin-webgpu");
/** A model on either. */
type AnyModel = alone.Model | GpuModel;

let gpuInstance: Promise<GpuGlue> | undefined;

/** Loads the module with both engines, once. */
async function instantiateGpu(): Promise<GpuGlue> {
  if (typeof navigator === "undefined" || !("gpu" in navigator)) throw new ShohinError("gpu_absent", "this browser has no WebGPU");
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

/** Lets messages and timers in; unlike `setTimeout(0)` it does not take milliseconds. */
function breathe(): Promise<void> {
  return new Promise((resolve) => {
    if (!channel) {
      setImmediate(resolve);
      return;
    }
    channel.port1.onmessage = () => resolve();
    channel.port2.postMessage(undefined);
  });
}

/** Longest time without looking for an abort, and shortest between two chunks, in milliseconds. */
const SLOT = 12;

/**
 * The engine on this thread. It computes between `await`s, so a page should use `Engine`, which runs this class in a
 * worker; workers and Node programs can use it directly.
 */
export class LocalEngine {
  readonly info: EngineInfo;
  #glue: Glue;
  #model: AnyModel | undefined;
  #dead: ShohinError | undefined;
  #queue: Promise<void> = Promise.resolve();

  private constructor(glue: Glue, model: AnyModel) {
    this.#glue = glue;
    this.#model = model;
    this.info = model.info() as EngineInfo;
  }

  /** Loads a model. The bytes go straight into the engine's memory and are held there once. */
  static async load(source: ModelSource, options: LoadOptions = {}): Promise<LocalEngine> {
    if (options.signal?.aborted) throw abortError(options.signal);
    const kind = kindOf(source);
    const open = () =>
      "url" in kind ? host.open(kind.url, options) : "blob" in kind ? blobPieces(kind.blob) : bytesPieces(kind.bytes);
    if (options.backend === "auto") {
      try {
        return await LocalEngine.#readOnGpu(open, options);
      } catch (thrown) {
        if (!isGpuTrouble(thrown)) throw thrown;
      }
      return LocalEngine.load(source, { ...options, backend: "cpu" });
    }
    if (options.backend === "webgpu") return LocalEngine.#readOnGpu(open, options);
    const module = instantiate(options);
    module.catch(() => {});
    return LocalEngine.read(await open(), options, module);
  }

  static async #readOnGpu(open: () => Pieces | Promise<Pieces>, options: LoadOptions): Promise<LocalEngine> {
    let unfinished: { free(): void } | undefined;
    let unread: Pieces | undefined;
    try {
      const glue = await instantiateGpu();
      const pieces = (unread = await open());
      if (pieces.total === undefined) throw new ShohinError("gpu_unsupported", "WebGPU needs to know the file's length");
      const loader = (unfinished = await glue.GpuLoader.open(pieces.total, options.backend === "webgpu", true));
      unread = undefined; // reading closes it, whatever happens
      const loaded = await pour(pieces, (piece) => loader.append(piece), options);
      options.onProgress?.({ stage: "prepare", loaded, total: loaded });
      await breathe();
      if (options.signal?.aborted) throw abortError(options.signal);
      unfinished = undefined; // finish() takes it over, also when it fails
      return new LocalEngine(glue, await loader.finish(options.context ?? 0, options.kv ?? "f16", options.activations ?? "int8"));
    } catch (thrown) {
      throw toError(thrown);
    } finally {
      unfinished?.free();
      // Only what has begun can end and let go of the file.
      if (unread) for await (const _ of unread.pieces) break;
    }
  }

  /** @internal */
  static async read(pieces: Pieces, options: LoadOptions, module?: Promise<Glue>): Promise<LocalEngine> {
    // Bytes that come from elsewhere come once: whoever sends them can send them again.
    if (!module && options.backend !== undefined && options.backend !== "cpu") return LocalEngine.#readOnGpu(() => pieces, options);
    module ??= instantiate(options);
    const glue = await module;
    let buffer: alone.FileBuffer | undefined;
    try {
      const file = (buffer = new glue.FileBuffer(pieces.total ?? 0));
      const loaded = await pour(pieces, (piece) => file.append(piece), options);
      options.onProgress?.({ stage: "prepare", loaded, total: loaded });
      // The last report should be seen before the thread is busy.
      await breathe();
      if (options.signal?.aborted) throw abortError(options.signal);
      buffer = undefined; // load() takes it over, also when it fails
      const model = glue.Model.load(file, options.context ?? 0, options.kv ?? "f16", options.activations ?? "int8");
      return new LocalEngine(glue, model);
    } catch (thrown) {
      throw toError(thrown);
    } finally {
      buffer?.free();
    }
  }

  /** Streams the model's reply to a conversation. Turns that were seen before are not computed again. */
  chat(messages: readonly Message[], options: ChatOptions = {}): AsyncGenerator<Chunk<ChatFinish>, ChatFinish, void> {
    return this.#run<ChatFinish>((model) => this.#chatPrompt(model, messages, options), options, (text) => ({
      message: this.#call(() => this.#glue.parse_reply(text)) as Message,
    }));
  }

  /** Streams the continuation of a plain text. */
  generate(prompt: string, options: GenerateOptions = {}): AsyncGenerator<Chunk, Finish, void> {
    return this.#run<Finish>((model) => ({ ids: model.tokenize(prompt, false), dropped: 0 }), options, () => ({}));
  }

  /** Text to token ids. Control tokens such as `<|im_end|>` are plain text unless `special` is set. */
  async tokenize(text: string, options: { special?: boolean } = {}): Promise<Uint32Array> {
    return this.#call((model) => model.tokenize(text, options.special ?? false));
  }

  /** Token ids to text; bytes that are no UTF-8 become U+FFFD. */
  async detokenize(ids: ArrayLike<number>): Promise<string> {
    return this.#call((model) => model.detokenize(Uint32Array.from(ids)));
  }

  /** Token ids of a conversation, ready for the model's reply. */
  async tokenizeChat(messages: readonly Message[], options: Pick<ChatOptions, "thinking" | "tools"> = {}): Promise<Uint32Array> {
    return this.#call((model) => encode(this.#glue, model, messages, options));
  }

  /** Frees the model's memory. What is under way ends with code `disposed`. */
  async dispose(): Promise<void> {
    this.#dead ??= new ShohinError("disposed", "the engine was disposed");
    // On the CPU nothing can be inside the module now: every call into it is synchronous.
    try {
      this.#model?.free();
    } catch {
      // A step on the GPU is under way and keeps the model; it ends with `disposed`.
    }
    this.#model = undefined;
  }

  #alive(): AnyModel {
    if (this.#dead) throw this.#dead;
    return this.#model as AnyModel;
  }

  #call<T>(work: (model: AnyModel) => T): T {
    const model = this.#alive();
    try {
      return work(model);
    } catch (thrown) {
      const error = toError(thrown);
      if (error.code === "crashed") {
        // The module's memory is in an unknown state: touch it no more.
        this.#dead = error;
        this.#model = undefined;
      }
      throw error;
    }
  }

  /** The next piece of work, at once on the CPU and waited for on a GPU. */
  async #step(): Promise<alone.Step> {
    try {
      return await this.#call((model) => model.step());
    } catch (thrown) {
      throw toError(thrown);
    }
  }

  #chatPrompt(model: AnyModel, messages: readonly Message[], options: ChatOptions): { ids: Uint32Array; dropped: number } {
    let kept = [...messages];
    let ids = encode(this.#glue, model, kept, options);
    if (options.overflow !== "trim") return { ids, dropped: 0 };
    const room = Math.min(options.maxTokens ?? 256, this.info.context >> 1);
    while (ids.length + room > this.info.context) {
      const shorter = withoutOldestTurn(kept);
      if (!shorter) break;
      kept = shorter;
      ids = encode(this.#glue, model, kept, options);
    }
    return { ids, dropped: messages.length - kept.length };
  }

  async *#run<F extends Finish>(
    prompt: (model: AnyModel) => { ids: Uint32Array; dropped: number },
    options: GenerateOptions,
    more: (text: string) => Omit<F, keyof Finish>,
  ): AsyncGenerator<Chunk<F>, F, void> {
    const { signal } = options;
    // One generation at a time: they share the cache. Later ones wait for their turn.
    const before = this.#queue;
    let release = () => {};
    this.#queue = new Promise((resolve) => (release = resolve));
    try {
      await before;
      if (signal?.aborted) throw abortError(signal);
      const seed = options.seed ?? crypto.getRandomValues(new Uint32Array(1))[0]!;
      const began = performance.now();
      const { ids, dropped, cached } = this.#call((model) => {
        const { ids, dropped } = prompt(model);
        return { ids, dropped, cached: model.begin(ids, samplingOf(this.#glue, options, seed)) };
      });
      let firstToken: number | undefined;
      let lastToken = began;
      let count = 0;
      let all = "";
      let text = "";
      let tokens: number[] = [];
      let slot = began;
      for (;;) {
        const step = await this.#step();
        if (step !== alone.Step.Prefill) {
          text += this.#call((model) => model.take_text());
          if (step === alone.Step.Token) {
            tokens.push(this.#call((model) => model.last_token()));
            count += 1;
            lastToken = performance.now();
          }
          if (step === alone.Step.Done) break;
        }
        const now = performance.now();
        const isFirst = step === alone.Step.Token && firstToken === undefined;
        if (isFirst) firstToken = now;
        if (now - slot < SLOT && !isFirst) continue;
        if (tokens.length > 0) {
          all += text;
          yield { text, tokens };
          text = "";
          tokens = [];
        }
        await breathe();
        slot = performance.now();
        this.#alive();
        if (signal?.aborted) throw abortError(signal);
      }
      all += text;
      const prefillMs = (firstToken ?? lastToken) - began;
      const decodeMs = lastToken - (firstToken ?? lastToken);
      const rate = (n: number, ms: number) => (n > 0 && ms > 0 ? (n * 1000) / ms : 0);
      const finish = {
        reason: this.#call((model) => model.reason()) as FinishReason,
        text: all,
        ...more(all),
        seed,
        usage: { promptTokens: ids.length, cachedTokens: cached, completionTokens: count, droppedMessages: dropped },
        timings: {
          prefillMs,
          decodeMs,
          prefillTokensPerSecond: rate(ids.length - cached, prefillMs),
          tokensPerSecond: rate(count - 1, decodeMs),
        },
      } as F;
      yield { text, tokens, finish };
      return finish;
    } finally {
      // Also reached when the consumer leaves its loop early.
      if (!this.#dead) this.#model?.end();
      release();
    }
  }
}

function encode(
  glue: Glue,
  model: AnyModel,
  messages: readonly Message[],
  options: Pick<ChatOptions, "thinking" | "tools">,
): Uint32Array {
  const conversation = new glue.Conversation();
  try {
    for (const { role, content, reasoning, toolCalls } of messages) {
      conversation.push(role, content, reasoning);
      for (const call of toolCalls ?? []) conversation.push_call(call.name, call.arguments);
    }
    for (const tool of options.tools ?? []) conversation.push_tool(JSON.stringify(tool));
    return model.encode_chat(conversation, options.thinking ?? false);
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

/** Taken over by `Model.begin`. */
function samplingOf(glue: Glue, options: GenerateOptions, seed: number): alone.Sampling {
  const sampling = glue.Sampling.preset(options.preset ?? "bonsai");
  try {
    for (const name of SETTINGS) {
      const value: unknown = options[name];
      if (value === undefined) continue;
      if (typeof value !== "number") throw new ShohinError("argument", `${name} must be a number`);
      sampling.set(name, value);
    }
    sampling.set("seed", seed);
    const stop = options.stop ?? [];
    for (const text of typeof stop === "string" ? [stop] : stop) sampling.add_stop(text);
    return sampling;
  } catch (thrown) {
    sampling.free();
    throw thrown;
  }
}
