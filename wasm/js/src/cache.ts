// Downloads kept in the browser's origin-private file system: each is made once, and goes on where it broke off.
import type { LoadOptions } from "./api.js";
import { ShohinError } from "./error.js";
import { fetchPieces, respond, sizeOf, streamPieces, type Pieces } from "./source.js";

const DIRECTORY = "shohin";
const SLICE = 4 << 20;

/** What is known of a kept file; beside it, under the same name with `.json`. */
interface Record {
  url?: string;
  /** SHA-256 of each piece of `SLICE` bytes, of a whole file. */
  slices?: string[];
  /** Its size, as the server told it. */
  total?: number;
  /** Set when all of it was written and flushed. */
  whole?: boolean;
  /** The server's name for this version of it. */
  etag?: string;
}

/** Access to a file that only workers have; not in TypeScript's library for pages. */
interface Access {
  read(into: Uint8Array, options: { at: number }): number;
  write(from: Uint8Array, options: { at: number }): number;
  truncate(size: number): void;
  getSize(): number;
  flush(): void;
  close(): void;
}

async function directory(): Promise<FileSystemDirectoryHandle> {
  return (await navigator.storage.getDirectory()).getDirectoryHandle(DIRECTORY, { create: true });
}

/** A file name for a URL. */
function nameOf(url: string): Promise<string> {
  return sha256(new TextEncoder().encode(url));
}

async function sha256(bytes: Uint8Array): Promise<string> {
  const hash = await crypto.subtle.digest("SHA-256", bytes as Uint8Array<ArrayBuffer>);
  return [...new Uint8Array(hash)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

async function access(name: string): Promise<Access> {
  const file = await (await directory()).getFileHandle(name, { create: true });
  return (file as unknown as { createSyncAccessHandle(): Promise<Access> }).createSyncAccessHandle();
}

async function readRecord(name: string): Promise<Record> {
  try {
    const file = await (await (await directory()).getFileHandle(`${name}.json`)).getFile();
    const record: unknown = JSON.parse(await file.text());
    return typeof record === "object" && record !== null ? record : {};
  } catch {
    return {};
  }
}

async function writeRecord(name: string, record: Record): Promise<void> {
  const file = await access(`${name}.json`);
  try {
    file.truncate(0);
    file.write(new TextEncoder().encode(JSON.stringify(record)), { at: 0 });
    file.flush();
  } finally {
    file.close();
  }
}

/** Streams a URL by way of the kept copy. Where there can be none, downloads as usual. @internal */
export async function keptPieces(
  url: string,
  request: LoadOptions["request"],
  signal: AbortSignal | undefined,
  required: boolean,
): Promise<Pieces> {
  let name: string;
  let file: Access;
  try {
    name = await nameOf(url);
    // Fails while another tab downloads the same, in private windows, and outside workers.
    file = await access(name);
  } catch (cause) {
    if (required) throw new ShohinError("quota", "the browser keeps nothing here, or another tab has this copy open", { cause });
    return fetchPieces(url, request, signal);
  }
  try {
    const record = await readRecord(name);
    const have = file.getSize();
    if (record.whole && have === record.total) return { stage: "read", total: have, pieces: kept(file, have, record.slices) };

    let from = record.total !== undefined && have < record.total ? have : 0;
    let response: Response;
    if (from > 0) {
      const headers = new Headers(request?.headers);
      headers.set("Range", `bytes=${from}-`);
      response = await respond(url, { ...request, headers }, signal, [206, 416]);
      const same =
        response.status === 206 &&
        Number(response.headers.get("content-length")) === record.total! - from &&
        (response.headers.get("etag") ?? undefined) === record.etag;
      if (!same) {
        // The file has changed, or the server knows no ranges.
        from = 0;
        if (response.status !== 200) {
          await response.body?.cancel();
          response = await respond(url, request, signal);
        }
      }
    } else {
      response = await respond(url, request, signal);
    }
    const total = from > 0 ? record.total : sizeOf(response);
    const etag = response.headers.get("etag");
    const known: Record = { url, ...(total !== undefined && { total }), ...(etag !== null && { etag }) };
    if (required && total !== undefined) {
      const { quota, usage } = await navigator.storage.estimate();
      if (quota !== undefined && usage !== undefined && total - have > quota - usage) {
        await response.body?.cancel();
        throw noRoom();
      }
    }
    if (from === 0) {
      file.truncate(0);
      await writeRecord(name, known);
    }
    return { stage: "download", total, pieces: download(name, file, from, known, response, signal, required) };
  } catch (error) {
    file.close();
    throw error;
  }
}

function noRoom(cause?: unknown): ShohinError {
  return new ShohinError("quota", "there is no room to keep the model", { cause });
}

async function* kept(file: Access, size: number, sums: string[] | undefined): AsyncGenerator<Uint8Array> {
  let n = 0;
  try {
    for (const slice of slices(file, size)) {
      if (sums && (await sha256(slice)) !== sums[n++]) throw new ShohinError("integrity", "the kept copy is damaged");
      yield slice;
    }
  } finally {
    file.close();
  }
}

function* slices(file: Access, size: number): Generator<Uint8Array> {
  const buffer = new Uint8Array(Math.min(SLICE, size));
  for (let at = 0; at < size; ) {
    const read = file.read(buffer.subarray(0, Math.min(SLICE, size - at)), { at });
    if (read === 0) return;
    yield buffer.subarray(0, read);
    at += read;
  }
}

async function* download(
  name: string,
  file: Access,
  from: number,
  known: Record,
  response: Response,
  signal: AbortSignal | undefined,
  required: boolean,
): AsyncGenerator<Uint8Array> {
  let at = from;
  let keeps = true;
  try {
    yield* slices(file, from);
    for await (const piece of streamPieces(response.body!, signal)) {
      if (keeps) {
        try {
          keeps = file.write(piece, { at }) === piece.byteLength;
        } catch (cause) {
          if (required) throw noRoom(cause);
          keeps = false;
        }
        // No room: go on without a copy.
        if (!keeps) file.truncate(0);
        if (!keeps && required) throw noRoom();
      }
      at += piece.byteLength;
      yield piece;
    }
    if (keeps && at === (known.total ?? at)) {
      file.flush();
      const sums: string[] = [];
      for (const slice of slices(file, at)) sums.push(await sha256(slice));
      await writeRecord(name, { ...known, total: at, whole: true, slices: sums });
    }
  } finally {
    file.flush();
    file.close();
  }
}

/** A copy that `cache: true` has made. */
export interface CacheEntry {
  url: string;
  /** Bytes that it takes. */
  bytes: number;
  /** Bytes of the whole file, where that is known. */
  total?: number;
  /** Whether all of it is there; if not, the next load goes on with it. */
  complete: boolean;
}

/** What is kept for this site. */
export async function listCache(): Promise<CacheEntry[]> {
  const entries: CacheEntry[] = [];
  const parent = await directory();
  const names = (parent as unknown as { keys(): AsyncIterable<string> }).keys();
  for await (const entry of names) {
    if (!entry.endsWith(".json")) continue;
    const name = entry.slice(0, -".json".length);
    const { url, total, whole } = await readRecord(name);
    const file = await parent.getFileHandle(name).then((handle) => handle.getFile(), () => undefined);
    if (url === undefined || !file) continue;
    entries.push({ url, bytes: file.size, ...(total !== undefined && { total }), complete: whole === true && file.size === total });
  }
  return entries;
}

/** Deletes the copy of a URL; says whether there was one. */
export async function deleteCache(url: string | URL): Promise<boolean> {
  const base = typeof document === "undefined" ? location.href : document.baseURI;
  const name = await nameOf(new URL(url, base).href);
  const parent = await directory();
  await parent.removeEntry(`${name}.json`).catch(() => {});
  return parent.removeEntry(name).then(() => true, () => false);
}

/** Deletes every kept download of this site. */
export async function clearCache(): Promise<void> {
  const root = await navigator.storage.getDirectory();
  await root.removeEntry(DIRECTORY, { recursive: true }).catch((error: unknown) => {
    if (!(error instanceof DOMException && error.name === "NotFoundError")) throw error;
  });
}
