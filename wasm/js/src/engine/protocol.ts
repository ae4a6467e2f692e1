// The requests of an engine to its runtime, derived from the runtime's methods, and the messages that carry them to a worker and
// back. Every request has an id; its answers have the same one.
import type { ErrorCode } from "../api/errors.js";
import type { Progress } from "../api/options.js";
import type { Caller, Runtime } from "./runtime.js";

/** @internal */
export type Method = keyof Runtime;
/** @internal */
export type Params<M extends Method> = Parameters<Runtime[M]>[0];
/** Methods that answer with a stream of chunks. @internal */
export type StreamMethod = { [M in Method]: ReturnType<Runtime[M]> extends AsyncGenerator ? M : never }[Method];
/** Methods that answer once. @internal */
export type CallMethod = Exclude<Method, StreamMethod>;
/** @internal */
export type Result<M extends CallMethod> = Awaited<ReturnType<Runtime[M]>>;

/** Calls a method of the runtime by its name. @internal */
export function dispatch<M extends Method>(runtime: Runtime, method: M, params: Params<M>, caller: Caller): ReturnType<Runtime[M]> {
  // TypeScript does not relate the types of one method's parameters and result if it is any of several.
  const call = runtime[method] as (params: Params<M>, caller: Caller) => ReturnType<Runtime[M]>;
  return call.call(runtime, params, caller);
}

/** From the engine to its worker. @internal */
export type ToWorker =
  | { id: number; method: Method; params: unknown }
  | { id: number; abort: true }
  /** The bytes the runtime asked for; none at the end. */
  | { id: number; piece: Uint8Array | undefined }
  /** A thread waits for work; `holds`: it holds its lock. */
  | { thread: number; holds: boolean }
  | { thread: number; failed: string };

/** From the worker to its engine. @internal */
export type FromWorker =
  /** Asks for a thread, whose number it is, with its script and first message. */
  | { thread: number; script: string; message: unknown }
  | { thread: number; terminate: true }
  /** Names of locks that are released when a thread of the pool ends. */
  | { locks: string[] }
  | { id: number; progress: Progress }
  /** Asks for the bytes of the source from here on. */
  | { id: number; read: number }
  | { id: number; chunk: unknown }
  /** The result, also that of a stream. */
  | { id: number; done: unknown }
  | { id: number; error: { code: ErrorCode; message: string } };
