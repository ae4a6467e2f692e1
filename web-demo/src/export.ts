// Conversations as files: JSON, which can be imported again, and Markdown, to be read.
import { conversation, isDeleted, newId, type Conversation, type Turn } from "./history.js";

const FORMAT = "shohin-conversations";
const VERSION = 1;
/** The largest file that is imported, in bytes. */
export const MOST = 256e6;

/** Why a file was not imported; the message says what was expected where, and what was found. */
export class ImportError extends Error {
  override name = "ImportError";
}

export function toJson(all: readonly Conversation[]): string {
  return `${JSON.stringify({ format: FORMAT, version: VERSION, exported: new Date().toISOString(), conversations: all }, undefined, 2)}\n`;
}

export function toMarkdown(all: readonly Conversation[]): string {
  return `${all.map(section).join("\n\n---\n\n")}\n`;
}

function section({ title, updated, turns }: Conversation): string {
  const said = turns.map(({ role, content, model, figures }) => {
    const source = [model, figures].filter(Boolean).join(" · ");
    return [`## ${role === "user" ? "You" : "Reply"}`, content, ...(role === "assistant" && source ? [`*${source}*`] : [])].join("\n\n");
  });
  return [`# ${title}`, new Date(updated).toISOString().slice(0, 10), ...said].join("\n\n");
}

/** Saves a file to the visitor's downloads. */
export function download(name: string, content: Blob): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  // Some browsers read it later than now.
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/** A file name made of a title. */
export function fileName(title: string, extension: string): string {
  const words = title.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [];
  return `${["shohin", ...words].join("-").slice(0, 60).replace(/-$/, "")}.${extension}`;
}

type Fields = Record<string, unknown>;

function found(value: unknown): string {
  if (value === undefined) return "nothing";
  const text = JSON.stringify(value);
  return text.length > 40 ? `${text.slice(0, 40)}…` : text;
}

function fail(place: string, expected: string, value: unknown): never {
  throw new ImportError(`${place}: expected ${expected}, found ${found(value)}`);
}

function fields(value: unknown, place: string): Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Fields) : fail(place, "an object", value);
}

function list(value: unknown, place: string): unknown[] {
  return Array.isArray(value) ? value : fail(place, "an array", value);
}

const isText = (value: unknown) => typeof value === "string";
const isId = (value: unknown) => typeof value === "string" && value !== "" && value.length <= 100;
const isTime = (value: unknown) => typeof value === "number" && Number.isFinite(value) && Math.abs(value) <= 8.64e15;
const isCount = (value: unknown) => Number.isSafeInteger(value) && (value as number) >= 0;
const isFlag = (value: unknown) => typeof value === "boolean";

/** What a field holds: a value of some kind, or objects, of which only the known fields are read. */
type Kind = readonly [check: (value: unknown) => boolean, expected: string] | ((value: unknown, place: string) => unknown);

/** The fields of an object and what they hold; those that end in `?` may be missing. */
type Shape = Record<string, Kind>;

const listOf = (shape: Shape): Kind => (value, place) => list(value, place).map((one, i) => read(one, shape, `${place}[${i}]`));
const isUnsure = (value: unknown) => Array.isArray(value) && value.every((one) => Array.isArray(one) && one.length === 3 && one.every(isCount));

const CONVERSATION: Shape = {
  id: [isId, "a text of 1 to 100 characters"],
  title: [isText, "a text"],
  updated: [isTime, "milliseconds since 1970"],
  "named?": [isFlag, "true or false"],
};
const CALL: Shape = {
  name: [isText, "a text"],
  arguments: [isText, "a text"],
};
const STEP: Shape = {
  role: [(value) => value === "assistant" || value === "tool", '"assistant" or "tool"'],
  content: [isText, "a text"],
  "reasoning?": [isText, "a text"],
  "toolCalls?": listOf(CALL),
};
const TURN: Shape = {
  id: [isId, "a text of 1 to 100 characters"],
  at: [isTime, "milliseconds since 1970"],
  role: [(value) => value === "user" || value === "assistant", '"user" or "assistant"'],
  content: [isText, "a text"],
  "reasoning?": [isText, "a text"],
  "figures?": [isText, "a text"],
  "unfinished?": [isFlag, "true or false"],
  "details?": [isText, "a text"],
  "steps?": listOf(STEP),
  "json?": [isFlag, "true or false"],
  "unsure?": [isUnsure, "an array of three whole numbers each"],
  "dropped?": [isCount, "a whole number"],
  "model?": [isText, "a text"],
};

/** The known fields of an object. */
function read<T>(value: unknown, shape: Shape, place: string): T {
  const object = fields(value, place);
  const known: Fields = {};
  for (const [key, kind] of Object.entries(shape)) {
    const name = key.replace("?", "");
    const value = object[name];
    if (value === undefined && key !== name) continue;
    if (typeof kind === "function") {
      known[name] = kind(value, `${place}.${name}`);
      continue;
    }
    const [check, expected] = kind;
    if (!check(value)) fail(`${place}.${name}`, expected, value);
    known[name] = value;
  }
  return known as T;
}

/** Reads what `toJson` wrote; fails with an `ImportError` if anything in it is wrong. */
export function parse(json: string): Conversation[] {
  let file: Fields;
  try {
    file = fields(JSON.parse(json), "the file");
  } catch (error) {
    if (error instanceof ImportError) throw error;
    throw new ImportError(`it is not JSON: ${(error as Error).message}`);
  }
  if (file["format"] !== FORMAT) fail("format", `"${FORMAT}"`, file["format"]);
  if (file["version"] !== VERSION) fail("version", String(VERSION), file["version"]);
  return list(file["conversations"], "conversations").map((value, i) => {
    const place = `conversations[${i}]`;
    const heading = read<Omit<Conversation, "turns">>(value, CONVERSATION, place);
    const turns = list((value as Fields)["turns"], `${place}.turns`).map((turn, j) => read<Turn>(turn, TURN, `${place}.turns[${j}]`));
    if (turns.length === 0) fail(`${place}.turns`, "at least one message", []);
    const ids = new Set<string>();
    for (const [j, { id }] of turns.entries()) {
      if (ids.has(id)) fail(`${place}.turns[${j}].id`, "an id that no other message has", id);
      ids.add(id);
    }
    return { ...heading, turns };
  });
}

/** The conversations that are not here yet, with ids that none here has; replies are marked as imported. */
export async function foreign(all: readonly Conversation[]): Promise<Conversation[]> {
  const added: Conversation[] = [];
  const taken = new Set<string>();
  for (const imported of all) {
    const here = await conversation(imported.id);
    if (here && isSame(here, imported)) continue;
    const id = here || taken.has(imported.id) || isDeleted(imported.id) ? newId() : imported.id;
    taken.add(id);
    added.push({ ...imported, id, turns: imported.turns.map((turn) => ({ ...turn, ...(turn.role === "assistant" && { imported: true }) })) });
  }
  return added;
}

function isSame(a: Conversation, b: Conversation): boolean {
  const said = ({ turns }: Conversation) => JSON.stringify(turns.map(({ role, content }) => [role, content]));
  return said(a) === said(b);
}
