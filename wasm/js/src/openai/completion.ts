// Requests and responses in the format of OpenAI's chat completions: their types. The engine reads and writes them.
import { converted, ShohinError } from "../api/errors.js";
import type { ChatOptions, Tool } from "../api/options.js";

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
  /** For results of tools: the `id` of the call. One that no call has, or that another result has named, is an error. Without it, results are in the order of the calls. */
  tool_call_id?: string;
  /** Accepted and ignored, like the next two. */
  name?: string;
  refusal?: string | null;
  annotations?: readonly object[] | null;
  /** The reasoning, as in a response. */
  reasoning?: string | null;
}

/** The format of a response. With tools, of one that has no call. */
export type ChatCompletionResponseFormat =
  | { type: "text" }
  | { type: "json_object" }
  | { type: "json_schema"; json_schema: { name?: string; description?: string | null; schema: object; strict?: boolean | null } }
  /** Beyond OpenAI: one of these texts. */
  | { type: "choice"; choices: readonly string[] }
  /** Beyond OpenAI: a text that this regular expression matches as a whole. */
  | { type: "regex"; pattern: string }
  /** Beyond OpenAI: a text of this grammar in GBNF. */
  | { type: "grammar"; grammar: string };

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
  tools?: readonly Tool[] | null;
  tool_choice?: "none" | "auto" | "required" | { type: "function"; function: { name: string } } | null;
  response_format?: ChatCompletionResponseFormat | null;
  n?: 1 | null;
  /** Only relevant for a service, like the next five: accepted and ignored. */
  user?: string | null;
  safety_identifier?: string | null;
  prompt_cache_key?: string | null;
  service_tier?: string | null;
  store?: boolean | null;
  metadata?: object | null;
  /** Whether a reply may have several calls (the default); otherwise the first one ends it. */
  parallel_tool_calls?: boolean | null;
  /** `none` and `minimal` answer at once, others think without a limit. `thinking` goes before it. */
  reasoning_effort?: "none" | "minimal" | "low" | "medium" | "high" | "xhigh" | "max" | null;
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
      content?: string | null;
      reasoning?: string;
      tool_calls?: (ChatCompletionToolCall & { index: number })[];
    };
    logprobs: ChatCompletionLogprobs | null;
    finish_reason: ChatCompletionFinishReason | null;
  }[];
  /** In a last chunk without choices, if asked for by `stream_options`; null in those before. */
  usage?: ChatCompletionUsage | null;
}

/** The request as the runtime reads it. @internal */
export function requestText(request: ChatCompletionRequest): string {
  const finite = (name: string, value: unknown) => {
    // JSON would make it null, which counts as left out.
    if (typeof value === "number" && !Number.isFinite(value)) throw new ShohinError("option", `${name} is ${value}, but must be a finite number`);
    return value;
  };
  const text = converted("the request", () => JSON.stringify(request, finite) as string | undefined);
  if (text === undefined) throw new ShohinError("argument", "the request must be an object");
  return text;
}
