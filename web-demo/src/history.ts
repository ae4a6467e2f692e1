// Conversations kept in this browser (IndexedDB), and told to other tabs of the page.
import { deleteSnapshot, listSnapshots, type Message } from "shohin";

/** One message, and what is shown below it. */
export interface Turn extends Message {
  role: "user" | "assistant";
  /** Figures of a reply: tokens, speed, why it ended. */
  figures?: string;
  /** More of them, for who asks. */
  details?: string;
  /** How many messages the model no longer sees: at the first reply without them. */
  dropped?: number;
}

export interface Conversation {
  id: string;
  title: string;
  /** Milliseconds since 1970. */
  updated: number;
  turns: Turn[];
}

const NAME = "shohin";
const STORE = "conversations";

let opened: Promise<IDBDatabase | undefined> | undefined;
/** What there is without a database, as in some private windows. */
const memory = new Map<string, Conversation>();
const channel = openChannel();

function openChannel(): BroadcastChannel | undefined {
  try {
    return new BroadcastChannel("shohin.conversations");
  } catch {
    // Blocked together with storage; there is nothing to tell other tabs then.
    return undefined;
  }
}

/** An id for a conversation. Over plain HTTP there is no `crypto.randomUUID`. */
export function newId(): string {
  return crypto.getRandomValues(new Uint32Array(4)).join("-");
}

function open(): Promise<IDBDatabase | undefined> {
  return (opened ??= new Promise((resolve) => {
    try {
      const request = indexedDB.open(NAME, 1);
      request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
      request.onsuccess = () => resolve(request.result);
      request.onerror = request.onblocked = () => resolve(undefined);
    } catch {
      resolve(undefined);
    }
  }));
}

/** Whether conversations are there again at the next visit. */
export async function keepsConversations(): Promise<boolean> {
  return (await open()) !== undefined;
}

async function run<T>(mode: IDBTransactionMode, act: (store: IDBObjectStore) => IDBRequest<T>): Promise<T | undefined> {
  const database = await open();
  if (!database) return undefined;
  return new Promise((resolve, reject) => {
    const transaction = database.transaction(STORE, mode);
    const request = act(transaction.objectStore(STORE));
    // A page that is being closed does not live to see the request answered, upon which the browser would commit by itself.
    if (mode === "readwrite") transaction.commit();
    transaction.oncomplete = () => resolve(request.result);
    transaction.onerror = transaction.onabort = () => reject(transaction.error ?? request.error);
  });
}

/** All conversations, newest first. */
export async function conversations(): Promise<Conversation[]> {
  const found = ((await run("readonly", (store) => store.getAll()).catch(() => undefined)) as Conversation[] | undefined) ?? [...memory.values()];
  return found.sort((a, b) => b.updated - a.updated);
}

export async function conversation(id: string): Promise<Conversation | undefined> {
  const found = (await run("readonly", (store) => store.get(id)).catch(() => undefined)) as Conversation | undefined;
  return found ?? memory.get(id);
}

/** Ids of deleted conversations. A reply may still be on its way to one. */
const deleted = new Set<string>();

/** Writes a conversation, unless it is deleted. Where nothing can be written it stays in memory. */
export async function keep(conversation: Conversation): Promise<void> {
  if (deleted.has(conversation.id)) return;
  const copy = structuredClone(conversation);
  try {
    if (await open()) await run("readwrite", (store) => store.put(copy));
    else memory.set(copy.id, copy);
  } catch {
    memory.set(copy.id, copy);
  }
  channel?.postMessage(conversation.id);
}

/** How many conversations' snapshots are kept: the newest ones'. */
const SNAPSHOTS = 4;
/** Snapshots of other pages of this site have other names. */
const PREFIX = "page:";

/** What the snapshot of a conversation is called. */
export function snapshotOf(id: string): string {
  return `${PREFIX}${id}`;
}

/** Deletes this page's snapshots of conversations that are gone, or older than those whose snapshots are kept. */
export async function tidySnapshots(): Promise<void> {
  const kept = (await conversations()).slice(0, SNAPSHOTS).map(({ id }) => snapshotOf(id));
  for (const name of await listSnapshots()) if (name.startsWith(PREFIX) && !kept.includes(name)) await deleteSnapshot(name);
}

/** Takes back a deletion. */
export async function restore(conversation: Conversation): Promise<void> {
  deleted.delete(conversation.id);
  await keep(conversation);
}

export async function discard(id: string): Promise<void> {
  deleted.add(id);
  memory.delete(id);
  await deleteSnapshot(snapshotOf(id)).catch(() => {});
  await run("readwrite", (store) => store.delete(id)).catch(() => {});
  channel?.postMessage(id);
}

/** Calls back with the id of a conversation that another tab has changed. */
export function onChange(listener: (id: string) => void): void {
  channel?.addEventListener("message", ({ data }) => listener(String(data)));
}
