/// <reference lib="esnext.disposable" preserve="true" />
/** `Symbol.asyncDispose`, or in browsers without it the symbol by which compiled `await using` finds it. */
export const asyncDispose: typeof Symbol.asyncDispose = Symbol.asyncDispose ?? Symbol.for("Symbol.asyncDispose");
