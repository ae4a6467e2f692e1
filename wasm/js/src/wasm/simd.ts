// The builds of a module that this JavaScript engine can run.
import type { LoadOptions } from "../api/options.js";

/** The instruction set a build requires. */
export type Simd = NonNullable<LoadOptions["simd"]>;

/** A module whose only function consists of `i8x16.relaxed_swizzle`. */
export const RELAXED = [
  0, 97, 115, 109, 1, 0, 0, 0, // magic number and version
  1, 5, 1, 96, 0, 1, 123, // types: () -> v128
  3, 2, 1, 0, // functions
  10, 15, 1, 13, 0, 65, 0, 253, 15, 65, 0, 253, 15, 253, 128, 2, 11, // code: of two i8x16.splat
];

/** The builds to try, fastest first; only the requested one, if any. */
export function runnable(requested: Simd | undefined): Simd[] {
  const all: Simd[] = WebAssembly.validate(Uint8Array.from(RELAXED)) ? ["relaxed", "simd128"] : ["simd128"];
  return requested === undefined ? all : all.filter((simd) => simd === requested);
}

/** The result of `load` for the first build that can be loaded. */
export async function firstLoaded<T>(builds: readonly Simd[], load: (simd: Simd) => Promise<T>): Promise<T> {
  const [simd, ...others] = builds;
  try {
    return await load(simd as Simd);
  } catch (cause) {
    if (others.length === 0) throw cause;
    return firstLoaded(others, load);
  }
}
