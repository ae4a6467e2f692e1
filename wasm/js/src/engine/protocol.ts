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

/** About a request, from the engine to its worker. @internal */
export type RequestMessage =
  | { id: number; method: Method; params: unknown }
  | { id: number; abort: true }
  /** The bytes the runtime asked for; none at the end. */
  | { id: number; piece: Uint8Array | undefined }
  /** The caller took a chunk. */
  | { id: number; taken: true };

/** From the engine to its worker. @internal */
export type ToWorker =
  | RequestMessage
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

/** From an engine to a worker that several tabs share. @internal */
export type FromTab =
  | RequestMessage
  /** Names the engine, which holds the lock of this name until it ends. */
  | { tab: string }
  | { leave: true };

/** From a worker that several tabs share to an engine. @internal */
export type ToTab =
  | FromWorker
  /** The first message: whether the model is loaded or being loaded. */
  | { loaded: boolean }
  /** The last message: no tab can use this worker any more. */
  | { ended: { code: ErrorCode; message: string } };

/** The lock that an engine holds until it is disposed or its tab ends. @internal */
export const tabLock = (tab: string) => `shohin.tab.${tab}`;
/** The lock that the shared worker of this name holds as long as it can be used. @internal */
export const workerLock = (name: string) => `shohin.worker.${name}`;
/** The lock under which tabs come to the shared worker for this model, and under which it ends. @internal */
export const entryLock = (model: string) => `shohin.entry.${model}`;

/**
 * The name of a shared worker. Each has its own: browsers may connect tabs to the worker of a name that has just closed itself.
 * @internal
 */
export const workerName = (id: string, model: string) => `${id} ${model}`;
/** The model in a worker's name. @internal */
export const modelOf = (name: string) => name.slice(name.indexOf(" ") + 1);
