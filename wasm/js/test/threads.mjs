/** Run in a page before its scripts: collects the workers of an engine's threads. */
export function watchThreads() {
  globalThis.workersOfThreads = [];
  globalThis.Worker = class extends Worker {
    constructor(script, options) {
      super(script, options);
      if (options.name === "shohin-thread") workersOfThreads.push(this);
    }
  };
}
