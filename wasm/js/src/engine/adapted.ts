// A model with adapters, in the runtime: each set of them is made once, for all that use it.
import { ShohinError, toError } from "../api/errors.js";
import type { Pieces } from "../load/pieces.js";
import { pour } from "../load/source.js";
import type { Adapter, CpuModel } from "../wasm/module.js";
import type { LoadedModel } from "./loaded.js";

/** An adapter as a request takes it along. @internal */
export interface SentAdapter {
  id: number;
  name: string;
  scale: number;
}

/** A model with a set of adapters. @internal */
export interface Adapted {
  key: string;
  model: CpuModel;
  users: number;
}

/** The adapters that a runtime has read, and the models with them that are in use. @internal */
export class AdaptedModels {
  readonly loaded: LoadedModel;
  #adapters = new Map<number, Adapter>();
  #made = new Map<string, Adapted>();
  #disposed = false;

  constructor(loaded: LoadedModel) {
    this.loaded = loaded;
  }

  /** Reads an adapter. */
  async read(name: string, source: Pieces, signal: AbortSignal | undefined): Promise<Adapter> {
    const { loaded } = this;
    try {
      const { cpu } = loaded;
      if (!cpu) throw new ShohinError("gpu_unsupported", "adapters run on the CPU");
      const adapter = loaded.own(loaded.call(() => new cpu.Adapter()));
      try {
        let isFirst = true;
        const take = (piece: Uint8Array) => {
          // Not downloaded in vain.
          if (isFirst && String.fromCharCode(...piece.subarray(0, 4)) !== "GGUF".slice(0, piece.length)) throw new ShohinError("malformed", `adapter ${name}: it is not a GGUF file`);
          isFirst = false;
          named(name, () => loaded.call(() => adapter.append(piece)));
        };
        await pour(source, take, { signal });
        named(name, () => loaded.call(() => adapter.check()));
        return adapter;
      } catch (error) {
        loaded.free(adapter);
        throw error;
      }
    } finally {
      await source.close();
    }
  }

  /** Takes an adapter that was read, if it fits the model. */
  add(id: number, name: string, adapter: Adapter): void {
    const { loaded } = this;
    try {
      if (this.#disposed) throw new ShohinError("disposed", "the engine was disposed");
      // At scale 0 it is only checked.
      loaded.free(loaded.own(named(name, () => loaded.call((model) => (model as CpuModel).adapted(adapter, 0)))));
      this.#adapters.set(id, adapter);
    } catch (error) {
      loaded.free(adapter);
      throw error;
    }
  }

  /** Frees an adapter. Models with it have copies of what they need. */
  remove(id: number): void {
    const adapter = this.#adapters.get(id);
    if (adapter) this.loaded.free(adapter);
    this.#adapters.delete(id);
  }

  /** The model with these adapters, until it is given back; nothing if there are none. */
  take(adapters: readonly SentAdapter[]): Adapted | undefined {
    if (adapters.length === 0) return undefined;
    const key = adapters.map(({ id, scale }) => `${id}*${Math.fround(scale)}`).join();
    let adapted = this.#made.get(key);
    if (!adapted) {
      adapted = { key, model: this.#make(adapters), users: 0 };
      this.#made.set(key, adapted);
    }
    adapted.users += 1;
    return adapted;
  }

  /** The same once more. */
  more(adapted: Adapted | undefined): Adapted | undefined {
    if (adapted) adapted.users += 1;
    return adapted;
  }

  /** Frees a model if it was used for the last time. */
  give(adapted: Adapted | undefined): void {
    if (!adapted) return;
    adapted.users -= 1;
    if (adapted.users > 0) return;
    this.#made.delete(adapted.key);
    this.loaded.free(adapted.model);
  }

  /** Frees all of them, but not the model. */
  dispose(): void {
    this.#disposed = true;
    for (const adapter of this.#adapters.values()) this.loaded.free(adapter);
    this.#adapters.clear();
  }

  #make(adapters: readonly SentAdapter[]): CpuModel {
    const { loaded } = this;
    const base = loaded.alive() as CpuModel;
    let model = base;
    for (const { id, name, scale } of adapters) {
      let next: CpuModel;
      try {
        const adapter = this.#adapters.get(id);
        if (!adapter) throw new ShohinError("argument", `the adapter ${JSON.stringify(name)} was removed before the request began`);
        next = loaded.own(named(name, () => loaded.call(() => model.adapted(adapter, scale))));
      } finally {
        if (model !== base) loaded.free(model);
      }
      model = next;
    }
    return model;
  }
}

/** Adds the adapter's name to an error of the module. */
function named<T>(name: string, work: () => T): T {
  try {
    return work();
  } catch (thrown) {
    const error = toError(thrown);
    if (error.code === "crashed" || error.code === "disposed") throw error;
    throw new ShohinError(error.code, `adapter ${name}: ${error.message}`, { cause: thrown });
  }
}
