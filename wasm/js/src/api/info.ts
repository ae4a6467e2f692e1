// The description of a loaded model.
import type { Preset } from "./options.js";

/** The values of a preset. */
export interface PresetValues {
  temperature: number;
  topK: number;
  topP: number;
  repetitionPenalty: number;
}

/** A loaded model and the engine that runs it. */
export interface EngineInfo {
  /** The device. More will be added. */
  backend: "cpu" | "webgpu" | (string & {});
  /**
   * Instruction set: on the CPU `simd128`, `relaxed`, or `relaxeddot` where 2-bit weights are multiplied instead of looked up, as on x86.
   * On a GPU its name, followed by `, subgroups` if they are used.
   */
  isa: string;
  /** Number of threads. */
  threads: number;
  /** Version of this package's engine. */
  version: string;
  model: {
    /** From the file's metadata; empty if it has none. */
    name: string;
    architecture: string;
    /** The published model of this shape, or `Custom`. */
    variant: string;
    parameters: number;
    fileBytes: number;
    layers: number;
    hidden: number;
    heads: number;
    kvHeads: number;
    vocabulary: number;
    /** Positions the model was trained for. */
    contextLength: number;
    /** Storage formats of the matrices, most bytes first. */
    formats: string[];
    /** The chat template: Qwen3's, plain ChatML, or Llama 3's. */
    template: "qwen3" | "chatml" | "llama3" | (string & {});
    /** Whether that is the file's own template; if not, it is the closest one. */
    templateKnown: boolean;
    /** Whether replies may begin with thoughts. */
    thinking: boolean;
    /** Whether the template has tool calls. */
    tools: boolean;
  };
  /** Capacity of a conversation in tokens. */
  context: number;
  /** Bytes. */
  memory: { weights: number; kv: number; scratch: number };
  presets: Record<Preset, PresetValues>;
  /** Whether the engine is shared with other tabs that load the same model; see the option `shared`. */
  shared: boolean;
}

/** What the runtime says about a model. @internal */
export type ModelInfo = Omit<EngineInfo, "shared">;
