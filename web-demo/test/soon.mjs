import { setTimeout as sleep } from "node:timers/promises";

/** Repeats a check of what a page shows until it passes; after a minute it throws what the check throws. */
export async function soon(check) {
  const end = performance.now() + 60_000;
  for (;;) {
    try {
      return await check();
    } catch (error) {
      if (performance.now() > end) throw error;
    }
    await sleep(20);
  }
}
