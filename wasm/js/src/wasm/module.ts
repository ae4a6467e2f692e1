// Loads the WebAssembly modules, each once.
import type * as train from "shohin-train";
import type * as gpu from "shohin-webgpu";
import init, * as single from "../../../module/shohin_wasm.js";
import { ShohinError } from "../api/errors.js";
import type { LoadOptions } from "../api/options.js";
import { host } from "./host.js";
import { firstLoaded, runnable, type Simd } from "./simd.js";

/** The classes and functions of a module for the CPU, loaded. @internal */
export type CpuModule = Omit<typeof single, "default" | "initSync">;
/** Those of the module for WebGPU. */
type GpuModule = typeof gpu;
/** Those of the module that teaches. @internal */
export type TrainModule = typeof train;
/** Those that all modules have in common. @internal */
export type Module = Pick<CpuModule, "Checksum" | "Joiner">;

/** A file on its way to being a model, on either device. @internal */
export type Loader = single.Loader | gpu.Loader;
/** A model. @internal */
export type Model = single.Model | gpu.Model;
/** One on the CPU, which adapters can join. @internal */
export type CpuModel = single.Model;
/** An adapter's file. @internal */
export type Adapter = single.Adapter;
/** A conversation. @internal */
export type Chat = single.Chat | gpu.Chat;
/** One on the CPU. @internal */
export type CpuChat = single.Chat;
/** An embedding. @internal */
export type Embedder = single.Embedder | gpu.Embedder;

export { Step } from "../../../module/shohin_wasm.js";

let singleThreaded: Promise<CpuModule> | undefined;
/** By the number of threads. */
const multiThreaded = new Map<number, Promise<CpuModule | undefined>>();
let withGpu: Promise<GpuModule> | undefined;

/** Loads the module for the CPU: the multi-threaded one where possible. @internal */
export async function cpuModule(options: LoadOptions): Promise<CpuModule> {
  const { simd } = options;
  const builds = runnable(simd);
  if (builds.length === 0) throw new ShohinError("wasm", `${simd} WebAssembly SIMD is not supported here`);
  const module = await loaded(options, builds);
  const found = module.isa();
  if (simd !== undefined && !found.startsWith(simd)) throw new ShohinError("wasm", `the WebAssembly module that is loaded uses ${found}, not ${simd}`);
  return module;
}

async function loaded({ threads, wasmUrl }: LoadOptions, builds: Simd[]): Promise<CpuModule> {
  const count = Math.min(threads ?? Infinity, host.cores());
  if (count >= 2) {
    // Whatever fails with threads, one thread is enough.
    const starting = multiThreaded.get(count) ?? startThreads(count, builds).catch(() => undefined);
    multiThreaded.set(count, starting);
    const module = await starting;
    if (module) return module;
  }
  singleThreaded ??= (async () => {
    // A given address is the same for all builds.
    const some = wasmUrl === undefined ? builds : builds.slice(0, 1);
    await firstLoaded(some, async (simd) => init({ module_or_path: await host.module(simd, wasmUrl) }));
    return single;
  })();
  try {
    return await singleThreaded;
  } catch (cause) {
    singleThreaded = undefined;
    // Every engine says that the magic number at the start of a module is missing.
    const otherFile = "its address leads to another file, as after a bundler has moved it; the option wasmUrl corrects it";
    const compiled = cause instanceof WebAssembly.CompileError;
    const reason = !compiled ? String(cause) : /magic/.test(cause.message) ? otherFile : "WebAssembly SIMD is not supported here";
    throw new ShohinError("wasm", `the WebAssembly module could not be loaded: ${reason}`, { cause });
  }
}

/** Imports a script that bundlers leave alone. */
async function imported<T>(href: string): Promise<T> {
  return (await import(/* @vite-ignore */ /* webpackIgnore: true */ href)) as T;
}

async function startThreads(count: number, builds: Simd[]): Promise<CpuModule> {
  const { href } = host.threadsScript();
  // A fragment makes another instance of the script, with a pool and memory of its own, from the same file.
  const script = await imported<typeof import("./threads.js")>(multiThreaded.size > 0 ? `${href}#${count}` : href);
  const module = await firstLoaded(builds, async (simd) => script.compile(await host.threadsModule(simd)));
  host.threadsStarted(await script.start(module, count, host.startThread));
  return script;
}

/** The part of WebGPU that is used here. */
interface AdapterSource {
  requestAdapter(): Promise<{ info?: { isFallbackAdapter?: boolean }; isFallbackAdapter?: boolean } | null>;
}

/** Loads the module for WebGPU. `software`: also for a software adapter. @internal */
export async function gpuModule(software: boolean): Promise<GpuModule> {
  const gpu = typeof navigator === "undefined" ? undefined : (navigator as { gpu?: AdapterSource }).gpu;
  if (!gpu) throw new ShohinError("gpu_absent", "WebGPU is not supported here");
  // Checked before the module is fetched in vain.
  const adapter = await gpu.requestAdapter().catch(() => null);
  if (!adapter) throw new ShohinError("gpu_absent", "the browser offers no GPU");
  if (!software && (adapter.info?.isFallbackAdapter ?? adapter.isFallbackAdapter)) throw new ShohinError("gpu_absent", "the only GPU is a software adapter");
  withGpu ??= (async () => {
    const script = await imported<GpuModule>(host.gpuScript().href);
    await script.default({ module_or_path: host.gpuModule() });
    return script;
  })();
  try {
    return await withGpu;
  } catch (cause) {
    withGpu = undefined;
    throw new ShohinError("gpu_absent", `the module for WebGPU could not be loaded: ${String(cause)}`, { cause });
  }
}

/** What a training is called by. @internal */
export type Teacher = train.Teacher;

let training: Promise<TrainModule> | undefined;

/** Loads the module that teaches. @internal */
export async function trainModule(): Promise<TrainModule> {
  training ??= (async () => {
    const script = await imported<TrainModule>(host.trainScript().href);
    await script.default({ module_or_path: host.trainModule() });
    return script;
  })();
  try {
    return await training;
  } catch (cause) {
    training = undefined;
    throw new ShohinError("wasm", `the module that teaches could not be loaded: ${String(cause)}`, { cause });
  }
}
