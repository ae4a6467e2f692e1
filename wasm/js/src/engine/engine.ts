// A loaded model: in a worker or on the calling thread, whatever the entry point connects it to.
import { conversationOptions, embedArguments, loadArguments, teachArguments, templateArguments, tokenizeArguments, tokensOf } from "../api/arguments.js";
import { abortError, ShohinError } from "../api/errors.js";
import type { EngineInfo, ModelInfo } from "../api/info.js";
import type { ChatMessage } from "../api/message.js";
import type { Availability, ConversationOptions, EmbedOptions, Fact, LoadOptions, ModelSource, RequestOptions, Taught, TeachOptions, TemplateOptions, TokenizeOptions } from "../api/options.js";
import { addressOf, publishedModel } from "../load/names.js";
import { readerOf, sourceOf, type FileSource, type RemoteSource } from "../load/source.js";
import { Adapters, adapterOf, duplicate, onCpuOnly, remoteOf, sendable, type GivenAdapter } from "./adapters.js";
import { Conversation } from "./conversation.js";
import type { Params, Result } from "./protocol.js";
import type { Caller } from "./runtime.js";
import { teach } from "./teach.js";
import type { Lesson } from "./teaching.js";
import { absolute, type Transport } from "./transport.js";

let connect: (workerUrl: string | URL | undefined) => Transport;
let share: ((workerUrl: string | URL | undefined, params: Params<"load">, signal: AbortSignal | undefined) => Promise<SharedTransport | undefined>) | undefined;

/** A transport to the engine of several tabs, and whether that has its model already. @internal */
export interface SharedTransport {
  transport: Transport;
  loaded: boolean;
}

/** Sets the transports of new engines; called by the entry points. @internal */
export function connectBy(own: typeof connect, shared?: typeof share): void {
  connect = own;
  share = shared;
}

/** Where a model came from. */
interface Origin {
  params: Params<"load">;
  workerUrl: string | URL | undefined;
}

/** The caller's function, whose errors are not the engine's. */
function guarded(onProgress: NonNullable<LoadOptions["onProgress"]>): typeof onProgress {
  return (progress) => {
    try {
      onProgress(progress);
    } catch (error) {
      // Node has no reportError, and an uncaught error would end the program.
      if (typeof reportError === "function") reportError(error);
      else console.error(error);
    }
  };
}

/** Starts a transport and makes a request about a model over it. */
async function request<M extends "load" | "preload" | "availability">(
  method: M,
  source: ModelSource,
  options: LoadOptions,
): Promise<{ transport: Transport; result: Result<M>; hub: LoadOptions["hub"]; adapters: GivenAdapter[]; origin: Origin }> {
  const found = sourceOf(source);
  const { onProgress, signal, workerUrl, wasmUrl, hub, shared, adapters: given = [], ...rest } = loadArguments(options, found);
  const adapters = given.map(({ url, data, ...options }, i) => adapterOf((url ?? data)!, { ...options, ...(signal && { signal }) }, `adapters[${i}]`));
  for (const [i, { name }] of adapters.entries()) if (adapters.findIndex((one) => one.name === name) < i) throw duplicate(name);
  if (adapters.length > 0) {
    if (rest.backend === "webgpu") throw onCpuOnly();
    rest.backend = "cpu";
  }
  if (signal?.aborted) throw abortError(signal);
  const file = (file: FileSource) => ("url" in file ? { url: absolute(addressOf(file.url, hub)) } : file);
  const published = "url" in found ? publishedModel(found.url) : undefined;
  if (published && rest.sha256 === undefined && rest.bytes === undefined) rest.sha256 = published.sha256;
  if (rest.request) rest.request = sendable(rest.request)!;
  const params = {
    source: "bytes" in found ? { size: found.bytes.byteLength } : "files" in found ? { files: found.files.map(file) } : file(found),
    options: { ...rest, ...(wasmUrl !== undefined && { wasmUrl: absolute(String(wasmUrl)) }) },
  };
  const read = "bytes" in found ? readerOf(found.bytes) : undefined;
  const caller = { signal, ...(onProgress && { onProgress: guarded(onProgress) }), ...(read && { read }) };
  const together = shared && method === "load" ? await share?.(workerUrl, params, signal) : undefined;
  const transport = together?.transport ?? connect(workerUrl);
  try {
    const files = adapters.flatMap(({ source, request }) => ("url" in source ? [downloadOf(remoteOf(source, hub), request, params.options)] : []));
    if (together && (options.cache ?? true)) {
      const all = [...(together.loaded ? [] : [params]), ...files];
      for (const one of all) await keepFirst(workerUrl, one, one === params ? caller : { signal });
    }
    const result = await transport.call(method, params, caller);
    if (method === "preload") for (const one of files) await transport.call("preload", one, { signal });
    return { transport, result, hub, adapters, origin: { params, workerUrl } };
  } catch (error) {
    transport.close(new ShohinError("disposed", "the engine was disposed"));
    throw error;
  }
}

/** The download of an adapter, by the options of its model. */
function downloadOf(source: RemoteSource, request: RequestOptions | undefined, options: Params<"load">["options"]): Params<"load"> {
  const { sha256: _sum, bytes: _size, request: _request, ...rest } = options;
  return { source, options: { ...rest, ...(request && { request: sendable(request)! }) } };
}

/** Downloads a model into its kept copy by a worker of this tab: a shared worker reads copies, but browsers do not let it write them. */
async function keepFirst(workerUrl: string | URL | undefined, params: Params<"load">, caller: Caller): Promise<void> {
  const transport = connect(workerUrl);
  try {
    await transport.call("preload", params, caller);
  } catch (error) {
    // Without room for a copy the shared worker downloads the model itself.
    if (params.options.cache === "require" || (error as ShohinError).code !== "quota") throw error;
  } finally {
    transport.close(new ShohinError("disposed", "the request was answered"));
  }
}

/** The same, if nothing remains to be asked. */
async function answer<M extends "preload" | "availability">(method: M, source: ModelSource, options: LoadOptions): Promise<Result<M>> {
  const { transport, result } = await request(method, source, options);
  transport.close(new ShohinError("disposed", "the request was answered"));
  return result;
}

/** A loaded model. It is also the first conversation over this model. */
export class Engine extends Conversation {
  /** Description of the model and of the engine that runs it. */
  readonly info: EngineInfo;
  /** Adapters (LoRA), which change what the model says. They hold for the engine's own requests, and for conversations that are opened later. */
  readonly adapters: Adapters;
  #transport: Transport;
  #origin: Origin;
  /** Replies that were rehearsed, by question. */
  #rehearsed = new Map<string, Lesson>();

  private constructor(transport: Transport, info: ModelInfo, adapters: Adapters, origin: Origin) {
    super(transport, 0, info.context, (chosen) => adapters.sent(chosen));
    this.adapters = adapters;
    this.#transport = transport;
    this.#origin = origin;
    this.info = { ...info, shared: transport.shared ?? false };
  }

  /**
   * Loads a model. In a browser it runs in a worker of its own, or with `shared` in one of all tabs, in Node and with `shohin/local` on the calling thread.
   *
   * The bytes go straight into the engine's memory and are held there once: a URL is streamed, a file is read in
   * slices, and an array is copied piece by piece. Several files are the parts of one model.
   */
  static async load(source: ModelSource, options: LoadOptions = {}): Promise<Engine> {
    const { transport, result, hub, adapters: given, origin } = await request("load", source, options);
    const adapters = new Adapters(transport, hub, result.backend);
    try {
      for (const one of given) await adapters.take(one);
    } catch (error) {
      transport.close(new ShohinError("disposed", "the engine was disposed"));
      throw error;
    }
    return new Engine(transport, result, adapters, origin);
  }

  /**
   * Downloads a model into the browser's storage without loading it, so that a later `load` needs no network. Resumes an interrupted
   * download; does nothing if the copy is complete. Fails with code `quota` if there is not enough storage, and with `unsupported` where
   * no copies are kept: in Node, and with `shohin/local` outside workers. Takes the options of `load`.
   */
  static async preload(source: ModelSource, options: LoadOptions = {}): Promise<void> {
    return answer("preload", source, options);
  }

  /**
   * Whether a model can be loaded, and how many bytes of it have to be downloaded first. Asks the server unless the copy on this device
   * is complete or being downloaded. Takes the options of `load`; rejects only for invalid arguments and aborts.
   */
  static async availability(source: ModelSource, options: LoadOptions = {}): Promise<Availability> {
    const { error, ...rest } = await answer("availability", source, options);
    return { ...rest, ...(error && { error: new ShohinError(error.code, error.message) }) };
  }

  /** A further conversation over the same model, which takes memory for its cache only. */
  async conversation(options: ConversationOptions = {}): Promise<Conversation> {
    const { adapters: chosen, ...rest } = conversationOptions(options);
    const own = this.adapters.sent(chosen);
    const { conversation, context } = await this.#transport.call("open", { ...rest, adapters: own });
    return new Conversation(this.#transport, conversation, context, (chosen) => (chosen ? this.adapters.sent(chosen) : own));
  }

  /**
   * Teaches the model facts: each question is answered as given, word for word, and other questions as before, whose answers the model
   * rehearses meanwhile. What it learns is an adapter, which the engine then has under its name. The training runs in a worker of its own, with a copy of
   * the model that the source is read for once more; in Node and with `shohin/local` on the calling thread, between its steps. On the CPU only.
   */
  async teach(facts: readonly Fact[] | Readonly<Record<string, string>>, options: TeachOptions = {}): Promise<Taught> {
    const { facts: all, options: { model, ...given } } = teachArguments(facts, options);
    if (this.info.backend !== "cpu") throw onCpuOnly();
    const { params: { source: loaded, options: load }, workerUrl } = this.#origin;
    const source = model ? { blob: model } : loaded;
    if ("size" in source) throw new ShohinError("argument", "the engine was loaded from bytes, which it does not keep: teach needs the option model, a Blob of them");
    const { name = "taught" } = given;
    const school = { transport: this.#transport, connect: () => connect(workerUrl), source, load, kept: this.#rehearsed };
    const context = Math.min(this.context, 512);
    const open = async (file?: Uint8Array) => {
      if (file) {
        if (this.adapters.list().some((one) => one.name === name)) this.adapters.remove(name);
        await this.adapters.add(file, { name });
      }
      return this.conversation({ context, adapters: file ? [{ name }] : [] });
    };
    return teach(school, all, given, open);
  }

  /** Embeds a text, or several: the model's final hidden states, pooled. Does not affect conversations. */
  embed(text: string, options?: EmbedOptions): Promise<Float32Array>;
  embed(texts: readonly string[], options?: EmbedOptions): Promise<Float32Array[]>;
  async embed(text: string | readonly string[], options: EmbedOptions = {}): Promise<Float32Array | Float32Array[]> {
    const { texts, options: { signal, adapters, ...rest } } = embedArguments(text, options);
    const vectors = await this.#transport.call("embed", { texts, options: rest, adapters: this.adapters.sent(adapters) }, { signal });
    return typeof text === "string" ? vectors[0]! : vectors;
  }

  /** Whether it was disposed, or its worker has ended. @internal */
  get isClosed(): boolean {
    return this.#transport.isClosed;
  }

  /**
   * Text to token ids, with the beginning-of-sequence token if the model uses one. Control tokens such as `<|im_end|>` are plain text
   * unless `special` is set; user-defined ones such as `<think>` are themselves.
   */
  async tokenize(text: string, options: TokenizeOptions = {}): Promise<Uint32Array> {
    return this.#transport.call("tokenize", tokenizeArguments(text, options));
  }

  /** Token ids to text; invalid UTF-8 becomes U+FFFD. */
  async detokenize(ids: ArrayLike<number>): Promise<string> {
    return this.#transport.call("detokenize", { ids: tokensOf(ids) });
  }

  /** Token ids of a conversation, up to the beginning of the model's reply. */
  async tokenizeChat(messages: readonly ChatMessage[], options: TemplateOptions = {}): Promise<Uint32Array> {
    return this.#transport.call("tokenizeChat", templateArguments(messages, options));
  }

  /** Frees all conversations, and the model unless other tabs use it, and ends its worker if there is one. Pending requests end with code `disposed`. */
  override async dispose(): Promise<void> {
    this.#transport.close(new ShohinError("disposed", "the engine was disposed"));
  }
}
