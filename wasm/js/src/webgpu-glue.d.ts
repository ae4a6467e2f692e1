// The glue of the build with WebGPU, which js/build.mjs finds in pkg-webgpu/ and calls `shohin-webgpu`: that of the other
// build, and what a GPU needs.
import type { Conversation, Model, Sampling, Step } from "../../pkg/shohin_wasm.js";

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

/** A `Model` whose steps are waited for. */
export interface GpuModel extends Omit<Model, "step"> {
  step(): Promise<Step>;
  destroy(): void;
  encode_chat(conversation: Conversation, thinking: boolean): Uint32Array;
  begin(prompt: Uint32Array, sampling: Sampling): number;
}
