// Waiting that an abort ends.

/** The result of a promise, or, if the signal is aborted before, the error that `reason` makes of it. @internal */
export function unlessAborted<T>(signal: AbortSignal, promise: Promise<T>, reason: (signal: AbortSignal) => unknown): Promise<T> {
  return new Promise((resolve, reject) => {
    const abort = () => reject(reason(signal));
    signal.addEventListener("abort", abort, { once: true });
    if (signal.aborted) abort();
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", abort));
  });
}
