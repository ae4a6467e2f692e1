// What the page and the worker say to each other. Every request has an id; its answers carry the same one.
import type { ChatOptions, Chunk, EngineInfo, GenerateOptions, LoadOptions, Message, Progress } from "./api.js";
import type { ErrorCode } from "./error.js";

/** Options without what cannot be sent. @internal */
export type Sendable<T> = Omit<T, "signal" | "onProgress" | "workerUrl" | "wasmUrl">;

/** @internal */
export type LoadRequest = {
  call: "load";
  /** `feed`: the page sends the bytes, piece by piece, as it is asked for them. */
  source: { url: string } | { blob: Blob } | { feed: number };
  options: Sendable<LoadOptions> & { wasmUrl?: string };
};

/** @internal */
export type Request =
  | LoadRequest
  | { call: "chat"; messages: Message[]; options: Sendable<ChatOptions> }
  | { call: "generate"; prompt: string; options: Sendable<GenerateOptions> }
  | { call: "tokenize"; text: string; special: boolean }
  | { call: "tokenizeChat"; messages: Message[]; options: Pick<ChatOptions, "thinking" | "tools"> }
  | { call: "detokenize"; ids: Uint32Array };

/** Page to worker. @internal */
export type ToWorker =
  | ({ id: number } & Request)
  | { id: number; call: "abort" }
  /** The next piece, or the end of the file. */
  | { id: number; call: "piece"; piece: Uint8Array | undefined };

/** Worker to page. @internal */
export type FromWorker =
  | { id: number; progress: Progress }
  /** Asks for the next piece. */
  | { id: number; want: true }
  | { id: number; chunk: Chunk }
  | { id: number; done: EngineInfo | Uint32Array | string | undefined }
  | { id: number; error: { code: ErrorCode; message: string } };
