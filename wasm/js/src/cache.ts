// Downloads kept in the browser's origin-private file system: each is made once, and goes on where it broke off.
import type { LoadOptions } from "./api.js";
import { fetchPieces, respond, sizeOf, streamPieces, type Pieces } from "./source.js";

const DIRECTORY = "shohin";
const SLICE = 4 << 20;

/** What is known of a kept file; beside it, under the same name with `.json`. */
interface Record {
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
async function nameOf(url: string): Promise<string> {
  const hash = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(url));
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
): Promise<Pieces> {
  let name: string;
  let file: Access;
  try {
    name = await nameOf(url);
    // Fails while another tab downloads the same, in private windows, and outside workers.
    file = await access(name);
  } catch {
    return fetchPieces(url, request, signal);
  }
  try {
    const record = await readRecord(name);
    const have = file.getSize();
    if (record.whole && have === record.total) return { stage: "read", total: have, pieces: kept(file, have) };

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
    const known: Record = { ...(total !== undefined && { total }), ...(etag !== null && { etag }) };
    if (from === 0) {
      file.truncate(0);
      await writeRecord(name, known);
    }
    return { stage: "download", total, pieces: download(name, file, from, known, response, signal) };
  } catch (error) {
    file.close();
    throw error;
  }
}

async function* kept(file: Access, size: number): AsyncGenerator<Uint8Array> {
  try {
    yield* slices(file, size);
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
): AsyncGenerator<Uint8Array> {
  let at = from;
  let keeps = true;
  try {
    yield* slices(file, from);
    for await (const piece of streamPieces(response.body!, signal)) {
      if (keeps) {
        try {
          keeps = file.write(piece, { at }) === piece.byteLength;
        } catch {
          // No room: go on without a copy.
          keeps = false;
        }
        if (!keeps) file.truncate(0);
      }
      at += piece.byteLength;
      yield piece;
    }
    if (keeps && at === (known.total ?? at)) {
      file.flush();
      await writeRecord(name, { ...known, total: at, whole: true });
    }
  } finally {
    file.flush();
    file.close();
  }
}

/** Forgets the copy of a URL, should the file in it turn out to be unusable. @internal */
export async function forget(url: string): Promise<void> {
  const name = await nameOf(url);
  const parent = await directory();
  for (const entry of [name, `${name}.json`]) await parent.removeEntry(entry).catch(() => {});
}

/** Deletes every kept download of this site. */
export async function clearCache(): Promise<void> {
  const root = await navigator.storage.getDirectory();
  await root.removeEntry(DIRECTORY, { recursive: true }).catch((error: unknown) => {
    if (!(error instanceof DOMException && error.name === "NotFoundError")) throw error;
  });
}
