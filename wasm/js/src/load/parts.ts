// Models in several files, `name-00001-of-00003.gguf` and so on.
import { blameOn, ShohinError, toError } from "../api/errors.js";
import type { NamedPieces, Open, Pieces } from "./pieces.js";

const PART = /-(\d{5})-of-(\d{5})(\.gguf(?:[?#].*)?)$/s;

/** Above this the count in a file name is taken for a mistake. */
const MAX_PARTS = 1000;

/** The names of all parts of a model, if `name`, a URL or path, is that of one part. */
export function partsOf(name: string): string[] | undefined {
  const [ending, no, count, rest] = PART.exec(name) ?? [];
  if (ending === undefined || Number(no) < 1 || Number(no) > Number(count) || Number(count) < 2) return undefined;
  if (Number(count) > MAX_PARTS) throw new ShohinError("limit", `a model in ${Number(count)} parts is more than ${MAX_PARTS}`);
  const stem = name.slice(0, -ending.length);
  return Array.from({ length: Number(count) }, (_, i) => `${stem}-${String(i + 1).padStart(5, "0")}-of-${count}${rest}`);
}

/** The module's class that merges parts into one file. */
interface Joiner {
  head(part: number, piece: Uint8Array): boolean;
  begin(): Uint8Array;
  push(part: number, piece: Uint8Array): Uint8Array;
  finish(part: number): void;
  readonly length: number;
  free(): void;
}

/** The position of a part according to its name. */
function placeOf(name: string): { stem: string; no: number; count: number } | undefined {
  const path = /^https?:/i.test(name) ? name.replace(/[?#].*$/s, "") : name;
  // Browsers append ` (1)` to the name of a second copy.
  const [, stem = "", no, count] = /([^\\/]*)-(\d{5})-of-(\d{5})(?:\D[^\\/]*)?$/.exec(path) ?? [];
  return Number(no) >= 1 && Number(no) <= Number(count) ? { stem, no: Number(no), count: Number(count) } : undefined;
}

/** Sorts the parts of a model by their names, if all names have a part number. @internal */
export function inOrder<T extends { name: string }>(files: readonly T[]): T[] {
  const places = files.map(({ name }) => placeOf(name));
  const [first] = places;
  if (!first || places.includes(undefined)) return [...files];
  const { stem, count } = first;
  if (count > MAX_PARTS) throw new ShohinError("limit", `a model in ${count} parts is more than ${MAX_PARTS}`);
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

/** Opens a model by its name, with all its parts. @internal */
export async function openAll(name: string, open: Open): Promise<Pieces> {
  const names = partsOf(name) ?? [name];
  return openParts(names.map((name) => ({ name, open: (brief) => open(name, brief) })));
}

/** Opens the files of a model, in order. @internal */
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
  // Each part is read separately.
  return { stage, total, pieces: { async *[Symbol.asyncIterator]() {} }, close: () => closeAll(parts), parts };
}

/** Adds to an error that the length of the file may have been wrong, if it is uncertain. @internal */
export function doubted(error: ShohinError, { vague }: Pieces): ShohinError {
  if (!vague || error.code !== "truncated") return error;
  const message = `${error.message}; or the server compresses it and hides that from scripts (Access-Control-Expose-Headers: Content-Encoding)`;
  return new ShohinError("truncated", message, { cause: error });
}

async function closeAll(parts: Pieces[]): Promise<void> {
  for (const part of parts) await part.close();
}

/** Merges the parts of a model into one stream; returns any other model as it is. @internal */
export async function joined(
  source: Pieces,
  glue: { Joiner: new (lengths: Float64Array, id42: string) => Joiner },
  id42: string,
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
  /** Adds the name of the part to an error. */
  const blame = (part: number | undefined, thrown: unknown): ShohinError => {
    let error = toError(thrown);
    const at = part ?? (thrown as { part?: number }).part;
    if (at === undefined || ["aborted", "network", "http", "timeout", "integrity", "quota"].includes(error.code)) return error;
    error = doubted(error, parts[at]!);
    const alien = error.code === "missing_key" && error.message.includes("split.") ? "; it is not a part of a model in several files" : "";
    const named = new ShohinError(error.code, `${parts[at]!.name}: ${error.message}${alien}`, { cause: thrown });
    // If the part only conflicts with the others, those may be the wrong ones.
    return part === undefined ? named : blameOn(parts[at]!.name, named);
  };
  try {
    const lengths = parts.map(({ name, total }) => {
      if (total === undefined) throw new ShohinError("http", `the length of ${name} is not known, which a model in parts requires`);
      return total;
    });
    const made = (joiner = new glue.Joiner(Float64Array.from(lengths), id42));
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
