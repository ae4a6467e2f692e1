// Downloads over several connections, each of a range of the file, that survive broken, silent, stalling and truncated
// connections. Bytes are delivered in order, and written to a kept copy if there is one.
import { abortError, ShohinError, type ErrorCode } from "../api/errors.js";
import type { LoadOptions } from "../api/options.js";
import type { Pieces } from "./pieces.js";

/** Bytes of a slice, the unit in which a file is held, kept and checked. */
export const SLICE = 256 << 10;
/** Slices per request. */
const SPAN = 32;
const CONNECTIONS = 4;
/** Slices fetched ahead of the reader. */
const AHEAD = (CONNECTIONS + 1) * SPAN;
/** The same while only the beginning of a file is needed, and the slices that may be read before that changes. */
const [BRIEF, ENOUGH] = [8, 4];
/** Slices read from a copy at once. */
const RUN = 16;
/** Retries of a request that brought nothing. */
const RETRIES = 5;
/** The same for a first request without an answer: usually there never is one, and the user waits for the error. */
const UNREACHED = 3;
/** Default of `stallTimeout`, in milliseconds. @internal */
export const SILENCE = 30_000;
/** Maximum delay of a timer. */
const FOREVER = 2 ** 31 - 1;

/** Identifies a version of a file on a server. @internal */
export interface Version {
  /** Bytes. */
  total?: number;
  etag?: string;
  modified?: string;
}

/** A copy of a file on this device, complete or not. @internal */
export interface Keep {
  /** Version of the copy, if there is one. */
  readonly version: Version | undefined;
  has(slice: number): boolean;
  /** Up to `most` slices from this one on, verified; nothing if the first is damaged, which is then discarded. */
  read(slice: number, most: number): Promise<Uint8Array | undefined>;
  /** Discards the copy and starts one of this version. Fails if a copy is required and impossible. */
  start(version: Version): Promise<void>;
  /** Keeps a slice if there is room. False: it replaces a damaged slice and differs from it, so the file has changed. */
  write(slice: number, bytes: Uint8Array): Promise<boolean>;
  /** SHA-256 of the whole file, if it was computed before. */
  readonly sha256: string | undefined;
  /** Keeps the SHA-256 of the whole file. */
  summed(sha256: string): void;
  /** Called at the end if the length was not known before. */
  end(total: number): void;
  close(): void;
}

/** Errors after which everything has to be read again, as the file has changed. */
const changes = new WeakSet<object>();

function changed(): ShohinError {
  const error = new ShohinError("integrity", "the file changed on the server while it was being fetched");
  changes.add(error);
  return error;
}

/** Details of a transient failure. */
interface Transient {
  /** Milliseconds to wait, according to the server. */
  wait?: number | undefined;
  /** Whether the server is overloaded. */
  busy?: boolean;
  /** Whether the connection was silent for too long. */
  silent?: boolean;
}

// Not a field of the errors, which callers see.
const failures = new WeakMap<object, Transient>();

/** A failure after which a retry may succeed. */
function transient(code: ErrorCode, message: string, why: Transient = {}, cause?: unknown): ShohinError {
  const error = new ShohinError(code, message, cause === undefined ? undefined : { cause });
  failures.set(error, why);
  return error;
}

function transientOf(thrown: unknown): Transient | undefined {
  return failures.get(thrown as object);
}

/** Retries if the file has changed in the meantime. @internal */
export async function retryChanged<T>(load: () => Promise<T>): Promise<T> {
  for (let times = 0; ; times++) {
    try {
      return await load();
    } catch (thrown) {
      if (!changes.has(thrown as object) || times === 2) throw thrown;
    }
  }
}

/** Wakes all waiters. */
class Bell {
  #wake = () => {};
  #next = new Promise<void>((resolve) => (this.#wake = resolve));

  ring(): void {
    this.#wake();
    this.#next = new Promise((resolve) => (this.#wake = resolve));
  }

  wait(): Promise<void> {
    return this.#next;
  }
}

/** A slice that is being received. */
interface Slice {
  bytes: Uint8Array;
  filled: number;
}

/** A run of slices assigned to one connection. */
interface Span {
  /** The next byte. */
  at: number;
  /** The byte after the last. */
  end: number;
}

/** A response, the byte of the file it begins with, and the controller that ends it. */
interface Body {
  response: Response;
  at: number;
  link: AbortController;
}

/** The options that concern downloads. @internal */
export type DownloadOptions = Pick<LoadOptions, "request" | "stallTimeout"> & { signal?: AbortSignal | undefined };

/**
 * Starts a download and waits for the first answer. `brief`: perhaps only the beginning is needed for a while, during which no
 * connection is held. @internal
 */
export async function downloadPieces(url: string, options: DownloadOptions, keep?: Keep, brief = false): Promise<Pieces> {
  const download = new Download(url, options, keep, brief);
  try {
    return await download.open();
  } catch (thrown) {
    download.close();
    throw thrown;
  }
}

/** Whether the server now has another version of the file. @internal */
export async function isOutdated(url: string, options: DownloadOptions, version: Version): Promise<boolean> {
  // With an integrity check the response would only arrive with the last byte.
  const { integrity: _, ...request } = options.request ?? {};
  const download = new Download(url, { ...options, request: { ...request, cache: "no-store" } }, undefined, false);
  try {
    return await download.differs(version);
  } finally {
    download.close();
  }
}

class Download {
  #abort = new AbortController();
  /** Controllers of the pending requests. */
  #links = new Set<AbortController>();
  #version: Version = {};
  #slices = new Map<number, Slice>();
  /** Slices assigned to a connection. */
  #claimed = new Set<number>();
  /** The slice that is read next. */
  #front = 0;
  #active = 0;
  /** Maximum number of connections. The first ones find out whether the server supports ranges. */
  #limit = 2;
  /** Slices to receive before another connection is tried, after the server refused one or did not answer. */
  #cautious = 0;
  /** Initial value of the above; doubled after every failed try. */
  #caution = SPAN;
  /** Whether another connection has been tried since. */
  #tried = false;
  /** Whether the only connection became silent, and nothing has arrived since. */
  #silent = false;
  /** Whether the server supports ranges; only an answer tells, as a connection may break for any reason. */
  #ranges: boolean | undefined;
  /** Requests for ranges in a row that broke before an answer, until it is known whether the server supports them. */
  #unanswered = 0;
  /** Whether the server has answered. */
  #reached = false;
  #writing = new Set<Promise<void>>();
  #bell = new Bell();
  #failed: unknown;
  #closed = false;

  readonly request: LoadOptions["request"];
  readonly signal: AbortSignal | undefined;
  readonly patience: number;

  constructor(
    readonly url: string,
    options: DownloadOptions,
    readonly keep: Keep | undefined,
    public brief: boolean,
  ) {
    this.request = options.request;
    this.signal = options.signal;
    this.patience = options.stallTimeout ?? SILENCE;
    // The checksum is that of the whole file, not of a range.
    if (this.request?.integrity) this.#withoutRanges();
    this.signal?.addEventListener("abort", this.#stop);
    if (this.signal?.aborted) this.#stop();
  }

  #stop = () => {
    this.#abort.abort();
    for (const link of this.#links) link.abort();
    this.#bell.ring();
  };

  close(): void {
    this.#closed = true;
    this.signal?.removeEventListener("abort", this.#stop);
    this.#stop();
    this.keep?.close();
  }

  /** Requests the first missing slices, unless the copy is complete. */
  async open(): Promise<Pieces> {
    const kept = this.keep?.version;
    if (kept?.total !== undefined) {
      this.#version = kept;
      if (this.#missing(0) === undefined) return this.#opened("read", kept.total);
    }
    let body = await this.#first();
    if (kept?.total !== undefined && (body.response.status === 416 || differ(kept, versionOf(body.response)))) {
      // Not the version of the partial copy.
      this.#version = {};
      if (body.response.status !== 200) {
        this.#drop(body);
        body = await this.#retry(() => this.#ask(undefined));
      }
    }
    if (this.#version.total === undefined) {
      this.#version = versionOf(body.response);
      if (body.response.status === 206 && this.#version.total === undefined) {
        // The server hides the length from this page.
        this.#drop(body);
        this.#version = {};
        this.brief = false;
        body = await this.#retry(() => this.#ask(undefined));
        this.#version = versionOf(body.response);
      }
      await this.keep?.start(this.#version);
    }
    const { total } = this.#version;
    if (total === undefined) return this.#opened("download", total, this.#unmeasured(body));
    if (body.response.status === 206) this.#withRanges();
    const vague = body.response.status === 200 && body.response.type === "cors" && typeof location !== "undefined";
    void this.#connect(body);
    return { ...this.#opened("download", total), vague };
  }

  async differs(version: Version): Promise<boolean> {
    return differ(version, versionOf((await this.#ask(undefined)).response));
  }

  #opened(stage: Pieces["stage"], total: number | undefined, pieces = this.#pieces()): Pieces {
    const { keep } = this;
    const sum = keep && { sha256: stage === "read" ? keep.sha256 : undefined, summed: (sha256: string) => keep.summed(sha256) };
    return { stage, total, pieces, ...sum, close: () => this.close() };
  }

  /** The first answer. */
  async #first(): Promise<Body> {
    const { total } = this.#version;
    const from = this.#missing(0) ?? 0;
    const rest = total === undefined ? undefined : { at: from * SLICE, end: Math.min(this.#gap(from, SPAN) * SLICE, total) };
    const span = this.#ranges === false ? undefined : (rest ?? (this.brief ? { at: 0, end: BRIEF * SLICE } : undefined));
    const again = total !== undefined;
    if (!span) return this.#retry(() => this.#ask(undefined, again));
    return this.#retry(() => this.#askRange(span, again));
  }

  /** Requests a range; after some that were refused or broke without an answer, the whole file, which may be let through. */
  async #askRange(span: Span, again = false): Promise<Body> {
    if (this.#ranges === undefined && this.#unanswered >= 2 && this.#active < 2) {
      const whole = await this.#ask(undefined, again);
      // The server may have been unavailable for a while.
      const part = await this.#ask(span, again).catch(() => undefined);
      this.#alive();
      this.#unanswered = 0;
      if (part) this.#drop(whole);
      return part ?? whole;
    }
    try {
      const body = await this.#ask(span, again);
      this.#unanswered = 0;
      return body;
    } catch (thrown) {
      const why = transientOf(thrown);
      if (why && !why.busy && !why.silent) this.#unanswered++;
      throw thrown;
    }
  }

  /** Retries a request after transient failures. */
  async #retry<T>(ask: () => Promise<T>): Promise<T> {
    for (let times = 1; ; times++) {
      try {
        return await ask();
      } catch (thrown) {
        const why = transientOf(thrown);
        const unreached = (thrown as ShohinError).code === "network";
        // The browser reports a wrong checksum as a network error, after it has fetched everything.
        if (!why || times > (unreached ? UNREACHED : RETRIES) || (unreached && this.request?.integrity)) throw thrown;
        await this.#pause(times, why);
      }
    }
  }

  async #pause(times: number, why: Transient): Promise<void> {
    this.#alive();
    const wait = why.wait ?? 250 * 2 ** (times - 1) * (0.75 + Math.random() / 2);
    await new Promise<void>((resolve) => {
      const timer = setTimeout(done, wait);
      const { signal } = this.#abort;
      function done() {
        clearTimeout(timer);
        signal.removeEventListener("abort", done);
        resolve();
      }
      signal.addEventListener("abort", done);
    });
    this.#alive();
  }

  #alive(): void {
    if (this.#abort.signal.aborted) throw abortError(this.signal);
  }

  /** Waits for the next result of a request, and ends the request after `patience`. */
  async #next<T>(link: AbortController, next: Promise<T>): Promise<T> {
    const timer = this.patience <= FOREVER ? setTimeout(() => link.abort(), this.patience) : undefined;
    try {
      return await next;
    } finally {
      clearTimeout(timer);
    }
  }

  /** The error of a failed request that was to bring byte `at` next. */
  #broken(link: AbortController, at: number, otherwise: string, cause: unknown): ShohinError {
    this.#alive();
    if (!link.signal.aborted) return transient("network", `${this.url} ${otherwise}`, {}, cause);
    return transient("timeout", `${this.url} sent nothing for ${this.patience / 1000} s, at byte ${at}`, { silent: true }, cause);
  }

  /** Ends a response that is not read. */
  #drop({ response, link }: Pick<Body, "response" | "link">): void {
    end(response.body);
    link.abort();
    this.#links.delete(link);
  }

  /** Requests a range or the whole file. `again`: there is a partial copy, whose version the caller compares. */
  async #ask(span: Span | undefined, again = false): Promise<Body> {
    this.#alive();
    const headers = new Headers(this.request?.headers);
    if (span) headers.set("Range", `bytes=${span.at}-${span.end - 1}`);
    // The HTTP cache would store a second copy, and mix ranges of different versions.
    const cache = this.request?.cache ?? (span || this.keep ? "no-store" : "default");
    const link = new AbortController();
    this.#links.add(link);
    const { signal } = link;
    let response: Response;
    try {
      response = await this.#next(link, fetch(this.url, { ...this.request, cache, headers, signal }));
    } catch (cause) {
      this.#links.delete(link);
      // Servers decide that for pages, of which Node has none.
      const mayForbid = typeof location !== "undefined" && !this.#reached && !this.keep?.version;
      const reason = mayForbid ? "no connection, or the server does not allow this page to read it" : "no connection";
      throw this.#broken(link, span?.at ?? 0, `could not be fetched: ${reason}`, cause);
    }
    this.#reached = true;
    const { status } = response;
    if (status === 416 && again) return { response, at: 0, link };
    if (!response.ok || !response.body) {
      this.#drop({ response, link });
      if (status === 416) {
        // An empty file has no ranges.
        if (span && this.#version.total === undefined) return this.#ask(undefined, again);
        // The file was larger before.
        throw changed();
      }
      const message = `${this.url} answered ${status} ${response.statusText}`.trimEnd();
      if (![408, 425, 429, 500, 502, 503, 504].includes(status)) throw new ShohinError("http", message);
      throw transient("http", message, { busy: status === 429 || status === 503, wait: waitOf(response) });
    }
    if (!again && differ(this.#version, versionOf(response))) {
      this.#drop({ response, link });
      throw changed();
    }
    if (status !== 206 && (span || response.headers.get("accept-ranges") === "none")) this.#withoutRanges();
    if (!span || status !== 206) return { response, at: 0, link };
    const at = /^bytes (\d+)-/.exec(response.headers.get("content-range") ?? "")?.[1];
    if (at === undefined || Number(at) === span.at) return { response, at: span.at, link };
    // Not the requested range.
    this.#drop({ response, link });
    this.#withoutRanges();
    return this.#ask(undefined, again);
  }

  #withoutRanges(): void {
    this.#ranges = false;
    this.#limit = 1;
  }

  #withRanges(): void {
    if (this.#ranges !== undefined) return;
    this.#ranges = true;
    this.#limit = CONNECTIONS;
    this.#bell.ring();
  }

  get #count(): number {
    return Math.ceil((this.#version.total ?? 0) / SLICE);
  }

  /** The first slice from `from` on that is neither here nor assigned. */
  #missing(from: number): number | undefined {
    const done = (k: number) => {
      const slice = this.#slices.get(k);
      return this.keep?.has(k) || this.#claimed.has(k) || (slice !== undefined && slice.filled === slice.bytes.length);
    };
    for (let k = Math.max(from, this.#front); k < this.#count; k++) if (!done(k)) return k;
    return undefined;
  }

  /** The end of the run of missing slices, at most `most`, that can be requested at once. */
  #gap(first: number, most: number): number {
    let last = first + 1;
    while (last < first + most && this.#missing(last) === last && !this.#slices.has(last)) last++;
    return last;
  }

  /** The end of the slices that may be fetched now. */
  get #reach(): number {
    if (this.#front >= ENOUGH) this.brief = false;
    return Math.min(this.#count, this.#front + (this.brief ? BRIEF : AHEAD));
  }

  /** Assigns missing slices for one request; nothing if there are none, or none within reach. */
  #claim(from = 0, most = SPAN): Span | undefined {
    const first = this.#missing(from);
    if (first === undefined || first >= this.#reach) return undefined;
    const last = this.#gap(first, Math.min(most, this.#reach - first));
    for (let k = first; k < last; k++) this.#claimed.add(k);
    const at = first * SLICE + (this.#slices.get(first)?.filled ?? 0);
    return { at, end: Math.min(last * SLICE, this.#version.total!) };
  }

  #release({ at, end }: Span): void {
    for (let k = Math.floor(at / SLICE); k * SLICE < end; k++) this.#claimed.delete(k);
    this.#bell.ring();
  }

  /** Opens connections as long as there is work for them. */
  #hire(): void {
    while (this.#active < this.#limit && !this.#closed && this.#failed === undefined) {
      const span = this.#claim();
      if (!span) return;
      void this.#connect(undefined, span);
    }
  }

  /** Fetches one span after the other until there is none. */
  async #connect(body: Body | undefined, span?: Span): Promise<void> {
    this.#active++;
    try {
      if (body) {
        span = this.#claim();
        // Everything within reach is in the copy.
        if (!span) this.#drop(body);
      }
      while (span && !this.#closed) {
        if (!(await this.#fetch(span, body))) return;
        body = undefined;
        span = this.#active <= this.#limit ? this.#claim() : undefined;
      }
    } catch (thrown) {
      this.#failed ??= thrown;
    } finally {
      this.#active--;
      this.#bell.ring();
    }
  }

  /** Fetches a span, with as many requests as necessary. False: there are too many connections. */
  async #fetch(span: Span, body: Body | undefined): Promise<boolean> {
    let times = 0;
    while (span.at < span.end) {
      const before = span.at;
      try {
        if (!body) {
          body = await (this.#ranges === false ? this.#ask(undefined) : this.#askRange(span));
          if (body.response.status === 206) this.#withRanges();
          if (body.response.status !== 206 && this.#active > 1) {
            // The first connection receives the whole file.
            this.#release(span);
            this.#drop(body);
            return false;
          }
        }
        await this.#read(body, span);
      } catch (thrown) {
        const why = transientOf(thrown);
        if (!why) throw thrown;
        // Some servers stall all but a few connections, and some servers and browsers refuse ranges without an answer.
        if ((why.busy || why.silent || this.#ranges === undefined) && this.#active > 1) {
          this.#limit = Math.max(1, this.#active - 1);
          if (this.#tried) this.#caution = Math.min(2 * this.#caution, 16 * SPAN);
          this.#tried = false;
          this.#cautious = this.#caution;
          this.#release(span);
          return false;
        }
        this.#silent ||= why.silent ?? false;
        if (span.at > before) times = 0;
        if (++times > RETRIES) throw thrown;
        await this.#pause(times, why);
      }
      body = undefined;
    }
    return true;
  }

  /** Reads a body up to the end of the span; the body of the whole file as long as slices are missing. */
  async #read({ response, at, link }: Body, span: Span): Promise<void> {
    const whole = response.status !== 206;
    const last = whole ? this.#version.total : span.end;
    const reader = response.body!.getReader();
    try {
      for (;;) {
        while (span.at >= span.end) {
          if (!whole || !(await this.#extend(span))) return;
        }
        const { done, value } = await this.#next(link, reader.read()).catch((cause: unknown) => {
          throw this.#broken(link, at, `broke off at byte ${at}`, cause);
        });
        if (done) throw transient("network", `${this.url} ended early, at byte ${at}`);
        let piece = value;
        while (piece.byteLength > 0) {
          while (span.at >= span.end) {
            if (!whole || !(await this.#extend(span))) return;
          }
          const skip = Math.min(span.at - at, piece.byteLength);
          if (skip > 0) {
            piece = piece.subarray(skip);
            at += skip;
            continue;
          }
          const took = this.#fill(span, piece);
          piece = piece.subarray(took);
          at += took;
        }
        // It ends by itself, even if the reader is done with the file before.
        if (at === last) this.#links.delete(link);
      }
    } finally {
      this.#links.delete(link);
      if (at === last) void this.#complete(link, reader);
      else end(reader);
    }
  }

  /**
   * Lets a body end whose last byte is here. If it were cancelled before its end, the HTTP cache would discard the file, and HTTP/1.1 close
   * the connection.
   */
  async #complete(link: AbortController, reader: ReadableStreamDefaultReader<Uint8Array>): Promise<void> {
    const { done } = await this.#next(link, reader.read()).catch(() => ({ done: true }));
    if (!done) end(reader);
  }

  /** Extends the span of the connection that receives the whole file, unless others can fetch the rest faster. */
  async #extend(span: Span): Promise<boolean> {
    for (;;) {
      if (this.#ranges === true || this.#closed || this.#failed !== undefined) return false;
      const from = Math.floor((span.end + SLICE - 1) / SLICE);
      // An earlier slice is missing, and only the next response of this connection can bring it.
      if (this.#active === 1 && (this.#missing(0) ?? from) < from) return false;
      if (this.#missing(from) === undefined && this.#active === 1) return false;
      const next = this.#active === 1 || this.#ranges === false ? this.#claim(from, 1) : undefined;
      if (next) {
        Object.assign(span, next);
        return true;
      }
      // While only the beginning is needed, no connection is held.
      if (this.brief) return false;
      if (this.#missing(0) === undefined && this.#active === 1) return false;
      await this.#bell.wait();
    }
  }

  /** Copies bytes into the next slice of the span; returns how many. */
  #fill(span: Span, piece: Uint8Array): number {
    const k = Math.floor(span.at / SLICE);
    let slice = this.#slices.get(k);
    if (!slice) {
      slice = { bytes: new Uint8Array(Math.min(SLICE, this.#version.total! - k * SLICE)), filled: 0 };
      this.#slices.set(k, slice);
    }
    if (this.#silent) {
      // The network was silent, not too many connections.
      this.#silent = false;
      if (this.#ranges) this.#limit = CONNECTIONS;
    }
    const took = Math.min(piece.byteLength, slice.bytes.length - slice.filled);
    slice.bytes.set(piece.subarray(0, took), slice.filled);
    slice.filled += took;
    span.at += took;
    if (slice.filled === slice.bytes.length) {
      this.#store(k, slice.bytes);
      this.#relax();
    }
    this.#bell.ring();
    return took;
  }

  /** Counts a received slice towards trying another connection again. */
  #relax(): void {
    if (this.#cautious === 0 || this.#ranges === false || --this.#cautious > 0) return;
    const most = this.#ranges ? CONNECTIONS : 2;
    this.#limit = Math.min(this.#limit + 1, most);
    this.#tried = true;
    if (this.#limit < most) this.#cautious = this.#caution;
  }

  #store(k: number, bytes: Uint8Array): void {
    if (!this.keep) return;
    const writing = this.keep.write(k, bytes).then(
      (same) => {
        if (!same) this.#failed ??= changed();
      },
      (thrown: unknown) => {
        this.#failed ??= thrown;
      },
    );
    this.#writing.add(writing);
    void writing.finally(() => {
      this.#writing.delete(writing);
      this.#bell.ring();
    });
  }

  /** The reader has reached slice `front`. */
  #pass(front: number): void {
    for (; this.#front < front; this.#front++) {
      this.#slices.delete(this.#front);
      this.#claimed.delete(this.#front);
    }
    this.#hire();
    this.#bell.ring();
  }

  async *#pieces(): AsyncGenerator<Uint8Array> {
    let failed: unknown;
    try {
      while (this.#front < this.#count) {
        const k = this.#front;
        if (!this.#slices.has(k) && this.keep?.has(k)) {
          const run = await this.keep.read(k, RUN);
          if (run) {
            this.#pass(k + Math.ceil(run.byteLength / SLICE));
            yield run;
          } else {
            // A waiting connection can fetch the damaged slice.
            this.#bell.ring();
          }
          continue;
        }
        const length = Math.min(SLICE, this.#version.total! - k * SLICE);
        for (let given = 0; given < length; ) {
          if (this.#failed !== undefined) throw this.#failed;
          this.#alive();
          const slice = this.#slices.get(k);
          if (slice && slice.filled > given) {
            const from = given;
            given = slice.filled;
            yield slice.bytes.subarray(from, given);
          } else {
            const rung = this.#bell.wait();
            this.#hire();
            await rung;
          }
        }
        this.#pass(k + 1);
      }
      while (this.#writing.size > 0) await Promise.all(this.#writing);
      if (this.#failed !== undefined) throw this.#failed;
    } catch (thrown) {
      failed = thrown;
      throw thrown;
    } finally {
      if (changes.has(failed as object)) await this.keep?.start({}).catch(() => {});
      this.close();
    }
  }

  /** A body of unknown length, which is complete when it ends. */
  async *#unmeasured({ response, link }: Body): AsyncGenerator<Uint8Array> {
    const reader = response.body!.getReader();
    let slice = new Uint8Array(SLICE);
    let at = 0;
    let come = 0;
    try {
      for (;;) {
        const { done, value } = await this.#next(link, reader.read()).catch((cause: unknown) => {
          throw this.#broken(link, come, `broke off at byte ${come}`, cause);
        });
        if (done) break;
        come += value.byteLength;
        for (let from = 0; this.keep && from < value.byteLength; ) {
          const took = Math.min(value.byteLength - from, SLICE - (at % SLICE));
          slice.set(value.subarray(from, from + took), at % SLICE);
          [from, at] = [from + took, at + took];
          if (at % SLICE > 0) continue;
          await this.keep.write(at / SLICE - 1, slice);
          slice = new Uint8Array(SLICE);
        }
        yield value;
      }
      if (at % SLICE > 0) await this.keep?.write(Math.floor(at / SLICE), slice.subarray(0, at % SLICE));
      this.keep?.end(at);
    } finally {
      end(reader);
      this.close();
    }
  }
}

/** Ends a body. Nothing waits for that: it has no time limit. */
function end(body: Pick<ReadableStream, "cancel"> | null): void {
  void body?.cancel().catch(() => {});
}

/** The size of the file in a response, if it is reported and reliable. */
function sizeOf(response: Response): number | undefined {
  // The length of a compressed body is not the length of the file.
  if (response.headers.get("content-encoding")) return undefined;
  const length = Number(response.headers.get("content-length") || Number.NaN);
  return Number.isSafeInteger(length) && length >= 0 ? length : undefined;
}

/** The version of the file in a response. */
function versionOf(response: Response): Version {
  const etag = response.headers.get("etag") ?? undefined;
  const modified = response.headers.get("last-modified") ?? undefined;
  let total: number | undefined;
  if (response.status === 206) {
    const told = Number(/\/(\d+)$/.exec(response.headers.get("content-range") ?? "")?.[1] ?? Number.NaN);
    if (Number.isSafeInteger(told)) total = told;
  } else {
    total = sizeOf(response);
  }
  return { ...(total !== undefined && { total }), ...(etag !== undefined && { etag }), ...(modified !== undefined && { modified }) };
}

/** Whether two versions certainly differ. Missing values are ignored. */
function differ(a: Version, b: Version): boolean {
  const other = (x: unknown, y: unknown) => x !== undefined && y !== undefined && x !== y;
  if (other(a.total, b.total)) return true;
  return a.etag !== undefined && b.etag !== undefined ? a.etag !== b.etag : other(a.modified, b.modified);
}

/** Milliseconds until the server wants the next request, at most a minute. */
function waitOf(response: Response): number | undefined {
  const after = response.headers.get("retry-after");
  if (after === null) return undefined;
  const ms = /^\d+$/.test(after) ? Number(after) * 1000 : Date.parse(after) - Date.now();
  return Number.isFinite(ms) ? Math.min(Math.max(ms, 0), 60_000) : undefined;
}
