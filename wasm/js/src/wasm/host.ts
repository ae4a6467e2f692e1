// The differences between a browser, a worker and Node. The defaults are those of a browser; `node.ts` and `worker.ts` set theirs.
import type { LoadOptions } from "../api/options.js";
import type { CacheEntry } from "../load/cache.js";
import { filesWithoutCopies, type Files } from "../load/files.js";
import type { Simd } from "./simd.js";
import { startThread, type StartThread } from "./start-thread.js";

/** More threads than this only compete for memory bandwidth. */
export const MAX_THREADS = 16;

declare const WorkerGlobalScope: { new (): unknown } | undefined;

/** @internal */
export const host: {
  /** The compiled module, or its address; `given` is the option `wasmUrl`. */
  module: (simd: Simd, given?: string | URL) => Promise<BufferSource | string | URL> | BufferSource | string | URL;
  /** Maximum number of threads; 1 where they cannot share memory. */
  cores: () => number;
  /** Address of `threads.js`. */
  threadsScript: () => URL;
  /** The module for several threads, or its address. */
  threadsModule: (simd: Simd) => Promise<BufferSource> | URL;
  /** Starts a thread of the pool. */
  startThread: StartThread;
  /** Called with the names of locks, one for each thread of the pool, that are released when the thread ends. */
  threadsStarted: (locks: string[]) => void;
  /** Address of `webgpu.js`. */
  gpuScript: () => URL;
  /** Address of the module for WebGPU. */
  gpuModule: () => URL;
  /** Address of `train.js`. */
  trainScript: () => URL;
  /** The module that teaches, or its address. */
  trainModule: () => Promise<BufferSource> | URL;
  /** The files of one attempt to load a model. */
  files: (options: LoadOptions) => Files;
  /** The copies that `files` has kept, if it keeps any. */
  copies: (() => Promise<CacheEntry[]>) | undefined;
} = {
  // Bundlers look for exactly these expressions.
  module: (simd, given) =>
    given ?? (simd === "relaxed" ? new URL("shohin_wasm_relaxed_bg.wasm", import.meta.url) : new URL("shohin_wasm_bg.wasm", import.meta.url)),
  cores: () => {
    // The main thread of a page must not block.
    const mayBlock = typeof WorkerGlobalScope === "function" && globalThis instanceof WorkerGlobalScope;
    const maySpawn = globalThis.crossOriginIsolated && typeof Worker === "function";
    return mayBlock && maySpawn ? Math.min(navigator.hardwareConcurrency, MAX_THREADS) : 1;
  },
  threadsScript: () => new URL("threads.js", import.meta.url),
  threadsModule: (simd) =>
    simd === "relaxed" ? new URL("shohin_wasm_threads_relaxed_bg.wasm", import.meta.url) : new URL("shohin_wasm_threads_bg.wasm", import.meta.url),
  startThread,
  threadsStarted: () => {},
  gpuScript: () => new URL("webgpu.js", import.meta.url),
  gpuModule: () => new URL("shohin_wasm_webgpu_bg.wasm", import.meta.url),
  trainScript: () => new URL("train.js", import.meta.url),
  trainModule: () => new URL("shohin_wasm_train_bg.wasm", import.meta.url),
  files: (options) => filesWithoutCopies(options),
  copies: undefined,
};
