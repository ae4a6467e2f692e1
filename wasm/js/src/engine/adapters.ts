// The adapters of an engine: names and scales, which each request takes along. A change holds for all that begin after it.
import { adapterArguments, adapterName, adapterScale, unknownAdapter } from "../api/arguments.js";
import { ShohinError } from "../api/errors.js";
import type { AdapterChoice, AdapterInfo, AdapterOptions, AdapterSource, RequestOptions } from "../api/options.js";
import { addressOf } from "../load/names.js";
import { partsOf } from "../load/parts.js";
import { readerOf, sourceOf, type FileSource, type RemoteSource, type Source } from "../load/source.js";
import type { SentAdapter } from "./adapted.js";
import { absolute, type Transport } from "./transport.js";

/** An adapter that is to be added. @internal */
export interface GivenAdapter {
  name: string;
  scale: number;
  source: FileSource | { bytes: Uint8Array };
  request: RequestOptions | undefined;
  signal: AbortSignal | undefined;
}

/** The last part of a file's path, without the ending. */
function stem(path: string): string {
  const last = path.replace(/^(https?:[^?#]*)[?#].*$/is, "$1").replace(/^.*[\\/:]/s, "");
  try {
    return decodeURIComponent(last).replace(/\.gguf$/i, "");
  } catch {
    return last;
  }
}

function nameOf(source: GivenAdapter["source"]): string {
  if ("url" in source) return /^(data|blob):/i.test(source.url) ? "" : stem(source.url);
  return "blob" in source && typeof File === "function" && source.blob instanceof File ? stem(source.blob.name) : "";
}

/** Validates an adapter. @internal */
export function adapterOf(given: AdapterSource, options: AdapterOptions, place = "the adapter"): GivenAdapter {
  const { name, scale = 1, request, signal } = adapterArguments(options);
  const source: Source = sourceOf(given, place);
  if ("files" in source || ("url" in source && partsOf(source.url))) throw new ShohinError("argument", `${place} is in several files, but must be one`);
  const found = name ?? nameOf(source);
  if (found === "") throw new ShohinError("argument", `${place} has no name, which bytes and a Blob need`);
  return { name: found, scale, source, request, signal };
}

/** The source of an adapter as a runtime takes it. @internal */
export function remoteOf(source: GivenAdapter["source"], hub: string | URL | undefined): RemoteSource {
  if ("bytes" in source) return { size: source.bytes.byteLength };
  return "url" in source ? { url: absolute(addressOf(source.url, hub)) } : source;
}

/** The adapters (LoRA) of an engine: GGUF files that change what its model says, and share its weights. They run on the CPU. */
export class Adapters {
  #transport: Transport;
  #hub: string | URL | undefined;
  #backend: string;
  #all: SentAdapter[] = [];
  /** Also of those that are being read. */
  #names = new Set<string>();
  #added = 0;

  /** @internal */
  constructor(transport: Transport, hub: string | URL | undefined, backend: string) {
    this.#transport = transport;
    this.#hub = hub;
    this.#backend = backend;
  }

  /**
   * Reads an adapter, which then holds for new conversations and for the engine's own requests. Its file is checked, and kept as a model's is. Fails with
   * the code `duplicate` if another has its name, and with that of the mistake in a file that is damaged or made for another model.
   */
  async add(source: AdapterSource, options: AdapterOptions = {}): Promise<AdapterInfo> {
    return this.take(adapterOf(source, options));
  }

  /** Takes an adapter away. Conversations that were opened with it keep it. */
  remove(name: string): void {
    const found = this.#named(name);
    this.#all = this.#all.filter((one) => one !== found);
    this.#names.delete(name);
    void this.#transport.call("removeAdapter", { id: found.id }).catch(() => {});
  }

  /** Sets the scale of an adapter; at 0 it has no effect. */
  scale(name: string, scale: number): void {
    const found = this.#named(name);
    adapterScale("scale", scale);
    this.#all = this.#all.map((one) => (one === found ? { ...one, scale } : one));
  }

  /** The names and scales of all adapters, in the order in which they apply. */
  list(): AdapterInfo[] {
    return this.#all.map(({ name, scale }) => ({ name, scale }));
  }

  /** Adds a validated adapter. @internal */
  async take({ name, scale, source, request, signal }: GivenAdapter): Promise<AdapterInfo> {
    if (this.#backend !== "cpu") throw onCpuOnly();
    if (this.#names.has(name)) throw duplicate(name);
    this.#names.add(name);
    const id = ++this.#added;
    try {
      const read = "bytes" in source ? readerOf(source.bytes) : undefined;
      const params = { id, name, source: remoteOf(source, this.#hub), request: sendable(request) };
      await this.#transport.call("addAdapter", params, { signal, ...(read && { read }) });
    } catch (error) {
      this.#names.delete(name);
      throw error;
    }
    this.#all = [...this.#all, { id, name, scale }];
    return { name, scale };
  }

  /** What a request takes along: those that it names, or all. @internal */
  sent(chosen?: readonly AdapterChoice[]): SentAdapter[] {
    const all = chosen?.map(({ name, scale }) => {
      const found = this.#named(name);
      return scale == null ? found : { ...found, scale };
    });
    return (all ?? this.#all).filter(({ scale }) => Math.fround(scale) !== 0);
  }

  #named(name: string): SentAdapter {
    adapterName("name", name);
    const found = this.#all.find((one) => one.name === name);
    if (!found) throw unknownAdapter(name, this.#all.map(({ name }) => name));
    return found;
  }
}

/** Options of a download without what cannot be sent to a worker. @internal */
export function sendable(request: RequestOptions | undefined): RequestOptions | undefined {
  // Headers cannot be, their names and values can.
  return request?.headers ? { ...request, headers: [...new Headers(request.headers)] } : request;
}

/** @internal */
export function onCpuOnly(): ShohinError {
  return new ShohinError("gpu_unsupported", 'adapters run on the CPU: load with backend "cpu"');
}

/** @internal */
export function duplicate(name: string): ShohinError {
  return new ShohinError("duplicate", `there is an adapter named ${JSON.stringify(name)} already`);
}
