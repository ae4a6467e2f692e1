// Conversations kept in this browser (IndexedDB), and told to other tabs of the page.
//
// Each message is a record of its own, written by the tab that added it and never read back before: tabs with the same
// conversation cannot overwrite each other's messages.
import { deleteSnapshot, listSnapshots, type Message } from "shohin";

/** One message, and what is shown below it. */
export interface Turn extends Message {
  id: string;
  /** Its place: milliseconds since 1970 for a message, half a millisecond more for its reply. */
  at: number;
  role: "user" | "assistant";
  /** Figures of a reply: tokens, speed, why it ended. */
  figures?: string;
  /** More of them, for who asks. */
  details?: string;
  /** How many messages the model no longer sees: at the first reply without them. */
  dropped?: number;
}

/** A conversation without its messages. */
export interface Heading {
  id: string;
  title: string;
  /** Milliseconds since 1970. */
  updated: number;
}

/** A conversation in the list. */
export interface Listed extends Heading {
  /** Whether something of it could not be written, and is lost when the page is closed. */
  unsaved: boolean;
}

export interface Conversation extends Heading {
  turns: Turn[];
}

/** What is not written yet of a conversation, or cannot be. */
interface Pending {
  heading: Heading;
  put: Map<string, Turn>;
  removed: Set<string>;
  /** Whether writing it has failed. */
  failed: boolean;
}

/** What tabs tell each other. */
interface Change {
  id: string;
  kind: "written" | "deleted" | "restored";
}

const NAME = "shohin";
const [HEADINGS, TURNS] = ["conversations", "turns"];

let opened: Promise<IDBDatabase | undefined> | undefined;
const pending = new Map<string, Pending>();
/** Ids of deleted conversations. A reply may still be on its way to one, here or in another tab. */
const deleted = new Set<string>();
const channel = openChannel();

function openChannel(): BroadcastChannel | undefined {
  try {
    return new BroadcastChannel("shohin.conversations");
  } catch {
    // Blocked together with storage; there is nothing to tell other tabs then.
    return undefined;
  }
}

function tell(id: string, kind: Change["kind"]): void {
  channel?.postMessage({ id, kind } satisfies Change);
}

/** An id for a conversation or a message. Over plain HTTP there is no `crypto.randomUUID`. */
export function newId(): string {
  return crypto.getRandomValues(new Uint32Array(4)).join("-");
}

function open(): Promise<IDBDatabase | undefined> {
  return (opened ??= new Promise((resolve) => {
    try {
      const request = indexedDB.open(NAME, 2);
      request.onupgradeneeded = ({ oldVersion }) => upgrade(request.result, request.transaction!, oldVersion);
      request.onsuccess = () => {
        const database = request.result;
        database.onversionchange = () => database.close();
        database.onclose = () => (opened = undefined);
        opened = Promise.resolve(database);
        resolve(database);
        void writeAgain();
      };
      request.onerror = () => resolve(undefined);
      // Until the tabs with an older version of the page are closed.
      request.onblocked = () => resolve(undefined);
    } catch {
      resolve(undefined);
    }
  }));
}

/** Version 1 had the messages in the conversations. */
function upgrade(database: IDBDatabase, transaction: IDBTransaction, version: number): void {
  const turns = database.createObjectStore(TURNS, { keyPath: ["conversation", "id"] });
  if (version === 0) {
    database.createObjectStore(HEADINGS, { keyPath: "id" });
    return;
  }
  const cursors = transaction.objectStore(HEADINGS).openCursor();
  cursors.onsuccess = () => {
    const cursor = cursors.result;
    if (!cursor) return;
    const { turns: old, ...heading } = cursor.value as Heading & { turns: Omit<Turn, "id" | "at">[] };
    for (const [at, turn] of old.entries()) turns.put({ ...turn, id: String(at), at, conversation: heading.id });
    cursor.update(heading);
    cursor.continue();
  };
}

/** Whether conversations are there again at the next visit. */
export async function keepsConversations(): Promise<boolean> {
  return (await open()) !== undefined;
}

/** Does `act` in one transaction; fails where nothing is kept. */
async function run<T>(mode: IDBTransactionMode, act: (headings: IDBObjectStore, turns: IDBObjectStore) => IDBRequest<T>): Promise<T> {
  const database = await open();
  if (!database) throw new Error("there is no database");
  return new Promise((resolve, reject) => {
    const transaction = database.transaction([HEADINGS, TURNS], mode);
    const request = act(transaction.objectStore(HEADINGS), transaction.objectStore(TURNS));
    // A page that is being closed does not live to see the request answered, upon which the browser would commit by itself.
    if (mode === "readwrite") transaction.commit();
    transaction.oncomplete = () => resolve(request.result);
    transaction.onerror = transaction.onabort = () => reject(transaction.error ?? request.error);
  });
}

const turnsOf = (id: string) => IDBKeyRange.bound([id], [id, []]);

/** All conversations, newest first. */
export async function conversations(): Promise<Listed[]> {
  const found = await run<Heading[]>("readonly", (headings) => headings.getAll()).catch(() => []);
  const all = new Map(found.map((heading) => [heading.id, { ...heading, unsaved: false }]));
  for (const [id, { heading, failed }] of pending) if (!deleted.has(id)) all.set(id, { ...heading, unsaved: failed });
  return [...all.values()].sort((a, b) => b.updated - a.updated);
}

export async function conversation(id: string): Promise<Conversation | undefined> {
  const read = run<Heading | undefined>("readonly", (headings) => headings.get(id)).catch(() => undefined);
  const rows = await run<(Turn & { conversation?: string })[]>("readonly", (_, turns) => turns.getAll(turnsOf(id))).catch(() => []);
  const mine = deleted.has(id) ? undefined : pending.get(id);
  const heading = mine?.heading ?? (await read);
  if (!heading) return undefined;
  const turns = new Map(rows.map(({ conversation: _, ...turn }) => [turn.id, turn as Turn]));
  for (const [id, turn] of mine?.put ?? []) turns.set(id, turn);
  for (const id of mine?.removed ?? []) turns.delete(id);
  return structuredClone({ ...heading, turns: [...turns.values()].sort((a, b) => a.at - b.at || (a.id < b.id ? -1 : 1)) });
}

/**
 * Writes these messages of a conversation, and removes others, unless the conversation is deleted. What cannot be written
 * stays in memory and is written with the next change that can.
 */
export async function keep({ id, title, updated }: Heading, put: readonly Turn[], removed: readonly Turn[] = []): Promise<void> {
  const mine: Pending = pending.get(id) ?? { heading: { id, title, updated }, put: new Map(), removed: new Set(), failed: false };
  pending.set(id, mine);
  mine.heading = { id, title, updated };
  for (const turn of removed) {
    mine.put.delete(turn.id);
    mine.removed.add(turn.id);
  }
  for (const turn of put) mine.put.set(turn.id, structuredClone(turn));
  await write(id);
}

async function write(id: string): Promise<void> {
  const mine = pending.get(id);
  if (!mine || deleted.has(id)) return;
  const { heading } = mine;
  const [put, removed] = [[...mine.put.values()], [...mine.removed]];
  try {
    await run("readwrite", (headings, turns) => {
      for (const turn of put) turns.put({ ...turn, conversation: id });
      for (const turn of removed) turns.delete([id, turn]);
      return headings.put(heading);
    });
  } catch {
    mine.failed = true;
    return;
  }
  // What was added meanwhile is still to be written.
  for (const turn of put) if (mine.put.get(turn.id) === turn) mine.put.delete(turn.id);
  for (const turn of removed) mine.removed.delete(turn);
  mine.failed = false;
  if (mine.heading === heading && mine.put.size + mine.removed.size === 0) pending.delete(id);
  tell(id, "written");
}

/** Tries again to write what could not be, as when something was deleted. */
export async function writeAgain(): Promise<void> {
  for (const [id, { failed }] of [...pending]) if (failed) await write(id);
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

/** Takes back a deletion. What was said in the conversation since then is added. */
export async function restore(conversation: Conversation): Promise<void> {
  deleted.delete(conversation.id);
  // Before the tabs hear that it is written: they would delete it again.
  tell(conversation.id, "restored");
  const since = [...(pending.get(conversation.id)?.put.values() ?? [])];
  await keep(conversation, [...conversation.turns, ...since]);
}

/** Whether a conversation was deleted, here or in another tab. */
export function isDeleted(id: string): boolean {
  return deleted.has(id);
}

export async function discard(id: string): Promise<void> {
  deleted.add(id);
  pending.delete(id);
  await erase(id);
  tell(id, "deleted");
  await writeAgain();
}

async function erase(id: string): Promise<void> {
  await deleteSnapshot(snapshotOf(id)).catch(() => {});
  await run("readwrite", (headings, turns) => {
    turns.delete(turnsOf(id));
    return headings.delete(id);
  }).catch(() => {});
}

/** Calls back with the id of a conversation that another tab has changed. */
export function onChange(listener: (id: string) => void): void {
  channel?.addEventListener("message", async ({ data }: MessageEvent<Change>) => {
    const { id, kind } = data;
    if (kind === "deleted") deleted.add(id);
    else if (kind === "restored") {
      deleted.delete(id);
      await write(id);
    } else if (deleted.has(id)) {
      // Written by a tab that had not heard of the deletion.
      await erase(id);
    }
    listener(id);
  });
}
