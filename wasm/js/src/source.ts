import type { LoadOptions } from "./api.js";
import { downloadPieces, type DownloadOptions } from "./download.js";
import { abortError, ShohinError, toError } from "./error.js";
import { doubted, inOrder, openAll, openParts, type NamedPieces } from "./parts.js";

/** A model file as a stream of pieces. @internal */
export interface Pieces {
  stage: "download" | "read";
  /** Size in bytes if known. A server's word, so only a hint. */
  total: number | undefined;
  /** Whether that may be the length of a compressed body, which servers need not tell pages of other origins. */
  vague?: boolean;
  pieces: AsyncIterable<Uint8Array>;
  /** Lets go of the file or connection, begun or not, and at any time; as often as one likes. */
  close: () => void | Promise<void>;
  /** Its files, where it is in several: then these are to be read. */
  parts?: NamedPieces[];
}

/** Bytes of a file that are read at once. @internal */
export const SLICE = 4 << 20;
/** The same at the beginning of a file of which perhaps no more is wanted for a while. @internal */
export const BEGIN = 64 << 10;

/** The size of the file that a response brings, if it is told and true. @internal */
export function sizeOf(response: Response): number | undefined {
  // The length of a compressed body is not the length of the file.
  if (response.headers.get("content-encoding")) return undefined;
  const length = Number(response.headers.get("content-length") || Number.NaN);
  return Number.isSafeInteger(length) && length >= 0 ? length : undefined;
}

/** Streams what a URL names. `brief`: perhaps only its beginning is wanted for a while. @internal */
export function fetchPieces(url: string, options: DownloadOptions, brief = false): Promise<Pieces> {
  return downloadPieces(url, options, undefined, brief);
}

/** Reads a file or blob in slices, so that it is never in memory as a whole. `brief`: from small slices on. @internal */
export function blobPieces(blob: Blob, brief = false): Pieces {
  return {
    stage: "read",
    total: blob.size,
    pieces: (async function* () {
      for (let at = 0, size = brief ? BEGIN : SLICE; at < blob.size; at += size, size = Math.min(2 * size, SLICE)) {
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

/** Goes through bytes that are in memory already, without copying them. @internal */
export function bytesPieces(bytes: Uint8Array): Pieces {
  return {
    stage: "read",
    total: bytes.byteLength,
    pieces: (async function* () {
      for (let at = 0; at < bytes.byteLength; at += SLICE) yield bytes.subarray(at, at + SLICE);
    })(),
    close: () => {},
  };
}

/** What one file is. @internal */
export type FileKind = { url: string } | { blob: Blob };

/** What kind of source an argument is. @internal */
export type Kind = FileKind | { files: FileKind[] } | { bytes: Uint8Array };

function fileOf(source: unknown): FileKind | undefined {
  if (typeof source === "string") return { url: source };
  if (source instanceof URL) return { url: source.href };
  return source instanceof Blob ? { blob: source } : undefined;
}

/** What errors call a file. */
function nameOf(file: FileKind, index: number): string {
  if ("url" in file) return file.url;
  return file.blob instanceof File ? file.blob.name : `part ${index + 1}`;
}

/** Several files are those of one model, in order. @internal */
export function kindOf(source: unknown): Kind {
  const file = fileOf(source);
  if (file) return file;
  if (source instanceof ArrayBuffer) return { bytes: new Uint8Array(source) };
  if (ArrayBuffer.isView(source)) {
    return { bytes: new Uint8Array(source.buffer as ArrayBuffer, source.byteOffset, source.byteLength) };
  }
  if (typeof source !== "object" || source === null || !(Symbol.iterator in source)) {
    throw new ShohinError("argument", "the model must be a URL, a File or Blob, an ArrayBuffer, a typed array, or several files");
  }
  const files = Array.from(source as Iterable<unknown>, (each) => {
    const file = fileOf(each);
    if (!file) throw new ShohinError("argument", "each part of a model must be a URL, a File or a Blob");
    return file;
  });
  const [only] = files;
  if (!only) throw new ShohinError("argument", "there is no file in the list");
  // Other parts are found beside a URL, but not beside a file.
  if (files.length === 1 && "url" in only) return only;
  const sorted = inOrder(files.map((file, i) => ({ name: nameOf(file, i), file })));
  return { files: sorted.map(({ file }) => file) };
}

/** Opens what a source names. `open` opens a URL. @internal */
export async function openKind(kind: Kind, open: (url: string, brief: boolean) => Promise<Pieces>): Promise<Pieces> {
  if ("url" in kind) return openAll(kind.url, open);
  if ("blob" in kind) return blobPieces(kind.blob);
  if ("bytes" in kind) return bytesPieces(kind.bytes);
  return openParts(
    kind.files.map((file, i) => ({
      name: nameOf(file, i),
      open: async (brief) => ("url" in file ? open(file.url, brief) : blobPieces(file.blob, brief)),
    })),
  );
}

/** Hands every piece to `sink` and reports progress; throws when aborted. @internal */
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
      // The timer tells of the last piece before a pause; it cannot fire while pieces come without one.
      if (performance.now() - last >= 50) tell();
      else late ??= setTimeout(tell, 50);
    }
  } catch (thrown) {
    throw doubted(toError(thrown), source);
  } finally {
    clearTimeout(late);
    // Lets go of the connection when the sink refuses the file.
    await iterator.return?.();
  }
  if (options.signal?.aborted) throw abortError(options.signal);
  report(loaded);
  return loaded;
}
