// Downloads kept in the browser's origin-private file system: each is made once, and resumes after an interruption.
import { cacheArguments, checkAddress } from "../api/arguments.js";
import { abortError, converted, ShohinError } from "../api/errors.js";
import type { CacheOptions, LoadOptions, Progress } from "../api/options.js";
import { downloadPieces, isOutdated, SILENCE, SLICE, type DownloadOptions, type Keep, type Version } from "./download.js";
import { addressOf } from "./names.js";
import { partsOf } from "./parts.js";
import type { Pieces } from "./pieces.js";

const DIRECTORY = "shohin";

/**
 * The index of a kept file, in a file of the same name with `.json`. The first line is the version reported by the server; every
 * further line is the number of a slice and its SHA-256, or null for a damaged slice, or at the end the SHA-256 of the file. Lines are only appended, so that an interruption
 * at any time leaves all earlier lines intact.
 */
interface Index {
  url?: string;
  version: Version;
  /** SHA-256 by slice number. */
  sums: Map<number, string>;
  /** SHA-256 of the whole file, if it was checked. */
  sha256?: string | undefined;
}

/** Synchronous file access, which only workers of one page have; not in TypeScript's library for pages. */
interface Access {
  read(into: Uint8Array, options: { at: number }): number | Promise<number>;
  write(from: Uint8Array, options: { at: number }): number;
  truncate(size: number): void;
  getSize(): number;
  flush(): void;
  close(): void;
}

async function directory(): Promise<FileSystemDirectoryHandle> {
  return (await root()).getDirectoryHandle(DIRECTORY, { create: true });
}

async function root(): Promise<FileSystemDirectoryHandle> {
  try {
    return await navigator.storage.getDirectory();
  } catch (cause) {
    // Insecure origins have none, nor private windows of some browsers.
    throw new ShohinError("read", "the browser does not store files for this page", { cause });
  }
}

/** A file name for a URL. */
function nameOf(url: string): Promise<string> {
  return sha256(new TextEncoder().encode(url));
}

async function sha256(bytes: Uint8Array): Promise<string> {
  const hash = await crypto.subtle.digest("SHA-256", bytes as Uint8Array<ArrayBuffer>);
  return [...new Uint8Array(hash)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** A copy's lock, and the channel of its progress. */
const lockOf = (name: string) => `shohin.copy.${name}`;

/** Whether an engine of this site, in any tab, downloads or reads the copy of a URL. @internal */
export async function isInUse(url: string): Promise<boolean> {
  const lock = lockOf(await nameOf(url));
  return (await navigator.locks.query()).held?.some(({ name }) => name === lock) ?? false;
}

/** Takes the lock of a copy; returns its release, or nothing if it is taken and `options` ask not to wait. */
function lock(name: string, options: LockOptions): Promise<(() => void) | undefined> {
  return new Promise((resolve, reject) => {
    navigator.locks
      .request(lockOf(name), options, (held) => (held ? new Promise<void>((release) => resolve(() => release())) : resolve(undefined)))
      .catch(reject);
  });
}

/**
 * Takes the lock of a copy. While another engine has it, in this tab or another, waits and reports that engine's progress; the browser
 * releases the lock when a tab ends. Returns nothing if the other engine falls silent: browsers suspend tabs together with their locks.
 */
async function turn(name: string, { onProgress, signal, stallTimeout = SILENCE }: LoadOptions, patient: boolean): Promise<(() => void) | undefined> {
  const free = await lock(name, { ifAvailable: true });
  if (free || !patient) return free;
  const abort = new AbortController();
  const stop = () => abort.abort();
  let timer: ReturnType<typeof setTimeout> | undefined;
  const wait = () => {
    clearTimeout(timer);
    if (stallTimeout < 2 ** 31) timer = setTimeout(stop, stallTimeout);
  };
  const channel = new BroadcastChannel(lockOf(name));
  channel.onmessage = ({ data }) => {
    wait();
    onProgress?.(data as Progress);
  };
  signal?.addEventListener("abort", stop);
  if (signal?.aborted) stop();
  wait();
  try {
    const { version: { total }, sums } = await indexIn(await directory(), `${name}.json`);
    onProgress?.({ stage: "download", loaded: bytesOf(sums, total), ...(total !== undefined && { total }) });
    return await lock(name, { signal: abort.signal });
  } catch (cause) {
    if (signal?.aborted) throw abortError(signal);
    if (abort.signal.aborted) return undefined;
    throw cause;
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", stop);
    channel.close();
  }
}

/** Attempts, every 50 ms, to open a file that a terminated worker has not released yet, which may take long on a busy machine. */
const MAX_ATTEMPTS = 100;

/** Whether files can be written here: not in workers that several tabs share, which only read complete copies. */
const canWrite = () => typeof FileSystemFileHandle === "function" && "createSyncAccessHandle" in FileSystemFileHandle.prototype;

/** The same interface over a file that is only read. */
async function readOnly(name: string): Promise<Access> {
  const file = await (await (await directory()).getFileHandle(name)).getFile();
  return {
    read: async (into, { at }) => {
      const bytes = new Uint8Array(await file.slice(at, at + into.byteLength).arrayBuffer());
      into.set(bytes);
      return bytes.byteLength;
    },
    getSize: () => file.size,
    write: () => 0,
    truncate: () => {},
    flush: () => {},
    close: () => {},
  };
}

async function access(name: string): Promise<Access> {
  if (!canWrite()) return readOnly(name);
  const file = await (await directory()).getFileHandle(name, { create: true });
  for (let times = 1; ; times++) {
    try {
      return await (file as unknown as { createSyncAccessHandle(): Promise<Access> }).createSyncAccessHandle();
    } catch (thrown) {
      if (!(thrown instanceof DOMException && thrown.name === "NoModificationAllowedError") || times === MAX_ATTEMPTS) throw thrown;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }
}

function indexOf(text: string): Index {
  const index: Index = { version: {}, sums: new Map() };
  for (const line of text.split("\n")) {
    try {
      const entry: unknown = JSON.parse(line);
      if (Array.isArray(entry)) {
        const [slice, sum] = entry as unknown[];
        if (!Number.isSafeInteger(slice)) continue;
        if (sum === null) index.sums.delete(slice as number);
        else if (typeof sum === "string") index.sums.set(slice as number, sum);
      } else {
        const { url, sha256, total, etag, modified } = entry as Version & { url?: string; sha256?: string };
        if (url !== undefined) index.url = url;
        if (sha256 !== undefined) index.sha256 = sha256;
        Object.assign(index.version, total !== undefined && { total }, etag !== undefined && { etag }, modified !== undefined && { modified });
      }
    } catch {
      // The last line, if writing it was interrupted.
    }
  }
  return index;
}

/** Bytes of the slices that are kept. */
function bytesOf(sums: Map<number, string>, total = Infinity): number {
  let bytes = 0;
  for (const slice of sums.keys()) bytes += Math.min(SLICE, total - slice * SLICE);
  return bytes;
}

/** An index as another engine may be writing it. */
async function indexIn(parent: FileSystemDirectoryHandle, name: string): Promise<Index> {
  return indexOf(await parent.getFileHandle(name).then(async (handle) => (await handle.getFile()).text(), () => ""));
}

/** Milliseconds between two reports of progress to the engines that wait. */
const TELL_EVERY = 100;

/** A kept copy that is read and extended. */
class Copy implements Keep {
  #keeps = canWrite();
  #channel: BroadcastChannel;
  #told = 0;
  /** Whether everything was kept already. */
  #complete: boolean;
  /** SHA-256 that damaged slices should have. */
  #lost = new Map<number, string>();
  /** SHA-256 of the whole file, computed by this engine. */
  #sum: string | undefined;

  private constructor(
    readonly url: string,
    readonly required: boolean,
    readonly file: Access,
    readonly lines: Access,
    readonly index: Index,
    name: string,
    readonly release: () => void,
  ) {
    this.#channel = new BroadcastChannel(lockOf(name));
    this.#complete = bytesOf(index.sums, index.version.total) === index.version.total;
  }

  /** Fails in private windows of some browsers, and outside workers. `release` is called when it is closed. */
  static async open(url: string, name: string, required: boolean, release: () => void): Promise<Copy> {
    const file = await access(name);
    let lines: Access | undefined;
    try {
      lines = await access(`${name}.json`);
      const text = new Uint8Array(lines.getSize());
      await lines.read(text, { at: 0 });
      const index = indexOf(new TextDecoder().decode(text));
      const size = file.getSize();
      for (const slice of index.sums.keys()) if (slice * SLICE >= size) index.sums.delete(slice);
      return new Copy(url, required, file, lines, index, name, release);
    } catch (cause) {
      file.close();
      lines?.close();
      throw cause;
    }
  }

  get sha256(): string | undefined {
    return this.index.sha256;
  }

  summed(sha256: string): void {
    this.#sum = sha256;
  }

  get version(): Version | undefined {
    return this.index.sums.size > 0 ? this.index.version : undefined;
  }

  has(slice: number): boolean {
    return this.index.sums.has(slice);
  }

  async read(slice: number, most: number): Promise<Uint8Array | undefined> {
    let count = 1;
    while (count < most && this.has(slice + count)) count++;
    const size = Math.min(count * SLICE, (this.index.version.total ?? Infinity) - slice * SLICE);
    const bytes = new Uint8Array(size);
    const read = await this.file.read(bytes, { at: slice * SLICE });
    const sums = await Promise.all(Array.from({ length: count }, (_, i) => sha256(bytes.subarray(i * SLICE, (i + 1) * SLICE))));
    const good = sums.findIndex((sum, i) => read < Math.min((i + 1) * SLICE, size) || sum !== this.index.sums.get(slice + i));
    if (this.#complete) this.#tell("read", slice * SLICE + size);
    if (good < 0) return bytes;
    this.#lost.set(slice + good, this.index.sums.get(slice + good)!);
    this.index.sums.delete(slice + good);
    this.#note([slice + good, null]);
    return good > 0 ? bytes.subarray(0, good * SLICE) : undefined;
  }

  async start(version: Version): Promise<void> {
    const { total } = version;
    this.index.sums.clear();
    this.index.version = version;
    this.index.sha256 = this.#sum = undefined;
    this.#complete = false;
    this.#lost.clear();
    if (!this.#keeps) return;
    this.file.truncate(0);
    this.lines.truncate(0);
    if (total !== undefined && !this.#fits(total)) this.#forgo(noRoom());
    this.#note({ url: this.url, ...version });
  }

  /** Whether there is room for a file; a browser's estimate of its room may be any number. */
  #fits(size: number): boolean {
    try {
      this.file.truncate(size);
      // Chromium does not throw.
      const fits = this.file.getSize() === size;
      this.file.truncate(0);
      return fits;
    } catch {
      return false;
    }
  }

  async write(slice: number, bytes: Uint8Array): Promise<boolean> {
    const sum = await sha256(bytes);
    const lost = this.#lost.get(slice);
    if (lost !== undefined && lost !== sum) return false;
    if (!this.#keeps) return true;
    try {
      if (this.file.write(bytes, { at: slice * SLICE }) !== bytes.byteLength) throw noRoom();
      this.index.sums.set(slice, sum);
      this.#note([slice, sum]);
      this.#tell("download");
    } catch (cause) {
      this.#forgo(cause);
    }
    return true;
  }

  end(total: number): void {
    this.index.version.total = total;
    this.#note({ total });
  }

  close(): void {
    const { sums, version: { total }, sha256 } = this.index;
    // Once every slice is there: the sum of a file that is not must be computed again.
    if (this.#sum !== undefined && this.#sum !== sha256 && bytesOf(sums, total) === total) {
      this.index.sha256 = this.#sum;
      this.#note({ sha256: this.#sum });
    }
    this.file.close();
    this.lines.close();
    this.#channel.close();
    this.release();
  }

  /** Reports progress to the engines that wait for this copy. */
  #tell(stage: Progress["stage"], loaded?: number): void {
    const now = performance.now();
    if (now - this.#told < TELL_EVERY) return;
    this.#told = now;
    const { total } = this.index.version;
    loaded ??= bytesOf(this.index.sums, total);
    this.#channel.postMessage({ stage, loaded, ...(total !== undefined && { total }) } satisfies Progress);
  }

  #note(entry: unknown): void {
    if (!this.#keeps) return;
    const line = new TextEncoder().encode(`${JSON.stringify(entry)}\n`);
    try {
      if (this.lines.write(line, { at: this.lines.getSize() }) !== line.byteLength) throw noRoom();
    } catch (cause) {
      this.#forgo(cause);
    }
  }

  /** Continues without a copy, unless one is required. */
  #forgo(cause: unknown): void {
    if (this.required) throw cause instanceof ShohinError ? cause : noRoom(cause);
    this.#keeps = false;
    this.index.sums.clear();
    try {
      this.lines.truncate(0);
      this.file.truncate(0);
    } catch {
      // Closed, or a failing disk: without an index, or with wrong checksums, nothing is read from the copy.
    }
    // Nothing to wait for any more.
    this.close();
  }
}

/**
 * Streams a URL through the kept copy, or without one if that is impossible. `brief` is as for a download; `patient`: wait for an engine
 * that uses the same copy. @internal
 */
export async function keptPieces(url: string, options: LoadOptions, required: boolean, brief: boolean, patient: boolean): Promise<Pieces> {
  let release: (() => void) | undefined;
  let copy: Copy | undefined;
  let cause: unknown;
  try {
    const name = await nameOf(url);
    release = await turn(name, options, patient);
    if (release) copy = await Copy.open(url, name, required, release);
  } catch (thrown) {
    release?.();
    if (options.signal?.aborted) throw abortError(options.signal);
    cause = thrown;
  }
  if (!copy && required) throw new ShohinError("quota", "the browser stores no files here, or another tab has this copy open", { cause });
  return downloadPieces(url, options, copy, brief);
}

function noRoom(cause?: unknown): ShohinError {
  return new ShohinError("quota", "there is not enough storage to keep the model", { cause });
}

/** A kept download; a model in parts has one for each part. */
export interface CacheEntry {
  url: string;
  /** Bytes stored. */
  bytes: number;
  /** Bytes of the whole file, if known. */
  total?: number;
  /** Whether the copy is complete; if not, the next load resumes it. */
  complete: boolean;
}

/**
 * The copies kept for this site, or only that of a URL; for a model in parts those of all parts. A page that is reloaded while all are
 * listed stays in Chromium's memory until the tab is closed: the browser never lets go of a directory's unfinished iterator.
 */
export async function listCache(url?: string | URL, options: CacheOptions = {}): Promise<CacheEntry[]> {
  const { hub } = cacheArguments(options);
  return copies(url === undefined ? undefined : filesOf(url, hub));
}

/** The copies of these URLs, or all. @internal */
export async function copies(urls?: readonly string[]): Promise<CacheEntry[]> {
  const entries: CacheEntry[] = [];
  const parent = await directory();
  const all = parent as unknown as { keys(): AsyncIterable<string> };
  const names = urls === undefined ? all.keys() : await Promise.all(urls.map(async (url) => `${await nameOf(url)}.json`));
  for await (const name of names) {
    if (!name.endsWith(".json")) continue;
    const { url: from, version: { total }, sums } = await indexIn(parent, name);
    if (from === undefined) continue;
    const bytes = bytesOf(sums, total);
    entries.push({ url: from, bytes, ...(total !== undefined && { total }), complete: bytes === total });
  }
  return entries;
}

/** The URLs of a model's files. */
function filesOf(url: string | URL, hub: string | URL | undefined): string[] {
  checkAddress(url);
  const base = typeof document === "undefined" ? location.href : document.baseURI;
  const { href } = converted("the URL", () => new URL(typeof url === "string" ? addressOf(url, hub) : url, base));
  return partsOf(href) ?? [href];
}

/** Deletes the copy of one file; returns whether there was one. Fails with code `read` while it is in use. @internal */
export async function deleteCopy(url: string): Promise<boolean> {
  const parent = await directory();
  const name = await nameOf(url);
  // The index first, which cannot be deleted either while the copy is in use: nothing is lost then.
  const had = await removed(parent, `${name}.json`, url);
  return (await removed(parent, name, url)) || had;
}

/** Deletes a file of a copy; returns whether there was one. */
async function removed(parent: FileSystemDirectoryHandle, name: string, url: string): Promise<boolean> {
  try {
    await parent.removeEntry(name);
    return true;
  } catch (cause) {
    if (cause instanceof DOMException && cause.name === "NotFoundError") return false;
    throw new ShohinError("read", `the kept copy of ${url} could not be deleted; it may be in use`, { cause });
  }
}

/** Deletes the copy of one file if the server now has another version; returns whether it did. @internal */
export async function deleteOutdated(url: string, options: DownloadOptions): Promise<boolean> {
  const handle = await (await directory()).getFileHandle(`${await nameOf(url)}.json`);
  const { version } = indexOf(await (await handle.getFile()).text());
  // Without versions from the server, files of the same length cannot be distinguished.
  const unnamed = version?.etag === undefined && version?.modified === undefined;
  return (unnamed || (await isOutdated(url, options, version))) && deleteCopy(url);
}

/**
 * Deletes the copy of a URL, for a model in parts those of all parts; returns whether there was one. Fails with code `read` if one of
 * them is read or downloaded for longer than a second.
 */
export async function deleteCache(url: string | URL, options: CacheOptions = {}): Promise<boolean> {
  const { hub } = cacheArguments(options);
  const files = filesOf(url, hub);
  // Where the user blocks storage, this says so, and locks are refused, too.
  await directory();
  let had = false;
  await patiently(async () => {
    // A copy that several tabs read at once could be deleted all the same.
    for (const file of files) if (await isInUse(file)) throw new ShohinError("read", `the kept copy of ${file} is in use`);
    for (const file of files) had = (await deleteCopy(file)) || had;
  });
  return had;
}

/** Tries something for a second: a load that was aborted lets go of its files a moment later. */
async function patiently(attempt: () => Promise<void>): Promise<void> {
  for (let times = 1; ; times++) {
    try {
      return await attempt();
    } catch (error) {
      if (times === 20) throw error;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }
}

/** Deletes every kept download of this site. Fails with code `read` if one of them is read or downloaded for longer than a second. */
export async function clearCache(): Promise<void> {
  const parent = await root();
  const attempt = () =>
    parent.removeEntry(DIRECTORY, { recursive: true }).catch((cause: unknown) => {
      if (cause instanceof DOMException && cause.name === "NotFoundError") return;
      throw new ShohinError("read", "the kept downloads could not be deleted; one of them may be in use", { cause });
    });
  await patiently(attempt);
}
