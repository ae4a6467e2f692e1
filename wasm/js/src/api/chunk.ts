// What a generation streams.
import type { Message, ToolCall } from "./message.js";

/** Why a generation ended: the model ended it, a stop string occurred, `maxTokens` was reached, or the context is full. */
export type FinishReason = "stop" | "stop_string" | "length" | "context_full";

/** One of the texts that a search with the option `beams` has found. */
export interface Beam {
  text: string;
  tokens: number[];
  /** `logprob`, divided by a power of the number of tokens. */
  score: number;
  /** Natural logarithm of the probability of all tokens, including one that ended the text. */
  logprob: number;
  reason: FinishReason;
}

/** Reported by the last chunk of a generation. */
export interface Finish {
  reason: FinishReason;
  /** The whole text as the model wrote it, including thoughts and tool calls. */
  text: string;
  /** The seed that was used. */
  seed: number;
  usage: {
    /** Tokens of the prompt. */
    promptTokens: number;
    /** Prompt tokens that were already in the cache. */
    cachedTokens: number;
    /** New tokens. */
    completionTokens: number;
    /** New tokens that were thoughts. */
    reasoningTokens: number;
    /** Messages that `overflow: "trim"` left out. */
    droppedMessages: number;
    /** Tokens of the conversation that `overflow: "shift"` dropped. */
    forgottenTokens: number;
  };
  timings: {
    /** Milliseconds spent on the prompt. */
    prefillMs: number;
    /** Milliseconds spent on new tokens after the first. */
    decodeMs: number;
    /** Prompt tokens per second, without cached ones. */
    prefillTokensPerSecond: number;
    /** New tokens per second. */
    tokensPerSecond: number;
  };
  /** With the option `beams`: all of them, the best first. */
  beams?: Beam[];
}

/** Reported by the last chunk of a `chat`. */
export interface ChatFinish extends Finish {
  /** The reply, split into text, thoughts and tool calls: append it to the conversation as it is. */
  message: Message;
}

/** A token and the natural logarithm of its probability, before temperature, penalties and filters. */
export interface Logprob {
  token: number;
  /** Its text; incomplete characters show as U+FFFD. */
  text: string;
  /** Its bytes. */
  bytes: number[];
  logprob: number;
}

/** A chosen token, and the most likely ones at its position. */
export interface TokenLogprob extends Logprob {
  top: Logprob[];
}

/** A piece of a streamed text. */
export interface Chunk<F extends Finish = Finish> {
  /** Visible text in whole characters; may be empty. */
  text: string;
  /** Thoughts of a reasoning model; `chat` only. */
  reasoning?: string;
  /** Completed tool calls; `chat` only. */
  toolCalls?: ToolCall[];
  /** The tokens of this chunk; a character may take several. */
  tokens: number[];
  /** One for each of `tokens` that the model chose, if requested. */
  logprobs?: TokenLogprob[];
  /** Set in the last chunk. */
  finish?: F;
}
