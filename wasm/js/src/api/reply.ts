// A reply as a whole.
import type { ChatFinish, Chunk, TokenLogprob } from "./chunk.js";

/** A whole reply. As a string, for example in a template literal, it is its text. */
export class Reply {
  /** The visible text, without thoughts and tool calls. */
  readonly text: string;
  /** How the reply ended; `finish.message` has thoughts and tool calls, too. */
  readonly finish: ChatFinish;
  /** One for each token that the model chose, if requested. */
  declare readonly logprobs?: TokenLogprob[];

  /** @internal */
  constructor(finish: ChatFinish, logprobs: TokenLogprob[]) {
    this.text = finish.message.content;
    this.finish = finish;
    if (logprobs.length > 0) this.logprobs = logprobs;
  }

  /** Collects a stream. @internal */
  static async of(chunks: AsyncGenerator<Chunk<ChatFinish>, ChatFinish, void>): Promise<Reply> {
    const logprobs: TokenLogprob[] = [];
    for (;;) {
      const { done, value } = await chunks.next();
      if (done) return new Reply(value, logprobs);
      for (const each of value.logprobs ?? []) logprobs.push(each);
    }
  }

  toString(): string {
    return this.text;
  }
}
