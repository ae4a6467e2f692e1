// From messages and options to tokens and sampling settings of the module.
import { converted, ShohinError } from "../api/errors.js";
import type { Message } from "../api/message.js";
import type { ChatOptions, GenerateOptions, TemplateOptions } from "../api/options.js";
import type { AnyModel, Module, Sampling } from "../wasm/module.js";

/** First tokens of a text, which models attend to whatever they are. */
const ATTENTION_SINKS = 4;

/** The tokens of a prompt. @internal */
export interface Prompt {
  ids: Uint32Array;
  /** Messages that were left out. */
  dropped: number;
  /** Tokens that are kept when the oldest are dropped. Without it none are dropped. */
  keep?: number;
}

/** The token budget of thoughts. @internal */
export function budgetOf({ thinking }: ChatOptions): number {
  return typeof thinking === "object" ? thinking.budget : Infinity;
}

/** Whether the model may think at all. @internal */
export function mayThink({ thinking }: TemplateOptions): boolean {
  return typeof thinking === "object" ? thinking.budget > 0 : (thinking ?? false);
}

/** Whether the reply is constrained to JSON. @internal */
export function isJson({ responseFormat }: GenerateOptions): boolean {
  return (responseFormat?.type ?? "text") !== "text";
}

function jsonOf(what: string, value: unknown): string {
  const text = converted(what, () => JSON.stringify(value) as string | undefined);
  if (text === undefined) throw new ShohinError("argument", `${what} is not an object`);
  return text;
}

/** @internal */
export function encode(module: Module, model: AnyModel, messages: readonly Message[], options: TemplateOptions): Uint32Array {
  const conversation = new module.Conversation();
  try {
    for (const { role, content, reasoning, toolCalls } of messages) {
      conversation.push(role, content, reasoning);
      for (const call of toolCalls ?? []) conversation.push_call(call.name, call.arguments);
    }
    for (const tool of options.tools ?? []) conversation.push_tool(jsonOf("a tool", tool));
    return model.encode_chat(conversation, mayThink(options));
  } finally {
    conversation.free();
  }
}

/** @internal */
export function textPrompt(model: AnyModel, text: string, options: GenerateOptions, capacity: number): Prompt {
  const keep = options.overflow === "shift" && { keep: Math.min(ATTENTION_SINKS, capacity >> 1) };
  return { ids: model.tokenize(text, false), dropped: 0, ...keep };
}

/** @internal */
export function chatPrompt(module: Module, model: AnyModel, messages: readonly Message[], options: ChatOptions, capacity: number): Prompt {
  let kept = [...messages];
  let ids = encode(module, model, kept, options);
  if (options.overflow === "shift") {
    // System messages are kept.
    const other = encode(module, model, kept.slice(0, kept.findIndex(({ role }) => role !== "system")), options);
    const differs = ids.findIndex((id, i) => id !== other[i]);
    return { ids, dropped: 0, keep: Math.min(Math.max(differs, ATTENTION_SINKS), capacity >> 1) };
  }
  if (options.overflow !== "trim") return { ids, dropped: 0 };
  const room = Math.min(options.maxTokens ?? 256, capacity >> 1);
  while (ids.length + room > capacity) {
    const shorter = withoutOldestTurn(kept);
    if (!shorter) break;
    kept = shorter;
    ids = encode(module, model, kept, options);
  }
  return { ids, dropped: messages.length - kept.length };
}

/** The conversation without its first turn: everything from the first non-system message up to the next user message. */
function withoutOldestTurn(messages: Message[]): Message[] | undefined {
  const first = messages.findIndex((message) => message.role !== "system");
  const next = messages.findIndex((message, i) => i > first && message.role === "user");
  if (first < 0 || next < 0) return undefined;
  return [...messages.slice(0, first), ...messages.slice(next)];
}

const SETTINGS = [
  "maxTokens",
  "logprobs",
  "temperature",
  "topK",
  "topP",
  "minP",
  "typicalP",
  "repetitionPenalty",
  "presencePenalty",
  "frequencyPenalty",
  "penaltyLastN",
  "dryMultiplier",
  "dryBase",
  "dryAllowedLength",
  "dryLastN",
] as const satisfies readonly (keyof GenerateOptions)[];

/** Constrains the reply to the requested format; `thinks` says that thoughts may precede it. */
function constrain(sampling: Sampling, options: ChatOptions, thinks: boolean): void {
  const { responseFormat: format, tools = [], toolChoice: choice = "auto" } = options;
  if (tools.length > 0 && isJson(options)) throw new ShohinError("argument", "tools and responseFormat cannot be combined");
  const type = format?.type ?? "text";
  if (type === "json_object") sampling.json_object();
  else if (format?.type === "json_schema") sampling.json_schema(jsonOf("responseFormat's schema", format.schema));
  const nameOf = (tool: { name?: string; function?: { name?: string } }) => tool.function?.name ?? tool.name;
  const chosen = typeof choice === "string" ? tools : tools.filter((tool) => nameOf(tool) === choice.name);
  if (chosen.length === 0 && choice !== "auto") throw new ShohinError("argument", "toolChoice names a tool that is not in tools");
  if (chosen.length > 0) sampling.tool_calls(chosen.map((tool) => jsonOf("a tool", tool)), choice !== "auto");
  if (thinks) sampling.after_thoughts();
}

/** Consumed by `Timeline.begin`. @internal */
export function samplingOf(module: Module, options: GenerateOptions, seed: number, thinks: boolean, keep: number | undefined): Sampling {
  const sampling = module.Sampling.preset(options.preset ?? "bonsai");
  try {
    for (const name of SETTINGS) {
      const value = options[name];
      if (value !== undefined) sampling.set(name, value);
    }
    sampling.set("seed", seed);
    if (keep !== undefined) sampling.set("keep", keep);
    const stop = options.stop ?? [];
    for (const text of typeof stop === "string" ? [stop] : stop) sampling.add_stop(text);
    constrain(sampling, options, thinks);
    return sampling;
  } catch (thrown) {
    sampling.free();
    throw thrown;
  }
}
