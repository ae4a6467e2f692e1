// One of several conversations over a model.
import { begun, chatArguments, checkName, completionOptions, generateArguments, restoreArguments } from "../api/arguments.js";
import type { ChatFinish, Chunk, Finish } from "../api/chunk.js";
import { asyncDispose } from "../api/dispose.js";
import type { ChatMessage, Restored, Snapshot } from "../api/message.js";
import type { AdapterChoice, ChatOptions, CompletionOptions, GenerateOptions, RestoreOptions, SessionOptions } from "../api/options.js";
import { Reply } from "../api/reply.js";
import { requestText, type ChatCompletion, type ChatCompletionChunk, type ChatCompletionRequest } from "../openai/completion.js";
import type { SentAdapter } from "./adapted.js";
import { ChatSession } from "./chat-session.js";
import type { Transport } from "./transport.js";

/** A conversation over a model, with a cache of its own. */
export class Conversation {
  /** Capacity in tokens. */
  readonly context: number;
  #transport: Transport;
  #number: number;
  #adapters: (chosen?: readonly AdapterChoice[]) => SentAdapter[];

  /** `adapters` finds those that a request names, or else those of the conversation. @internal */
  constructor(transport: Transport, number: number, context: number, adapters: (chosen?: readonly AdapterChoice[]) => SentAdapter[]) {
    this.#transport = transport;
    this.#number = number;
    this.#adapters = adapters;
    this.context = context;
  }

  /**
   * Streams the model's reply to a conversation. Turns that are in the cache are not computed again. Leaving the loop
   * early ends the generation; without a loop, the iterator's `return()` does. Until then the conversation is busy, and its other calls wait.
   */
  chat(messages: readonly ChatMessage[], options: ChatOptions = {}): AsyncGenerator<Chunk<ChatFinish>, ChatFinish, void> {
    return begun(() => {
      const { messages: all, options: { signal, adapters, ...rest } } = chatArguments(messages, options);
      return this.#transport.stream("chat", { conversation: this.#number, messages: all, options: rest, adapters: this.#adapters(adapters) }, signal);
    });
  }

  /** The model's reply to a text or a conversation, as a whole. */
  async reply(input: string | readonly ChatMessage[], options: ChatOptions = {}): Promise<Reply> {
    return Reply.of(this.chat(typeof input === "string" ? [{ role: "user", content: input }] : input, options));
  }

  /**
   * A session, which keeps its messages and runs the functions that the model calls. Sessions of one conversation share its cache: take
   * another `conversation` for each of several in turn.
   */
  session(options: SessionOptions = {}): ChatSession {
    return new ChatSession((messages, options) => this.chat(messages, options), options);
  }

  /** Streams the continuation of a plain text. Leaving the loop early, or the iterator's `return()`, ends the generation, as with `chat`. */
  generate(prompt: string, options: GenerateOptions = {}): AsyncGenerator<Chunk, Finish, void> {
    return begun(() => {
      const { options: { signal, adapters, ...rest } } = generateArguments(prompt, options);
      return this.#transport.stream("generate", { conversation: this.#number, prompt, options: rest, adapters: this.#adapters(adapters) }, signal);
    });
  }

  /** Answers a request in the format of OpenAI's chat completions. */
  createChatCompletion(request: ChatCompletionRequest & { stream: true }, options?: CompletionOptions): Promise<AsyncIterable<ChatCompletionChunk>>;
  createChatCompletion(request: ChatCompletionRequest & { stream?: false | null }, options?: CompletionOptions): Promise<ChatCompletion>;
  createChatCompletion(request: ChatCompletionRequest, options?: CompletionOptions): Promise<ChatCompletion | AsyncIterable<ChatCompletionChunk>>;
  async createChatCompletion(request: ChatCompletionRequest, options: CompletionOptions = {}): Promise<ChatCompletion | AsyncIterable<ChatCompletionChunk>> {
    const { signal, adapters } = completionOptions(options);
    const text = requestText(request);
    const answers = this.#transport.stream("answer", { conversation: this.#number, request: text, adapters: this.#adapters(adapters) }, signal);
    if (request.stream) {
      // Refused here, not by the first chunk.
      await this.#transport.call("checkRequest", { request: text }, { signal });
      return answers as AsyncIterable<ChatCompletionChunk>;
    }
    let answer: ChatCompletion | undefined;
    for await (const whole of answers) answer = whole as ChatCompletion;
    return answer as ChatCompletion;
  }

  /** The state of the conversation, to be kept outside the engine. */
  async snapshot(): Promise<Snapshot> {
    return this.#transport.call("snapshot", { conversation: this.#number });
  }

  /** Continues from a snapshot, from its state alone, from a file of `shohin chat --session`, or from what `save` kept under a name. */
  async restore(from: Snapshot | Uint8Array | string, options: RestoreOptions = {}): Promise<Restored> {
    const { from: found, options: { signal, adapters, ...rest } } = restoreArguments(from, options);
    return this.#transport.call("restore", { conversation: this.#number, from: found, options: rest, adapters: this.#adapters(adapters) }, { signal });
  }

  /** Keeps a snapshot in IndexedDB; replaces one of the same name. */
  async save(name: string): Promise<void> {
    checkName(name);
    await this.#transport.call("save", { conversation: this.#number, name });
  }

  /** Frees the cache. Pending generations end with code `disposed`. */
  async dispose(): Promise<void> {
    await this.#transport.call("close", { conversation: this.#number });
  }

  /** The same as `dispose`, for `await using`. */
  async [asyncDispose](): Promise<void> {
    await this.dispose();
  }
}
