// A conversation that keeps its messages and runs the tools that the model calls.
import { begun, sendArguments, sessionArguments } from "../api/arguments.js";
import type { ChatFinish, Chunk } from "../api/chunk.js";
import { asyncDispose } from "../api/dispose.js";
import { abortError, ShohinError } from "../api/errors.js";
import type { ChatMessage, Message, ToolCall } from "../api/message.js";
import type { ChatOptions, SendOptions, SessionChunk, SessionOptions, SessionTool, Tool, ToolResult } from "../api/options.js";
import { Reply } from "../api/reply.js";
import { unlessAborted } from "./abortable.js";

const MAX_TOOL_ROUNDS = 8;

/** Streams the reply to messages. @internal */
export type Chat = (messages: readonly Message[], options: ChatOptions) => AsyncGenerator<Chunk<ChatFinish>, ChatFinish, void>;

/** The function as the model sees it. */
function toolOf(name: string, tool: SessionTool): Tool {
  const { run: _, ...rest } = typeof tool === "function" ? { run: tool } : tool;
  return { type: "function", function: { name, ...rest } };
}

/** A conversation that keeps its messages, and whose tools are functions. Made by `session()` of an engine or a conversation. */
export class ChatSession {
  #chat: Chat;
  #messages: Message[];
  #options: ChatOptions;
  #tools: Readonly<Record<string, SessionTool>>;
  #maxToolRounds: number;
  #disposed = new AbortController();
  #queue: Promise<void> = Promise.resolve();

  /** @internal */
  constructor(chat: Chat, given: SessionOptions) {
    const { system, messages, tools = {}, maxToolRounds = MAX_TOOL_ROUNDS, ...options } = sessionArguments(given);
    this.#chat = chat;
    this.#messages = [...(system === undefined ? [] : [{ role: "system" as const, content: system }]), ...messages];
    this.#tools = tools;
    this.#maxToolRounds = maxToolRounds;
    const definitions = Object.entries(tools).map(([name, tool]) => toolOf(name, tool));
    this.#options = { ...options, ...(definitions.length > 0 && { tools: definitions }) };
  }

  /** The messages so far, including calls and results of tools. */
  get messages(): Message[] {
    return [...this.#messages];
  }

  /**
   * Sends a message of the user, or several messages, and streams the reply. Functions that the model calls are run, and it continues with their results, until
   * it replies without a call; only then the last chunk has `finish`. An error of a function is given to the model as its result.
   *
   * A `send` that fails, is aborted or left early leaves the messages as they were. Several are answered one after the other.
   */
  send(input: string | readonly ChatMessage[], options: SendOptions = {}): AsyncGenerator<SessionChunk, ChatFinish, void> {
    return begun(() => {
      const { messages, options: all } = sendArguments(input, options, this.#options);
      return this.#turn(messages, all);
    });
  }

  /** Sends a message of the user, or several messages, and waits for the whole reply. */
  async reply(input: string | readonly ChatMessage[], options: SendOptions = {}): Promise<Reply> {
    return Reply.of(this.send(input, options));
  }

  /** Ends a running `send` with code `disposed` and refuses others. The engine and its conversation remain. */
  async dispose(): Promise<void> {
    this.#disposed.abort();
  }

  /** The same as `dispose`, for `await using`. */
  async [asyncDispose](): Promise<void> {
    await this.dispose();
  }

  async *#turn(sent: readonly Message[], { signal: given, ...options }: ChatOptions): AsyncGenerator<SessionChunk, ChatFinish, void> {
    const before = this.#queue;
    let release = () => {};
    this.#queue = new Promise((resolve) => (release = resolve));
    const signal = AbortSignal.any([this.#disposed.signal, ...(given ? [given] : [])]);
    try {
      await unlessAborted(signal, before, abortError);
      return yield* this.#rounds(sent, options, signal);
    } catch (error) {
      if (this.#disposed.signal.aborted) throw new ShohinError("disposed", "the session was disposed", { cause: error });
      throw error;
    } finally {
      // The one before may still run, if this one was aborted while it waited.
      void before.then(release);
    }
  }

  async *#rounds(sent: readonly Message[], { toolChoice, continueFinalMessage, ...options }: ChatOptions, signal: AbortSignal): AsyncGenerator<SessionChunk, ChatFinish, void> {
    const all = [...this.#messages, ...sent];
    for (let round = 0; ; round++) {
      // A call that must be made would be made again and again.
      const first = round > 0 ? {} : { ...(toolChoice !== undefined && { toolChoice }), ...(continueFinalMessage && { continueFinalMessage }) };
      let finish: ChatFinish | undefined;
      for await (const chunk of this.#chat(all, { ...options, ...first, signal })) {
        const { finish: last, ...rest } = chunk;
        if (!last) {
          yield chunk;
          continue;
        }
        finish = last;
        if (first.continueFinalMessage) all.pop();
        all.push(last.message);
        if (last.message.toolCalls?.length) {
          yield rest;
        } else {
          // Before the last chunk, at which callers may leave their loop.
          this.#messages = all;
          yield chunk;
        }
      }
      const calls = finish?.message.toolCalls;
      if (!calls?.length) return finish as ChatFinish;
      if (round === this.#maxToolRounds) {
        throw new ShohinError("tool_rounds", `the model called tools in more than ${round} rounds; maxToolRounds sets the limit`);
      }
      const toolResults = await Promise.all(calls.map((call) => this.#result(call, signal)));
      for (const { content } of toolResults) all.push({ role: "tool", content });
      yield { text: "", tokens: [], toolResults };
    }
  }

  async #result(call: ToolCall, signal: AbortSignal): Promise<ToolResult> {
    const { name } = call;
    try {
      const tool = Object.hasOwn(this.#tools, name) ? this.#tools[name] : undefined;
      if (!tool) throw new Error(`there is no function ${name}`);
      const run = typeof tool === "function" ? tool : tool.run.bind(tool);
      const value: unknown = await unlessAborted(signal, (async () => run(JSON.parse(call.arguments), { signal }) as unknown)(), abortError);
      return { ...call, content: typeof value === "string" ? value : (JSON.stringify(value) ?? "null") };
    } catch (error) {
      if (signal.aborted) throw abortError(signal);
      return { ...call, content: JSON.stringify({ error: error instanceof Error ? error.message : String(error) }), error };
    }
  }
}
