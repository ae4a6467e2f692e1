// The glue of the build with WebGPU, which js/build.mjs finds in pkg-webgpu/ and names `shohin-webgpu`: the glue of the CPU build,
// and the classes for the GPU.
import type { Embedder, Model, Step, Timeline } from "../../../pkg/shohin_wasm.js";

export * from "../../../pkg/shohin_wasm.js";
export { default } from "../../../pkg/shohin_wasm.js";

/** Reads a file and uploads its weights to the GPU. */
export class GpuLoader {
  private constructor();
  free(): void;
  static open(length: number, software: boolean, extensions: boolean): Promise<GpuLoader>;
  append(piece: Uint8Array): Promise<void>;
  /** Consumes the loader. */
  finish(context: number, kv: string, activations: string): Promise<GpuModel>;
  readonly name: string;
}

/** An asynchronous `Timeline`. */
export interface GpuTimeline extends Omit<Timeline, "step" | "snapshot"> {
  step(): Promise<Step>;
  snapshot(): Promise<Uint8Array>;
}

/** An asynchronous `Embedder`. */
export interface GpuEmbedder extends Omit<Embedder, "step"> {
  step(): Promise<boolean>;
}

/** An asynchronous `Model`. */
export interface GpuModel extends Omit<Model, "timeline" | "embedder"> {
  timeline(context: number): Promise<GpuTimeline>;
  embedder(tokens: Uint32Array, pooling: string): Promise<GpuEmbedder>;
  destroy(): void;
}
