// Messages of the page: sending them, and those that it keeps.

/** What a promise gives; an error after a minute. */
export function within(promise, what) {
  let timer;
  const late = new Promise((_, reject) => (timer = setTimeout(() => reject(new Error(`${what} took more than a minute`)), 60_000)));
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

/** The replies that a page shows. */
export const repliesOf = (page) => page.locator("#conversation [data-role=assistant]");

/** Sends a message; returns the number of the reply and its place once it is done. */
export async function send(page, message) {
  const replies = repliesOf(page);
  const n = await replies.count();
  await page.fill("#prompt", message);
  await page.click("#send");
  return { n, done: replies.nth(n).locator("xpath=self::*[@data-state='done']") };
}

/** Every turn that a page has kept. */
export function keptTurns(page) {
  const kept = page.evaluate(async () => {
    const answer = (request) =>
      new Promise((resolve, reject) => {
        request.onsuccess = () => resolve(request.result);
        request.onerror = () => reject(request.error);
      });
    const opening = indexedDB.open("shohin");
    let isNew = false;
    // Only the page creates it.
    opening.onupgradeneeded = () => {
      isNew = true;
      opening.transaction.abort();
    };
    const database = await answer(opening).catch((error) => {
      if (!isNew) throw error;
    });
    if (!database) return [];
    try {
      return await answer(database.transaction("turns").objectStore("turns").getAll());
    } finally {
      database.close();
    }
  });
  return within(kept, "reading what is kept");
}
