// A loaded model: in a worker or on the calling thread, whatever the entry point connects it to.
import { conversationOptions, embedArguments, loadArguments, templateArguments, tokenizeArguments, tokensOf } from "../api/arguments.js";
import { abortError, ShohinError } from "../api/errors.js";
import type { EngineInfo, ModelInfo } from "../api/info.js";
import type { ChatMessage } from "../api/message.js";
import type { Availability, ConversationOptions, EmbedOptions, LoadOptions, ModelSource, TemplateOptions, TokenizeOptions } from "../api/options.js";
import { addressOf, publishedModel } from "../load/names.js";
import { readerOf, sourceOf, type FileSource } from "../load/source.js";
import { Conversation } from "./conversation.js";
import type { Params, Result } from "./protocol.js";
import type { Caller } from "./runtime.js";
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
): Promise<{ transport: Transport; result: Result<M> }> {
  const found = sourceOf(source);
  const { onProgress, signal, workerUrl, wasmUrl, hub, shared, ...rest } = loadArguments(options, found);
  if (signal?.aborted) throw abortError(signal);
  const file = (file: FileSource) => ("url" in file ? { url: absolute(addressOf(file.url, hub)) } : file);
  const published = "url" in found ? publishedModel(found.url) : undefined;
  if (published && rest.sha256 === undefined && rest.bytes === undefined) rest.sha256 = published.sha256;
  // Headers cannot be sent to a worker, their names and values can.
  if (rest.request?.headers) rest.request = { ...rest.request, headers: [...new Headers(rest.request.headers)] };
  const params = {
    source: "bytes" in found ? { size: found.bytes.byteLength } : "files" in found ? { files: found.files.map(file) } : file(found),
    options: { ...rest, ...(wasmUrl !== undefined && { wasmUrl: absolute(String(wasmUrl)) }) },
  };
  const read = "bytes" in found ? readerOf(found.bytes) : undefined;
  const caller = { signal, ...(onProgress && { onProgress: guarded(onProgress) }), ...(read && { read }) };
  const together = shared && method === "load" ? await share?.(workerUrl, params, signal) : undefined;
  const transport = together?.transport ?? connect(workerUrl);
  try {
    if (together && !together.loaded && (options.cache ?? true)) await keepFirst(workerUrl, params, caller);
    return { transport, result: await transport.call(method, params, caller) };
  } catch (error) {
    transport.close(new ShohinError("disposed", "the engine was disposed"));
    throw error;
  }
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
  #transport: Transport;

  private constructor(transport: Transport, info: ModelInfo) {
    super(transport, 0, info.context);
    this.#transport = transport;
    this.info = { ...info, shared: transport.shared ?? false };
  }

  /**
   * Loads a model. In a browser it runs in a worker of its own, or with `shared` in one of all tabs, in Node and with `shohin/local` on the calling thread.
   *
   * The bytes go straight into the engine's memory and are held there once: a URL is streamed, a file is read in
   * slices, and an array is copied piece by piece. Several files are the parts of one model.
   */
  static async load(source: ModelSource, options: LoadOptions = {}): Promise<Engine> {
    const { transport, result } = await request("load", source, options);
    return new Engine(transport, result);
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
    const { conversation, context } = await this.#transport.call("open", conversationOptions(options));
    return new Conversation(this.#transport, conversation, context);
  }

  /** Embeds a text, or several: the model's final hidden states, pooled. Does not affect conversations. */
  embed(text: string, options?: EmbedOptions): Promise<Float32Array>;
  embed(texts: readonly string[], options?: EmbedOptions): Promise<Float32Array[]>;
  async embed(text: string | readonly string[], options: EmbedOptions = {}): Promise<Float32Array | Float32Array[]> {
    const { texts, options: { signal, ...rest } } = embedArguments(text, options);
    const vectors = await this.#transport.call("embed", { texts, options: rest }, { signal });
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
