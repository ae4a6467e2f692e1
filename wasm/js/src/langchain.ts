// Chat model and embeddings of LangChain over an engine.
import { Embeddings, type EmbeddingsParams } from "@langchain/core/embeddings";
import type { CallbackManagerForLLMRun } from "@langchain/core/callbacks/manager";
import type { BaseLanguageModelInput } from "@langchain/core/language_models/base";
import { BaseChatModel, type BaseChatModelCallOptions, type BaseChatModelParams, type BindToolsInput } from "@langchain/core/language_models/chat_models";
import { assembleStructuredOutputPipeline, createContentParser } from "@langchain/core/language_models/structured_output";
import { AIMessage, AIMessageChunk, ToolMessage, type BaseMessage, type MessageContent, type UsageMetadata } from "@langchain/core/messages";
import { ChatGenerationChunk, type ChatResult } from "@langchain/core/outputs";
import type { Runnable } from "@langchain/core/runnables";
import { convertToOpenAITool, isLangChainTool } from "@langchain/core/utils/function_calling";
import { toJsonSchema } from "@langchain/core/utils/json_schema";
import type { SerializableSchema } from "@langchain/core/utils/standard_schema";
import { isInteropZodSchema, type InteropZodType } from "@langchain/core/utils/types";
import { withSchema } from "./api/schema-prompt.js";
import { givenEngine } from "./api/given-engine.js";
import { callId, inCallOrder, type IdentifiedMessage } from "./api/tool-results.js";
import type { ChatFinish, ChatMessage, ChatOptions, Conversation, EmbedOptions, Engine, ResponseFormat, TextPart, Tool } from "./index.js";

/** Options of a call, beside those of LangChain. */
export interface ChatShohinCallOptions extends BaseChatModelCallOptions {
  /** Options of `chat`, which override those of the model. */
  options?: Omit<ChatOptions, "signal" | "tools" | "toolChoice" | "responseFormat">;
  /** Set by `bindTools`. */
  tools?: readonly Tool[];
  /** Set by `withStructuredOutput`; the schema is added to the prompt. */
  responseFormat?: ResponseFormat;
}

/** Settings of a chat model, beside those of LangChain. */
export interface ChatShohinFields extends BaseChatModelParams {
  /** An engine or one of its conversations. It remains the caller's. */
  engine: Engine | Conversation;
  /** Options of `chat` for all calls. */
  options?: ChatShohinCallOptions["options"];
}

type Schema<T> = InteropZodType<T> | SerializableSchema<T> | Record<string, any>;

const ROLES: Record<string, string> = { human: "user", ai: "assistant", developer: "system" };
const REASONING = "reasoning_content";

function messageOf(message: BaseMessage): IdentifiedMessage {
  const type = message.getType();
  // The engine refuses other roles, and other parts than text.
  const rest = { role: (ROLES[type] ?? type) as ChatMessage["role"], content: message.content as string | TextPart[] };
  if (ToolMessage.isInstance(message)) return { ...rest, toolCallId: message.tool_call_id };
  if (!AIMessage.isInstance(message)) return rest;
  const reasoning = message.additional_kwargs[REASONING];
  const toolCalls = message.tool_calls?.map(({ id, name, args }) => ({ id, name, arguments: JSON.stringify(args) })) ?? [];
  return { ...rest, content: message.text, ...(typeof reasoning === "string" && { reasoning }), ...(toolCalls.length > 0 && { toolCalls }) };
}

/** A tool of LangChain, or a definition as in the formats of OpenAI or Anthropic. The engine refuses others. */
function toolOf(tool: BindToolsInput): Tool {
  if (isLangChainTool(tool)) return convertToOpenAITool(tool) as Tool;
  const { input_schema, type, ...rest } = tool as Record<string, any>;
  const parameters = input_schema ?? rest["parameters"];
  if (parameters && (type === undefined || (type === "custom" && input_schema))) return { type: "function", function: { ...rest, parameters } as Tool["function"] };
  return convertToOpenAITool(tool) as Tool;
}

/** What a reply ended with, for its last message. */
function endOf({ usage, reason, seed, timings }: ChatFinish): { usage_metadata: UsageMetadata; response_metadata: Record<string, unknown> } {
  const { promptTokens, cachedTokens, completionTokens, reasoningTokens } = usage;
  return {
    usage_metadata: {
      input_tokens: promptTokens,
      output_tokens: completionTokens,
      total_tokens: promptTokens + completionTokens,
      input_token_details: { cache_read: cachedTokens },
      output_token_details: { reasoning: reasoningTokens },
    },
    response_metadata: { finish_reason: reason, seed, timings },
  };
}

/** A chat model of LangChain. */
export class ChatShohin extends BaseChatModel<ChatShohinCallOptions> {
  #engine: Engine | Conversation;
  #options: ChatShohinFields["options"];
  /** Of a conversation, which does not know its model. */
  #id = callId();

  constructor(fields: ChatShohinFields) {
    const { engine, options, ...rest } = fields ?? {};
    super(rest);
    this.#engine = givenEngine(engine);
    this.#options = options;
  }

  static override lc_name(): string {
    return "ChatShohin";
  }

  _llmType(): string {
    return "shohin";
  }

  /** For the keys of a cache. Not `options`, which are those of a call there. */
  override _identifyingParams(): Record<string, any> {
    return { model: "info" in this.#engine ? this.#engine.info.model : this.#id, defaults: this.#options };
  }

  /** Number of tokens, by the engine's tokenizer. A conversation has none. */
  override async getNumTokens(content: MessageContent): Promise<number> {
    const engine = givenEngine(this.#engine as Engine, "tokenize");
    const text = typeof content === "string" ? content : content.map((part: string | MessageContent[number]) => (typeof part === "string" ? part : "text" in part ? part.text : "")).join("");
    // Counts of several messages are added up: a token that begins every text is not theirs.
    const [all, none] = await Promise.all([engine.tokenize(text), engine.tokenize("")]);
    return all.length - none.length;
  }

  /** The model with functions that it may call; `tool_choice` is `auto`, `none`, `any` or the name of one. */
  override bindTools(tools: BindToolsInput[], kwargs: Partial<ChatShohinCallOptions> = {}): Runnable<BaseLanguageModelInput, AIMessageChunk, ChatShohinCallOptions> {
    return this.withConfig({ ...kwargs, tools: tools.map(toolOf) });
  }

  /** The model with replies that always satisfy a schema: of Zod, as JSON Schema, or as the `parameters` of a function. */
  override withStructuredOutput<T extends Record<string, any> = Record<string, any>>(schema: Schema<T>, config?: { includeRaw?: false }): Runnable<BaseLanguageModelInput, T>;
  override withStructuredOutput<T extends Record<string, any> = Record<string, any>>(schema: Schema<T>, config: { includeRaw: true }): Runnable<BaseLanguageModelInput, { raw: BaseMessage; parsed: T }>;
  override withStructuredOutput(schema: Schema<Record<string, any>>, { includeRaw }: { includeRaw?: boolean } = {}): any {
    const { name, description, parameters } = schema as Record<string, any>;
    const isFunction = typeof name === "string" && typeof parameters === "object" && parameters !== null;
    const plain = isFunction ? { ...(description && { description }), ...parameters } : schema;
    const json = isInteropZodSchema(schema) || "~standard" in schema ? toJsonSchema(schema as never) : plain;
    const model = this.withConfig({ responseFormat: { type: "json_schema", schema: json as object } });
    return assembleStructuredOutputPipeline(model, createContentParser(schema), includeRaw);
  }

  async _generate(messages: BaseMessage[], options: this["ParsedCallOptions"], runManager?: CallbackManagerForLLMRun): Promise<ChatResult> {
    let whole: ChatGenerationChunk | undefined;
    for await (const chunk of this._streamResponseChunks(messages, options, runManager)) whole = whole ? whole.concat(chunk) : chunk;
    return { generations: [whole as ChatGenerationChunk] };
  }

  override async *_streamResponseChunks(messages: BaseMessage[], call: this["ParsedCallOptions"], runManager?: CallbackManagerForLLMRun): AsyncGenerator<ChatGenerationChunk> {
    const { options, tools = [], tool_choice: choice, responseFormat, stop, signal } = call;
    const isForced = choice !== undefined && choice !== "auto" && choice !== "none";
    const name = typeof choice === "string" ? choice : (choice?.["function"]?.name as string);
    const given = { stop, signal, responseFormat, ...(choice !== "none" && tools.length > 0 && { tools }), ...(isForced && { toolChoice: ["any", "required"].includes(name) ? "required" : { name } }) };
    let all = inCallOrder(messages.map(messageOf));
    if (responseFormat?.type === "json_schema") all = withSchema(all, JSON.stringify(responseFormat.schema));
    const chunks = this.#engine.chat(all, { ...this.#options, ...options, ...given } as ChatOptions);
    // LangChain does not ask for another chunk after an abort.
    const end = () => void chunks.return(undefined as never);
    signal?.addEventListener("abort", end, { once: true });
    let calls = 0;
    try {
      for await (const { text, reasoning, toolCalls = [], finish } of chunks) {
        const message = new AIMessageChunk({
          content: text,
          ...(reasoning && { additional_kwargs: { [REASONING]: reasoning } }),
          tool_call_chunks: toolCalls.map(({ name, arguments: args }) => ({ type: "tool_call_chunk", name, args, id: callId(), index: calls++ })),
        });
        const chunk = new ChatGenerationChunk({ text, message: Object.assign(message, finish && endOf(finish)) });
        yield chunk;
        await runManager?.handleLLMNewToken(text, undefined, undefined, undefined, undefined, { chunk });
      }
    } finally {
      signal?.removeEventListener("abort", end);
    }
    signal?.throwIfAborted();
  }
}

/** Embeddings of LangChain. */
export class ShohinEmbeddings extends Embeddings {
  #engine: Engine;
  #options: Omit<EmbedOptions, "signal">;

  constructor(fields: EmbeddingsParams & { engine: Engine; options?: Omit<EmbedOptions, "signal"> }) {
    const { engine, options = {}, ...rest } = fields ?? {};
    super(rest);
    this.#engine = givenEngine(engine, "embed");
    this.#options = options;
  }

  async embedDocuments(texts: string[]): Promise<number[][]> {
    return (await this.#engine.embed(texts, this.#options)).map((vector) => [...vector]);
  }

  async embedQuery(text: string): Promise<number[]> {
    return [...(await this.#engine.embed(text, this.#options))];
  }
}
