import type { LoadOptions } from "./api.js";
import { abortError, ShohinError, toError } from "./error.js";

/** A model file as a stream of pieces. @internal */
export interface Pieces {
  stage: "download" | "read";
  /** Size in bytes if known. A server's word, so only a hint. */
  total: number | undefined;
  pieces: AsyncIterable<Uint8Array>;
}

const SLICE = 4 << 20;

/** Asks for a URL; any answer but a full one, or one of `allowed` statuses, is an error. @internal */
export async function respond(
  url: string,
  request: RequestInit | undefined,
  signal: AbortSignal | undefined,
  allowed: number[] = [],
): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(url, { ...request, ...(signal && { signal }) });
  } catch (cause) {
    if (signal?.aborted) throw abortError(signal);
    throw new ShohinError("network", `${url} could not be fetched: no connection, or the server does not allow this page to read it`, { cause });
  }
  if (!(response.ok || allowed.includes(response.status)) || !response.body) {
    await response.body?.cancel().catch(() => {});
    throw new ShohinError("http", `${url} answered ${response.status} ${response.statusText}`.trimEnd());
  }
  return response;
}

/** The size of the file that a response brings, if it is told and true. @internal */
export function sizeOf(response: Response): number | undefined {
  // The length of a compressed body is not the length of the file.
  if (response.headers.get("content-encoding")) return undefined;
  const length = Number(response.headers.get("content-length") ?? Number.NaN);
  return Number.isSafeInteger(length) && length > 0 ? length : undefined;
}

/** Streams the body of a URL. @internal */
export async function fetchPieces(
  url: string,
  request: LoadOptions["request"],
  signal: AbortSignal | undefined,
): Promise<Pieces> {
  const response = await respond(url, request, signal);
  return { stage: "download", total: sizeOf(response), pieces: streamPieces(response.body!, signal) };
}

/** @internal */
export async function* streamPieces(
  body: ReadableStream<Uint8Array>,
  signal: AbortSignal | undefined,
): AsyncGenerator<Uint8Array> {
  const reader = body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } catch (cause) {
    if (signal?.aborted) throw abortError(signal);
    throw new ShohinError("network", "the connection broke off during the download", { cause });
  } finally {
    await reader.cancel().catch(() => {});
  }
}

/** Reads a file or blob in slices, so that it is never in memory as a whole. @internal */
export function blobPieces(blob: Blob): Pieces {
  return {
    stage: "read",
    total: blob.size,
    pieces: (async function* () {
      for (let at = 0; at < blob.size; at += SLICE) {
        try {
          yield new Uint8Array(await blob.slice(at, at + SLICE).arrayBuffer());
        } catch (cause) {
          throw new ShohinError("read", "the file could not be read; it may have been changed or removed", { cause });
        }
      }
    })(),
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
  };
}

/** What kind of source an argument is. @internal */
export type Kind = { url: string } | { blob: Blob } | { bytes: Uint8Array };

/** @internal */
export function kindOf(source: unknown): Kind {
  if (typeof source === "string") return { url: source };
  if (source instanceof URL) return { url: source.href };
  if (source instanceof Blob) return { blob: source };
  if (source instanceof ArrayBuffer) return { bytes: new Uint8Array(source) };
  if (ArrayBuffer.isView(source)) {
    return { bytes: new Uint8Array(source.buffer as ArrayBuffer, source.byteOffset, source.byteLength) };
  }
  throw new ShohinError("argument", "the model must be a URL, a File or Blob, an ArrayBuffer or a typed array");
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
    throw toError(thrown);
  } finally {
    clearTimeout(late);
    // Lets go of the connection when the sink refuses the file.
    await iterator.return?.();
  }
  if (options.signal?.aborted) throw abortError(options.signal);
  report(loaded);
  return loaded;
}
