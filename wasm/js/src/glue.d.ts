// The glue of the build with shared memory, which js/build.mjs finds in pkg-threads/ and calls `shohin-threads`: that of
// the other build, and what a team needs.
export * from "../../pkg/shohin_wasm.js";

export default function init(options: {
  module_or_path: WebAssembly.Module;
  memory?: WebAssembly.Memory;
  /** Bytes, for all but the first to share the memory. */
  thread_stack_size?: number;
}): Promise<unknown>;

export function shared_memory(): WebAssembly.Memory;
/** Does not return. */
export function work(): void;
export function worker_crashed(): void;
