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

/** Bytes that may still be kept here, if that can be told. */
export async function room(): Promise<number | undefined> {
  try {
    const { quota, usage } = await navigator.storage.estimate();
    if (quota === undefined) return undefined;
    let most = Math.max(0, quota - (usage ?? 0));
    const { held } = await navigator.locks.query();
    if (held?.some(({ name }) => name === LOADING) || (await fits(most))) return most;
    let least = 0;
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

/** Whether a file of this size could be written; browsers check that before they write anything. */
async function fits(size: number): Promise<boolean> {
  const root = await navigator.storage.getDirectory();
  // Each trial has its own file, as other tabs may try, too.
  const name = `shohin.room.${crypto.randomUUID()}`;
  try {
    const file = await (await root.getFileHandle(name, { create: true })).createWritable();
    try {
      await file.truncate(size);
      return true;
    } finally {
      await file.abort().catch(() => {});
    }
  } catch (thrown) {
    // Other failures tell nothing about the room.
    return !(thrown instanceof DOMException && thrown.name === "QuotaExceededError");
  } finally {
    await root.removeEntry(name).catch(() => {});
  }
}

/** Asks the browser not to delete what is kept here when it needs room. */
export function persist(): void {
  void navigator.storage?.persist?.().catch(() => false);
}
