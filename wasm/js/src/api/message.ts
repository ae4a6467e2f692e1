// The messages of a conversation, and the conversation outside the engine.

/** A function the model wants to call. */
export interface ToolCall {
  name: string;
  /** A JSON text. */
  arguments: string;
}

/** A message of a conversation. */
export interface Message {
  role: "system" | "user" | "assistant" | "tool";
  content: string;
  /** The reasoning of a model that thinks before it answers. */
  reasoning?: string;
  /** Calls made by the assistant; the results follow as messages of role `tool`. */
  toolCalls?: readonly ToolCall[];
}

/** A part of a message's content. */
export interface TextPart {
  type: "text";
  text: string;
}

/** A message as `chat` accepts it: its content may also be an array of parts, which are concatenated. */
export interface ChatMessage extends Omit<Message, "content"> {
  content: string | readonly TextPart[];
}

/** A conversation outside the engine. */
export interface Snapshot {
  /** The messages last passed to `chat`, and the reply. */
  messages: Message[];
  /** The same messages and the state of the model, with a checksum and a fingerprint of the model: a file of `shohin chat --session`. */
  state: Uint8Array;
}

/** Result of `restore`. */
export interface Restored {
  messages: Message[];
  /** Whether the state was computed again. */
  recomputed: boolean;
}
