// Conversations kept in this browser (IndexedDB), and told to other tabs of the page.
//
// Each message is a record of its own, written by the tab that added it and never read back before: tabs with the same
// conversation cannot overwrite each other's messages.
import { deleteSnapshot, listSnapshots, type Message } from "shohin";
import type { Unsure } from "./confidence.js";

/** One message, and what is shown below it. */
export interface Turn extends Message {
  id: string;
  /** Its place: milliseconds since 1970 for a message, half a millisecond more for its reply. */
  at: number;
  role: "user" | "assistant";
  /** Figures of a reply: tokens, speed, why it ended. */
  figures?: string;
  /** Whether a reply was stopped or cut off, so that it can be continued. */
  unfinished?: boolean;
  /** More of them, for who asks. */
  details?: string;
  /** Calls of tools before a reply, and their results. */
  steps?: Message[];
  /** Whether a reply is JSON. */
  json?: boolean;
  /** Words of a reply that the model was unsure of. */
  unsure?: Unsure[];
  /** How many messages the model no longer sees: at the first reply without them. */
  dropped?: number;
  /** The model of a reply: name, weight formats, size. */
  model?: string;
  /** Whether the device was offline throughout the reply. */
  offline?: boolean;
  /** Whether it came from a file: it may have been written anywhere. */
  imported?: boolean;
}

/** A conversation without its messages. */
export interface Heading {
  id: string;
  title: string;
  /** Whether the title was chosen; if not, it is the first message. */
  named?: boolean;
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
  kind: "written" | "deleted" | "restored" | "forgotten";
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
export async function keep({ id, title, named, updated }: Heading, put: readonly Turn[], removed: readonly Turn[] = []): Promise<void> {
  const heading: Heading = { id, title, ...(named && { named }), updated };
  const mine: Pending = pending.get(id) ?? { heading, put: new Map(), removed: new Set(), failed: false };
  pending.set(id, mine);
  mine.heading = heading;
  texts.delete(id);
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

/** Gives a conversation another title. */
export async function rename(id: string, title: string): Promise<void> {
  const found = await conversation(id);
  if (found) await keep({ ...found, title, named: true }, []);
}

/**
 * Stores conversations with new ids, all of them or, where there is no room, none: then it fails with the browser's error.
 * Without a database they last as long as the page.
 */
export async function add(all: readonly Conversation[]): Promise<void> {
  if (!(await open())) {
    for (const conversation of all) await keep(conversation, conversation.turns);
    return;
  }
  await run("readwrite", (headings, turns) => {
    for (const { turns: said, ...heading } of all) {
      headings.put(heading);
      for (const turn of said) turns.put({ ...turn, conversation: heading.id });
    }
    return headings.count();
  });
  // No tab shows them yet: one message renews its list.
  if (all[0]) tell(all[0].id, "written");
}

/** All conversations with their messages, newest first. */
export async function wholeConversations(): Promise<Conversation[]> {
  const found = await Promise.all((await conversations()).map(({ id }) => conversation(id)));
  return found.filter((conversation) => conversation !== undefined);
}

/** The text of conversations, folded for comparison; those missing are read by the next search. */
const texts = new Map<string, string>();

/** The same for upper and lower case, with and without accents. */
function fold(text: string): string {
  return text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();
}

/** The conversations, of those given, in whose title or messages every word of the query occurs. */
export async function search(query: string, all: readonly Listed[]): Promise<Listed[]> {
  const words = fold(query).split(/\s+/).filter(Boolean);
  const missing = all.filter(({ id }) => !texts.has(id));
  if (missing.length > 0) {
    // Of a few, as of the one that is being answered, each by itself.
    const ranges = missing.length > 20 ? [undefined] : missing.map(({ id }) => turnsOf(id));
    const rows = await Promise.all(ranges.map((range) => run<(Turn & { conversation: string })[]>("readonly", (_, turns) => turns.getAll(range)).catch(() => [])));
    const said = new Map(missing.map(({ id }): [string, string[]] => [id, [...(pending.get(id)?.put.values() ?? [])].map(({ content }) => content)]));
    for (const { conversation, content } of rows.flat()) said.get(conversation)?.push(content);
    for (const [id, contents] of said) texts.set(id, fold(contents.join("\n")));
  }
  return all.filter(({ id, title }) => {
    const text = `${fold(title)}\n${texts.get(id) ?? ""}`;
    return words.every((word) => text.includes(word));
  });
}

/** How many conversations' snapshots are kept: the newest ones'. */
const SNAPSHOTS = 4;
/** Snapshots of other pages of this site have other names. */
const PREFIX = "page:";

/** What the snapshot of a conversation is called. */
export function snapshotOf(id: string): string {
  return `${PREFIX}${id}`;
}

/** Deletes this page's snapshots of conversations that are gone for good, or older than those whose snapshots are kept. */
export async function tidySnapshots(): Promise<void> {
  const newest = (await conversations()).slice(0, SNAPSHOTS).map(({ id }) => id);
  const kept = [...newest, ...undoable].map(snapshotOf);
  for (const name of await listSnapshots()) if (name.startsWith(PREFIX) && !kept.includes(name)) await deleteSnapshot(name);
}

/** Ids of deleted conversations that may still come back, and their snapshots with them. */
const undoable = new Set<string>();

/** Takes back a deletion. What was said in the conversation since then is added. */
export async function restore(conversation: Conversation): Promise<void> {
  deleted.delete(conversation.id);
  undoable.delete(conversation.id);
  // Before the tabs hear that it is written: they would delete it again.
  tell(conversation.id, "restored");
  const since = [...(pending.get(conversation.id)?.put.values() ?? [])];
  await keep(conversation, [...conversation.turns, ...since]);
}

/** Whether a conversation was deleted, here or in another tab. */
export function isDeleted(id: string): boolean {
  return deleted.has(id);
}

/** Deletes a conversation. Its snapshot stays until `forget`, should the deletion be taken back. */
export async function discard(id: string): Promise<void> {
  deleted.add(id);
  undoable.add(id);
  pending.delete(id);
  await erase(id);
  tell(id, "deleted");
  await writeAgain();
}

/** Makes a deletion final. */
export async function forget(id: string): Promise<void> {
  undoable.delete(id);
  tell(id, "forgotten");
  await deleteSnapshot(snapshotOf(id)).catch(() => {});
}

async function erase(id: string): Promise<void> {
  await run("readwrite", (headings, turns) => {
    turns.delete(turnsOf(id));
    return headings.delete(id);
  }).catch(() => {});
}

/** Calls back with the id of a conversation that another tab has changed, or whose deletion it has made final. */
export function onChange(listener: (id: string) => void, forgotten: (id: string) => void): void {
  channel?.addEventListener("message", async ({ data }: MessageEvent<Change>) => {
    const { id, kind } = data;
    if (kind === "forgotten") {
      undoable.delete(id);
      forgotten(id);
      return;
    }
    texts.delete(id);
    if (kind === "deleted") {
      deleted.add(id);
      undoable.add(id);
    } else if (kind === "restored") {
      deleted.delete(id);
      undoable.delete(id);
      await write(id);
    } else if (deleted.has(id)) {
      // Written by a tab that had not heard of the deletion.
      await erase(id);
    }
    listener(id);
  });
}
