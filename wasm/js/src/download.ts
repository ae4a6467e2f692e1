// Downloads over several connections, each of a range of the file, that survive what connections do: break, fall silent,
// stall others, end early. What arrives goes on in order, and on the way into a kept copy where there is one.
import type { LoadOptions } from "./api.js";
import { abortError, ShohinError, type ErrorCode } from "./error.js";
import { sizeOf, type Pieces } from "./source.js";

/** Bytes of the unit in which a file is held, kept and checked. */
export const SLICE = 256 << 10;
/** Slices that one request asks for. */
const SPAN = 32;
const CONNECTIONS = 4;
/** Slices that may be in memory before whoever reads them has come so far. */
const AHEAD = (CONNECTIONS + 1) * SPAN;
/** The same while only the beginning of a file is wanted, and how much may be read before more is. */
const [BRIEF, ENOUGH] = [8, 4];
/** Slices read from a copy at once. */
const RUN = 16;
/** How often a request is made again that has brought nothing. */
const RETRIES = 5;
/** The same of the first one where there was no answer: most often there never is one, and somebody waits for being told. */
const UNREACHED = 3;
/** Milliseconds without a byte after which a connection counts as broken. */
const SILENCE = 30_000;
/** What timers can count to. */
const FOREVER = 2 ** 31 - 1;

/** What tells one state of a file on a server from another. @internal */
export interface Version {
  /** Bytes. */
  total?: number;
  etag?: string;
  modified?: string;
}

/** A copy of a file on this device, complete or not. @internal */
export interface Keep {
  /** What the copy is of, if there is one. */
  readonly version: Version | undefined;
  has(slice: number): boolean;
  /** Up to `most` slices from this one on, checked; nothing if the first is damaged, which is then no longer kept. */
  read(slice: number, most: number): Promise<Uint8Array | undefined>;
  /** Forgets what there is: a file of this version follows. Fails if it must be kept and cannot. */
  start(version: Version): Promise<void>;
  /** Keeps a slice if there is room. False: it is not the one that was damaged here, so the file has changed. */
  write(slice: number, bytes: Uint8Array): Promise<boolean>;
  /** Told at the end where no length was known before. */
  end(total: number): void;
  close(): void;
}

/** The file is another one than before: everything has to be read again. */
const changes = new WeakSet<object>();

function changed(): ShohinError {
  const error = new ShohinError("integrity", "the file has changed on the server while it was fetched");
  changes.add(error);
  return error;
}

/** Why a failure may pass. */
interface Passing {
  /** Milliseconds the server wants us to wait. */
  wait?: number | undefined;
  /** Whether the server has too much to do. */
  busy?: boolean;
  /** Whether nothing came for too long. */
  silent?: boolean;
}

// Beside the errors: callers see one class, and nothing of this on it.
const failures = new WeakMap<object, Passing>();

/** A failure that may pass. */
function passing(code: ErrorCode, message: string, why: Passing = {}, cause?: unknown): ShohinError {
  const error = new ShohinError(code, message, cause === undefined ? undefined : { cause });
  failures.set(error, why);
  return error;
}

function passingOf(thrown: unknown): Passing | undefined {
  return failures.get(thrown as object);
}

/** Loads again what has changed meanwhile. @internal */
export async function steady<T>(load: () => Promise<T>): Promise<T> {
  for (let times = 0; ; times++) {
    try {
      return await load();
    } catch (thrown) {
      if (!changes.has(thrown as object) || times === 2) throw thrown;
    }
  }
}

/** Wakes everybody who waits. */
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

/** A slice on its way. */
interface Slice {
  bytes: Uint8Array;
  filled: number;
}

/** A run of slices that one connection is to bring. */
interface Span {
  /** The byte that comes next. */
  at: number;
  /** The byte behind the last. */
  end: number;
}

/** A response, which byte of the file it begins with, and what ends it. */
interface Body {
  response: Response;
  at: number;
  link: AbortController;
}

/** What a download needs of the options. @internal */
export type DownloadOptions = Pick<LoadOptions, "request" | "stallTimeout"> & { signal?: AbortSignal | undefined };

/**
 * Starts a download, as far as the first answer. `brief`: only the beginning may be wanted for a while, during which no
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

/** Whether the server says that it has another file by now than the one of this version. @internal */
export async function isOutdated(url: string, options: DownloadOptions, version: Version): Promise<boolean> {
  // With a sum to be checked, an answer comes with the last byte only.
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
  /** Of the requests that are under way. */
  #links = new Set<AbortController>();
  #version: Version = {};
  #slices = new Map<number, Slice>();
  /** Slices that some connection brings. */
  #claimed = new Set<number>();
  /** The slice that is read next. */
  #front = 0;
  #active = 0;
  /** Connections at once. One finds out whether there are ranges before more are opened. */
  #limit = 2;
  /** Slices to come before a connection is tried again that a server has refused, or left without an answer. */
  #cautious = 0;
  /** The same at the beginning; twice as many after every try that failed. */
  #caution = SPAN;
  /** Whether a connection more has been tried since. */
  #tried = false;
  /** Whether the only connection fell silent, and nothing has come since. */
  #silent = false;
  /** Whether the server knows ranges. */
  #ranges: boolean | undefined;
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
    // The whole has a known sum; a part has not.
    if (this.request?.integrity) this.#knowNone();
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

  /** Asks for what is missing first, unless nothing is. */
  async open(): Promise<Pieces> {
    const kept = this.keep?.version;
    if (kept?.total !== undefined) {
      this.#version = kept;
      if (this.#missing(0) === undefined) return this.#opened("read", kept.total);
    }
    let body = await this.#first();
    if (kept?.total !== undefined && (body.response.status === 416 || differ(kept, versionOf(body.response)))) {
      // Another file than the one kept in part.
      this.#version = {};
      if (body.response.status !== 200) {
        await this.#drop(body);
        body = await this.#persist(() => this.#ask(undefined));
      }
    }
    if (this.#version.total === undefined) {
      this.#version = versionOf(body.response);
      if (body.response.status === 206 && this.#version.total === undefined) {
        // The server does not let this page see the length.
        await this.#drop(body);
        this.#version = {};
        this.brief = false;
        body = await this.#persist(() => this.#ask(undefined));
        this.#version = versionOf(body.response);
      }
      await this.keep?.start(this.#version);
    }
    const { total } = this.#version;
    if (total === undefined) return this.#opened("download", total, this.#unmeasured(body));
    if (body.response.status === 206) this.#knowRanges();
    const vague = body.response.status === 200 && body.response.type === "cors" && typeof location !== "undefined";
    void this.#connect(body);
    return { ...this.#opened("download", total), vague };
  }

  async differs(version: Version): Promise<boolean> {
    return differ(version, versionOf((await this.#ask(undefined)).response));
  }

  #opened(stage: Pieces["stage"], total: number | undefined, pieces = this.#pieces()): Pieces {
    return { stage, total, pieces, close: () => this.close() };
  }

  /** The first answer. */
  async #first(): Promise<Body> {
    const { total } = this.#version;
    const from = this.#missing(0) ?? 0;
    const rest = total === undefined ? undefined : { at: from * SLICE, end: Math.min(this.#gap(from, SPAN) * SLICE, total) };
    const span = this.#ranges === false ? undefined : (rest ?? (this.brief ? { at: 0, end: BRIEF * SLICE } : undefined));
    const again = total !== undefined;
    if (!span) return this.#persist(() => this.#ask(undefined, again));
    let refused = 0;
    return this.#persist(async () => {
      try {
        // Some servers and browsers refuse ranges altogether.
        return refused % 3 === 2 ? await this.#compare(span, again) : await this.#ask(span, again);
      } catch (thrown) {
        const why = passingOf(thrown);
        if (why && !why.busy && !why.silent) refused++;
        throw thrown;
      }
    });
  }

  /** Finds out, after a range could not be had, whether the whole can. */
  async #compare(span: Span, again: boolean): Promise<Body> {
    const whole = await this.#ask(undefined, again);
    // The server may have been away, and back by now.
    const part = await this.#ask(span, again).catch(() => undefined);
    this.#alive();
    if (part) await this.#drop(whole);
    else this.#knowNone();
    return part ?? whole;
  }

  /** Makes a request again that has failed in a way that may pass. */
  async #persist<T>(ask: () => Promise<T>): Promise<T> {
    for (let times = 1; ; times++) {
      try {
        return await ask();
      } catch (thrown) {
        const why = passingOf(thrown);
        const unreached = (thrown as ShohinError).code === "network";
        // The browser has fetched all of it before it says that its sum is wrong.
        if (!why || times > (unreached ? UNREACHED : RETRIES) || (unreached && this.request?.integrity)) throw thrown;
        await this.#pause(times, why);
      }
    }
  }

  async #pause(times: number, why: Passing): Promise<void> {
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

  /** Waits for what a request brings next, and ends it when that takes too long. */
  async #next<T>(link: AbortController, next: Promise<T>): Promise<T> {
    const timer = this.patience <= FOREVER ? setTimeout(() => link.abort(), this.patience) : undefined;
    try {
      return await next;
    } finally {
      clearTimeout(timer);
    }
  }

  /** Why a request has failed of which byte `at` was to come next. */
  #broken(link: AbortController, at: number, otherwise: string, cause: unknown): ShohinError {
    this.#alive();
    if (!link.signal.aborted) return passing("network", `${this.url} ${otherwise}`, {}, cause);
    return passing("timeout", `${this.url} sent nothing for ${this.patience / 1000} s, at byte ${at}`, { silent: true }, cause);
  }

  /** Lets go of a response that is not read. */
  async #drop({ response, link }: Pick<Body, "response" | "link">): Promise<void> {
    await response.body?.cancel().catch(() => {});
    this.#links.delete(link);
  }

  /** One request, of a range or of all. `again`: of a file kept in part, of which the caller finds out whether it is still the same. */
  async #ask(span: Span | undefined, again = false): Promise<Body> {
    this.#alive();
    const headers = new Headers(this.request?.headers);
    if (span) headers.set("Range", `bytes=${span.at}-${span.end - 1}`);
    // Browsers keep ranges, too: once is enough, and they would mix old ones with new.
    const cache = this.request?.cache ?? (span || this.keep ? "no-store" : "default");
    const link = new AbortController();
    this.#links.add(link);
    const { signal } = link;
    let response: Response;
    try {
      response = await this.#next(link, fetch(this.url, { ...this.request, cache, headers, signal }));
    } catch (cause) {
      this.#links.delete(link);
      throw this.#broken(link, span?.at ?? 0, "could not be fetched: no connection, or the server does not allow this page to read it", cause);
    }
    const { status } = response;
    if (status === 416 && again) return { response, at: 0, link };
    if (!response.ok || !response.body) {
      await this.#drop({ response, link });
      if (status === 416) {
        // Nothing can be asked for of an empty file but all of it.
        if (span && this.#version.total === undefined) return this.#ask(undefined, again);
        // The file was larger before.
        throw changed();
      }
      const message = `${this.url} answered ${status} ${response.statusText}`.trimEnd();
      if (![408, 425, 429, 500, 502, 503, 504].includes(status)) throw new ShohinError("http", message);
      throw passing("http", message, { busy: status === 429 || status === 503, wait: waitOf(response) });
    }
    if (!again && differ(this.#version, versionOf(response))) {
      await this.#drop({ response, link });
      throw changed();
    }
    if (span && status !== 206) this.#knowNone();
    if (!span || status !== 206) return { response, at: 0, link };
    const at = /^bytes (\d+)-/.exec(response.headers.get("content-range") ?? "")?.[1];
    if (at === undefined || Number(at) === span.at) return { response, at: span.at, link };
    // Some other range: as good as none.
    await this.#drop({ response, link });
    this.#knowNone();
    return this.#ask(undefined, again);
  }

  #knowNone(): void {
    this.#ranges = false;
    this.#limit = 1;
  }

  #knowRanges(): void {
    if (this.#ranges !== undefined) return;
    this.#ranges = true;
    this.#limit = CONNECTIONS;
    this.#bell.ring();
  }

  get #count(): number {
    return Math.ceil((this.#version.total ?? 0) / SLICE);
  }

  /** The first slice from `from` on that nobody has or brings. */
  #missing(from: number): number | undefined {
    const done = (k: number) => {
      const slice = this.#slices.get(k);
      return this.keep?.has(k) || this.#claimed.has(k) || (slice !== undefined && slice.filled === slice.bytes.length);
    };
    for (let k = Math.max(from, this.#front); k < this.#count; k++) if (!done(k)) return k;
    return undefined;
  }

  /** The end of the run of at most so many slices that begins with a missing one and can be asked for at once. */
  #gap(first: number, most: number): number {
    let last = first + 1;
    while (last < first + most && this.#missing(last) === last && !this.#slices.has(last)) last++;
    return last;
  }

  /** The slice up to which may be fetched now. */
  get #reach(): number {
    if (this.#front >= ENOUGH) this.brief = false;
    return Math.min(this.#count, this.#front + (this.brief ? BRIEF : AHEAD));
  }

  /** Slices that are missing, for one request; nothing if there are none, for now or at all. */
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

  /** Opens as many connections as there is work for. */
  #hire(): void {
    while (this.#active < this.#limit && !this.#closed && this.#failed === undefined) {
      const span = this.#claim();
      if (!span) return;
      void this.#connect(undefined, span);
    }
  }

  /** Brings one span after the other until there is none. */
  async #connect(body: Body | undefined, span?: Span): Promise<void> {
    this.#active++;
    try {
      if (body) {
        span = this.#claim();
        // All that may be fetched for now is kept.
        if (!span) await this.#drop(body);
      }
      while (span && !this.#closed) {
        if (!(await this.#bring(span, body))) return;
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

  /** Brings a span, with as many requests as it takes. False: this connection is one too many. */
  async #bring(span: Span, body: Body | undefined): Promise<boolean> {
    let times = 0;
    while (span.at < span.end) {
      const before = span.at;
      try {
        if (!body) {
          body = await this.#ask(this.#ranges === false ? undefined : span);
          if (body.response.status === 206) this.#knowRanges();
          if (body.response.status !== 206 && this.#active > 1) {
            // The one that was there first gets it all.
            this.#release(span);
            await this.#drop(body);
            return false;
          }
        }
        await this.#read(body, span);
      } catch (thrown) {
        const why = passingOf(thrown);
        if (!why) throw thrown;
        if (this.#ranges === undefined && this.#active > 1 && !why.busy && !why.silent) {
          // Asked from another origin, some servers and browsers refuse ranges altogether.
          this.#knowNone();
          this.#release(span);
          return false;
        }
        // Some servers make all but a few connections wait.
        if ((why.busy || why.silent) && this.#active > 1) {
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

  /** Takes a body as far as the span goes; if it is the whole file's, as far as there is something to take. */
  async #read({ response, at, link }: Body, span: Span): Promise<void> {
    const whole = response.status !== 206;
    const reader = response.body!.getReader();
    try {
      for (;;) {
        while (span.at >= span.end) {
          if (!whole || !(await this.#extend(span))) return;
        }
        const { done, value } = await this.#next(link, reader.read()).catch((cause: unknown) => {
          throw this.#broken(link, at, `broke off at byte ${at}`, cause);
        });
        if (done) throw passing("network", `${this.url} ended early, at byte ${at}`);
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
      }
    } finally {
      await reader.cancel().catch(() => {});
      this.#links.delete(link);
    }
  }

  /** Lets the connection that brings the whole file go on, unless others can fetch the rest faster. */
  async #extend(span: Span): Promise<boolean> {
    for (;;) {
      if (this.#ranges === true || this.#closed || this.#failed !== undefined) return false;
      const from = Math.floor((span.end + SLICE - 1) / SLICE);
      // What is behind it comes with the next response only, and nobody else is there to ask for it.
      if (this.#active === 1 && (this.#missing(0) ?? from) < from) return false;
      if (this.#missing(from) === undefined && this.#active === 1) return false;
      const next = this.#active === 1 || this.#ranges === false ? this.#claim(from, 1) : undefined;
      if (next) {
        Object.assign(span, next);
        return true;
      }
      // Others would wait for this connection.
      if (this.brief) return false;
      if (this.#missing(0) === undefined && this.#active === 1) return false;
      await this.#bell.wait();
    }
  }

  /** Puts bytes into the span's next slice; says how many. */
  #fill(span: Span, piece: Uint8Array): number {
    const k = Math.floor(span.at / SLICE);
    let slice = this.#slices.get(k);
    if (!slice) {
      slice = { bytes: new Uint8Array(Math.min(SLICE, this.#version.total! - k * SLICE)), filled: 0 };
      this.#slices.set(k, slice);
    }
    if (this.#silent) {
      // It was the network, not the number of connections.
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

  /** A slice has come while a server was taken to have too many connections. */
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

  /** What comes before the slice `front` has been read. */
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
            // Whoever waits for the reader has something to do now.
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

  /** A body whose length nobody has told, which therefore is over when it ends. */
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
      await reader.cancel().catch(() => {});
      this.close();
    }
  }
}

/** What a response says of the file. */
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

/** Whether two answers are certainly about different files. What one of them does not say, says nothing. */
function differ(a: Version, b: Version): boolean {
  const other = (x: unknown, y: unknown) => x !== undefined && y !== undefined && x !== y;
  if (other(a.total, b.total)) return true;
  return a.etag !== undefined && b.etag !== undefined ? a.etag !== b.etag : other(a.modified, b.modified);
}

/** How long a server wants not to be asked again, within reason. */
function waitOf(response: Response): number | undefined {
  const after = response.headers.get("retry-after");
  if (after === null) return undefined;
  const ms = /^\d+$/.test(after) ? Number(after) * 1000 : Date.parse(after) - Date.now();
  return Number.isFinite(ms) ? Math.min(Math.max(ms, 0), 60_000) : undefined;
}
