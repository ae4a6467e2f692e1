// `on...` attributes.

/** A function called with an event, or null. */
export type EventHandler<E extends Event = Event> = ((event: E) => unknown) | null;

/** The handlers of an event target, at most one for each type of event. @internal */
export class EventHandlers<E extends Event = Event> {
  #target: EventTarget;
  #handlers = new Map<string, (event: E) => unknown>();

  constructor(target: EventTarget) {
    this.#target = target;
  }

  get(type: string): EventHandler<E> {
    return this.#handlers.get(type) ?? null;
  }

  set(type: string, handler: EventHandler<E>): void {
    const before = this.#handlers.get(type);
    if (before) this.#target.removeEventListener(type, before as (event: Event) => unknown);
    this.#handlers.delete(type);
    if (typeof handler !== "function") return;
    this.#handlers.set(type, handler);
    this.#target.addEventListener(type, handler as (event: Event) => unknown);
  }
}
