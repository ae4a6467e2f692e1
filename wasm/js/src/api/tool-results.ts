// Ids of tool calls, which the engine does not have: it matches calls and results by their order.
import type { ChatMessage, ToolCall } from "./message.js";

/** A message with the ids of its calls, or of the call whose result it is. @internal */
export interface IdentifiedMessage extends Omit<ChatMessage, "toolCalls"> {
  toolCalls?: readonly (ToolCall & { id: string | undefined })[];
  toolCallId?: string;
}

/** An id that no other call of a conversation has. @internal */
export function callId(): string {
  return `call_${Math.random().toString(36).slice(2)}`;
}

/** The messages, with results in the order of the calls before them. @internal */
export function inCallOrder(messages: readonly IdentifiedMessage[]): ChatMessage[] {
  let ids: readonly (string | undefined)[] = [];
  let turn = 0;
  const placed = messages.map((message, i) => {
    if (message.toolCalls) ids = message.toolCalls.map(({ id }) => id);
    if (message.role !== "tool") turn = i;
    return { message, turn, place: message.role === "tool" ? ids.indexOf(message.toolCallId) : -1 };
  });
  return placed.sort((a, b) => a.turn - b.turn || a.place - b.place).map(({ message }) => message);
}
