// Models in several files, `name-00001-of-00003.gguf` and so on.
import { blameOn, ShohinError, toError } from "./error.js";
import type { Pieces } from "./source.js";

const PART = /-(\d{5})-of-(\d{5})(\.gguf(?:[?#].*)?)$/s;

/** A name can claim more than anybody means. */
const MOST_PARTS = 1000;

/** The names of all parts of the model of which `name`, a URL or path, is one. */
export function partsOf(name: string): string[] | undefined {
  const [ending, no, count, rest] = PART.exec(name) ?? [];
  if (ending === undefined || Number(no) < 1 || Number(no) > Number(count) || Number(count) < 2) return undefined;
  if (Number(count) > MOST_PARTS) throw new ShohinError("limit", `a model in ${Number(count)} parts is more than ${MOST_PARTS}`);
  const stem = name.slice(0, -ending.length);
  return Array.from({ length: Number(count) }, (_, i) => `${stem}-${String(i + 1).padStart(5, "0")}-of-${count}${rest}`);
}

/** The module's joiner of parts. */
interface Joiner {
  head(part: number, piece: Uint8Array): boolean;
  begin(): Uint8Array;
  push(part: number, piece: Uint8Array): Uint8Array;
  finish(part: number): void;
  readonly length: number;
  free(): void;
}

/** What its name says of a part. */
function placeOf(name: string): { stem: string; no: number; count: number } | undefined {
  const path = /^https?:/i.test(name) ? name.replace(/[?#].*$/s, "") : name;
  // Browsers put ` (1)` behind the name of a second copy.
  const [, stem = "", no, count] = /([^\\/]*)-(\d{5})-of-(\d{5})(?:\D[^\\/]*)?$/.exec(path) ?? [];
  return Number(no) >= 1 && Number(no) <= Number(count) ? { stem, no: Number(no), count: Number(count) } : undefined;
}

/** Brings the parts of a model into order by their names, where all of these tell it. @internal */
export function inOrder<T extends { name: string }>(files: readonly T[]): T[] {
  const places = files.map(({ name }) => placeOf(name));
  const [first] = places;
  if (!first || places.includes(undefined)) return [...files];
  const { stem, count } = first;
  if (count > MOST_PARTS) throw new ShohinError("limit", `a model in ${count} parts is more than ${MOST_PARTS}`);
  const slots: (T | undefined)[] = Array.from({ length: count });
  for (const [i, file] of files.entries()) {
    const place = places[i]!;
    if (place.stem !== stem || place.count !== count) {
      throw new ShohinError("argument", `${files[0]!.name} and ${file.name} are not parts of the same model`);
    }
    const twin = slots[place.no - 1];
    if (twin) throw new ShohinError("argument", `${twin.name} and ${file.name} are the same part of the model`);
    slots[place.no - 1] = file;
  }
  return slots.map((file, i) => {
    if (file) return file;
    const digits = (n: number) => String(n).padStart(5, "0");
    throw new ShohinError("read", `${stem}-${digits(i + 1)}-of-${digits(count)}.gguf is missing: all ${count} parts of the model are needed`);
  });
}

/** Opens a model by its name, all parts of it if there are several. `open` opens a file. @internal */
export async function openAll(name: string, open: (name: string, brief: boolean) => Promise<Pieces>): Promise<Pieces> {
  const names = partsOf(name) ?? [name];
  return openParts(names.map((name) => ({ name, open: (brief) => open(name, brief) })));
}

/** Opens the files of a model, which are in order. @internal */
export async function openParts(files: { name: string; open: (brief: boolean) => Promise<Pieces> }[]): Promise<Pieces> {
  const [only] = files;
  if (only && files.length === 1) return only.open(false);
  const parts: NamedPieces[] = [];
  try {
    for (const { name, open } of files) parts.push({ name, ...(await open(true)) });
  } catch (thrown) {
    await closeAll(parts);
    throw thrown;
  }
  const sizes = parts.map((part) => part.total);
  const total = sizes.every((size) => size !== undefined) ? sizes.reduce((sum, size) => sum + size, 0) : undefined;
  const stage = parts.every((part) => part.stage === "read") ? "read" : "download";
  // Each is read by itself.
  return { stage, total, pieces: { async *[Symbol.asyncIterator]() {} }, close: () => closeAll(parts), parts };
}

/** An error, with what else may be behind it where a length is not certain. @internal */
export function doubted(error: ShohinError, { vague }: Pieces): ShohinError {
  if (!vague || error.code !== "truncated") return error;
  const message = `${error.message}; or the server compresses it on the way and does not let this page see that (Access-Control-Expose-Headers: Content-Encoding)`;
  return new ShohinError("truncated", message, { cause: error });
}

/** A part, and what errors call it. @internal */
export interface NamedPieces extends Pieces {
  name: string;
}

async function closeAll(parts: Pieces[]): Promise<void> {
  for (const part of parts) await part.close();
}

/** One stream of a model in parts; any other is left as it is. @internal */
export async function joined(
  source: Pieces,
  glue: { Joiner: new (lengths: Float64Array) => Joiner },
): Promise<Pieces> {
  const { parts } = source;
  if (!parts) return source;
  const iterators = parts.map(({ pieces }) => pieces[Symbol.asyncIterator]());
  let joiner: Joiner | undefined;
  const end = async () => {
    joiner?.free();
    joiner = undefined;
    await closeAll(parts);
  };
  /** Puts the name of the file in front of what is wrong with it. */
  const blame = (part: number | undefined, thrown: unknown): ShohinError => {
    let error = toError(thrown);
    const at = part ?? (thrown as { part?: number }).part;
    if (at === undefined || ["aborted", "network", "http", "timeout", "integrity", "quota"].includes(error.code)) return error;
    error = doubted(error, parts[at]!);
    const alien = error.code === "missing_key" && error.message.includes("split.") ? "; it is no part of a model in several files" : "";
    const named = new ShohinError(error.code, `${parts[at]!.name}: ${error.message}${alien}`, { cause: thrown });
    // What only shows beside the others may as well be wrong with these.
    return part === undefined ? named : blameOn(parts[at]!.name, named);
  };
  try {
    const lengths = parts.map(({ name, total }) => {
      if (total === undefined) throw new ShohinError("http", `the length of ${name} is not known, as it must be for a model in parts`);
      return total;
    });
    const made = (joiner = new glue.Joiner(Float64Array.from(lengths)));
    for (const [part, iterator] of iterators.entries()) {
      try {
        for (let whole = false; !whole; ) {
          const { done, value } = await iterator.next();
          if (done) made.finish(part);
          whole = made.head(part, value ?? new Uint8Array());
        }
      } catch (thrown) {
        throw blame(part, thrown);
      }
    }
    let header: Uint8Array;
    try {
      header = made.begin();
    } catch (thrown) {
      throw blame(undefined, thrown);
    }
    const pieces = (async function* () {
      try {
        yield header;
        for (const [part, iterator] of iterators.entries()) {
          try {
            yield made.push(part, new Uint8Array());
            for (let next = await iterator.next(); !next.done; next = await iterator.next()) yield made.push(part, next.value);
            made.finish(part);
          } catch (thrown) {
            throw blame(part, thrown);
          }
        }
      } finally {
        await end();
      }
    })();
    return { stage: source.stage, total: made.length, pieces, close: end };
  } catch (thrown) {
    await end();
    throw thrown;
  }
}
