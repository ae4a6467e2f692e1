// The source of a model as callers pass it, and how it is opened and read.
import { abortError, ShohinError, toError } from "../api/errors.js";
import type { LoadOptions } from "../api/options.js";
import { doubted, inOrder, openAll, openParts } from "./parts.js";
import type { Open, Pieces } from "./pieces.js";

/** Bytes of a file that are read at once. @internal */
export const READ_SIZE = 4 << 20;
/** The same at the beginning of a file of which perhaps only that is read for a while. @internal */
export const FIRST_READ_SIZE = 64 << 10;

/** Reads a file or blob in slices, so that it is never in memory as a whole. `brief`: start with small slices. */
function blobPieces(blob: Blob, brief = false): Pieces {
  return {
    stage: "read",
    total: blob.size,
    pieces: (async function* () {
      for (let at = 0, size = brief ? FIRST_READ_SIZE : READ_SIZE; at < blob.size; at += size, size = Math.min(2 * size, READ_SIZE)) {
        try {
          yield new Uint8Array(await blob.slice(at, at + size).arrayBuffer());
        } catch (cause) {
          throw new ShohinError("read", "the file could not be read; it may have been changed or removed", { cause });
        }
      }
    })(),
    close: () => {},
  };
}

/** The bytes from `at` on, or nothing at the end. @internal */
export type Read = (at: number) => Uint8Array | undefined | Promise<Uint8Array | undefined>;

/** Streams bytes that the caller has in memory. */
function bytesPieces(size: number, read: Read): Pieces {
  return {
    stage: "read",
    total: size,
    pieces: (async function* () {
      for (let at = 0; ; ) {
        const piece = await read(at);
        if (!piece) return;
        at += piece.byteLength;
        yield piece;
      }
    })(),
    close: () => {},
  };
}

/** Reads `bytes` without copying them. @internal */
export function readerOf(bytes: Uint8Array): Read {
  return (at) => (at < bytes.byteLength ? bytes.subarray(at, at + READ_SIZE) : undefined);
}

/** One file. @internal */
export type FileSource = { url: string } | { blob: Blob };

/** A source after validation. @internal */
export type Source = FileSource | { files: FileSource[] } | { bytes: Uint8Array };

/** The same as a runtime takes it: it asks for the caller's bytes piece by piece. @internal */
export type RemoteSource = Exclude<Source, { bytes: Uint8Array }> | { size: number };

function fileOf(source: unknown): FileSource | undefined {
  if (typeof source === "string") return { url: source };
  if (source instanceof URL) return { url: source.href };
  return source instanceof Blob ? { blob: source } : undefined;
}

/** The name of a file in errors. */
function nameOf(file: FileSource, index: number): string {
  if ("url" in file) return file.url;
  return file.blob instanceof File ? file.blob.name : `part ${index + 1}`;
}

/** Validates a source. Several files are the parts of one model, in order. @internal */
export function sourceOf(source: unknown, what = "the model"): Source {
  const file = fileOf(source);
  if (file) return file;
  if (source instanceof ArrayBuffer) return { bytes: new Uint8Array(source) };
  if (ArrayBuffer.isView(source)) {
    return { bytes: new Uint8Array(source.buffer as ArrayBuffer, source.byteOffset, source.byteLength) };
  }
  if (typeof source !== "object" || source === null || !(Symbol.iterator in source)) {
    throw new ShohinError("argument", `${what} must be a URL, a File or Blob, an ArrayBuffer, a typed array, or several files`);
  }
  const files = Array.from(source as Iterable<unknown>, (each) => {
    const file = fileOf(each);
    if (!file) throw new ShohinError("argument", "each part of a model must be a URL, a File or a Blob");
    return file;
  });
  const [only] = files;
  if (!only) throw new ShohinError("argument", "the list of files is empty");
  // The other parts are found beside a URL, but not beside a file.
  if (files.length === 1 && "url" in only) return only;
  const sorted = inOrder(files.map((file, i) => ({ name: nameOf(file, i), file })));
  return { files: sorted.map(({ file }) => file) };
}

/** Opens a source. `open` opens a URL, `read` reads the caller's bytes. @internal */
export async function openSource(source: RemoteSource, open: Open, read: Read): Promise<Pieces> {
  if ("url" in source) return openAll(source.url, open);
  if ("blob" in source) return blobPieces(source.blob);
  if ("size" in source) return bytesPieces(source.size, read);
  return openParts(
    source.files.map((file, i) => ({
      name: nameOf(file, i),
      open: async (brief) => ("url" in file ? open(file.url, brief) : blobPieces(file.blob, brief)),
    })),
  );
}

/** Passes every piece to `sink` and reports progress; throws when aborted. Returns the number of bytes. @internal */
export async function pour(
  source: Pieces,
  sink: (piece: Uint8Array) => void | Promise<void>,
  options: { onProgress?: LoadOptions["onProgress"]; signal?: AbortSignal | undefined },
): Promise<number> {
  const { stage, total } = source;
  const report = (at: number) => options.onProgress?.({ stage, loaded: at, ...(total !== undefined && { total }) });
  let loaded = 0;
  let last = performance.now();
  let late: ReturnType<typeof setTimeout> | undefined;
  const tell = () => {
    clearTimeout(late);
    late = undefined;
    last = performance.now();
    report(loaded);
  };
  report(0);
  const iterator = source.pieces[Symbol.asyncIterator]();
  try {
    for (;;) {
      if (options.signal?.aborted) throw abortError(options.signal);
      const { done, value } = await iterator.next();
      if (done) break;
      await sink(value);
      loaded += value.byteLength;
      // The timer reports the last piece before a pause; it cannot fire while pieces arrive without one.
      if (performance.now() - last >= 50) tell();
      else late ??= setTimeout(tell, 50);
    }
  } catch (thrown) {
    throw doubted(toError(thrown), source);
  } finally {
    clearTimeout(late);
    // Releases the connection when the sink refuses the file.
    await iterator.return?.();
  }
  if (options.signal?.aborted) throw abortError(options.signal);
  report(loaded);
  return loaded;
}
