// Validation of what pages pass to the Prompt API.
import { withSchema } from "../api/schema-prompt.js";
import type { Message, ResponseFormat } from "../index.js";
import { causedBy, exception } from "./exceptions.js";
import type { LanguageModelCreateCoreOptions, LanguageModelMessage, LanguageModelPrompt, LanguageModelPromptOptions, LanguageModelTool } from "./options.js";

const ROLES = ["system", "user", "assistant"];
const TYPES = ["text", "image", "audio", "tool-call", "tool-response"];
const MODES = ["most-predictable", "predictable", "balanced", "creative", "most-creative", "default"];

function oneOf(place: string, found: unknown, values: readonly string[]): void {
  if (!values.includes(found as string)) throw new TypeError(`${place} is ${String(found)}, but must be one of ${values.join(", ")}`);
}

function objectOf(place: string, found: unknown): Record<string, unknown> {
  if (typeof found !== "object" || found === null) throw new TypeError(`${place} is ${String(found)}, but must be an object`);
  return found as Record<string, unknown>;
}

/** The elements of an iterable. @internal */
export function listOf(place: string, found: unknown, what = "a sequence"): unknown[] {
  if (typeof found !== "object" || found === null || !(Symbol.iterator in found)) throw new TypeError(`${place} is ${String(found)}, but must be ${what}`);
  return [...(found as Iterable<unknown>)];
}

function functionOf(place: string, found: unknown): void {
  if (typeof found !== "function") throw new TypeError(`${place} is ${String(found)}, but must be a function`);
}

/** The options, if they are an object or left out, and their signal is one. @internal */
export function checkedOptions<T extends { signal?: AbortSignal }>(options: T | null | undefined): T {
  const given = objectOf("options", options ?? {}) as T;
  // Unlike instanceof, also true for signals of another window.
  if (given.signal !== undefined && typeof given.signal?.aborted !== "boolean") throw new TypeError(`signal is ${String(given.signal)}, but must be an AbortSignal`);
  return given;
}

function textOf(place: string, content: unknown): string {
  if (typeof content === "string") return content;
  return listOf(place, content)
    .map((part, i) => {
      const { type, value } = objectOf(`${place}[${i}]`, part);
      oneOf(`${place}[${i}].type`, type, TYPES);
      if (type !== "text") throw exception("NotSupportedError", `${place}[${i}] is of type ${String(type)}, but the model reads text only`);
      if (typeof value !== "string") throw new TypeError(`${place}[${i}].value is ${String(value)}, but must be a string`);
      return value;
    })
    .join("");
}

/** A prompt whose messages can be read again: those of an iterator cannot. @internal */
export function promptOf(input: LanguageModelPrompt): LanguageModelPrompt {
  if (typeof input !== "object" || input === null) return input;
  return listOf("the prompt", input, "a string or a sequence of messages") as LanguageModelMessage[];
}

/** Whether the reply to a prompt continues its last message. @internal */
export function hasPrefix(input: LanguageModelPrompt): boolean {
  return typeof input === "object" && input !== null && Boolean(input.at(-1)?.prefix);
}

/** The messages of a prompt; `isFirst` if nothing comes before. @internal */
export function messagesOf(input: LanguageModelPrompt, isFirst: boolean, isReplied = false): Message[] {
  if (typeof input !== "object" || input === null) return [{ role: "user", content: String(input) }];
  const given = promptOf(input) as unknown[];
  if (given.length === 0) return [{ role: "user", content: "" }];
  return given.map((message, i) => {
    const place = `the prompt's message ${i}`;
    const { role, content, prefix } = objectOf(place, message);
    oneOf(`the role of ${place}`, role, ROLES);
    if (prefix) {
      if (role !== "assistant" || i < given.length - 1) throw exception("SyntaxError", `${place} has prefix, which only a last message of role assistant can have`);
      if (!isReplied) throw exception("NotSupportedError", `${place} has prefix, but is not replied to`);
    }
    if (role === "system" && !(isFirst && i === 0)) throw new TypeError(`${place} has the role system, which only the first message of a session can have`);
    return { role: role as Message["role"], content: textOf(`the content of ${place}`, content) };
  });
}

function number(name: string, found: unknown, least: number): void {
  const value = Number(found);
  if (!(value >= least)) throw new RangeError(`${name} is ${String(found)}, but must be at least ${least}`);
}

/** Checks options of `create` and `availability`, and makes their tools an array; returns why they cannot be satisfied, if so. @internal */
export function checkCore(options: LanguageModelCreateCoreOptions): string | undefined {
  if (options.topK !== undefined) number("topK", options.topK, 1);
  if (options.temperature !== undefined) number("temperature", options.temperature, 0);
  if (options.samplingMode !== undefined) oneOf("samplingMode", options.samplingMode, MODES);
  let unsupported: string | undefined;
  for (const name of ["expectedInputs", "expectedOutputs"] as const) {
    if (options[name] === undefined) continue;
    for (const [i, expected] of listOf(name, options[name]).entries()) {
      const { type, languages } = objectOf(`${name}[${i}]`, expected);
      oneOf(`${name}[${i}].type`, type, TYPES);
      if (languages !== undefined) Intl.getCanonicalLocales(listOf(`${name}[${i}].languages`, languages) as string[]);
      if (type !== "text") unsupported ??= `${name}[${i}] is of type ${String(type)}, but the model reads and writes text only`;
    }
  }
  if (options.tools !== undefined) {
    // Sessions read them again.
    options.tools = listOf("tools", options.tools) as LanguageModelTool[];
    for (const [i, tool] of options.tools.entries()) {
      const { name, description, inputSchema, execute } = objectOf(`tools[${i}]`, tool);
      for (const [key, value] of Object.entries({ name, description })) if (value === undefined) throw new TypeError(`tools[${i}].${key} is missing`);
      objectOf(`tools[${i}].inputSchema`, inputSchema);
      functionOf(`tools[${i}].execute`, execute);
    }
  }
  return unsupported;
}

/** Checks a callback that may be left out. @internal */
export function checkCallback(name: string, found: unknown): void {
  if (found !== undefined) functionOf(name, found);
}

/** The format of a reply, and the prompt with the schema. @internal */
export function constrained(messages: Message[], isContinued: boolean, { responseConstraint, omitResponseConstraintInput = false }: LanguageModelPromptOptions): { messages: Message[]; format: ResponseFormat } {
  if (responseConstraint === undefined || responseConstraint === null) {
    if (omitResponseConstraintInput) throw new TypeError("omitResponseConstraintInput is true, but there is no responseConstraint");
    return { messages, format: { type: "text" } };
  }
  objectOf("responseConstraint", responseConstraint);
  if (Object.prototype.toString.call(responseConstraint) === "[object RegExp]") {
    const { source, flags } = responseConstraint as RegExp;
    if (/[imsvy]/.test(flags)) throw exception("NotSupportedError", `responseConstraint is a regular expression with the flags ${flags}, but only g, d and u are supported`);
    return { messages, format: { type: "regex", pattern: source } };
  }
  let schema: string;
  try {
    schema = JSON.stringify(responseConstraint);
  } catch (cause) {
    throw causedBy(cause, exception("NotSupportedError", `responseConstraint cannot be written as JSON: ${(cause as Error).message}`));
  }
  const format = { type: "json_schema", schema: JSON.parse(schema) as object } as const;
  if (omitResponseConstraintInput) return { messages, format };
  const asked = isContinued ? messages.length - 1 : messages.length;
  return { messages: [...withSchema(messages.slice(0, asked), schema), ...messages.slice(asked)], format };
}
