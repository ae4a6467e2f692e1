// What differs between a browser and Node; the latter, and a worker, put in their own.
import type { LoadOptions } from "./api.js";
import type { Simd } from "./simd.js";
import { fetchPieces, type Pieces } from "./source.js";

/** More than this only wait for memory. */
export const MOST_THREADS = 16;

declare const WorkerGlobalScope: { new (): unknown } | undefined;

/** What differs between a browser and Node. @internal */
export const host: {
  /** Finds the compiled module, perhaps at a given `wasmUrl`. */
  module: (simd: Simd, given?: string | URL) => Promise<BufferSource | string | URL> | BufferSource | string | URL;
  /** How many threads there is room for; 1 where they cannot share memory. */
  cores: () => number;
  /** `threads.js`. */
  teamScript: () => URL;
  /** Told the names of locks, one for each thread beside this one, that are free again when it has ended. */
  teamStarted: (lives: string[]) => void;
  /** The module for several threads. */
  teamModule: (simd: Simd) => Promise<BufferSource> | URL;
  /** `webgpu.js`. */
  gpuScript: () => URL;
  /** The module with both engines. */
  gpuModule: () => URL;
  /** Opens a file by its name. `brief`: perhaps only its beginning is wanted for a while. */
  open: (name: string, options: LoadOptions, brief: boolean) => Promise<Pieces>;
} = {
  // Bundlers look for exactly these expressions.
  module: (simd, given) =>
    given ?? (simd === "relaxed" ? new URL("shohin_wasm_relaxed_bg.wasm", import.meta.url) : new URL("shohin_wasm_bg.wasm", import.meta.url)),
  cores: () => {
    // The thread that shows a page may not wait for others.
    const mayWait = typeof WorkerGlobalScope === "function" && globalThis instanceof WorkerGlobalScope;
    const maySpawn = globalThis.crossOriginIsolated && typeof Worker === "function";
    return mayWait && maySpawn ? Math.min(navigator.hardwareConcurrency, MOST_THREADS) : 1;
  },
  teamScript: () => new URL("threads.js", import.meta.url),
  teamStarted: () => {},
  teamModule: (simd) =>
    simd === "relaxed" ? new URL("shohin_wasm_threads_relaxed_bg.wasm", import.meta.url) : new URL("shohin_wasm_threads_bg.wasm", import.meta.url),
  gpuScript: () => new URL("webgpu.js", import.meta.url),
  gpuModule: () => new URL("shohin_wasm_webgpu_bg.wasm", import.meta.url),
  open: (url, options, brief) => fetchPieces(url, options, brief),
};
