// A model in the module's memory or on a GPU.
import { ShohinError, toError } from "../api/errors.js";
import type { ModelInfo } from "../api/info.js";
import type { CpuModule, Model } from "../wasm/module.js";

/** An object of the module that must be freed. */
interface Owned {
  free(): void;
}

/** A loaded model, the objects that belong to it, and whether it can still be used. @internal */
export class LoadedModel {
  readonly info: ModelInfo;
  /** Its module, if that is one for the CPU. */
  readonly cpu: CpuModule | undefined;
  #model: Model | undefined;
  #dead: ShohinError | undefined;
  #owned = new Set<Owned>();

  constructor(model: Model, cpu: CpuModule | undefined) {
    this.cpu = cpu;
    this.#model = this.own(model);
    this.info = model.info() as ModelInfo;
  }

  get dead(): boolean {
    return this.#dead !== undefined;
  }

  /** Throws if the model can no longer be used. */
  alive(): Model {
    if (this.#dead) throw this.#dead;
    return this.#model as Model;
  }

  /** Calls into the module. */
  call<T>(work: (model: Model) => T): T {
    const model = this.alive();
    try {
      return work(model);
    } catch (thrown) {
      throw this.#failed(thrown);
    }
  }

  /** Calls into the module and waits for the GPU, if there is one. */
  async ask<T>(work: (model: Model) => T | Promise<T>): Promise<T> {
    const model = this.alive();
    try {
      return await work(model);
    } catch (thrown) {
      throw this.#failed(thrown);
    }
  }

  #failed(thrown: unknown): ShohinError {
    // Disposing during GPU work causes errors of its own.
    if (this.#dead) return this.#dead;
    const error = toError(thrown);
    if (error.code === "crashed") {
      // The module's memory is in an unknown state: do not touch it again.
      this.#dead = error;
      this.#model = undefined;
      this.#owned.clear();
    }
    return error;
  }

  /** Takes ownership of an object until it or the model is freed. */
  own<T extends Owned>(object: T): T {
    if (this.#dead) {
      object.free();
      throw this.#dead;
    }
    this.#owned.add(object);
    return object;
  }

  free(object: Owned): void {
    if (!this.#owned.delete(object)) return;
    try {
      object.free();
    } catch {
      // A pending GPU step uses it; it is freed by garbage collection.
    }
  }

  dispose(): void {
    this.#dead ??= new ShohinError("disposed", "the engine was disposed");
    for (const object of this.#owned) this.free(object);
    this.#model = undefined;
  }
}
