// How much this browser still stores for the page. Its estimate may be a constant, as in Chromium: so it is tried.

/** Loads hold this lock: a trial would take the room from what they keep. */
const LOADING = "shohin.loading";

/** Does work that keeps a model. */
export async function withoutTrials<T>(work: () => Promise<T>): Promise<T> {
  let begun: Promise<T> | undefined;
  const begin = () => (begun ??= work());
  try {
    return await navigator.locks.request(LOADING, { mode: "shared" }, begin);
  } catch {
    // Over plain HTTP there are no locks, and none are given where storage is blocked; nothing is kept there. Or the work failed.
    return begin();
  }
}

/** The first file that is tried has this size in bytes, each further one four times the size of the one before. */
const FIRST = 2 ** 24;

/** Milliseconds that setting the length of a larger file takes at most on a disk. */
const LONG = 50;

/**
 * Bytes that may still be kept here, if that can be told. Not in private windows of Chromium: files are memory there, and a trial
 * takes, and clears, as much of it as it tries. The first that takes long is the last.
 */
export async function room(): Promise<number | undefined> {
  try {
    const { quota, usage } = await navigator.storage.estimate();
    if (quota === undefined) return undefined;
    let most = Math.max(0, quota - (usage ?? 0));
    const { held } = await navigator.locks.query();
    if (held?.some(({ name }) => name === LOADING)) return most;
    let least = 0;
    for (let size = Math.min(FIRST, most); ; size = Math.min(4 * size, most)) {
      if (!(await fits(size))) {
        most = size;
        break;
      }
      least = size;
      if (size === most) return most;
    }
    while (most - least > Math.max(1e6, most / 50)) {
      const middle = Math.floor((least + most) / 2);
      if (await fits(middle)) least = middle;
      else most = middle;
    }
    return least;
  } catch {
    return undefined;
  }
}

/** Whether a file of this size could be written; browsers check that before they write anything. Fails if that takes long. */
async function fits(size: number): Promise<boolean> {
  const root = await navigator.storage.getDirectory();
  // Each trial has its own file, as other tabs may try, too.
  const name = `shohin.room.${crypto.randomUUID()}`;
  try {
    const file = await (await root.getFileHandle(name, { create: true })).createWritable();
    try {
      const begun = performance.now();
      await file.truncate(size);
      if (size > FIRST && performance.now() - begun > LONG) throw new Error(`setting a length of ${size} bytes takes long`);
      return true;
    } finally {
      await file.abort().catch(() => {});
    }
  } catch (thrown) {
    if (thrown instanceof DOMException && thrown.name === "QuotaExceededError") return false;
    throw thrown;
  } finally {
    await root.removeEntry(name).catch(() => {});
  }
}

/** Asks the browser not to delete what is kept here when it needs room. */
export function persist(): void {
  void navigator.storage?.persist?.().catch(() => false);
}
