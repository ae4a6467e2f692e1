// The dictionaries of the Prompt API.
import type { CreateMonitor } from "./monitor.js";

/** Who says a message. */
export type LanguageModelMessageRole = "system" | "user" | "assistant";

/** Type of content. Only `text` is supported; others are refused with `NotSupportedError`. */
export type LanguageModelMessageType = "text" | "image" | "audio" | "tool-call" | "tool-response";

/** How varied replies are. Default: the settings of the Bonsai model card. */
export type LanguageModelSamplingMode = "most-predictable" | "predictable" | "balanced" | "creative" | "most-creative";

/** A part of a message's content. */
export interface LanguageModelMessageContent {
  type: LanguageModelMessageType;
  /** A string, for type `text`. */
  value: unknown;
}

/** A message. */
export interface LanguageModelMessage {
  role: LanguageModelMessageRole;
  /** A string, or parts, which are concatenated. */
  content: string | readonly LanguageModelMessageContent[];
  /** The reply continues this message, which must be the last of a prompt and of role `assistant`. */
  prefix?: boolean;
}

/** A message of the user, or several messages. */
export type LanguageModelPrompt = string | readonly LanguageModelMessage[];

/** Inputs or outputs that a page expects. */
export interface LanguageModelExpected {
  type: LanguageModelMessageType;
  /** BCP 47 language tags. They are checked, but do not affect the model. */
  languages?: readonly string[];
}

/** A function that the model may call. */
export interface LanguageModelTool {
  name: string;
  description: string;
  /** JSON Schema of the arguments. */
  inputSchema: object;
  /** Called with the arguments, which satisfy `inputSchema`. */
  execute: (args: any) => unknown;
}

/** Options of `availability`. */
export interface LanguageModelCreateCoreOptions {
  /** At least 1; clamped to `params().maxTopK`. */
  topK?: number;
  /** At least 0; clamped to `params().maxTemperature`. */
  temperature?: number;
  samplingMode?: LanguageModelSamplingMode;
  expectedInputs?: readonly LanguageModelExpected[];
  expectedOutputs?: readonly LanguageModelExpected[];
  tools?: readonly LanguageModelTool[];
}

/** Options of `create`. */
export interface LanguageModelCreateOptions extends LanguageModelCreateCoreOptions {
  signal?: AbortSignal;
  /** Called with an event target that reports the download. */
  monitor?: (monitor: CreateMonitor) => void;
  /** The first messages; never dropped. */
  initialPrompts?: readonly LanguageModelMessage[];
}

/** Options of `prompt`, `promptStreaming` and `measureContextUsage`. */
export interface LanguageModelPromptOptions {
  /** JSON Schema that the reply satisfies. */
  responseConstraint?: object;
  /** Do not add the schema to the prompt. Default false. */
  omitResponseConstraintInput?: boolean;
  signal?: AbortSignal;
}

/** Options of `append`. */
export interface LanguageModelAppendOptions {
  signal?: AbortSignal;
}

/** Options of `clone`. */
export interface LanguageModelCloneOptions {
  signal?: AbortSignal;
}

/** Defaults and limits of sampling. */
export interface LanguageModelParams {
  readonly defaultTopK: number;
  readonly maxTopK: number;
  readonly defaultTemperature: number;
  readonly maxTemperature: number;
}
