import type { ChatFinish, ChatMessage, ChatOptions, Chunk, ConversationOptions, EmbedOptions, EngineInfo, Finish, GenerateOptions, LoadOptions, ModelSource, Restored, RestoreOptions, Snapshot, TemplateOptions, TokenizeOptions } from "./api.js";
import { complete, type ChatCompletion, type ChatCompletionChunk, type ChatCompletionRequest } from "./completion.js";
import { abortError, ShohinError } from "./error.js";
import type { FromWorker, LoadRequest, Request, ToWorker } from "./protocol.js";
import { begun, chatArguments, checkName, completionOptions, conversationOptions, embedArguments, generateArguments, loadArguments, restoreArguments, templateArguments, tokenizeArguments, tokensOf } from "./arguments.js";
import { kindOf, type FileKind, type Kind } from "./source.js";

const PIECE = 4 << 20;

/** A request that waits for its answer. */
interface Pending {
  chunk?: (chunk: Chunk) => void;
  progress?: LoadOptions["onProgress"];
  want?: () => void;
  resolve: (value: unknown) => void;
  reject: (error: ShohinError) => void;
}

/** What a conversation needs of its engine. */
interface Link {
  info(): EngineInfo;
  call(request: Request, signal?: AbortSignal): Promise<unknown>;
  stream<F extends Finish>(request: Request, signal: AbortSignal | undefined): AsyncGenerator<Chunk<F>, F, void>;
}

/** One of several conversations over a model, each with what it remembers. */
export class Conversation {
  /** Tokens it can hold. */
  readonly context: number;
  #link: Link;
  #number: number;

  /** @internal */
  constructor(link: Link, number: number, context: number) {
    this.#link = link;
    this.#number = number;
    this.context = context;
  }

  /**
   * Streams the model's reply to a conversation. Turns that were seen before are not computed again. Leaving the loop
   * early ends the generation.
   */
  chat(messages: readonly ChatMessage[], options: ChatOptions = {}): AsyncGenerator<Chunk<ChatFinish>, ChatFinish, void> {
    return begun(() => {
      const { messages: all, options: { signal, ...rest } } = chatArguments(messages, options);
      return this.#link.stream({ call: "chat", conversation: this.#number, messages: all, options: rest }, signal);
    });
  }

  /** Streams the continuation of a plain text. Leaving the loop early ends the generation. */
  generate(prompt: string, options: GenerateOptions = {}): AsyncGenerator<Chunk, Finish, void> {
    return begun(() => {
      const { options: { signal, ...rest } } = generateArguments(prompt, options);
      return this.#link.stream({ call: "generate", conversation: this.#number, prompt, options: rest }, signal);
    });
  }

  /** Answers a request of OpenAI's form. */
  createChatCompletion(request: ChatCompletionRequest & { stream: true }, options?: { signal?: AbortSignal }): Promise<AsyncIterable<ChatCompletionChunk>>;
  createChatCompletion(request: ChatCompletionRequest & { stream?: false | null }, options?: { signal?: AbortSignal }): Promise<ChatCompletion>;
  async createChatCompletion(request: ChatCompletionRequest, options: { signal?: AbortSignal } = {}): Promise<ChatCompletion | AsyncIterable<ChatCompletionChunk>> {
    return complete(this, this.#link.info(), request, completionOptions(options));
  }

  /** What it remembers, to be kept outside the engine. */
  async snapshot(): Promise<Snapshot> {
    return (await this.#link.call({ call: "snapshot", conversation: this.#number })) as Snapshot;
  }

  /** Goes on where a snapshot, or the one that `save` kept under a name, was taken. */
  async restore(from: Snapshot | string, options: RestoreOptions = {}): Promise<Restored> {
    const { from: found, options: { signal, ...rest } } = restoreArguments(from, options);
    return (await this.#link.call({ call: "restore", conversation: this.#number, from: found, options: rest }, signal)) as Restored;
  }

  /** Keeps a snapshot in IndexedDB, in place of one of the same name. */
  async save(name: string): Promise<void> {
    checkName(name);
    await this.#link.call({ call: "save", conversation: this.#number, name });
  }

  /** Frees what it remembers. What is under way ends with code `disposed`. */
  async dispose(): Promise<void> {
    await this.#link.call({ call: "close", conversation: this.#number });
  }
}

/** A model in a worker of its own. */
export class Engine {
  #worker: Worker;
  #pending = new Map<number, Pending>();
  #nextId = 1;
  #dead: ShohinError | undefined;
  #info: EngineInfo | undefined;
  #link: Link = {
    info: () => this.info,
    call: (request, signal) => this.#call(request, signal),
    stream: (request, signal) => this.#stream(request, signal),
  };
  #own = new Conversation(this.#link, 0, 0);

  private constructor(worker: Worker) {
    this.#worker = worker;
    worker.onmessage = ({ data }: MessageEvent<FromWorker>) => this.#receive(data);
    worker.onerror = (event) => {
      event.preventDefault();
      this.#die(new ShohinError("worker", `the worker failed: ${event.message || "its script could not be loaded"}`));
    };
    worker.onmessageerror = () => this.#die(new ShohinError("worker", "a message to the worker could not be read"));
  }

  /**
   * Loads a model and starts a worker for it.
   *
   * The bytes go straight into the engine's memory and are held there once: a URL is streamed, a file is read in
   * slices, and an array is copied piece by piece. Several files are the parts of one model.
   */
  static async load(source: ModelSource, options: LoadOptions = {}): Promise<Engine> {
    const kind = kindOf(source);
    const given = loadArguments(options, kind);
    if (given.backend === "auto") {
      try {
        return await Engine.#load(kind, given);
      } catch (thrown) {
        // Bytes that were sent to a worker can be sent again; other sources it has tried again by itself.
        if (!(thrown instanceof ShohinError && thrown.code.startsWith("gpu_"))) throw thrown;
      }
      return Engine.#load(kind, { ...given, backend: "cpu" });
    }
    return Engine.#load(kind, given);
  }

  static async #load(kind: Kind, options: LoadOptions): Promise<Engine> {
    const { onProgress, signal, workerUrl, wasmUrl, ...rest } = options;
    if (signal?.aborted) throw abortError(signal);
    const base = typeof document === "undefined" ? location.href : document.baseURI;
    const file = (file: FileKind) => ("url" in file ? { url: absolute(file.url, base) } : file);
    // Headers cannot be sent to a worker, their names and values can.
    if (rest.request?.headers) rest.request = { ...rest.request, headers: [...new Headers(rest.request.headers)] };
    const request: LoadRequest = {
      call: "load",
      source: "bytes" in kind ? { feed: kind.bytes.byteLength } : "files" in kind ? { files: kind.files.map(file) } : file(kind),
      options: wasmUrl === undefined ? rest : { ...rest, wasmUrl: absolute(String(wasmUrl), base) },
    };
    const engine = new Engine(startWorker(workerUrl));
    let at = 0;
    // Ends the worker at once, also while it is busy.
    const abort = () => engine.#die(abortError(signal));
    signal?.addEventListener("abort", abort, { once: true });
    try {
      engine.#info = (await engine.#call(request, undefined, {
        progress: onProgress,
        want: () => {
          if (!("bytes" in kind)) return;
          // slice() copies, so the caller's array stays usable; the copy is moved, not copied again.
          const piece = at < kind.bytes.byteLength ? kind.bytes.slice(at, at + PIECE) : undefined;
          at += PIECE;
          engine.#post({ id: 1, call: "piece", piece }, piece ? [piece.buffer] : []);
        },
      })) as EngineInfo;
      return engine;
    } catch (error) {
      await engine.dispose();
      throw error;
    } finally {
      signal?.removeEventListener("abort", abort);
    }
  }

  /** What was loaded. */
  get info(): EngineInfo {
    return this.#info as EngineInfo;
  }

  /**
   * Streams the model's reply to a conversation. Turns that were seen before are not computed again. Leaving the loop
   * early ends the generation.
   */
  chat(messages: readonly ChatMessage[], options: ChatOptions = {}): AsyncGenerator<Chunk<ChatFinish>, ChatFinish, void> {
    return this.#own.chat(messages, options);
  }

  /** Streams the continuation of a plain text. Leaving the loop early ends the generation. */
  generate(prompt: string, options: GenerateOptions = {}): AsyncGenerator<Chunk, Finish, void> {
    return this.#own.generate(prompt, options);
  }

  /** Answers a request of OpenAI's form. */
  createChatCompletion(request: ChatCompletionRequest & { stream: true }, options?: { signal?: AbortSignal }): Promise<AsyncIterable<ChatCompletionChunk>>;
  createChatCompletion(request: ChatCompletionRequest & { stream?: false | null }, options?: { signal?: AbortSignal }): Promise<ChatCompletion>;
  async createChatCompletion(request: ChatCompletionRequest, options: { signal?: AbortSignal } = {}): Promise<ChatCompletion | AsyncIterable<ChatCompletionChunk>> {
    return complete(this, this.info, request, completionOptions(options));
  }

  /** A further conversation over the same model, which takes memory for what it remembers only. */
  async conversation(options: ConversationOptions = {}): Promise<Conversation> {
    const request = { call: "open" as const, options: conversationOptions(options) };
    const { conversation, context } = (await this.#call(request)) as { conversation: number; context: number };
    return new Conversation(this.#link, conversation, context);
  }

  /** What `conversation.snapshot` gives, of the engine's own conversation. */
  snapshot(): Promise<Snapshot> {
    return this.#own.snapshot();
  }

  /** As `conversation.restore`, into the engine's own conversation. */
  restore(from: Snapshot | string, options: RestoreOptions = {}): Promise<Restored> {
    return this.#own.restore(from, options);
  }

  /** As `conversation.save`, of the engine's own conversation. */
  save(name: string): Promise<void> {
    return this.#own.save(name);
  }

  /** A text as a vector: the model's final hidden states, pooled. No conversation is touched. */
  async embed(text: string, options: EmbedOptions = {}): Promise<Float32Array> {
    const { options: { signal, ...rest } } = embedArguments(text, options);
    return (await this.#call({ call: "embed", text, options: rest }, signal)) as Float32Array;
  }

  /** Text to token ids. Control tokens such as `<|im_end|>` are plain text unless `special` is set. */
  async tokenize(text: string, options: TokenizeOptions = {}): Promise<Uint32Array> {
    return (await this.#call({ call: "tokenize", ...tokenizeArguments(text, options) })) as Uint32Array;
  }

  /** Token ids to text; bytes that are no UTF-8 become U+FFFD. */
  async detokenize(ids: ArrayLike<number>): Promise<string> {
    return (await this.#call({ call: "detokenize", ids: tokensOf(ids) })) as string;
  }

  /** Token ids of a conversation, ready for the model's reply. */
  async tokenizeChat(messages: readonly ChatMessage[], options: TemplateOptions = {}): Promise<Uint32Array> {
    return (await this.#call({ call: "tokenizeChat", ...templateArguments(messages, options) })) as Uint32Array;
  }

  /** Ends the worker and frees all its memory. What is under way ends with code `disposed`. */
  async dispose(): Promise<void> {
    this.#die(new ShohinError("disposed", "the engine was disposed"));
  }

  #post(message: ToWorker, transfer: Transferable[] = []): void {
    this.#worker.postMessage(message, transfer);
  }

  #die(error: ShohinError): void {
    if (this.#dead) return;
    this.#dead = error;
    this.#worker.terminate();
    for (const { reject } of this.#pending.values()) reject(error);
    this.#pending.clear();
  }

  /** Ends with any of the worker's own threads, for which it might wait for ever. */
  #watch(lives: readonly string[]): void {
    const ended = () => this.#die(new ShohinError("crashed", "a thread of the engine was ended"));
    for (const life of lives) navigator.locks.request(life, ended).catch(() => {});
  }

  #receive(message: FromWorker): void {
    if ("lives" in message) return this.#watch(message.lives);
    const pending = this.#pending.get(message.id);
    if (!pending) return;
    if ("progress" in message) pending.progress?.(message.progress);
    else if ("want" in message) pending.want?.();
    else if ("chunk" in message) pending.chunk?.(message.chunk);
    else {
      this.#pending.delete(message.id);
      if ("error" in message) pending.reject(new ShohinError(message.error.code, message.error.message));
      else pending.resolve(message.done);
    }
  }

  #call(
    request: Request,
    signal?: AbortSignal,
    on: Pick<Pending, "chunk" | "progress" | "want"> = {},
  ): Promise<unknown> {
    if (this.#dead) return Promise.reject(this.#dead);
    if (signal?.aborted) return Promise.reject(abortError(signal));
    const id = this.#nextId++;
    const abort = () => {
      this.#post({ id, call: "abort" });
      // Not when the worker says so: it may be busy for long.
      const pending = this.#pending.get(id);
      this.#pending.delete(id);
      pending?.reject(abortError(signal));
    };
    signal?.addEventListener("abort", abort, { once: true });
    return new Promise((resolve, reject) => {
      this.#pending.set(id, {
        ...on,
        resolve,
        reject: (error) => reject(error.code === "aborted" ? abortError(signal) : error),
      });
      try {
        this.#post({ id, ...request });
      } catch (cause) {
        this.#pending.delete(id);
        reject(new ShohinError("argument", "an option cannot be sent to the worker", { cause }));
      }
    }).finally(() => signal?.removeEventListener("abort", abort));
  }

  async *#stream<F extends Finish>(
    request: Request,
    signal: AbortSignal | undefined,
  ): AsyncGenerator<Chunk<F>, F, void> {
    if (signal?.aborted) throw abortError(signal);
    // Aborted by the caller's signal, or by the caller leaving its loop.
    const abort = new AbortController();
    const forward = () => abort.abort(signal?.reason);
    signal?.addEventListener("abort", forward, { once: true });
    const chunks: Chunk<F>[] = [];
    let wake = () => {};
    let failed: { error: unknown } | undefined;
    let ended = false;
    this.#call(request, abort.signal, {
      chunk: (chunk) => {
        chunks.push(chunk as Chunk<F>);
        wake();
      },
    }).then(
      () => {
        ended = true;
        wake();
      },
      (error: unknown) => {
        failed = { error };
        wake();
      },
    );
    try {
      for (;;) {
        const chunk = chunks.shift();
        if (chunk) {
          yield chunk;
          if (chunk.finish) return chunk.finish;
        } else if (failed) {
          throw failed.error;
        } else if (ended) {
          throw new ShohinError("worker", "the worker ended a generation without a result");
        } else {
          await new Promise<void>((resolve) => (wake = resolve));
        }
      }
    } finally {
      signal?.removeEventListener("abort", forward);
      abort.abort();
    }
  }
}

function absolute(url: string, base: string): string {
  try {
    return new URL(url, base).href;
  } catch (cause) {
    throw new ShohinError("argument", `${url} is not a URL`, { cause });
  }
}

function startWorker(workerUrl: string | URL | undefined): Worker {
  try {
    if (workerUrl !== undefined) return new Worker(workerUrl, { type: "module" });
    const home = new URL(import.meta.url);
    if (/^https?:$/.test(home.protocol) && home.origin !== location.origin) {
      // A worker's own script must come from the page's origin, but may import from another, such as a CDN.
      const script = `import ${JSON.stringify(new URL("worker.js", home).href)};`;
      const url = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
      const worker = new Worker(url, { type: "module" });
      // The worker has fetched it before it says anything.
      worker.addEventListener("message", () => URL.revokeObjectURL(url), { once: true });
      return worker;
    }
    // Bundlers look for exactly this expression.
    return new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
  } catch (cause) {
    throw new ShohinError("worker", "the worker could not be started", { cause });
  }
}
