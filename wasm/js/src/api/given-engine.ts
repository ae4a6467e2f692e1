// The engine that an adapter is given.
import { ShohinError, type Conversation } from "../index.js";

/** The engine or conversation, if it is one: also one of `shohin/local`, whose class is another. @internal */
export function givenEngine<E extends Pick<Conversation, "chat">>(engine: E, method: keyof E = "chat"): E {
  if (typeof (engine as Partial<E> | null | undefined)?.[method] === "function") return engine;
  throw new ShohinError("argument", `the engine must be an Engine${method === "chat" ? ", or one of its conversations" : ""}`);
}
