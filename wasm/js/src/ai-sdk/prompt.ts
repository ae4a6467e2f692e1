// Prompts of the AI SDK as messages.
import type { LanguageModelV3Message, LanguageModelV3Prompt, LanguageModelV3ToolResultOutput } from "@ai-sdk/provider";
import { inCallOrder, type IdentifiedMessage } from "../api/tool-results.js";
import type { ChatMessage, TextPart } from "../index.js";

type Part = Exclude<LanguageModelV3Message["content"], string>[number];

function parts<T extends Part["type"]>(content: readonly Part[], type: T): Extract<Part, { type: T }>[] {
  return content.filter((part): part is Extract<Part, { type: T }> => part.type === type);
}

/** A result as the model reads it. */
function resultText(output: LanguageModelV3ToolResultOutput): string | readonly TextPart[] {
  switch (output.type) {
    case "text":
      return output.value;
    case "json":
      return JSON.stringify(output.value);
    case "error-text":
    case "error-json":
      return JSON.stringify({ error: output.value });
    case "execution-denied":
      return JSON.stringify({ error: output.reason ?? "the call was denied" });
    case "content":
      // Other parts than text are refused by the engine.
      return output.value as TextPart[];
  }
}

/** The messages of a prompt. Content that the model cannot read is left to the engine, which refuses it and names its place. @internal */
export function messagesOf(prompt: LanguageModelV3Prompt): ChatMessage[] {
  const messages = prompt.flatMap((message): IdentifiedMessage[] => {
    switch (message.role) {
      case "system":
        return [{ role: "system", content: message.content }];
      case "user":
        return [{ role: "user", content: message.content as TextPart[] }];
      case "assistant": {
        const calls = parts(message.content, "tool-call");
        const reasoning = parts(message.content, "reasoning").map(({ text }) => text).join("");
        return [
          {
            role: "assistant",
            content: message.content.filter(({ type }) => type !== "tool-call" && type !== "reasoning") as TextPart[],
            ...(reasoning !== "" && { reasoning }),
            ...(calls.length > 0 && { toolCalls: calls.map(({ toolCallId: id, toolName: name, input }) => ({ id, name, arguments: JSON.stringify(input) })) }),
          },
        ];
      }
      case "tool":
        return parts(message.content, "tool-result").map(({ toolCallId, output }) => ({ role: "tool", content: resultText(output), toolCallId }));
    }
  });
  return inCallOrder(messages);
}
