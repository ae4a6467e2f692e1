// Requests and responses in the format of OpenAI's chat completions.
import { chatArguments } from "../api/arguments.js";
import type { ChatFinish, Chunk, Finish, TokenLogprob } from "../api/chunk.js";
import { ShohinError } from "../api/errors.js";
import type { EngineInfo } from "../api/info.js";
import type { ChatMessage, Message, ToolCall } from "../api/message.js";
import type { ChatOptions } from "../api/options.js";

/** A tool call in a message. */
export interface ChatCompletionToolCall {
  id: string;
  type: "function";
  function: { name: string; arguments: string };
}

/** A message of a request. Content in parts may be text only. */
export interface ChatCompletionMessageParam {
  role: "system" | "developer" | "user" | "assistant" | "tool";
  content?: string | readonly { type: "text"; text: string }[] | null;
  tool_calls?: readonly ChatCompletionToolCall[];
  /** For results of tools, which are matched by their order. */
  tool_call_id?: string;
  /** The reasoning, as in a response. */
  reasoning?: string | null;
}

/** A request. Other fields are refused unless they are null, so that none is ignored unnoticed. */
export interface ChatCompletionRequest {
  messages: readonly ChatCompletionMessageParam[];
  /** Only repeated in the response. */
  model?: string;
  stream?: boolean | null;
  stream_options?: { include_usage?: boolean } | null;
  max_tokens?: number | null;
  max_completion_tokens?: number | null;
  temperature?: number | null;
  top_p?: number | null;
  presence_penalty?: number | null;
  frequency_penalty?: number | null;
  seed?: number | null;
  stop?: string | readonly string[] | null;
  logprobs?: boolean | null;
  /** 0 to 20. */
  top_logprobs?: number | null;
  tools?: readonly object[] | null;
  tool_choice?: "none" | "auto" | "required" | { type: "function"; function: { name: string } } | null;
  response_format?: { type: "text" } | { type: "json_object" } | { type: "json_schema"; json_schema: { name?: string; schema: object; strict?: boolean | null } } | null;
  n?: 1 | null;
  /** Only relevant for a service, like the next five: accepted and ignored. */
  user?: string | null;
  safety_identifier?: string | null;
  prompt_cache_key?: string | null;
  service_tier?: string | null;
  store?: boolean | null;
  metadata?: object | null;
  /** Always the case. */
  parallel_tool_calls?: true | null;
  /** Beyond OpenAI: whether and for how many tokens the model may think. */
  thinking?: ChatOptions["thinking"];
  /** Beyond OpenAI: what happens when the messages do not fit. */
  overflow?: ChatOptions["overflow"];
}

/** Why a response ended. */
export type ChatCompletionFinishReason = "stop" | "length" | "tool_calls";

/** A token of a response. */
export interface ChatCompletionLogprob {
  token: string;
  logprob: number;
  bytes: number[] | null;
}

/** Log-probabilities of a response, one entry per token. */
export interface ChatCompletionLogprobs {
  content: (ChatCompletionLogprob & { top_logprobs: ChatCompletionLogprob[] })[];
  refusal: null;
}

/** Tokens of a request and its response. */
export interface ChatCompletionUsage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
  prompt_tokens_details: { cached_tokens: number };
  completion_tokens_details: { reasoning_tokens: number };
}

/** A response. */
export interface ChatCompletion {
  id: string;
  object: "chat.completion";
  created: number;
  model: string;
  choices: {
    index: 0;
    message: { role: "assistant"; content: string | null; refusal: null; reasoning?: string; tool_calls?: ChatCompletionToolCall[] };
    logprobs: ChatCompletionLogprobs | null;
    finish_reason: ChatCompletionFinishReason;
  }[];
  usage: ChatCompletionUsage;
}

/** A piece of a streamed response. */
export interface ChatCompletionChunk {
  id: string;
  object: "chat.completion.chunk";
  created: number;
  model: string;
  choices: {
    index: 0;
    delta: {
      role?: "assistant";
      content?: string;
      reasoning?: string;
      tool_calls?: (ChatCompletionToolCall & { index: number })[];
    };
    logprobs: ChatCompletionLogprobs | null;
    finish_reason: ChatCompletionFinishReason | null;
  }[];
  /** In a last chunk without choices, if asked for by `stream_options`; null in those before. */
  usage?: ChatCompletionUsage | null;
}

interface Chatter {
  chat(messages: readonly Message[], options: ChatOptions): AsyncIterable<Chunk<ChatFinish>>;
}

/** @internal */
export async function complete(
  chatter: Chatter,
  info: EngineInfo,
  request: ChatCompletionRequest,
  { signal }: { signal?: AbortSignal },
): Promise<ChatCompletion | AsyncIterable<ChatCompletionChunk>> {
  must(isObject(request), "the request must be an object");
  // Validated before a stream is returned.
  const { messages, options } = chatArguments(messagesOf(request.messages), optionsOf(request, signal));
  const chunks = chatter.chat(messages, options);
  const random = crypto.getRandomValues(new Uint8Array(12));
  const id = [...random].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  const head = { id: `chatcmpl-${id}`, created: Math.floor(Date.now() / 1000), model: request.model ?? info.model.name };
  const callOf = ({ name, arguments: text }: ToolCall, index: number): ChatCompletionToolCall => ({
    id: `call_${id}_${index}`,
    type: "function",
    function: { name, arguments: text },
  });
  if (request.stream) return stream(chunks, head, request, callOf);

  const logprobs: TokenLogprob[] = [];
  let finish: ChatFinish | undefined;
  for await (const chunk of chunks) {
    logprobs.push(...(chunk.logprobs ?? []));
    finish = chunk.finish;
  }
  if (!finish) throw new ShohinError("worker", "a generation ended without a result");
  const { content, reasoning, toolCalls } = finish.message;
  const message: ChatCompletion["choices"][number]["message"] = {
    role: "assistant",
    content: content === "" && toolCalls ? null : content,
    refusal: null,
    ...(reasoning !== undefined && { reasoning }),
    ...(toolCalls && { tool_calls: toolCalls.map(callOf) }),
  };
  return {
    ...head,
    object: "chat.completion",
    choices: [{ index: 0, message, logprobs: request.logprobs ? logprobsOf(logprobs) : null, finish_reason: reasonOf(finish) }],
    usage: usageOf(finish),
  };
}

async function* stream(
  chunks: AsyncIterable<Chunk<ChatFinish>>,
  head: { id: string; created: number; model: string },
  request: ChatCompletionRequest,
  callOf: (call: ToolCall, index: number) => ChatCompletionToolCall,
): AsyncGenerator<ChatCompletionChunk> {
  const all = { ...head, object: "chat.completion.chunk" as const };
  const usage = request.stream_options?.include_usage ? { usage: null } : {};
  let calls = 0;
  let first = true;
  for await (const { text, reasoning, toolCalls, logprobs, finish } of chunks) {
    const delta: ChatCompletionChunk["choices"][number]["delta"] = {
      ...(first && { role: "assistant" as const }),
      ...((text !== "" || first) && { content: text }),
      ...(reasoning !== undefined && { reasoning }),
      ...(toolCalls && { tool_calls: toolCalls.map((call) => ({ index: calls, ...callOf(call, calls++) })) }),
    };
    first = false;
    const measured = request.logprobs && logprobs && logprobs.length > 0 ? logprobsOf(logprobs) : null;
    if (Object.keys(delta).length > 0 || measured) {
      yield { ...all, choices: [{ index: 0, delta, logprobs: measured, finish_reason: null }], ...usage };
    }
    if (!finish) continue;
    yield { ...all, choices: [{ index: 0, delta: {}, logprobs: null, finish_reason: reasonOf(finish) }], ...usage };
    if (request.stream_options?.include_usage) yield { ...all, choices: [], usage: usageOf(finish) };
  }
}

/** Every field of a request. */
const FIELDS: { [name in keyof Required<ChatCompletionRequest>]: true } = {
  messages: true,
  model: true,
  stream: true,
  stream_options: true,
  max_tokens: true,
  max_completion_tokens: true,
  temperature: true,
  top_p: true,
  presence_penalty: true,
  frequency_penalty: true,
  seed: true,
  stop: true,
  logprobs: true,
  top_logprobs: true,
  tools: true,
  tool_choice: true,
  response_format: true,
  n: true,
  user: true,
  safety_identifier: true,
  prompt_cache_key: true,
  service_tier: true,
  store: true,
  metadata: true,
  parallel_tool_calls: true,
  thinking: true,
  overflow: true,
};

/** Checks what TypeScript would; JavaScript callers have no types. */
function must(holds: boolean, what: string): asserts holds {
  if (!holds) throw new ShohinError("argument", what);
}

function isObject(value: unknown): value is object {
  return typeof value === "object" && value !== null;
}

function messagesOf(messages: readonly ChatCompletionMessageParam[]): ChatMessage[] {
  must(Array.isArray(messages), "messages must be an array");
  return messages.map((message: ChatCompletionMessageParam) => {
    must(isObject(message) && typeof message.role === "string", "a message must be an object with a role");
    const { role, content, tool_calls, reasoning } = message;
    const calls = tool_calls ?? [];
    must(
      Array.isArray(calls) && calls.every((call) => typeof call?.function?.name === "string" && typeof call.function.arguments === "string"),
      "tool_calls must be an array of calls, each with a function that has a name and arguments",
    );
    return {
      role: role === "developer" ? "system" : role,
      content: content ?? "",
      ...(reasoning != null && { reasoning }),
      ...(tool_calls && { toolCalls: calls.map((call) => call.function) }),
    };
  });
}

function optionsOf(request: ChatCompletionRequest, signal: AbortSignal | undefined): ChatOptions {
  const refuse = (what: string) => {
    throw new ShohinError("unsupported", `${what} is not supported`);
  };
  for (const [name, value] of Object.entries(request)) if (value != null && !Object.hasOwn(FIELDS, name)) refuse(name);
  if (request.n != null && request.n !== 1) refuse("n other than 1");
  if (!(request.parallel_tool_calls ?? true)) refuse("parallel_tool_calls: false");
  const format = request.response_format;
  must(format == null || isObject(format), "response_format must be an object");
  if (format?.type != null && !["text", "json_object", "json_schema"].includes(format.type)) refuse(`response_format of type ${format.type}`);
  must(format?.type !== "json_schema" || isObject(format.json_schema), "response_format has no json_schema");
  const choice = request.tool_choice ?? "auto";
  must(typeof choice !== "object" || choice.type !== "function" || typeof choice.function?.name === "string", "tool_choice does not name a function");
  if (typeof choice === "object" && choice.type !== "function") refuse(`tool_choice of type ${choice.type}`);
  const top = request.top_logprobs ?? 0;
  if (!(top >= 0 && top <= 20)) throw new ShohinError("argument", "top_logprobs must be 0 to 20");
  const given: { [name in keyof ChatOptions]: ChatOptions[name] | null | undefined } = {
    maxTokens: request.max_completion_tokens ?? request.max_tokens,
    temperature: request.temperature,
    topP: request.top_p,
    presencePenalty: request.presence_penalty,
    frequencyPenalty: request.frequency_penalty,
    seed: request.seed,
    stop: request.stop,
    logprobs: request.logprobs ? top : undefined,
    tools: choice === "none" ? undefined : request.tools,
    toolChoice: typeof choice === "object" ? { name: choice.function.name } : choice === "none" || choice === "auto" ? undefined : choice,
    responseFormat: format?.type === "json_schema" ? { type: format.type, schema: format.json_schema.schema } : format,
    thinking: request.thinking,
    overflow: request.overflow,
    signal,
  };
  return Object.fromEntries(Object.entries(given).filter(([, value]) => value != null)) as ChatOptions;
}

function reasonOf({ reason, message }: ChatFinish): ChatCompletionFinishReason {
  if (message.toolCalls) return "tool_calls";
  return reason === "length" || reason === "context_full" ? "length" : "stop";
}

function usageOf({ usage }: Finish): ChatCompletionUsage {
  return {
    prompt_tokens: usage.promptTokens,
    completion_tokens: usage.completionTokens,
    total_tokens: usage.promptTokens + usage.completionTokens,
    prompt_tokens_details: { cached_tokens: usage.cachedTokens },
    completion_tokens_details: { reasoning_tokens: usage.reasoningTokens },
  };
}

function logprobsOf(tokens: readonly TokenLogprob[]): ChatCompletionLogprobs {
  const one = ({ text, logprob, bytes }: { text: string; logprob: number; bytes: number[] }) => ({ token: text, logprob, bytes });
  return { content: tokens.map((token) => ({ ...one(token), top_logprobs: token.top.map(one) })), refusal: null };
}
