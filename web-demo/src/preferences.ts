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
  // Where storage is blocked, the page has said so.
  if (put(key, value, scope) === "QuotaExceededError") onFull.tell();
}

/** Stores a text of any length for this tab, or none where there is no room: an older one would be taken for it. */
export function writeText(key: string, text?: string): void {
  if (put(key, text, "tab") !== undefined) put(key, undefined, "tab");
}

/** Returns the name of the error, if there is one. */
function put(key: string, value: string | undefined, scope: Scope): string | undefined {
  try {
    if (value === undefined) storages[scope]().removeItem(key);
    else storages[scope]().setItem(key, value);
    return undefined;
  } catch (error) {
    return error instanceof Error ? error.name : String(error);
  }
}
