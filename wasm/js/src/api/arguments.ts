// Validation of arguments, before they are sent to a worker or the module, where errors could not name the field.
import { partsOf } from "../load/parts.js";
import type { Source } from "../load/source.js";
import { converted, ShohinError } from "./errors.js";
import type { ChatMessage, Message, Snapshot } from "./message.js";
import { ID42_LAYOUTS, KV_FORMATS, type AdapterOptions, type CacheOptions, type ChatOptions, type CompletionOptions, type ConversationOptions, type EmbedOptions, type Fact, type GenerateOptions, type LoadOptions, type ResponseFormat, type RestoreOptions, type SendOptions, type SessionOptions, type SnapshotSource, type TeachOptions, type TemplateOptions, type TokenizeOptions } from "./options.js";

/** Throws if the value of a field is not valid. Not called for missing values. */
type Check = (place: string, found: unknown) => void;

/** A check for every option. */
type Checks<T> = { readonly [name in keyof Required<T>]: Check };

function show(found: unknown): string {
  if (typeof found === "string") return JSON.stringify(found.length > 40 ? `${found.slice(0, 40)}…` : found);
  if (Array.isArray(found)) return found.length > 0 ? "an array" : "an empty array";
  if (typeof found === "object" && found !== null) return "an object";
  return typeof found === "function" || typeof found === "bigint" ? `a ${typeof found}` : String(found);
}

function refuse(place: string, found: unknown, must: string): never {
  throw new ShohinError("argument", `${place} is ${show(found)}, but must be ${must}`);
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isCount(value: unknown): boolean {
  return Number.isSafeInteger(value) && (value as number) > 0;
}

function must(right: (found: never) => boolean, what: string): Check {
  return (place, found) => right(found as never) || refuse(place, found, what);
}

function kind(type: "string" | "boolean" | "number" | "function"): Check {
  return must((found: unknown) => typeof found === type, `a ${type}`);
}

function either(first: string, ...others: string[]): Check {
  const all = [first, ...others];
  const last = all.pop();
  return must((found: unknown) => typeof found === "string" && [...all, last].includes(found), `${all.join(", ")} or ${last}`);
}

/** Numbers out of range have the code `option`, as in the engine. */
function range(right: (found: number) => boolean, what: string): Check {
  return (place, found) => {
    if (typeof found !== "number") refuse(place, found, what);
    if (!right(found)) throw new ShohinError("option", `${place} is ${found}, but must be ${what}`);
  };
}

function each(place: string, found: unknown, what: string, check: Check): void {
  if (!Array.isArray(found)) refuse(place, found, what);
  // forEach would skip holes.
  for (let i = 0; i < found.length; i++) check(`${place}[${i}]`, found[i]);
}

const text = kind("string");
const number = kind("number");
const flag = kind("boolean");
// Also true for objects of another window.
const isAddress = (found: unknown) => /^\[object (String|URL|TrustedScriptURL)\]$/.test(Object.prototype.toString.call(found));
const address = must(isAddress, "a URL");
const signal = must(
  (found: AbortSignal) => typeof found.addEventListener === "function" && typeof found.aborted === "boolean",
  "an AbortSignal",
);

/** Those are numbers of 32 bits. */
export const adapterScale = range((found) => Number.isFinite(Math.fround(found)), "a finite number");
export const adapterName = must((found: unknown) => typeof found === "string" && found !== "", "a name");

const adapters: Check = (place, found) => {
  const names = new Set<unknown>();
  each(place, found, "an array of adapters", (place, adapter) => {
    if (!isObject(adapter)) refuse(place, adapter, "an object with a name");
    onlyFields(place, adapter, ["name", "scale"]);
    const { name, scale } = adapter;
    adapterName(`${place}.name`, name);
    if (scale != null) adapterScale(`${place}.scale`, scale);
    if (names.has(name)) throw new ShohinError("duplicate", `${place}.name is ${show(name)}, as that of another`);
    names.add(name);
  });
};

/** Fields of each response format, beside its type. */
const FORMATS: Record<ResponseFormat["type"], readonly string[]> = {
  text: [],
  json_object: ["whitespace"],
  json_schema: ["schema", "whitespace"],
  choice: ["choices"],
  regex: ["pattern"],
  grammar: ["grammar"],
};

const GENERATE: Checks<GenerateOptions> = {
  signal,
  maxTokens: number,
  preset: either("greedy", "balanced", "creative", "code", "bonsai"),
  temperature: number,
  topK: number,
  topP: number,
  minP: number,
  typicalP: number,
  repetitionPenalty: number,
  presencePenalty: number,
  frequencyPenalty: number,
  penaltyLastN: number,
  dryMultiplier: number,
  dryBase: number,
  dryAllowedLength: number,
  dryLastN: number,
  seed: number,
  stop: (place, found) => typeof found === "string" || each(place, found, "a string or an array of strings", text),
  overflow: either("error", "shift"),
  adapters,
  logprobs: number,
  beams: number,
  lengthPenalty: number,
  earlyStopping: flag,
  responseFormat: (place, found) => {
    if (!isObject(found)) refuse(place, found, "an object with a type");
    const { type, schema, whitespace } = found;
    const [first, ...others] = Object.keys(FORMATS);
    either(first!, ...others)(`${place}.type`, type);
    onlyFields(place, found, ["type", ...FORMATS[type as ResponseFormat["type"]]]);
    if (whitespace != null) must((found: unknown) => typeof found === "boolean", "true or false")(`${place}.whitespace`, whitespace);
    if (type === "choice") each(`${place}.choices`, found["choices"], "an array of strings", text);
    if (type === "regex") text(`${place}.pattern`, found["pattern"]);
    if (type === "grammar") text(`${place}.grammar`, found["grammar"]);
    if (type === "json_schema" && typeof schema !== "boolean") must(isObject, "a JSON Schema")(`${place}.schema`, schema);
  },
};

const TEMPLATE: Checks<TemplateOptions> = {
  continueFinalMessage: flag,
  thinking: (place, found) => {
    if (!isObject(found)) return must((found: unknown) => typeof found === "boolean", "true, false or { budget }")(place, found);
    onlyFields(place, found, ["budget"]);
    must((budget: number) => typeof budget === "number" && budget >= 0, "a number of tokens")(`${place}.budget`, found["budget"]);
  },
  tools: (place, found) =>
    each(place, found, "an array of functions", (place, tool) => {
      if (!isObject(tool)) refuse(place, tool, "an object with a function");
      const { type, function: called } = tool;
      if (type != null && type !== "function") refuse(`${place}.type`, type, "function");
      if (!isObject(called)) refuse(`${place}.function`, called, "an object with a name");
      onlyFields(place, tool, ["type", "function"]);
      must((found: unknown) => typeof found === "string" && found !== "", "a name")(`${place}.function.name`, called["name"]);
      functionOf(`${place}.function`, called, "name");
    }),
};

/** Checks what describes a function, beside a field of its own. */
function functionOf(place: string, found: Record<string, unknown>, own: string): void {
  onlyFields(place, found, [own, "description", "parameters", "strict"]);
  const { description, parameters, strict } = found;
  if (description != null) text(`${place}.description`, description);
  if (parameters != null) must(isObject, "a JSON Schema")(`${place}.parameters`, parameters);
  if (strict != null) must((found: unknown) => typeof found === "boolean", "true or false")(`${place}.strict`, strict);
}

const CHAT: Checks<ChatOptions> = {
  ...GENERATE,
  ...TEMPLATE,
  overflow: either("error", "shift", "trim"),
  toolChoice: (place, found) => {
    if (isObject(found)) text(`${place}.name`, found["name"]);
    else must((found: unknown) => found === "auto" || found === "required", "auto, required or { name }")(place, found);
  },
};

const { signal: _signal, tools: _tools, continueFinalMessage, ...SHARED } = CHAT;

const SESSION: Checks<SessionOptions> = {
  ...SHARED,
  system: text,
  messages: (place, found) => messagesOf(place, found as unknown, 0),
  tools: (place, found) => {
    if (!isObject(found)) refuse(place, found, "an object of functions");
    for (const [name, tool] of Object.entries(found)) {
      const run = isObject(tool) ? tool["run"] : tool;
      if (typeof run !== "function") refuse(`${place}.${name}`, tool, "a function, or an object with a function run");
      if (name === "") throw new ShohinError("argument", `a function in ${place} has no name`);
      if (isObject(tool)) functionOf(`${place}.${name}`, tool, "run");
    }
  },
  maxToolRounds: must((found: unknown) => found === Infinity || isCount(found), "a whole number, at least 1"),
};
const SEND: Checks<SendOptions> = { ...SHARED, continueFinalMessage, signal };

const request: Check = (place, found) => {
  if (!isObject(found)) refuse(place, found, "an object");
  converted(`${place}.headers`, () => new Headers((found["headers"] ?? {}) as HeadersInit));
};

const ADAPTER: Checks<AdapterOptions> = { name: adapterName, scale: adapterScale, request, signal };

const texts = (what: string): Check => (place, found) => each(place, found, what, (place, one) => text(place, one));

const TEACH: Checks<TeachOptions> = {
  onProgress: kind("function"),
  signal,
  name: adapterName,
  questions: texts("an array of questions"),
  rank: range(isCount, "a whole number, at least 1"),
  steps: range(isCount, "a whole number, at least 1"),
  learningRate: range((found) => found > 0 && Number.isFinite(found), "a number over 0"),
  seed: range((found) => Number.isInteger(found) && found >= 0 && found < 2 ** 32, "a whole number of 32 bits"),
  model: must((found: unknown) => found instanceof Blob, "a File or Blob"),
};

const LOAD: Checks<LoadOptions> = {
  onProgress: kind("function"),
  signal,
  context: range(isCount, "a whole number of tokens, at least 1"),
  kv: either(...KV_FORMATS),
  attention: text,
  activations: either("int8", "f32"),
  id42: either(...ID42_LAYOUTS),
  backend: either("cpu", "webgpu", "auto"),
  adapters: (place, found) =>
    each(place, found, "an array of adapters", (place, adapter) => {
      if (!isObject(adapter)) refuse(place, adapter, "an object with url or data");
      onlyFields(place, adapter, ["url", "data", "name", "scale", "request"]);
      const { url, data, name, scale } = adapter;
      if ((url == null) === (data == null)) throw new ShohinError("argument", `${place} must have either url or data`);
      if (url != null) address(`${place}.url`, url);
      else must((found: unknown) => found instanceof Blob || found instanceof ArrayBuffer || ArrayBuffer.isView(found), "a Blob, an ArrayBuffer or a typed array")(`${place}.data`, data);
      if (name != null) adapterName(`${place}.name`, name);
      if (scale != null) adapterScale(`${place}.scale`, scale);
      if (adapter["request"] != null) request(`${place}.request`, adapter["request"]);
    }),
  cache: must((found: unknown) => typeof found === "boolean" || found === "require", "true, false or require"),
  sha256: must((found: unknown) => typeof found === "string" && /^[\da-f]{64}$/i.test(found), "64 hexadecimal digits"),
  bytes: must(isCount, "the size of a file"),
  hub: must((found: unknown) => isAddress(found) && /^https?:\/\//.test(String(found)), "an http or https address"),
  request,
  simd: either("relaxed", "simd128"),
  threads: must((found: unknown) => found === Infinity || isCount(found), "a whole number, at least 1"),
  stallTimeout: range((ms) => ms > 0, "a number of milliseconds above 0"),
  shared: flag,
  workerUrl: address,
  wasmUrl: address,
};

const CACHE: Checks<CacheOptions> = { hub: LOAD.hub };
const CONVERSATION: Checks<ConversationOptions> = { context: LOAD.context, adapters };
const EMBED: Checks<EmbedOptions> = { pooling: either("mean", "last"), normalize: flag, adapters, signal };
const RESTORE: Checks<RestoreOptions> = { recompute: flag, adapters, signal };
const TOKENIZE: Checks<TokenizeOptions> = { special: flag };
const COMPLETE: Checks<CompletionOptions> = { signal, adapters };

/** Edit distance of two words. */
function distance(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, i) => i);
  for (let i = 0; i < a.length; i++) {
    const next = [i + 1];
    for (let j = 0; j < b.length; j++) next.push(Math.min(row[j]! + Number(a[i] !== b[j]), row[j + 1]! + 1, next[j]! + 1));
    row = next;
  }
  return row[b.length]!;
}

function letters(name: string): string {
  return name.toLowerCase().replace(/[^a-z\d]/g, "");
}

/** The known name closest to a misspelt one, if it is close: `maxTokens` for `max_tokens`, `max_new_tokens` and `maxTokns`. */
function nearest(name: string, known: readonly string[]): string | undefined {
  const given = letters(name).slice(0, 64);
  const far = (one: string) => {
    const other = letters(one);
    let at = 0;
    for (const letter of given) if (letter === other[at]) at += 1;
    const within = (other.length > 3 && at === other.length) || (given.length > 2 && other.startsWith(given));
    const steps = distance(given, other);
    return within ? Math.min(steps, 2) : steps;
  };
  const [best] = known.map((one) => ({ one, steps: far(one) })).sort((a, b) => a.steps - b.steps);
  return best && best.steps <= Math.max(1, Math.min(3, given.length / 3)) ? best.one : undefined;
}

/** What is there instead of an unknown name. */
function instead(name: string, known: readonly string[]): string {
  const near = nearest(name, known);
  if (near) return `did you mean ${near}?`;
  return known.length === 1 ? `there is only ${known[0]}` : `there are ${known.join(", ")}`;
}

/** Refuses other fields of an option's value; null counts as left out. */
function onlyFields(place: string, found: Record<string, unknown>, known: readonly string[]): void {
  for (const [name, value] of Object.entries(found)) {
    if (value != null && !known.includes(name)) throw new ShohinError("argument", `there is no field ${show(name)} in this ${place}; ${instead(name, known)}`);
  }
}

/** The validated options; null counts as left out. */
function optionsOf<T extends object>(options: T | null | undefined, checks: Checks<T>): T {
  if (options != null && !isObject(options)) refuse("options", options, "an object");
  const known = Object.keys(checks);
  for (const [name, value] of Object.entries(options ?? {})) {
    if (value == null || Object.hasOwn(checks, name)) continue;
    throw new ShohinError("argument", `there is no option ${show(name)} here; ${Object.hasOwn(CHAT, name) ? "chat has it" : instead(name, known)}`);
  }
  const given: Record<string, unknown> = {};
  // Options may be inherited or come from getters.
  for (const name of known) {
    const value: unknown = (options as Record<string, unknown> | null | undefined)?.[name];
    if (value == null) continue;
    checks[name as keyof T](name, value);
    given[name] = value;
  }
  return given as T;
}

/** Concatenates text parts; the model cannot read others. */
function contentOf(place: string, content: unknown): string {
  if (typeof content === "string") return content;
  let all = "";
  each(place, content, "a string, or an array of text parts", (place, part) => {
    if (!isObject(part)) refuse(place, part, 'an object such as { type: "text", text }');
    const { type, text: said } = part;
    if (typeof type === "string" && type !== "text") throw new ShohinError("unsupported", `${place} is of type ${show(type)}, but the model reads text only`);
    either("text", "text")(`${place}.type`, type);
    text(`${place}.text`, said);
    all += said;
  });
  return all;
}

const FIELDS = ["role", "content", "reasoning", "toolCalls"];

function messageOf(place: string, message: unknown): Message {
  if (!isObject(message)) refuse(place, message, "an object with a role and content");
  const { role, content, reasoning, toolCalls, ...others } = message;
  either("system", "user", "assistant", "tool")(`${place}.role`, role);
  // Additional fields are kept, but not misspelt ones.
  for (const [name, value] of Object.entries(others)) {
    const meant = FIELDS.find((field) => letters(field) === letters(name));
    if (meant && value != null) throw new ShohinError("argument", `${place} has no field ${show(name)}; did you mean ${meant}?`);
  }
  if (reasoning != null) text(`${place}.reasoning`, reasoning);
  if (toolCalls != null) {
    each(`${place}.toolCalls`, toolCalls, "an array of calls", (place, call) => {
      if (!isObject(call)) refuse(place, call, "an object with name and arguments");
      text(`${place}.name`, call["name"]);
      must((found: unknown) => typeof found === "string", "a JSON text")(`${place}.arguments`, call["arguments"]);
    });
  }
  const silent = content == null && role === "assistant" && toolCalls != null;
  return {
    ...others,
    role,
    content: silent ? "" : contentOf(`${place}.content`, content),
    ...(reasoning != null && { reasoning }),
    ...(toolCalls != null && { toolCalls }),
  } as Message;
}

function messagesOf(place: string, messages: unknown, least = 1): Message[] {
  const all: Message[] = [];
  each(place, messages, "an array of messages", (place, message) => all.push(messageOf(place, message)));
  if (all.length < least) refuse(place, messages, "an array of at least one message");
  return all;
}

function checkText(place: string, found: unknown): asserts found is string {
  text(place, found);
}

/** @internal */
export function loadArguments(options: LoadOptions, source: Source): LoadOptions {
  const given = optionsOf(options, LOAD);
  const parts = "files" in source ? source.files.length > 1 : "url" in source && partsOf(source.url) !== undefined;
  if (parts && (given.sha256 !== undefined || given.bytes !== undefined)) throw new ShohinError("argument", "sha256 and bytes describe a single file, but this model is in parts");
  return given;
}

/** Facts in either form, and the options. @internal */
export function teachArguments(facts: readonly Fact[] | Readonly<Record<string, string>>, options: TeachOptions): { facts: Fact[]; options: TeachOptions } {
  const given: unknown = Array.isArray(facts) || !isObject(facts) ? facts : Object.entries(facts).map(([question, answer]) => ({ question, answer }));
  const all: Fact[] = [];
  const filled = must((found: unknown) => typeof found === "string" && found.trim() !== "", "a text that is not empty");
  each("facts", given, "an array of facts, or an object of answers by question", (place, fact) => {
    if (!isObject(fact)) refuse(place, fact, "an object with question and answer");
    onlyFields(place, fact, ["question", "answer", "forms"]);
    filled(`${place}.question`, fact["question"]);
    filled(`${place}.answer`, fact["answer"]);
    if (fact["forms"] != null) each(`${place}.forms`, fact["forms"], "an array of questions", filled);
    all.push(fact as unknown as Fact);
  });
  if (all.length === 0) refuse("facts", given, "an array of at least one fact");
  return { facts: all, options: optionsOf(options, TEACH) };
}

/** @internal */
export function adapterArguments(options: AdapterOptions): AdapterOptions {
  return optionsOf(options, ADAPTER);
}

/** The error for a name that no adapter has. @internal */
export function unknownAdapter(name: string, known: readonly string[]): ShohinError {
  return new ShohinError("argument", `there is no adapter named ${show(name)}; ${known.length > 0 ? instead(name, known) : "there are none"}`);
}

/** Options that a beam search has, too. */
const SEARCH = ["signal", "maxTokens", "adapters", "beams", "lengthPenalty", "earlyStopping", "thinking"];

function unbounded<T extends Omit<GenerateOptions, "overflow">>({ maxTokens, ...rest }: T): T {
  const { beams, lengthPenalty, earlyStopping } = rest;
  const other = Object.keys(rest).find((name) => !SEARCH.includes(name));
  if (beams !== undefined && other) throw new ShohinError("argument", `a search with beams has no option ${other}`);
  if (beams === undefined && (lengthPenalty ?? earlyStopping) !== undefined) throw new ShohinError("argument", "lengthPenalty and earlyStopping need beams");
  return { ...rest, ...(maxTokens !== undefined && maxTokens !== Infinity && { maxTokens }) } as T;
}

/** @internal */
export function generateArguments(prompt: string, options: GenerateOptions): { prompt: string; options: GenerateOptions } {
  checkText("prompt", prompt);
  return { prompt, options: unbounded(optionsOf(options, GENERATE)) };
}

/** @internal */
export function chatArguments(messages: readonly ChatMessage[], options: ChatOptions): { messages: Message[]; options: ChatOptions } {
  const given = unbounded(optionsOf(options, CHAT));
  if ((given.toolChoice ?? "auto") !== "auto" && (given.tools ?? []).length === 0) throw new ShohinError("argument", "toolChoice is given, but tools is empty");
  return { messages: messagesOf("messages", messages), options: given };
}

/** @internal */
export function sessionArguments(options: SessionOptions): SessionOptions & { messages: Message[] } {
  const given = optionsOf(options, SESSION);
  return { ...given, messages: messagesOf("messages", given.messages ?? [], 0) };
}

/** The messages of a turn, and its options, which override those of the session. @internal */
export function sendArguments(input: string | readonly ChatMessage[], options: SendOptions, session: ChatOptions): { messages: Message[]; options: ChatOptions } {
  const all = { ...session, ...optionsOf(options, SEND) };
  if (Array.isArray(input)) return { messages: messagesOf("messages", input, all.continueFinalMessage ? 0 : 1), options: all };
  checkText("text", input);
  return { messages: [{ role: "user", content: input }], options: all };
}

/** @internal */
export function templateArguments(messages: readonly ChatMessage[], options: TemplateOptions): { messages: Message[]; options: TemplateOptions } {
  return { messages: messagesOf("messages", messages), options: optionsOf(options, TEMPLATE) };
}

/** @internal */
export function completionOptions(options: CompletionOptions): CompletionOptions {
  return optionsOf(options, COMPLETE);
}

/** @internal */
export function checkAddress(url: unknown): void {
  address("the address", url);
}

/** @internal */
export function cacheArguments(options: CacheOptions): CacheOptions {
  return optionsOf(options, CACHE);
}

/** @internal */
export function conversationOptions(options: ConversationOptions): ConversationOptions {
  return optionsOf(options, CONVERSATION);
}

/** @internal */
export function restoreArguments(from: SnapshotSource | Uint8Array, options: RestoreOptions): { from: SnapshotSource; options: RestoreOptions } {
  const given = optionsOf(options, RESTORE);
  if (typeof from === "string") return { from, options: given };
  if (!isObject(from)) refuse("the snapshot", from, "a result of snapshot(), its state, or a name passed to save()");
  const { state, messages } = (ArrayBuffer.isView(from) ? { state: from } : from) as Partial<Snapshot>;
  // Unlike instanceof, also true for arrays of another window.
  if (!ArrayBuffer.isView(state)) refuse("state of the snapshot", state, "a Uint8Array");
  const bytes = new Uint8Array(state.buffer, state.byteOffset, state.byteLength);
  return { from: { ...(messages !== undefined && { messages: messagesOf("messages", messages, 0) }), state: bytes }, options: given };
}

/** @internal */
export function checkName(name: string): void {
  checkText("name", name);
}

/** @internal */
export function embedArguments(given: string | readonly string[], options: EmbedOptions): { texts: string[]; options: EmbedOptions } {
  const isMany = Array.isArray(given);
  const texts = (isMany ? given : [given]) as string[];
  if (isMany) each("text", texts, "a string or an array of strings", text);
  else must((found: unknown) => typeof found === "string", "a string or an array of strings")("text", given);
  return { texts, options: optionsOf(options, EMBED) };
}

/** @internal */
export function tokenizeArguments(given: string, options: TokenizeOptions): { text: string; special: boolean } {
  checkText("text", given);
  return { text: given, special: optionsOf(options, TOKENIZE).special ?? false };
}

/** @internal */
export function tokensOf(ids: ArrayLike<number>): Uint32Array {
  const found: unknown = ids;
  if (found instanceof Uint32Array) return found;
  const what = "an array of token ids";
  if (typeof found !== "object" || found === null || !("length" in found || Symbol.iterator in found)) refuse("ids", found, what);
  const list = converted("ids", () => Array.from(ids));
  const wrong = list.findIndex((id) => !Number.isInteger(id) || id < 0 || id >= 2 ** 32);
  if (wrong >= 0) refuse(`ids[${wrong}]`, list[wrong], "a token id");
  return Uint32Array.from(list);
}

/** A stream that reports an error of `begin` at its first step, where callers expect it. @internal */
export function begun<C, R>(begin: () => AsyncGenerator<C, R, void>): AsyncGenerator<C, R, void> {
  try {
    return begin();
  } catch (thrown) {
    return (async function* (): AsyncGenerator<C, R, void> {
      throw thrown;
    })();
  }
}
