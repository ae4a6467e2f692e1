// Replies as the AI SDK requests them.
import type {
  LanguageModelV3,
  LanguageModelV3CallOptions,
  LanguageModelV3Content,
  LanguageModelV3FinishReason,
  LanguageModelV3StreamPart,
  LanguageModelV3Usage,
  SharedV3ProviderMetadata,
  SharedV3Warning,
} from "@ai-sdk/provider";
import { givenEngine } from "../api/given-engine.js";
import { withSchema } from "../api/schema-prompt.js";
import { callId } from "../api/tool-results.js";
import type { ChatFinish, ChatMessage, ChatOptions, Chunk, Conversation, Engine, Tool, ToolCall } from "../index.js";
import { messagesOf } from "./prompt.js";

/** Options of `chat` for all calls of a model. A call has its own in `providerOptions.shohin`; its standard settings override both. */
export type LanguageModelSettings = Omit<ChatOptions, "signal" | "tools" | "toolChoice" | "responseFormat">;

/** Version 7 of the AI SDK has `reasoning`, which it passes to models of this specification, too. */
type CallOptions = LanguageModelV3CallOptions & { reasoning?: string };

const PROVIDER = "shohin";

function toolsOf({ tools = [], toolChoice }: CallOptions, warnings: SharedV3Warning[]): Pick<ChatOptions, "tools" | "toolChoice"> {
  if (toolChoice?.type === "none") return {};
  const functions: Tool[] = [];
  for (const tool of tools) {
    if (tool.type === "provider") {
      warnings.push({ type: "unsupported", feature: `provider-defined tool ${tool.id}` });
      continue;
    }
    const { name, description, inputSchema: parameters, inputExamples, strict } = tool;
    if (inputExamples) warnings.push({ type: "unsupported", feature: `inputExamples of the tool ${name}` });
    functions.push({ type: "function", function: { name, parameters, ...(description !== undefined && { description }), ...(strict !== undefined && { strict }) } });
  }
  return {
    ...(functions.length > 0 && { tools: functions }),
    ...(toolChoice?.type === "required" && { toolChoice: "required" as const }),
    ...(toolChoice?.type === "tool" && { toolChoice: { name: toolChoice.toolName } }),
  };
}

/** The arguments of `chat` for a call, and what of it has no effect. */
function chatOf(settings: LanguageModelSettings, call: CallOptions): { messages: ChatMessage[]; options: ChatOptions; warnings: SharedV3Warning[] } {
  const warnings: SharedV3Warning[] = [];
  const { responseFormat, reasoning = "provider-default" } = call;
  const messages = messagesOf(call.prompt);
  const isJson = responseFormat?.type === "json";
  if (reasoning !== "provider-default" && reasoning !== "none") {
    warnings.push({ type: "compatibility", feature: "reasoning", details: "thinking has no levels of effort; providerOptions.shohin.thinking.budget limits its tokens" });
  }
  const given = {
    maxTokens: call.maxOutputTokens,
    temperature: call.temperature,
    topP: call.topP,
    topK: call.topK,
    presencePenalty: call.presencePenalty,
    frequencyPenalty: call.frequencyPenalty,
    seed: call.seed,
    stop: call.stopSequences,
    thinking: reasoning === "provider-default" ? undefined : reasoning !== "none",
    responseFormat: isJson ? (responseFormat.schema ? { type: "json_schema", schema: responseFormat.schema } : { type: "json_object" }) : undefined,
    signal: call.abortSignal,
  };
  const options = {
    ...settings,
    ...call.providerOptions?.[PROVIDER],
    ...Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined)),
    ...toolsOf(call, warnings),
  } as ChatOptions;
  return { messages: isJson && responseFormat.schema ? withSchema(messages, JSON.stringify(responseFormat.schema)) : messages, options, warnings };
}

function toolCall({ name, arguments: input }: ToolCall): LanguageModelV3Content & { type: "tool-call" } {
  return { type: "tool-call", toolCallId: callId(), toolName: name, input };
}

/** How a reply ended. */
function endOf({ reason, message, usage, seed, timings }: ChatFinish): { finishReason: LanguageModelV3FinishReason; usage: LanguageModelV3Usage; providerMetadata: SharedV3ProviderMetadata } {
  const unified = message.toolCalls?.length ? "tool-calls" : reason === "stop" || reason === "stop_string" ? "stop" : "length";
  const { promptTokens, cachedTokens, completionTokens, reasoningTokens } = usage;
  return {
    finishReason: { unified, raw: reason },
    usage: {
      inputTokens: { total: promptTokens, noCache: promptTokens - cachedTokens, cacheRead: cachedTokens, cacheWrite: undefined },
      outputTokens: { total: completionTokens, text: completionTokens - reasoningTokens, reasoning: reasoningTokens },
      raw: usage,
    },
    providerMetadata: { [PROVIDER]: { seed, timings } },
  };
}

/** The chunks of a reply as parts, in which every text has a start and an end. */
async function* partsOf(chunks: AsyncIterable<Chunk<ChatFinish>>, withRaw: boolean): AsyncGenerator<LanguageModelV3StreamPart, void, void> {
  let open: { type: "text" | "reasoning"; id: string } | undefined;
  let opened = 0;
  function* close(): Generator<LanguageModelV3StreamPart> {
    if (open) yield { type: `${open.type}-end`, id: open.id };
    open = undefined;
  }
  function* write(type: "text" | "reasoning", delta: string | undefined): Generator<LanguageModelV3StreamPart> {
    if (!delta) return;
    if (open?.type !== type) {
      yield* close();
      open = { type, id: String(opened++) };
      yield { type: `${type}-start`, id: open.id };
    }
    yield { type: `${type}-delta`, id: open.id, delta };
  }
  for await (const chunk of chunks) {
    if (withRaw) yield { type: "raw", rawValue: chunk };
    yield* write("reasoning", chunk.reasoning);
    yield* write("text", chunk.text);
    for (const call of chunk.toolCalls ?? []) {
      yield* close();
      const part = toolCall(call);
      const { toolCallId: id, toolName, input: delta } = part;
      yield { type: "tool-input-start", id, toolName };
      yield { type: "tool-input-delta", id, delta };
      yield { type: "tool-input-end", id };
      yield part;
    }
    if (chunk.finish) {
      yield* close();
      yield { type: "finish", ...endOf(chunk.finish) };
    }
  }
}

/**
 * A language model of the AI SDK over an engine or one of its conversations: `generateText({ model: languageModel(engine), prompt })`.
 * It implements version 3 of the specification, which `ai` accepts from its version 6 on. Calls at the same time are answered one after
 * the other; only the prompt's beginning that the last call had, too, is not computed again.
 */
export function languageModel(engine: Engine | Conversation, settings: LanguageModelSettings = {}): LanguageModelV3 {
  givenEngine(engine);
  const model = "info" in engine ? engine.info.model : undefined;
  const modelId = model?.name || model?.architecture || "conversation";
  return {
    specificationVersion: "v3",
    provider: PROVIDER,
    modelId,
    supportedUrls: {},

    async doGenerate(call) {
      const { messages, options, warnings } = chatOf(settings, call);
      const { finish } = await engine.reply(messages, options);
      const { content: text, reasoning, toolCalls = [] } = finish.message;
      const content: LanguageModelV3Content[] = [];
      if (reasoning) content.push({ type: "reasoning", text: reasoning });
      if (text) content.push({ type: "text", text });
      return { content: [...content, ...toolCalls.map(toolCall)], ...endOf(finish), warnings, response: { modelId, timestamp: new Date() } };
    },

    async doStream(call) {
      const { messages, options, warnings } = chatOf(settings, call);
      const parts = partsOf(engine.chat(messages, options), call.includeRawChunks ?? false);
      const stream = new ReadableStream<LanguageModelV3StreamPart>({
        start(controller) {
          controller.enqueue({ type: "stream-start", warnings });
          controller.enqueue({ type: "response-metadata", modelId, timestamp: new Date() });
        },
        async pull(controller) {
          try {
            const { done, value } = await parts.next();
            if (done) controller.close();
            else controller.enqueue(value);
          } catch (error) {
            // An abort ends the stream itself, as it does that of a request.
            if (options.signal?.aborted) return controller.error(error);
            controller.enqueue({ type: "error", error });
            controller.close();
          }
        },
        async cancel() {
          await parts.return();
        },
      });
      return { stream };
    },
  };
}
