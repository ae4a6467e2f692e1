// The glue of the module that teaches, which js/build.mjs finds in module-train/ and names `shohin-train`.

/** Instantiates the module. */
export default function init(options: { module_or_path: BufferSource | string | URL | Promise<BufferSource | string | URL> }): Promise<unknown>;

/** The model's file as it arrives, and what is to be learned. */
export class Lessons {
  constructor(expected: number);
  free(): void;
  append(piece: Uint8Array): void;
  add(tokens: Uint32Array, replies: Uint32Array, isFact: boolean): void;
  /** Consumes the lessons. */
  begin(rank: number, steps: number, rate: number, seed: number): Teacher;
}

/** A training. */
export class Teacher {
  private constructor();
  free(): void;
  /** The share that is done. */
  prepare(): number;
  /** The loss, the probability of the least probable token of an answer, and 1 at the end. */
  step(): Float64Array;
  learned(): boolean;
  file(name: string, facts: string): Uint8Array<ArrayBuffer>;
}
