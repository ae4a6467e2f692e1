// Teaching an engine facts: it is asked what it says, a worker of its own makes an adapter, and it is asked again.
import { ShohinError } from "../api/errors.js";
import type { Message } from "../api/message.js";
import type { Answer, Fact, LoadOptions, Taught, TeachOptions, TeachProgress } from "../api/options.js";
import type { RemoteSource } from "../load/source.js";
import type { Conversation } from "./conversation.js";
import type { Sendable } from "./runtime.js";
import type { Lesson } from "./teaching.js";
import type { Transport } from "./transport.js";

declare const QUESTIONS: string[];

/** Tokens of a rehearsed reply at most. */
const REHEARSED = 48;

/** What an engine lends to a teaching. @internal */
export interface School {
  transport: Transport;
  /** A transport to a runtime of its own. */
  connect: () => Transport;
  source: RemoteSource;
  load: Sendable<LoadOptions>;
  /** What was rehearsed before, by question. */
  kept: Map<string, Lesson>;
}

/** Asks a conversation one question. */
async function ask(conversation: Conversation, question: string, signal: AbortSignal | undefined): Promise<{ text: string; whole: boolean }> {
  const reply = await conversation.reply(question, { preset: "greedy", maxTokens: REHEARSED, ...(signal && { signal }) });
  return { text: reply.text, whole: reply.finish.reason === "stop" };
}

/** Teaches facts. `open` opens a conversation, which is with the adapter once that is given. @internal */
export async function teach(
  school: School,
  facts: Fact[],
  { name = "taught", questions = QUESTIONS, rank = 0, steps = 0, learningRate = 0, seed = 0, onProgress, signal }: TeachOptions,
  open: (file?: Uint8Array) => Promise<Conversation>,
): Promise<Taught> {
  const report = (progress: TeachProgress) => onProgress?.(progress);
  const asked = facts.flatMap(({ question, forms = [] }) => [question, ...forms]);
  const lesson = (question: string, answer: string): Promise<Lesson> => {
    const messages: Message[] = [{ role: "user", content: question }, { role: "assistant", content: answer }];
    return school.transport.call("encodeReplies", { messages }, { signal });
  };
  const rehearse = questions.filter((question) => !asked.includes(question));
  const answers: Answer[] = [];
  const rehearsed: Lesson[] = [];
  const conversation = await open();
  try {
    let done = 0;
    const ready = () => report({ stage: "ask", share: ++done / (rehearse.length + facts.length) });
    for (const { question, answer } of facts) {
      answers.push({ question, expected: answer, before: (await ask(conversation, question, signal)).text, after: "" });
      ready();
    }
    for (const question of rehearse) {
      const known = school.kept.get(question);
      if (known) rehearsed.push(known);
      else {
        const { text, whole } = await ask(conversation, question, signal);
        if (text.trim() !== "") {
          const { tokens, replies } = await lesson(question, text);
          // A reply that was cut off would have gone on.
          const ends = whole ? replies : replies.map((at, i) => (i % 2 === 1 ? at - 1 : at));
          school.kept.set(question, { tokens, replies: ends });
          rehearsed.push({ tokens, replies: ends });
        }
      }
      ready();
    }
  } finally {
    await conversation.dispose();
  }
  const lessons = { facts: [] as Lesson[], rehearsed };
  for (const { question, answer, forms = [] } of facts) {
    for (const one of [question, ...forms]) lessons.facts.push(await lesson(one, answer));
  }
  const settings = { rank, steps, rate: learningRate, seed, name, facts: JSON.stringify(facts) };
  const own = school.connect();
  try {
    const stream = own.stream("teach", { source: school.source, options: school.load, lessons, settings }, signal);
    for (;;) {
      const { done, value } = await stream.next();
      if (!done) {
        report(value);
        continue;
      }
      const conversation = await open(value.file);
      try {
        // Not to be stopped any more: the adapter has joined.
        for (const answer of answers) answer.after = (await ask(conversation, answer.question, undefined)).text;
      } finally {
        await conversation.dispose();
      }
      const right = ({ expected, after }: Answer) => after.trim() === expected.trim();
      return { name, file: value.file, steps: value.steps, learned: answers.every(right), answers };
    }
  } finally {
    own.close(new ShohinError("disposed", "the training has ended"));
  }
}
