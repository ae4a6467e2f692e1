// What the page and the worker say to each other. Every request has an id; its answers carry the same one.
import type { ChatOptions, Chunk, ConversationOptions, EmbedOptions, EngineInfo, GenerateOptions, LoadOptions, Message, Progress, Restored, RestoreOptions, Snapshot, TemplateOptions } from "./api.js";
import type { ErrorCode } from "./error.js";
import type { FileKind } from "./source.js";

/** Options without what cannot be sent. @internal */
export type Sendable<T> = Omit<T, "signal" | "onProgress" | "workerUrl" | "wasmUrl">;

/** @internal */
export type LoadRequest = {
  call: "load";
  /** `feed`: the page sends the bytes, piece by piece, as it is asked for them. */
  source: FileKind | { files: FileKind[] } | { feed: number };
  options: Sendable<LoadOptions> & { wasmUrl?: string };
};

/** @internal */
export type Request =
  | LoadRequest
  | { call: "chat"; conversation: number; messages: Message[]; options: Sendable<ChatOptions> }
  | { call: "generate"; conversation: number; prompt: string; options: Sendable<GenerateOptions> }
  | { call: "open"; options: ConversationOptions }
  | { call: "close"; conversation: number }
  | { call: "snapshot"; conversation: number }
  | { call: "save"; conversation: number; name: string }
  | { call: "restore"; conversation: number; from: Snapshot | string; options: Sendable<RestoreOptions> }
  | { call: "embed"; text: string; options: Sendable<EmbedOptions> }
  | { call: "tokenize"; text: string; special: boolean }
  | { call: "tokenizeChat"; messages: Message[]; options: TemplateOptions }
  | { call: "detokenize"; ids: Uint32Array };

/** @internal */
export type Answer =
  | EngineInfo
  | { conversation: number; context: number }
  | Snapshot
  | Restored
  | Float32Array
  | Uint32Array
  | string
  | undefined;

/** Page to worker. @internal */
export type ToWorker =
  | ({ id: number } & Request)
  | { id: number; call: "abort" }
  /** The next piece, or the end of the file. */
  | { id: number; call: "piece"; piece: Uint8Array | undefined };

/** Worker to page. @internal */
export type FromWorker =
  /** Locks that are free again when one of its threads has ended. */
  | { lives: string[] }
  | { id: number; progress: Progress }
  /** Asks for the next piece. */
  | { id: number; want: true }
  | { id: number; chunk: Chunk }
  | { id: number; done: Answer }
  | { id: number; error: { code: ErrorCode; message: string } };
