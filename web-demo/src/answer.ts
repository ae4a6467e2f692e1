// A question and its answer as the fragment of a link, which browsers send to no server.

/** A shared answer. All of it is what a link says, true or not. */
export interface Answer {
  question: string;
  answer: string;
  /** The model and its figures. */
  source?: string;
}

/** Why a fragment is no answer; the message continues “cannot be read: ”. */
export class LinkError extends Error {
  override name = "LinkError";
}

const VERSION = 1;
/** The longest fragment, in characters: every current browser opens and copies it. */
const LONGEST = 16_000;
/** The most a fragment may hold, in bytes: compressed zeros are a thousandth of their size. */
const MOST = 64 << 10;

async function collect(stream: ReadableStream<Uint8Array>, most: number): Promise<Uint8Array<ArrayBuffer> | undefined> {
  const chunks: Uint8Array[] = [];
  let size = 0;
  const reader = stream.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    size += value.length;
    if (size > most) {
      await reader.cancel().catch(() => {});
      return undefined;
    }
    chunks.push(value);
  }
  const all = new Uint8Array(size);
  let at = 0;
  for (const chunk of chunks) {
    all.set(chunk, at);
    at += chunk.length;
  }
  return all;
}

/** The fragment of an answer, or nothing if it would be too long for a link. */
export async function encode({ question, answer, source }: Answer): Promise<string | undefined> {
  const json = new Blob([JSON.stringify({ version: VERSION, question, answer, source })]);
  if (json.size > MOST) return undefined;
  const packed = await collect(json.stream().pipeThrough(new CompressionStream("deflate-raw")), LONGEST);
  if (!packed) return undefined;
  const text = btoa(String.fromCharCode(...packed)).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
  return text.length > LONGEST ? undefined : text;
}

/** Reads what `encode` wrote; fails with a `LinkError` on everything else. */
export async function decode(fragment: string): Promise<Answer> {
  if (fragment.length > LONGEST) throw new LinkError(`expected at most ${LONGEST} characters, found ${fragment.length}`);
  if (!/^[\w-]+$/.test(fragment)) throw new LinkError("expected letters, digits, - and _ only");
  let value: unknown;
  try {
    const packed = Uint8Array.from(atob(fragment.replace(/-/g, "+").replace(/_/g, "/")), (character) => character.charCodeAt(0));
    const bytes = await collect(new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw")), MOST);
    if (!bytes) throw new LinkError(`expected at most ${MOST} bytes of text, found more`);
    value = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
  } catch (error) {
    if (error instanceof LinkError) throw error;
    throw new LinkError("it is damaged, or was cut when it was copied");
  }
  const { version, question, answer, source } = (typeof value === "object" && value !== null ? value : {}) as Record<string, unknown>;
  if (version !== VERSION) throw new LinkError(`expected version ${VERSION}, found ${typeof version === "number" ? version : "none"}`);
  if (typeof question !== "string" || typeof answer !== "string") throw new LinkError("expected a question and an answer, found something else");
  if (source !== undefined && typeof source !== "string") throw new LinkError("expected a text as the source, found something else");
  return { question, answer, ...(source !== undefined && { source }) };
}
