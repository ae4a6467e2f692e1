// The engine behind the protocol: every public method answers one request of an `Engine`, on its thread or in its worker.
import type { ChatFinish, Chunk, Finish } from "../api/chunk.js";
import { abortError, blameOn, ShohinError, toError } from "../api/errors.js";
import type { ModelInfo } from "../api/info.js";
import type { Message, Restored, Snapshot } from "../api/message.js";
import type { ChatOptions, ConversationOptions, EmbedOptions, GenerateOptions, LoadOptions, Progress, RequestOptions, RestoreOptions, SnapshotSource, TemplateOptions } from "../api/options.js";
import type { ChatCompletion, ChatCompletionChunk } from "../openai/completion.js";
import { availabilityOf, type SentAvailability } from "../load/availability.js";
import { retryChanged } from "../load/download.js";
import { joined } from "../load/parts.js";
import type { Pieces } from "../load/pieces.js";
import { openSource, pour, type Read, type RemoteSource } from "../load/source.js";
import { host } from "../wasm/host.js";
import { cpuModule, gpuModule, type CpuModule, type Embedder, type Loader, type Model, type Module } from "../wasm/module.js";
import { AdaptedModels, type SentAdapter } from "./adapted.js";
import { yieldToEventLoop } from "./event-loop.js";
import { LoadedModel } from "./loaded.js";
import { Session } from "./session.js";
import { keep as keepSnapshot, kept } from "./snapshots.js";
import { taught, teacherOf, type Lesson, type Lessons, type TeachResult, type TeachSettings, type TeachStep } from "./teaching.js";

/** Options without what the caller keeps to itself. @internal */
export type Sendable<T> = Omit<T, "signal" | "onProgress" | "workerUrl" | "hub" | "shared" | "adapters">;

/** The caller's end of a request. @internal */
export interface Caller {
  signal?: AbortSignal | undefined;
  onProgress?: LoadOptions["onProgress"];
  /** Reads the bytes of a source that the caller has in memory. */
  read?: Read;
}

/** How a runtime comes to its model. @internal */
export type LoadModel = (source: RemoteSource, options: Sendable<LoadOptions>, caller: Caller) => Promise<LoadedModel>;

/** Loads a model. @internal */
export const loadModel: LoadModel = (source, options, caller) => {
  const all = { ...options, signal: caller.signal, onProgress: caller.onProgress } as LoadOptions;
  return attempts(source, all, caller, (open) => onDevice(open, all));
};

/** @internal */
export class Runtime {
  #load: LoadModel;
  #loaded: LoadedModel | undefined;
  #models: AdaptedModels | undefined;
  /** Those of the model, as far as they concern adapters. */
  #options: LoadOptions = {};
  /** By number; 0 is the engine's own. */
  #sessions = new Map<number, Session>();
  #opened = 0;
  #left = false;

  constructor(load = loadModel) {
    this.#load = load;
  }

  async load({ source, options }: { source: RemoteSource; options: Sendable<LoadOptions> }, caller: Caller): Promise<ModelInfo> {
    const model = await this.#load(source, options, caller);
    this.#loaded = model;
    const { cache = true, stallTimeout } = options;
    // A shared worker cannot keep copies, and adapters may come without.
    this.#options = { cache: cache !== false, ...(stallTimeout !== undefined && { stallTimeout }) };
    this.#models = new AdaptedModels(model);
    this.#keep(0, await Session.open(this.#models));
    return model.info;
  }

  /** Reads an adapter. Requests have its number. */
  async addAdapter(
    { id, name, source, request }: { id: number; name: string; source: RemoteSource; request: RequestOptions | undefined },
    caller: Caller,
  ): Promise<void> {
    const models = this.#adapted();
    const { signal } = caller;
    const options = { ...this.#options, ...(request && { request }), ...(signal && { signal }) };
    const read = async (open: () => Promise<Pieces>) => models.read(name, await open(), signal);
    models.add(id, name, await attempts(source, options, caller, (open) => retryChanged(() => read(open))));
  }

  /** Frees an adapter, which no request has from now on. */
  async removeAdapter({ id }: { id: number }): Promise<void> {
    this.#adapted().remove(id);
  }

  /** Downloads a model into its kept copy. */
  async preload({ source, options }: { source: RemoteSource; options: Sendable<LoadOptions> }, caller: Caller): Promise<void> {
    if (!host.copies) throw new ShohinError("unsupported", "downloads are not kept here, but only by browsers, in workers");
    const all = { ...options, cache: "require", signal: caller.signal, onProgress: caller.onProgress } as LoadOptions;
    await attempts(source, all, caller, (open) => retryChanged(() => keep(open, all)));
  }

  /** Whether a model can be loaded. */
  async availability({ source, options }: { source: RemoteSource; options: Sendable<LoadOptions> }, { signal }: Caller): Promise<SentAvailability> {
    const all = { ...options, signal } as LoadOptions;
    const copies = (options.cache ?? true) ? await host.copies?.().catch(() => []) : undefined;
    return availabilityOf(source, all, host.files({ ...all, cache: false }).open, copies);
  }

  chat(
    { conversation, messages, options, adapters }: { conversation: number; messages: Message[]; options: Sendable<ChatOptions>; adapters: SentAdapter[] },
    { signal }: Caller,
  ): AsyncGenerator<Chunk<ChatFinish>, ChatFinish, void> {
    return this.#session(conversation).chat(messages, { ...options, ...(signal && { signal }) }, adapters);
  }

  generate(
    { conversation, prompt, options, adapters }: { conversation: number; prompt: string; options: Sendable<GenerateOptions>; adapters: SentAdapter[] },
    { signal }: Caller,
  ): AsyncGenerator<Chunk, Finish, void> {
    return this.#session(conversation).generate(prompt, { ...options, ...(signal && { signal }) }, adapters);
  }

  /** Refuses a request that is not as it must be. */
  async checkRequest({ request }: { request: string }): Promise<void> {
    this.#model().call((model) => model.check_request(request));
  }

  /** Answers a request in the format of OpenAI's chat completions, in one piece or, if it asks for that, in chunks. */
  async *answer(
    { conversation, request, adapters }: { conversation: number; request: string; adapters: SentAdapter[] },
    { signal }: Caller,
  ): AsyncGenerator<ChatCompletion | ChatCompletionChunk, void, void> {
    for await (const answer of this.#session(conversation).answer(request, signal, adapters)) yield JSON.parse(answer) as ChatCompletion | ChatCompletionChunk;
  }

  async open({ context, adapters }: Sendable<ConversationOptions> & { adapters: SentAdapter[] }): Promise<{ conversation: number; context: number }> {
    const session = await Session.open(this.#adapted(), context, adapters);
    this.#keep(++this.#opened, session);
    return { conversation: this.#opened, context: session.context };
  }

  async close({ conversation }: { conversation: number }): Promise<void> {
    this.#sessions.get(conversation)?.dispose();
    this.#sessions.delete(conversation);
  }

  snapshot({ conversation }: { conversation: number }): Promise<Snapshot> {
    return this.#session(conversation).snapshot();
  }

  async save({ conversation, name }: { conversation: number; name: string }): Promise<void> {
    await keepSnapshot(name, await this.#session(conversation).snapshot());
  }

  async restore(
    { conversation, from, options, adapters }: { conversation: number; from: SnapshotSource; options: Sendable<RestoreOptions>; adapters: SentAdapter[] },
    { signal }: Caller,
  ): Promise<Restored> {
    const session = this.#session(conversation);
    return session.restore(typeof from === "string" ? await kept(from) : from, { ...options, ...(signal && { signal }) }, adapters);
  }

  async embed({ texts, options, adapters }: { texts: string[]; options: Sendable<EmbedOptions>; adapters: SentAdapter[] }, { signal }: Caller): Promise<Float32Array[]> {
    const models = this.#adapted();
    const adapted = models.take(adapters);
    const vectors: Float32Array[] = [];
    try {
      for (const text of texts) {
        try {
          vectors.push(await this.#embed(text, options, adapted?.model, signal));
        } catch (thrown) {
          const error = toError(thrown);
          if (texts.length === 1 || (error.code !== "length" && error.code !== "context_full")) throw error;
          throw new ShohinError(error.code, `text[${vectors.length}]: ${error.message}`, { cause: error });
        }
      }
    } finally {
      models.give(adapted);
    }
    return vectors;
  }

  async #embed(text: string, { pooling, normalize = true }: Sendable<EmbedOptions>, adapted: Model | undefined, signal: AbortSignal | undefined): Promise<Float32Array> {
    if (signal?.aborted) throw abortError(signal);
    const loaded = this.#model();
    const embedder = loaded.own(await loaded.ask<Embedder>((model) => (adapted ?? model).embedder(text, pooling)));
    try {
      while (!(await loaded.ask<boolean>(() => embedder.step()))) {
        await yieldToEventLoop();
        if (signal?.aborted) throw abortError(signal);
      }
      return loaded.call(() => embedder.result(normalize));
    } finally {
      loaded.free(embedder);
    }
  }

  async tokenize({ text, special }: { text: string; special: boolean }): Promise<Uint32Array> {
    return this.#model().call((model) => model.tokenize(text, special));
  }

  async detokenize({ ids }: { ids: Uint32Array }): Promise<string> {
    return this.#model().call((model) => model.detokenize(ids));
  }

  async tokenizeChat({ messages, options }: { messages: Message[]; options: TemplateOptions }): Promise<Uint32Array> {
    return this.#model().call((model) => model.encode_chat(messages, options));
  }

  /** A whole conversation as tokens, and where its replies begin and end. */
  async encodeReplies({ messages }: { messages: Message[] }): Promise<Lesson> {
    const [tokens, replies] = this.#model().call((model) => model.encode_replies(messages)) as [Uint32Array, Uint32Array];
    return { tokens, replies };
  }

  /** Teaches a model, which is loaded for this alone. */
  async *teach(
    { source, options, lessons, settings }: { source: RemoteSource; options: Sendable<LoadOptions>; lessons: Lessons; settings: TeachSettings },
    { signal }: Caller,
  ): AsyncGenerator<TeachStep, TeachResult, void> {
    const load = { ...options, ...(signal && { signal }) } as LoadOptions;
    const open = () => attempts(source, load, { signal }, (open) => retryChanged(async () => teacherOf(await open(), lessons, settings, signal)));
    return yield* taught(open, settings, signal);
  }

  async dispose(): Promise<void> {
    this.#loaded?.dispose();
  }

  /** Frees the conversations, but not the model, which others use. */
  async leave(): Promise<void> {
    this.#left = true;
    for (const session of this.#sessions.values()) session.dispose();
    this.#sessions.clear();
    this.#models?.dispose();
  }

  #keep(number: number, session: Session): void {
    if (this.#left) return session.dispose();
    this.#sessions.set(number, session);
  }

  #model(): LoadedModel {
    if (!this.#loaded) throw new ShohinError("disposed", "no model is loaded");
    return this.#loaded;
  }

  #adapted(): AdaptedModels {
    this.#model();
    return this.#models as AdaptedModels;
  }

  #session(number: number): Session {
    this.#model().alive();
    const found = this.#sessions.get(number);
    if (!found) throw new ShohinError("disposed", "the conversation was disposed");
    return found;
  }
}

/** Does something with the files of a model; again if a kept copy was the reason of a failure. */
async function attempts<T>(source: RemoteSource, options: LoadOptions, { read }: Caller, use: (open: () => Promise<Pieces>) => Promise<T>): Promise<T> {
  for (let last = false; ; last = true) {
    const files = host.files(options);
    try {
      return await use(() => openSource(source, files.open, read ?? (() => undefined)));
    } catch (thrown) {
      if (!(await files.repair(toError(thrown), source)) || last) throw thrown;
    }
  }
}

/** Reads the files of a model that are not kept yet, which keeps them. */
async function keep(open: () => Promise<Pieces>, options: LoadOptions): Promise<void> {
  const { onProgress, sha256 } = options;
  const module = sha256 === undefined ? undefined : await cpuModule(options);
  const source = await open();
  const { total } = source;
  try {
    let before = 0;
    for (const part of source.parts ?? [{ ...source, name: undefined }]) {
      if (part.stage === "read" && (!module || isSummed(part, options))) {
        before += part.total ?? 0;
        continue;
      }
      const report = ({ loaded }: Progress) => onProgress?.({ stage: "download", loaded: before + loaded, ...(total !== undefined && { total }) });
      let isFirst = true;
      const check = (piece: Uint8Array) => {
        if (isFirst && String.fromCharCode(...piece.subarray(0, 4)) !== "GGUF".slice(0, piece.length)) {
          const error = new ShohinError("malformed", `${part.name ?? "the file"} is not a GGUF file`);
          throw part.name === undefined ? error : blameOn(part.name, error);
        }
        isFirst = false;
      };
      before += await pourChecked(module, part, check, { ...options, onProgress: report });
    }
    onProgress?.({ stage: "download", loaded: before, total: before });
  } finally {
    await source.close();
  }
}

async function onDevice(open: () => Promise<Pieces>, options: LoadOptions): Promise<LoadedModel> {
  const { backend } = options;
  if (backend === "auto" || backend === "webgpu") {
    try {
      return await retryChanged(() => onGpu(open, options));
    } catch (thrown) {
      if (backend === "webgpu" || !toError(thrown).code.startsWith("gpu_")) throw thrown;
    }
  }
  // Compiled during the download.
  const module = cpuModule(options);
  module.catch(() => {});
  return retryChanged(() => onCpu(open, options, module));
}

async function onGpu(open: () => Promise<Pieces>, options: LoadOptions): Promise<LoadedModel> {
  const software = options.backend === "webgpu";
  const { id42 = "auto" } = options;
  const module = await gpuModule(software);
  return modelFrom(await open(), Promise.resolve(module), options, ({ Loader }, length) => {
    if (length === undefined) throw new ShohinError("gpu_unsupported", "WebGPU requires the length of the file");
    return Loader.open(length, software, id42);
  });
}

async function onCpu(open: () => Promise<Pieces>, options: LoadOptions, module: Promise<CpuModule>): Promise<LoadedModel> {
  return modelFrom(await open(), module, options, ({ Loader }, length = 0) => new Loader(length, options.id42 ?? "auto"));
}

/** Loads the model in `source` with the module's loader for a file of this length. */
async function modelFrom<M extends Module>(
  source: Pieces,
  loading: Promise<M>,
  options: LoadOptions,
  loaderOf: (module: M, length: number | undefined) => Loader | Promise<Loader>,
): Promise<LoadedModel> {
  const { context = 0, kv = "f16", attention = "full", activations = "int8" } = options;
  let pieces = source;
  let unfinished: Loader | undefined;
  try {
    const module = await loading;
    pieces = await joined(pieces, module, options.id42 ?? "auto");
    const loader = (unfinished = await loaderOf(module, pieces.total ?? options.bytes));
    await pourInto(module, pieces, (piece) => loader.append(piece), options);
    unfinished = undefined; // finish() consumes it, also when it fails
    const cpu = "Adapter" in module ? (module as unknown as CpuModule) : undefined;
    return new LoadedModel(await loader.finish(context, kv, attention, activations), cpu);
  } catch (thrown) {
    throw toError(thrown);
  } finally {
    unfinished?.free();
    await pieces.close();
  }
}

/** Pours a file into `sink`, checks that it is the requested one, and reports that all of it has arrived. */
async function pourInto(module: Module, pieces: Pieces, sink: (piece: Uint8Array) => void | Promise<void>, options: LoadOptions): Promise<void> {
  const loaded = await pourChecked(module, pieces, sink, options);
  options.onProgress?.({ stage: "prepare", loaded, total: loaded });
  // The last report should arrive before the thread is busy.
  await yieldToEventLoop();
  if (options.signal?.aborted) throw abortError(options.signal);
}

/** Whether a complete copy has the requested checksum; that of each of its slices is checked when it is read. */
function isSummed({ sha256: found }: Pieces, { sha256 }: LoadOptions): boolean {
  return found !== undefined && found === sha256?.toLowerCase();
}

/** Pours a file into `sink`, and checks that it is the requested one, with the module if the options have a checksum. */
async function pourChecked(
  module: Module | undefined,
  pieces: Pieces,
  sink: (piece: Uint8Array) => void | Promise<void>,
  options: LoadOptions,
): Promise<number> {
  const { bytes, sha256 } = options;
  const different = (what: string, found: unknown) => new ShohinError("integrity", `the file is not the requested one: its ${what} is ${found}`);
  const isKnown = sha256 === undefined || isSummed(pieces, options);
  const sum = isKnown ? undefined : module && new module.Checksum();
  let arrived = 0;
  let digits: string | undefined;
  try {
    const check = (piece: Uint8Array) => {
      const size = pieces.total;
      if (bytes !== undefined && size !== undefined && size !== bytes) throw different("size", size);
      sum?.push(piece);
      arrived += piece.byteLength;
      if (sum && arrived === size) {
        digits = sum.digits();
        if (digits === sha256?.toLowerCase()) pieces.summed?.(digits);
      }
      return sink(piece);
    };
    const loaded = await pour(pieces, check, options);
    if (bytes !== undefined && loaded !== bytes) throw different("size", loaded);
    digits ??= sum?.digits();
    if (!isKnown && digits !== sha256?.toLowerCase()) throw different("SHA-256", digits);
    return loaded;
  } finally {
    sum?.free();
  }
}
