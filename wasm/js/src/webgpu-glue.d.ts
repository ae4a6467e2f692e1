// The glue of the build with WebGPU, which js/build.mjs finds in pkg-webgpu/ and calls `shohin-webgpu`: that of the other
// build, and what a GPU needs.
import type { Embedder, Model, Step, Timeline } from "../../pkg/shohin_wasm.js";

export * from "../../pkg/shohin_wasm.js";
export { default } from "../../pkg/shohin_wasm.js";

/** Takes a file and puts its weights onto the GPU. */
export class GpuLoader {
  private constructor();
  free(): void;
  static open(length: number, software: boolean, extensions: boolean): Promise<GpuLoader>;
  append(piece: Uint8Array): Promise<void>;
  /** Takes the loader over. */
  finish(context: number, kv: string, activations: string): Promise<GpuModel>;
  readonly name: string;
}

/** A `Timeline` that has to be waited for. */
export interface GpuTimeline extends Omit<Timeline, "step" | "snapshot"> {
  step(): Promise<Step>;
  snapshot(): Promise<Uint8Array>;
}

/** An `Embedder` that has to be waited for. */
export interface GpuEmbedder extends Omit<Embedder, "step"> {
  step(): Promise<boolean>;
}

/** A `Model` that has to be waited for. */
export interface GpuModel extends Omit<Model, "timeline" | "embedder"> {
  timeline(context: number): Promise<GpuTimeline>;
  embedder(tokens: Uint32Array, pooling: string): Promise<GpuEmbedder>;
  destroy(): void;
}
