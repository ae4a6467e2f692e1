// Text that was typed and not sent, kept for this tab: neither a reload nor another page in between loses it.
import * as preferences from "./preferences.js";

const DRAFT = "shohin.draft";
const EDITS = "shohin.edits";

/** The message that was being written. */
export function draft(): string {
  return preferences.read(DRAFT, "tab") ?? "";
}

export function keepDraft(text: string): void {
  preferences.writeText(DRAFT, text || undefined);
}

const edits = new Map(readEdits());

function readEdits(): [string, string][] {
  try {
    return Object.entries(JSON.parse(preferences.read(EDITS, "tab") ?? "{}") as Record<string, string>);
  } catch {
    return [];
  }
}

/** Ids of messages from a file are unique only within their conversation. */
const key = (conversation: string, turn: string) => `${conversation}/${turn}`;

/** What a message is to become, if it is being edited. */
export function edit(conversation: string, turn: string): string | undefined {
  return edits.get(key(conversation, turn));
}

/** Keeps what a message is to become; without a text, forgets it. */
export function keepEdit(conversation: string, turn: string, text?: string): void {
  if (text !== undefined) edits.set(key(conversation, turn), text);
  else if (!edits.delete(key(conversation, turn))) return;
  writeEdits();
}

/** Forgets the edits of a conversation, but for those of the messages `kept`. */
export function forget(conversation: string, kept: readonly string[] = []): void {
  const keep = new Set(kept.map((turn) => key(conversation, turn)));
  const gone = [...edits.keys()].filter((one) => one.startsWith(key(conversation, "")) && !keep.has(one));
  for (const one of gone) edits.delete(one);
  if (gone.length > 0) writeEdits();
}

function writeEdits(): void {
  preferences.writeText(EDITS, edits.size > 0 ? JSON.stringify(Object.fromEntries(edits)) : undefined);
}
