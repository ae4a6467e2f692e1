/** A file with a model or a part of one: an address (in Node also a path), or the file itself. */
export type ModelFile = string | URL | Blob;

/**
 * Where a model comes from. Bytes are copied into the engine and stay yours. Several files, such as an array or a `FileList`,
 * are the parts of one model: in any order if they are named `name-00001-of-00003.gguf` and so on, otherwise in theirs. Of an
 * address or path of that form one is enough: the other parts are found beside it.
 */
export type ModelSource = ModelFile | ArrayBuffer | ArrayBufferView | Iterable<ModelFile>;

/** How far loading has come. */
export interface Progress {
  /** `download` (URL) or `read` (file, bytes), then `prepare` once all bytes are there. */
  stage: "download" | "read" | "prepare";
  /** Bytes so far. */
  loaded: number;
  /** Bytes in all, where that is known. */
  total?: number;
}

/** Options of `Engine.load`. */
export interface LoadOptions {
  /** Called at most every 50 ms and at every change of stage. */
  onProgress?: (progress: Progress) => void;
  /** Aborts the download or the loading. */
  signal?: AbortSignal;
  /** Tokens a conversation can hold, at least 1. Default: the model's own limit, at most 4096. */
  context?: number;
  /** Number format of the key-value cache. Default `f16`. */
  kv?: "f16" | "f32" | "q8";
  /** Number format of activations between layers' inputs. `f32` is exact and slower. Default `int8`. */
  activations?: "int8" | "f32";
  /**
   * What computes. `cpu` is WebAssembly. `webgpu` is the GPU, in software if there is no other: the weights go there while
   * they arrive and are not kept in this memory. `auto` is a real GPU where there is one that can run the model, and the
   * CPU otherwise. Default `cpu`. The file's length must be known for WebGPU.
   *
   * A GPU can be lost at any time, a phone's more often than others. Then generations fail with code `gpu_lost`; load the
   * model again, on the CPU if need be.
   */
  backend?: "cpu" | "webgpu" | "auto";
  /**
   * Keep a model from a URL in the browser's origin-private file system: the next time it is read from there, without the
   * network, and a download that broke off goes on where it was. The copy is taken to be current for ever, unless it turns
   * out to be damaged or unusable, or not to be the file that `sha256` and `bytes` describe while the server has another one by now:
   * then it is fetched again. `deleteCache` deletes it. Where there is no room, the model is loaded
   * without a copy, except with `"require"`: then loading fails with code `quota`, before the download where the size is
   * known. Default false. Without effect in Node.
   */
  cache?: boolean | "require";
  /** SHA-256 of the file, in hexadecimal digits. Another file is refused with code `integrity`. */
  sha256?: string;
  /** Size of the file in bytes. Another file is refused with code `integrity`, as soon as the size is known. */
  bytes?: number;
  /** Headers, credentials and so on for the download of a URL. */
  request?: Pick<RequestInit, "headers" | "credentials" | "cache" | "integrity" | "mode" | "referrerPolicy">;
  /**
   * How many threads compute, at most. More than one are used where they may share memory: on pages that are
   * cross-origin isolated (`Cross-Origin-Opener-Policy: same-origin` and `Cross-Origin-Embedder-Policy: require-corp`),
   * and in Node. The text is the same. Default: as many as the processor has cores.
   */
  threads?: number;
  /**
   * Which build of the module computes on the CPU: `relaxed`, for browsers with WebAssembly's relaxed SIMD (Chrome and Firefox; Node 21 on), is up
   * to two thirds faster than `simd128`, and says the same. Default: the fastest that runs here. One that is asked for and cannot be had
   * ends loading with code `wasm`; in Node, and with a `LocalEngine`, that is also so where another model has brought the other build.
   */
  simd?: "relaxed" | "simd128";
  /**
   * Milliseconds without a byte after which a connection counts as broken: a download goes on over another one, and after six in a row
   * that brought nothing it fails with code `timeout`; of a file whose length the server does not tell, at the first. However slowly bytes come, it does not fail. Default 30,000;
   * `Infinity` waits for ever.
   */
  stallTimeout?: number;
  /** Where `worker.js` is, should the bundler have moved it. */
  workerUrl?: string | URL;
  /**
   * Where `shohin_wasm_bg.wasm` is, should the bundler have moved it, or `shohin_wasm_relaxed_bg.wasm`. That is the module for one thread on the
   * CPU; it is not looked at where several threads or a GPU compute, whose modules are found beside the package's scripts.
   */
  wasmUrl?: string | URL;
}

/** A function the model wants to have called. */
export interface ToolCall {
  name: string;
  /** A JSON text. */
  arguments: string;
}

/** One message of a conversation. */
export interface Message {
  role: "system" | "user" | "assistant" | "tool";
  content: string;
  /** What a reasoning model thought before it answered. */
  reasoning?: string;
  /** What an assistant asked to have called; the results follow as messages of role `tool`. */
  toolCalls?: readonly ToolCall[];
}

/** A part of a message's content. */
export interface TextPart {
  type: "text";
  text: string;
}

/** A message as `chat` takes it: its content may also come in parts, which are joined. */
export interface ChatMessage extends Omit<Message, "content"> {
  content: string | readonly TextPart[];
}

/** Named sampling settings; single settings given beside a preset override it. */
export type Preset = "greedy" | "balanced" | "creative" | "code" | "bonsai";

/** Options of `generate`. */
export interface GenerateOptions {
  /** Ends the generation with a `ShohinError` of code `aborted`. */
  signal?: AbortSignal;
  /** At most this many new tokens. Default, and `Infinity`: until the model ends or the context is full. */
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
  /** 0 is off. */
  presencePenalty?: number;
  /** 0 is off. */
  frequencyPenalty?: number;
  /** Tokens the penalties look back on. */
  penaltyLastN?: number;
  /** Strength of the DRY penalty against repeated passages; 0 is off. */
  dryMultiplier?: number;
  /** Growth of the DRY penalty with each repeated token. */
  dryBase?: number;
  /** Repetitions up to this many tokens are free. */
  dryAllowedLength?: number;
  /** Tokens DRY looks back on. */
  dryLastN?: number;
  /** The same seed, prompt and settings give the same text. Default: random, reported in `finish.seed`. */
  seed?: number;
  /** Texts that end the generation; they are not part of it. */
  stop?: string | readonly string[];
  /** As for `chat`; `shift` keeps the first tokens. Default `error`. */
  overflow?: "error" | "shift" | "trim";
  /** Report each token's log-probability, and of so many most likely ones. Default: none. */
  logprobs?: number;
  /**
   * `json_object`: the reply is a JSON object. `json_schema`: it is a JSON value that satisfies the schema. It always parses, unless
   * a stop text cuts it off, or `maxTokens` or the context are less than the shortest reply takes (then `finish.reason` is
   * `length` or `context_full`). Say in the prompt what is wanted, too: this alone does not tell the model. Throws
   * `unsupported` with the JSON pointer of what cannot be kept to. Default `text`: anything.
   */
  responseFormat?: ResponseFormat;
}

/** The form of a reply. */
export type ResponseFormat = { type: "text" } | { type: "json_object" } | { type: "json_schema"; schema: object | boolean };

/** Options of `chat`. */
export interface ChatOptions extends GenerateOptions {
  /**
   * Whether a reasoning model may think before it answers, and for how many tokens at most: after so many, the end of its
   * thoughts is put in, and it answers. Default: false.
   */
  thinking?: boolean | { budget: number };
  /**
   * Functions the model may call, each `{ type: "function", function: { name, description, parameters } }`. Calls are in
   * `finish.message.toolCalls`; their arguments always satisfy `parameters`, a JSON Schema, or are any object for functions
   * with `strict: false`. Throws `unsupported` for a schema that cannot be kept to, and if the model knows no tools. Not
   * together with a `responseFormat`.
   */
  tools?: readonly object[];
  /** Whether the model decides about calls, must make one, or must call the function of this name. Default `auto`. */
  toolChoice?: "auto" | "required" | { name: string };
  /**
   * What happens when a conversation does not fit into the context any more. `error` throws `context_full`, or ends a reply
   * for that reason. `shift` forgets the older half of the tokens behind the system messages, as often as need be, so
   * that conversations and replies may be of any length; what is left is not computed again (on a GPU it is).
   * `trim` leaves out the oldest turns, never system messages and never the last message, and computes the rest anew.
   * Default `error`.
   */
  overflow?: "error" | "shift" | "trim";
}

/** Options of `tokenizeChat`: what decides how a conversation is written. */
export type TemplateOptions = Pick<ChatOptions, "thinking" | "tools">;

/** Why a generation ended: the model ended it, a stop text came, `maxTokens` was reached, or the context is full. */
export type FinishReason = "stop" | "stop_string" | "length" | "context_full";

/** What the last chunk of a generation reports. */
export interface Finish {
  reason: FinishReason;
  /** The whole text as the model wrote it, thoughts and tool calls included. */
  text: string;
  /** The seed that was used. */
  seed: number;
  usage: {
    /** Tokens of the prompt. */
    promptTokens: number;
    /** How many of them were still in the cache from the turns before. */
    cachedTokens: number;
    /** New tokens. */
    completionTokens: number;
    /** How many of them were thoughts. */
    reasoningTokens: number;
    /** Messages that `overflow: "trim"` left out. */
    droppedMessages: number;
    /** Tokens of the conversation that `overflow: "shift"` has forgotten. */
    forgottenTokens: number;
  };
  timings: {
    /** Milliseconds spent on the prompt. */
    prefillMs: number;
    /** Milliseconds spent on new tokens after the first. */
    decodeMs: number;
    /** Prompt tokens (without cached ones) a second. */
    prefillTokensPerSecond: number;
    /** New tokens a second. */
    tokensPerSecond: number;
  };
}

/** What the last chunk of a `chat` reports. */
export interface ChatFinish extends Finish {
  /** The reply, its thoughts and tool calls taken apart: append it to the conversation as it is. */
  message: Message;
}

/** A token and the natural logarithm of its probability, before temperature, penalties and filters. */
export interface Logprob {
  token: number;
  /** Its text; what is not whole characters shows as U+FFFD. */
  text: string;
  /** Its bytes. */
  bytes: number[];
  logprob: number;
}

/** A chosen token, and those most likely in its place. */
export interface TokenLogprob extends Logprob {
  top: Logprob[];
}

/** A piece of a streamed text. */
export interface Chunk<F extends Finish = Finish> {
  /** What is meant for the reader: whole characters. Empty where there is none. */
  text: string;
  /** What a reasoning model thinks; only of `chat`. */
  reasoning?: string;
  /** Tool calls that are complete; only of `chat`. */
  toolCalls?: ToolCall[];
  /** The tokens behind it; a character may need several. */
  tokens: number[];
  /** One for each of `tokens` that the model chose, if asked for. */
  logprobs?: TokenLogprob[];
  /** Set in the last chunk. */
  finish?: F;
}

/** Options of `conversation`. */
export interface ConversationOptions {
  /** Tokens it can hold. Default: as many as the engine's own. */
  context?: number;
}

/** Options of `tokenize`. */
export interface TokenizeOptions {
  /** Control tokens such as `<|im_end|>` are what they stand for, not plain text. Default false. */
  special?: boolean;
}

/** Options of `embed`. */
export interface EmbedOptions {
  /** The mean of all final hidden states, or that of the last token. Default `mean`. */
  pooling?: "mean" | "last";
  /** Make its length 1. Default true. */
  normalize?: boolean;
  signal?: AbortSignal;
}

/** A conversation outside the engine. */
export interface Snapshot {
  /** The conversation as it was last given to `chat`, with the reply. */
  messages: Message[];
  /** The state of the model, with a checksum and a fingerprint of the model. */
  state: Uint8Array;
}

/** Options of `restore`. */
export interface RestoreOptions {
  /** If the state is damaged, or another model's, compute it anew from the messages instead of failing. Default false. */
  recompute?: boolean;
  signal?: AbortSignal;
}

/** What `restore` found. */
export interface Restored {
  messages: Message[];
  /** Whether the state had to be computed anew. */
  recomputed: boolean;
}

/** The numbers a preset stands for. */
export interface PresetValues {
  temperature: number;
  topK: number;
  topP: number;
  repetitionPenalty: number;
}

/** What was loaded. */
export interface EngineInfo {
  /** What computes. More will be added. */
  backend: "cpu" | "webgpu" | (string & {});
  /** Instructions in use: on the CPU `simd128`, `relaxed`, or `relaxeddot` where 2-bit weights are multiplied, not looked up, as on x86. */
  isa: string;
  /** How many threads compute. */
  threads: number;
  /** Version of this package's engine. */
  version: string;
  model: {
    /** From the file's metadata; empty if it has none. */
    name: string;
    architecture: string;
    /** Which published model the shape is that of, or `Custom`. */
    variant: string;
    parameters: number;
    fileBytes: number;
    layers: number;
    hidden: number;
    heads: number;
    kvHeads: number;
    vocabulary: number;
    /** Positions the model was trained for. */
    contextLength: number;
    /** Storage formats of the matrices, most bytes first. */
    formats: string[];
    /** How conversations are written for it: as Qwen3's template does (with thinking), or plain ChatML. */
    template: "qwen3" | "chatml" | (string & {});
    /** Whether that is the file's own template; if not, it is the nearest one. */
    templateKnown: boolean;
  };
  /** Tokens a conversation can hold here. */
  context: number;
  memory: { weights: number; kv: number; scratch: number };
  presets: Record<Preset, PresetValues>;
}
