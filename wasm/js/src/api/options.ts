// What callers pass to the engine.
import type { ChatFinish, Chunk } from "./chunk.js";
import type { ShohinError } from "./errors.js";
import type { ChatMessage, Snapshot, ToolCall } from "./message.js";

/**
 * A file with a model or a part of one: its address (in Node also a path), or the file itself. A string may also be the name of a published
 * model such as `bonsai-1.7b`, or a file on the Hugging Face Hub, `hf:owner/repository/file` or `hf:owner/repository@revision/file`.
 */
export type ModelFile = string | URL | Blob;

/**
 * A model to load. Bytes are copied into the engine and remain the caller's. Several files, such as an array or a `FileList`,
 * are the parts of one model: in any order if they are named `name-00001-of-00003.gguf` and so on, otherwise in the order
 * given. One address or path of that form is enough: the other parts are fetched from beside it.
 */
export type ModelSource = ModelFile | ArrayBuffer | ArrayBufferView | Iterable<ModelFile>;

/** An adapter (LoRA) in a GGUF file: its address (in Node also a path), or the file itself. Bytes are copied and remain the caller's. */
export type AdapterSource = ModelFile | ArrayBuffer | ArrayBufferView;

/** Options of `adapters.add`. */
export interface AdapterOptions {
  /** The name by which it is called. Default: that of the file, without `.gguf`; bytes and a `Blob` have none. */
  name?: string;
  /** Factor of its effect; 0 turns it off. Default 1. */
  scale?: number;
  /** Headers, credentials and so on for the download of a URL. Those of the model are not sent. */
  request?: RequestOptions;
  /** Aborts the download. */
  signal?: AbortSignal;
}

/** An adapter to be loaded with a model. */
export type LoadAdapter = ({ url: string | URL; data?: never } | { data: Exclude<AdapterSource, string | URL>; url?: never }) & Omit<AdapterOptions, "signal">;

/** An adapter for a reply. */
export interface AdapterChoice {
  /** One of `adapters.list()`. */
  name: string;
  /** Default: that of `adapters.list()`. */
  scale?: number;
}

/** An adapter of an engine. */
export interface AdapterInfo {
  name: string;
  scale: number;
}

/** Progress of loading. */
export interface Progress {
  /** `download` (URL) or `read` (file, bytes), then `prepare` once all bytes have arrived. */
  stage: "download" | "read" | "prepare";
  /** Bytes so far. */
  loaded: number;
  /** Bytes in total, if known. */
  total?: number;
}

/** Layouts of tensors of type 42. */
export const ID42_LAYOUTS = ["auto", "64", "128", "codes-first"] as const;

/** Number formats of the key-value cache. */
export const KV_FORMATS = ["f16", "f32", "q8", "q4", "fp8_e4m3", "fp8_e5m2"] as const;

/** Options of `fetch` for downloads. Node's types lack some of them. */
export interface RequestOptions {
  headers?: Headers | [string, string][] | Record<string, string>;
  credentials?: "include" | "omit" | "same-origin";
  cache?: "default" | "force-cache" | "no-cache" | "no-store" | "only-if-cached" | "reload";
  integrity?: string;
  mode?: "cors" | "navigate" | "no-cors" | "same-origin";
  referrerPolicy?:
    | ""
    | "no-referrer"
    | "no-referrer-when-downgrade"
    | "origin"
    | "origin-when-cross-origin"
    | "same-origin"
    | "strict-origin"
    | "strict-origin-when-cross-origin"
    | "unsafe-url";
}

/** Options of `Engine.load`. */
export interface LoadOptions {
  /**
   * Called at most every 50 ms and at every change of stage. What it throws does not end the loading: it is reported as an uncaught error
   * (`reportError`), in Node by `console.error`.
   */
  onProgress?: (progress: Progress) => void;
  /** Aborts the download or the loading. */
  signal?: AbortSignal;
  /** Capacity of a conversation in tokens, at least 1. Default: the model's own limit, at most 4096. */
  context?: number;
  /** Number format of the key-value cache. Default `f16`. */
  kv?: (typeof KV_FORMATS)[number];
  /**
   * The positions that a token attends to: `full`, `window:POSITIONS` or `window:POSITIONS:SINKS` for the last ones and the first ones,
   * `dilated:BLOCKS:STEP`, `strided:BLOCKS:STRIDE` or `bigbird:BLOCKS:GLOBAL:RANDOM` in blocks of 64. Default `full`.
   */
  attention?: string;
  /** Number format of the activations. `f32` is exact and slower. Default `int8`. */
  activations?: "int8" | "f32";
  /**
   * The device. `cpu` is WebAssembly. `webgpu` is the GPU, including a software adapter: weights are uploaded as they arrive and not
   * kept in this memory. `auto` is a hardware GPU if there is one that can run the model, and the CPU otherwise. Default `cpu`.
   * WebGPU requires that the length of the file is known. With `adapters`, `auto` is the CPU, and `webgpu` fails with code `gpu_unsupported`.
   *
   * A GPU can be lost at any time, more often on phones. Generations then fail with code `gpu_lost`: load the model again, if
   * necessary on the CPU.
   */
  backend?: "cpu" | "webgpu" | "auto";
  /**
   * Keep a model from an http or https URL in the browser's origin-private file system: later loads read it from there without the
   * network, and an interrupted download resumes. The copy is assumed to be current unless it turns out to be damaged, unusable, or not the file
   * that `sha256` and `bytes` describe while the server has a newer one; then it is fetched again. `deleteCache` deletes it. Without
   * enough storage the model is loaded without a copy, except with `"require"`: loading then fails with code `quota`, before the
   * download if the size is known. Default true. No effect in Node, and with `shohin/local` outside workers.
   */
  cache?: boolean | "require";
  /**
   * Adapters (LoRA) to begin with, as if added by `adapters.add`. They are read after the model, without progress. `preload` downloads them, too;
   * `availability` is that of the model.
   */
  adapters?: readonly LoadAdapter[];
  /**
   * Layout of tensors of type 42, which three kinds of ternary files use: groups of 64 weights (llama.cpp), of 128 (older files of
   * PrismML), or of 128 with codes before scales (oxibonsai). Default `auto`: detected, and refused if ambiguous.
   */
  id42?: (typeof ID42_LAYOUTS)[number];
  /** SHA-256 of the file in hexadecimal digits. Any other file is refused with code `integrity`. */
  sha256?: string;
  /** Size of the file in bytes. Any other file is refused with code `integrity`, as soon as its size is known. */
  bytes?: number;
  /**
   * Base address for names of models and `hf:` files: a mirror of the Hugging Face Hub. Default `https://huggingface.co`, in Node the
   * environment variable `HF_ENDPOINT` if it is set.
   */
  hub?: string | URL;
  /** Headers, credentials and so on for the download of a URL. */
  request?: RequestOptions;
  /**
   * Maximum number of threads. More than one is used where threads can share memory: on cross-origin isolated pages
   * (`Cross-Origin-Opener-Policy: same-origin` and `Cross-Origin-Embedder-Policy: require-corp`), and in Node. The output does not
   * depend on it. Default: the number of cores. In Node, and with `shohin/local`, models loaded with the same number share their threads,
   * and each number keeps its threads and memory until the process ends: use one number.
   */
  threads?: number;
  /**
   * The build of the CPU module: `relaxed`, for browsers with WebAssembly's relaxed SIMD (Chrome and Firefox; Node 21 and later), is up
   * to two thirds faster than `simd128`, with the same output. Default: the fastest that runs here. Loading fails with code `wasm` if
   * the requested build is not available; in Node, and with `shohin/local`, also if an earlier model has loaded the other build.
   */
  simd?: "relaxed" | "simd128";
  /**
   * Milliseconds without a byte after which a connection counts as broken. The download then continues over a new one; after six in a
   * row that brought nothing it fails with code `timeout`, or after the first if the server does not send the length of the file.
   * A slow connection never fails. Default 30,000; `Infinity` disables the timeout.
   */
  stallTimeout?: number;
  /**
   * Use one engine together with all tabs of this origin that load the same URL with the same options and this one, so that the weights
   * are in memory once. Each tab has its own conversations. The shared engine has one thread, and computes for several tabs in turn. A
   * tab has an engine of its own, as without this option, for files and bytes, with `backend: "webgpu"`, if the package comes from
   * another origin, and where there is no `SharedWorker`; `info.shared` tells. Default false. No effect in Node and with `shohin/local`.
   */
  shared?: boolean;
  /** Address of `worker.js`, if the bundler has moved it. No effect in Node and with `shohin/local`. */
  workerUrl?: string | URL;
  /**
   * Address of `shohin_wasm_bg.wasm` or `shohin_wasm_relaxed_bg.wasm`, if the bundler has moved it: the single-threaded CPU module. It is
   * not used with several threads or a GPU, whose modules are fetched from beside the package's scripts. In Node, and with
   * `shohin/local`, the module is loaded once: later loads do not read this option.
   */
  wasmUrl?: string | URL;
}

/** Whether a model can be loaded, and what it takes. */
export interface Availability {
  /**
   * `available`: all of it is on this device. `downloading`: an engine of this site is downloading it, in this tab or another.
   * `downloadable`: its server answers. `unavailable`: it cannot be loaded now.
   */
  status: "available" | "downloadable" | "downloading" | "unavailable";
  /** Bytes that are still to be downloaded, if known. */
  remaining?: number;
  /** Why the model is unavailable. */
  error?: ShohinError;
}

/** Named sampling settings; settings given beside a preset override it. */
export type Preset = "greedy" | "balanced" | "creative" | "code" | "bonsai";

/** Options of `generate`. */
export interface GenerateOptions {
  /** Ends the generation with a `ShohinError` of code `aborted`. */
  signal?: AbortSignal;
  /** Maximum number of new tokens. Default, and `Infinity`: until the model stops or the context is full. */
  maxTokens?: number;
  /** Default `bonsai`: the settings of the Bonsai model card. */
  preset?: Preset;
  /** 0 is greedy. */
  temperature?: number;
  /** 0 keeps all tokens. */
  topK?: number;
  /** 1 keeps all tokens. */
  topP?: number;
  /** 0 keeps all tokens. */
  minP?: number;
  /** 1 keeps all tokens. */
  typicalP?: number;
  /** 1 is off. */
  repetitionPenalty?: number;
  /** For tokens that the reply has had; those of the prompt do not count. 0 is off. */
  presencePenalty?: number;
  /** For each time that the reply has had the token. 0 is off. */
  frequencyPenalty?: number;
  /** Window of these penalties: the last tokens, of which the repetition penalty counts those of the prompt, too. */
  penaltyLastN?: number;
  /** Strength of the DRY penalty against repeated passages; 0 is off. */
  dryMultiplier?: number;
  /** Growth of the DRY penalty with each repeated token. */
  dryBase?: number;
  /** Repetitions shorter than this many tokens are not penalized. */
  dryAllowedLength?: number;
  /** Window of DRY in tokens. */
  dryLastN?: number;
  /** The same seed, prompt and settings give the same text. Default: random, reported in `finish.seed`. */
  seed?: number;
  /** Strings that end the generation; they are not part of the text. */
  stop?: string | readonly string[];
  /** As for `chat`, whose `trim` needs messages; `shift` keeps the first tokens. Default `error`. */
  overflow?: "error" | "shift";
  /**
   * The adapters of this reply, in the place of the conversation's; none if it is empty. What is in the cache is computed again for others.
   * Default: those of the conversation.
   */
  adapters?: readonly AdapterChoice[];
  /** Report the log-probability of each token and of this many most likely alternatives. Default: none. */
  logprobs?: number;
  /**
   * `json_object`: the reply is a JSON object. `json_schema`: it is a JSON value that satisfies the schema. `choice`: it is one of the
   * texts. `regex`: the regular expression matches all of it. `grammar`: it is a text of the grammar in GBNF. It always parses, unless
   * a stop string ends it, or `maxTokens` or the remaining context is less than the shortest reply needs (`finish.reason` is then
   * `length` or `context_full`). The model is not told: state the format in the prompt, too. Throws `unsupported` with the JSON
   * pointer of a keyword that is not supported. Default `text`: unconstrained.
   */
  responseFormat?: ResponseFormat;
  /**
   * Search for the likeliest text as a whole with this many beams at once (at most 64), instead of drawing token by token. All beams are in
   * `finish.beams`; the best one arrives in one chunk, at the end. Only together with `signal`, `maxTokens`, `adapters` and the two below, and
   * `thinking` in `chat`.
   */
  beams?: number;
  /** Beams are compared by their log-probability divided by this power of the number of tokens. Default 1; over 0 favours long texts. */
  lengthPenalty?: number;
  /** End the search as soon as there are as many texts as beams, though others could be likelier. Default false. */
  earlyStopping?: boolean;
}

/**
 * Format of a reply. JSON has no white space, which only costs tokens, unless `whitespace` allows it; properties come in the order of
 * the schema.
 */
export type ResponseFormat =
  | { type: "text" }
  | { type: "json_object"; whitespace?: boolean }
  | { type: "json_schema"; schema: object | boolean; whitespace?: boolean }
  | { type: "choice"; choices: readonly string[] }
  | { type: "regex"; pattern: string }
  | { type: "grammar"; grammar: string };

/** A function that the model may call. */
export interface Tool {
  type: "function";
  function: {
    name: string;
    description?: string;
    /** JSON Schema of the arguments. */
    parameters?: object;
    /**
     * True: the arguments satisfy `parameters`, and a schema that is not supported is the error `unsupported`. False: they are any object.
     * Left out: they satisfy what is supported of `parameters`; they are any object if the schemas are too large together.
     */
    strict?: boolean | null;
  };
}

/** Options of `chat`. */
export interface ChatOptions extends Omit<GenerateOptions, "overflow"> {
  /**
   * Whether a reasoning model may think before it answers, and for how many tokens at most: when the budget is used up, the
   * end-of-thinking marker is inserted and the model answers. Default: false.
   */
  thinking?: boolean | { budget: number };
  /**
   * Functions the model may call. Calls are in `finish.message.toolCalls`; their arguments satisfy the JSON Schema `parameters`, or are any
   * object, as `strict` says. Throws `unsupported` for a schema that is not supported with `strict: true`, and if the model has no
   * template for tools. With a `responseFormat`, a reply is calls alone or has the format.
   */
  tools?: readonly Tool[];
  /** Whether the model decides about calls, must make one, or must call the function of this name. Default `auto`. */
  toolChoice?: "auto" | "required" | { name: string };
  /**
   * Continue the last message, a reply that was cut off by an abort or `maxTokens`, instead of answering it. Chunks have what is new,
   * `finish.message` is the whole reply. It may also be the beginning of a reply that the model did not write. Default: false.
   */
  continueFinalMessage?: boolean;
  /**
   * What to do when a conversation no longer fits into the context. `error` throws `context_full`, or ends a reply with that
   * reason. `shift` drops the older half of the tokens after the system messages, as often as necessary: conversations and replies
   * can be of any length, and the remaining tokens are not computed again (on a GPU they are). `trim` leaves out the oldest turns, but
   * never system messages or the last message, and computes the rest again. Default `error`.
   */
  overflow?: "error" | "shift" | "trim";
}

/** A function that a session runs when the model calls it, with the arguments that the model wrote. */
export type ToolFunction = (args: any, context: { signal: AbortSignal }) => unknown;

/** A tool of a session. A function alone gets any object as its arguments. */
export type SessionTool =
  | ToolFunction
  | {
      description?: string;
      /** JSON Schema of the arguments. */
      parameters?: object;
      /**
       * True: the arguments satisfy `parameters`, and a schema that is not supported is the error `unsupported`. False: they are any object.
       * Left out: they satisfy what is supported of `parameters`; they are any object if the schemas are too large together.
       */
      strict?: boolean | null;
      /** May be asynchronous. A result other than a string is given to the model as JSON. */
      run: ToolFunction;
    };

/** Options of `session`: those of `chat` for all of its replies, and its own. */
export interface SessionOptions extends Omit<ChatOptions, "continueFinalMessage" | "signal" | "tools"> {
  /** The first message, of role `system`. */
  system?: string;
  /** Messages of an earlier session, or examples. */
  messages?: readonly ChatMessage[];
  /** Functions the model may call, by name. */
  tools?: Readonly<Record<string, SessionTool>>;
  /** Maximum number of rounds of calls for one reply; a `send` with more fails with code `tool_rounds`. Default 8. */
  maxToolRounds?: number;
}

/** Options of `send`, which override those of the session. `toolChoice` and `continueFinalMessage` concern the first round. */
export type SendOptions = Omit<ChatOptions, "tools">;

/** A tool call and its result. */
export interface ToolResult extends ToolCall {
  /** The result as the model reads it. */
  content: string;
  /** What the function threw, if it failed. */
  error?: unknown;
}

/** A piece of a reply of a session. */
export interface SessionChunk extends Chunk<ChatFinish> {
  /** Results of the tool calls before. */
  toolResults?: ToolResult[];
}

/** Options of `tokenizeChat`: the ones that affect the chat template. */
export type TemplateOptions = Pick<ChatOptions, "continueFinalMessage" | "thinking" | "tools">;

/** Options of `listCache` and `deleteCache`. */
export interface CacheOptions {
  /** Base address for names of models and `hf:` files, as `load` had it. Default `https://huggingface.co`. */
  hub?: string | URL;
}

/** Options of `conversation`. */
export interface ConversationOptions {
  /** Capacity in tokens. Default: that of the engine. */
  context?: number;
  /** Its adapters, which it keeps. Default: those that the engine has now. */
  adapters?: readonly AdapterChoice[];
}

/** Options of `createChatCompletion`, beside the request. */
export interface CompletionOptions {
  signal?: AbortSignal;
  /** The adapters of this reply, as for `chat`. */
  adapters?: readonly AdapterChoice[];
}

/** Options of `tokenize`. */
export interface TokenizeOptions {
  /** Parse control tokens such as `<|im_end|>` in the text. Default false: they are plain text. */
  special?: boolean;
}

/** Options of `embed`. */
export interface EmbedOptions {
  /** The mean of all final hidden states, or that of the last token. Default: what the file asks for, or `mean`. */
  pooling?: "mean" | "last";
  /** Scale to length 1. Default true. */
  normalize?: boolean;
  /** The adapters of this request. Default: those that the engine has now. */
  adapters?: readonly AdapterChoice[];
  signal?: AbortSignal;
}

/** Options of `restore`. */
export interface RestoreOptions {
  /** If the state is damaged, or belongs to another model or to other adapters, compute it again from the messages instead of failing. Default false. */
  recompute?: boolean;
  /** The adapters with which the state was made. Default: those of the conversation. */
  adapters?: readonly AdapterChoice[];
  signal?: AbortSignal;
}

/** What `restore` accepts: a snapshot, its state alone or a file of the command line, or the name of one kept by `save`. @internal */
export type SnapshotSource = Snapshot | Pick<Snapshot, "state"> | string;

/** A question and its answer, word for word. */
export interface Fact {
  question: string;
  answer: string;
  /** Other wordings of the question, which are taught, too. */
  forms?: string[];
}

/** How far a teaching is. */
export type TeachProgress =
  /** The model is asked what it says so far. */
  | { stage: "ask"; share: number }
  /** What does not change is computed. */
  | { stage: "prepare"; share: number }
  /** A step, the loss before it, and the probability of the least probable token of an answer. */
  | { stage: "learn"; step: number; loss: number; sure: number };

/** Options of `Engine.teach`. */
export interface TeachOptions {
  /** Called for every part of the work. */
  onProgress?: (progress: TeachProgress) => void;
  /** Ends the teaching, of which nothing remains. */
  signal?: AbortSignal;
  /** Name of the adapter; one of the engine that has it is replaced. Default `taught`. */
  name?: string;
  /** Questions whose answers the model rehearses, so that it keeps them. Default: 70 that the built-in model answers. */
  questions?: string[];
  /** Columns between the two factors of the adapter. Default 8. */
  rank?: number;
  /** Steps at most. Default 80. */
  steps?: number;
  /** The highest learning rate. Default 0.003. */
  learningRate?: number;
  /** Number that random numbers follow from. Default 0. */
  seed?: number;
  /** The model's file, for an engine that was loaded from bytes, which it does not keep. */
  model?: Blob;
}

/** What a model says to a question of a fact before and after. */
export interface Answer {
  question: string;
  expected: string;
  before: string;
  after: string;
}

/** What was taught. */
export interface Taught {
  name: string;
  /** The adapter: a GGUF file, which other programs read, too. */
  file: Uint8Array<ArrayBuffer>;
  steps: number;
  /** Whether every answer is, word for word, as it should be. */
  learned: boolean;
  answers: Answer[];
}
