// Conversations kept in IndexedDB, which pages and workers have, but not Node.
import { checkName } from "../api/arguments.js";
import { ShohinError } from "../api/errors.js";
import type { Snapshot } from "../api/message.js";

// Pages are more likely to use simpler names themselves.
const [DATABASE, STORE] = ["shohin.snapshots", "snapshots"];

function fail(cause: unknown): ShohinError {
  return cause instanceof DOMException && cause.name === "QuotaExceededError"
    ? new ShohinError("quota", "there is not enough storage to keep the conversation", { cause })
    : new ShohinError("read", `conversations could not be stored or read: ${String(cause)}`, { cause });
}

/** One request in one transaction. */
async function ask<T>(mode: IDBTransactionMode, work: (store: IDBObjectStore) => IDBRequest<T>): Promise<T> {
  if (typeof indexedDB === "undefined") {
    throw new ShohinError("unsupported", "there is no IndexedDB here; store the result of snapshot() instead");
  }
  let database: IDBDatabase | undefined;
  try {
    database = await new Promise<IDBDatabase>((resolve, reject) => {
      // Throws where the browser blocks storage.
      const request = indexedDB.open(DATABASE, 1);
      request.onupgradeneeded = () => request.result.createObjectStore(STORE);
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
    });
    const transaction = database.transaction(STORE, mode);
    const request = work(transaction.objectStore(STORE));
    return await new Promise<T>((resolve, reject) => {
      transaction.oncomplete = () => resolve(request.result);
      transaction.onabort = transaction.onerror = () => reject(transaction.error ?? request.error);
    });
  } catch (cause) {
    throw fail(cause);
  } finally {
    database?.close();
  }
}

/** @internal */
export async function keep(name: string, snapshot: Snapshot): Promise<void> {
  await ask("readwrite", (store) => store.put(snapshot, name));
}

/** @internal */
export async function kept(name: string): Promise<Snapshot> {
  const found = await ask<Snapshot | undefined>("readonly", (store) => store.get(name));
  if (!found) throw new ShohinError("snapshot_missing", `no conversation is kept under the name ${name}`);
  return found;
}

/** The names of all conversations kept by `save` for this site. */
export async function listSnapshots(): Promise<string[]> {
  return (await ask("readonly", (store) => store.getAllKeys())).map(String);
}

/** Deletes a conversation kept by `save`; returns whether there was one. */
export async function deleteSnapshot(name: string): Promise<boolean> {
  checkName(name);
  const there = await ask("readonly", (store) => store.count(name));
  if (there > 0) await ask("readwrite", (store) => store.delete(name));
  return there > 0;
}
