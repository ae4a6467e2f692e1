// What models were taught, kept in this browser (IndexedDB).
import type { Fact } from "shohin";

/** An adapter, and the facts that it was taught, which are none if it came from a file of another kind. */
export interface Taught {
  facts: Fact[];
  file: Uint8Array;
  /** Whether the model has it. */
  on: boolean;
}

const STORE = "adapters";

/** Does something with the store, or nothing where there is none. */
function within<T>(mode: IDBTransactionMode, work: (store: IDBObjectStore) => IDBRequest<T>): Promise<T | undefined> {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open("shohin.taught", 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE);
    request.onerror = () => reject(request.error);
    request.onblocked = () => reject(new Error("blocked"));
    request.onsuccess = () => {
      const database = request.result;
      const transaction = database.transaction(STORE, mode);
      const done = work(transaction.objectStore(STORE));
      transaction.oncomplete = () => {
        database.close();
        resolve(done.result);
      };
      transaction.onabort = () => {
        database.close();
        reject(transaction.error);
      };
    };
  });
}

/** Keeps what a model was taught, or deletes it; false if that failed. */
export async function keep(model: string, taught: Taught | undefined): Promise<boolean> {
  try {
    await within("readwrite", (store) => (taught ? store.put(taught, model) : store.delete(model)) as IDBRequest<unknown>);
    return true;
  } catch {
    return false;
  }
}

/** What a model was taught. */
export async function kept(model: string): Promise<Taught | undefined> {
  try {
    return await within<Taught | undefined>("readonly", (store) => store.get(model) as IDBRequest<Taught | undefined>);
  } catch {
    return undefined;
  }
}

/** The facts in an adapter's file: the text under its key, which is a JSON array. */
export function factsOf(file: Uint8Array): Fact[] {
  const key = new TextEncoder().encode("shohin.facts");
  // Metadata are at the beginning.
  const at = file.subarray(0, 1 << 20).findIndex((_, i) => key.every((byte, j) => file[i + j] === byte));
  if (at < 0) return [];
  try {
    // After the key: the type of the value, 8 for a text, its length in 8 bytes, the text.
    const view = new DataView(file.buffer, file.byteOffset + at + key.length);
    if (view.getUint32(0, true) !== 8) return [];
    const length = Number(view.getBigUint64(4, true));
    const text = new TextDecoder("utf-8", { fatal: true }).decode(new Uint8Array(view.buffer, view.byteOffset + 12, length));
    const facts: unknown = JSON.parse(text);
    const isFact = (fact: unknown): fact is Fact => typeof (fact as Fact)?.question === "string" && typeof (fact as Fact).answer === "string";
    return Array.isArray(facts) ? facts.filter(isFact) : [];
  } catch {
    return [];
  }
}
