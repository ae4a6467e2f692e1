// Downloads that the engine keeps in this browser: which there are, how far they came, and deleting them.

const DIRECTORY = "shohin";
const KEY = "shohin.addresses";

/** A kept download. */
export interface Kept {
  /** Its name in the store. */
  file: string;
  /** Where it came from, if this page knows. */
  url?: string;
  bytes: number;
  /** Bytes in all, where the server told. */
  total?: number;
  /** Whether all of it is here. */
  whole: boolean;
}

/** Addresses that were loaded from here; the store itself knows only their hashes. */
function addresses(): string[] {
  try {
    const list: unknown = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    return Array.isArray(list) ? list.filter((url) => typeof url === "string") : [];
  } catch {
    return [];
  }
}

/** Remembers an address, so that its copy can be named later. */
export function remember(url: string): void {
  localStorage.setItem(KEY, JSON.stringify([url, ...addresses().filter((known) => known !== url)].slice(0, 50)));
}

async function directory(): Promise<FileSystemDirectoryHandle | undefined> {
  try {
    return await (await navigator.storage.getDirectory()).getDirectoryHandle(DIRECTORY);
  } catch {
    return undefined;
  }
}

async function fileOf(url: string): Promise<string> {
  const hash = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(url));
  return [...new Uint8Array(hash)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** All kept downloads; `known` are further addresses they may be from. */
export async function listKept(known: readonly string[]): Promise<Kept[]> {
  const parent = await directory();
  if (!parent) return [];
  const urls = new Map<string, string>();
  for (const url of [...known, ...addresses()]) urls.set(await fileOf(url), url);
  const found: Kept[] = [];
  // Not yet in TypeScript's library everywhere.
  const entries = parent as unknown as AsyncIterable<[string, FileSystemHandle]>;
  for await (const [file, handle] of entries) {
    if (file.endsWith(".json") || handle.kind !== "file") continue;
    try {
      const { size } = await (handle as FileSystemFileHandle).getFile();
      const record = await parent
        .getFileHandle(`${file}.json`)
        .then((record) => record.getFile())
        .then(async (record) => JSON.parse(await record.text()) as { total?: unknown; whole?: unknown })
        .catch(() => ({ total: undefined, whole: false }));
      if (size === 0) continue;
      const url = urls.get(file);
      const total = typeof record.total === "number" ? record.total : undefined;
      found.push({ file, bytes: size, whole: record.whole === true && size === total, ...(url && { url }), ...(total && { total }) });
    } catch {
      // It went away meanwhile.
    }
  }
  return found.sort((a, b) => b.bytes - a.bytes);
}

/** Deletes one kept download. Fails while it is being read or written. */
export async function deleteKept(file: string): Promise<void> {
  const parent = await directory();
  await parent?.removeEntry(file);
  await parent?.removeEntry(`${file}.json`).catch(() => {});
}

/** How many bytes may still be kept here, if the browser tells. */
export async function room(): Promise<number | undefined> {
  try {
    const { quota, usage } = await navigator.storage.estimate();
    return quota === undefined ? undefined : quota - (usage ?? 0);
  } catch {
    return undefined;
  }
}
