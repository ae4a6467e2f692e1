// The glue of the build with WebGPU, which js/build.mjs finds in module-webgpu/ and names `shohin-webgpu`: that of the CPU build, but
// the methods that compute return promises, and there are no adapters.
import type * as cpu from "../../../module/shohin_wasm.js";

export { default, Checksum, isa, Joiner, Step } from "../../../module/shohin_wasm.js";

/** `T` with promises as results of the methods `M`. */
type Later<T, M extends keyof T> = Omit<T, M> & {
  [name in M]: T[name] extends (...given: infer A) => infer R ? (...given: A) => Promise<R> : never;
};

/** Reads a file and uploads its weights to the GPU. */
export class Loader {
  private constructor();
  free(): void;
  static open(length: number, software: boolean, id42: string): Promise<Loader>;
  append(piece: Uint8Array): Promise<void>;
  /** Consumes the loader. */
  finish(context: number, kv: string, attention: string, activations: string): Promise<Model>;
}

export type Chat = Later<Omit<cpu.Chat, "change_to">, "step" | "snapshot">;
export type Embedder = Later<cpu.Embedder, "step">;
export interface Model extends Omit<cpu.Model, "adapted" | "chat" | "embedder"> {
  chat(context: number): Promise<Chat>;
  embedder(text: string, pooling?: string | null): Promise<Embedder>;
}
