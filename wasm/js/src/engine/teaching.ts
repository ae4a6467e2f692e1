// A training in the runtime: a model's file and conversations as tokens go into a module of its own, and an adapter comes out.
import { abortError, ShohinError, toError } from "../api/errors.js";
import type { Pieces } from "../load/pieces.js";
import { pour } from "../load/source.js";
import { trainModule, type Teacher } from "../wasm/module.js";
import { yieldToEventLoop } from "./event-loop.js";

/** A conversation as tokens, and where its replies begin and end. @internal */
export interface Lesson {
  tokens: Uint32Array;
  replies: Uint32Array;
}

/** What is learned, and what is rehearsed. @internal */
export interface Lessons {
  facts: Lesson[];
  rehearsed: Lesson[];
}

/** How. 0 for the usual numbers. @internal */
export interface TeachSettings {
  rank: number;
  steps: number;
  rate: number;
  seed: number;
  name: string;
  /** As JSON. */
  facts: string;
}

/** A part of the training that was done. @internal */
export type TeachStep = { stage: "prepare"; share: number } | { stage: "learn"; step: number; loss: number; sure: number };

/** What comes out. @internal */
export interface TeachResult {
  file: Uint8Array<ArrayBuffer>;
  steps: number;
  learned: boolean;
}

/** Loads the model, once more in a memory of its own, and teaches. @internal */
export async function* taught(open: () => Promise<Teacher>, { name, facts }: TeachSettings, signal: AbortSignal | undefined): AsyncGenerator<TeachStep, TeachResult, void> {
  const teacher = await open();
  try {
    for (let share = 0; share < 1; ) {
      share = teacher.prepare();
      yield { stage: "prepare", share };
      await yieldToEventLoop();
      if (signal?.aborted) throw abortError(signal);
    }
    for (let step = 1; ; step++) {
      const [loss = 0, sure = 0, done = 0] = teacher.step();
      yield { stage: "learn", step, loss, sure };
      if (done === 1) return { file: teacher.file(name, facts), steps: step, learned: teacher.learned() };
      await yieldToEventLoop();
      if (signal?.aborted) throw abortError(signal);
    }
  } catch (thrown) {
    throw toError(thrown);
  } finally {
    teacher.free();
  }
}

/** A teacher with the model in `source`. @internal */
export async function teacherOf(source: Pieces, { facts, rehearsed }: Lessons, { rank, steps, rate, seed }: TeachSettings, signal: AbortSignal | undefined): Promise<Teacher> {
  try {
    if (source.parts) throw new ShohinError("unsupported", "a model in several files cannot be taught here");
    const module = await trainModule();
    const lessons = new module.Lessons(source.total ?? 0);
    let begun = false;
    try {
      await pour(source, (piece) => lessons.append(piece), { signal });
      for (const { tokens, replies } of facts) lessons.add(tokens, replies, true);
      for (const { tokens, replies } of rehearsed) lessons.add(tokens, replies, false);
      begun = true; // begin() consumes them, also when it fails
      return lessons.begin(rank, steps, rate, seed);
    } finally {
      if (!begun) lessons.free();
    }
  } catch (thrown) {
    throw toError(thrown);
  } finally {
    await source.close();
  }
}
