// Tells the model the format that its reply is held to.
import type { ChatMessage } from "./message.js";

/** The messages, of which the last one, if it is the user's, also asks for JSON that satisfies a schema. @internal */
export function withSchema<M extends ChatMessage>(messages: M[], schema: string): M[] {
  const last = messages.at(-1);
  if (last?.role !== "user") return messages;
  const request = `\n\nReply with JSON that satisfies this JSON Schema: ${schema}`;
  const content = typeof last.content === "string" ? last.content + request : [...last.content, { type: "text", text: request }];
  return [...messages.slice(0, -1), { ...last, content }];
}
