// Tells the model the format that its reply is held to.
import type { ChatMessage } from "./message.js";

/** The messages. The user's one that the reply answers, perhaps after calls of tools, also asks for JSON that satisfies a schema. @internal */
export function withSchema<M extends ChatMessage>(messages: M[], schema: string): M[] {
  let at = messages.length - 1;
  while (messages[at]?.role === "tool" || (messages[at]?.role === "assistant" && messages[at + 1]?.role === "tool")) at--;
  const last = messages[at];
  if (last?.role !== "user") return messages;
  const request = `\n\nReply with JSON that satisfies this JSON Schema: ${schema}`;
  const content = typeof last.content === "string" ? last.content + request : [...last.content, { type: "text", text: request }];
  return [...messages.slice(0, at), { ...last, content }, ...messages.slice(at + 1)];
}
