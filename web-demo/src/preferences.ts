// Choices remembered in this browser, or in this tab. Where storage is blocked they last as long as the page.

// Even to name the storage throws where it is blocked.
const storages = { browser: () => localStorage, tab: () => sessionStorage };
type Scope = keyof typeof storages;

/** Called when a choice could not be remembered for lack of room. */
export const onFull = { tell: () => {} };

export function read(key: string, scope: Scope = "browser"): string | undefined {
  try {
    return storages[scope]().getItem(key) ?? undefined;
  } catch {
    return undefined;
  }
}

/** Stores a value; without one, deletes the old. */
export function write(key: string, value?: string, scope: Scope = "browser"): void {
  try {
    if (value === undefined) storages[scope]().removeItem(key);
    else storages[scope]().setItem(key, value);
  } catch (error) {
    // Where storage is blocked, the page has said so.
    if (error instanceof DOMException && error.name === "QuotaExceededError") onFull.tell();
  }
}
