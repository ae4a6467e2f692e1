// The glue of the build with shared memory, which js/build.mjs finds in module-threads/ and names `shohin-threads`: the glue of the
// single-threaded build, and the functions of the thread pool.
export * from "../../../module/shohin_wasm.js";

export default function init(options: {
  module_or_path: WebAssembly.Module;
  memory?: WebAssembly.Memory;
  /** Bytes, for every thread but the first. */
  thread_stack_size?: number;
}): Promise<unknown>;

export function shared_memory(): WebAssembly.Memory;
/** Does not return. */
export function work(): void;
export function worker_crashed(): void;
