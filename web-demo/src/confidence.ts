// What the model held likely: the candidates for each token of a reply while it is written, and which of its words it was
// unsure of.
import type { Chunk, Finish, Logprob, TokenLogprob } from "shohin";

/** So many candidates are asked for. */
const CANDIDATES = 5;

/** Tokens of the reply that is being written, or was written last, if it was watched. */
let steps: TokenLogprob[] = [];
/** Whether the last reply is watched. */
let watching = false;
const watchers = new Set<() => boolean>();

/** Called when `steps` has changed. */
export const onSteps = { change: () => {} };

/** Probabilities are computed for each reply that starts while one of these callbacks returns true: they cost time. */
export function watchWhile(wanted: () => boolean): void {
  watchers.add(wanted);
}

/** Starts on a reply, and returns what to ask the engine for. */
export function watch(): { logprobs?: number } {
  watching = [...watchers].some((wanted) => wanted());
  if (!watching) return {};
  steps = [];
  onSteps.change();
  return { logprobs: CANDIDATES };
}

export function see({ logprobs }: Chunk<Finish>): void {
  if (!logprobs?.length) return;
  steps.push(...logprobs);
  onSteps.change();
}

export function watched(): readonly TokenLogprob[] {
  return steps;
}

export function probability({ logprob }: Logprob): number {
  return Math.exp(logprob);
}

/** A word of a text by its place, and the probability in percent with which the model wrote it. */
export type Unsure = [at: number, length: number, percent: number];

/** Words of less probability are marked. */
const LEAST = 0.3;
/** A word that a renderer leaves out is looked past by so many at most. */
const AHEAD = 12;
const WORDS = /[\p{L}\p{N}]+(?:['’][\p{L}]+)*/gu;

/** The words of the watched reply, after its thoughts, with their probabilities: the product of their tokens'. */
function wordsOf(tokens: readonly TokenLogprob[]): { word: string; share: number }[] {
  const decoder = new TextDecoder();
  let text = "";
  const spans = tokens.map((token) => {
    const from = text.length;
    text += decoder.decode(Uint8Array.from(token.bytes), { stream: true });
    // A token that is only a part of a character belongs to that character.
    return { from, to: Math.max(text.length, from + 1), logprob: token.logprob };
  });
  const thoughts = text.lastIndexOf("</think>");
  let first = 0;
  return [...text.matchAll(WORDS)]
    .filter(({ index }) => index > thoughts)
    .map(({ 0: word, index }) => {
      while (first < spans.length && spans[first]!.to <= index) first += 1;
      let sum = 0;
      for (let i = first; i < spans.length && spans[i]!.from < index + word.length; i++) sum += spans[i]!.logprob;
      return { word, share: Math.exp(sum) };
    });
}

/** For each of `words`, which of `others` it is; both are the same text, of which either may lack something. */
function align(words: readonly string[], others: readonly string[]): (number | undefined)[] {
  let next = 0;
  return words.map((word) => {
    const found = others.slice(next, next + AHEAD).indexOf(word);
    if (found < 0) return undefined;
    next += found + 1;
    return next - 1;
  });
}

/** The words of a reply that the model was unsure of, if it was watched. */
export function unsureOf(content: string): Unsure[] | undefined {
  if (!watching) return undefined;
  const written = wordsOf(steps);
  const words = [...content.matchAll(WORDS)];
  const places = align(words.map(([word]) => word), written.map(({ word }) => word));
  return words.flatMap(({ 0: word, index }, i): Unsure[] => {
    const share = written[places[i] ?? -1]?.share ?? 1;
    return share < LEAST ? [[index, word.length, Math.round(100 * share)]] : [];
  });
}

/** What is underlined of each reply. */
const marks = new Map<HTMLElement, Range[]>();

/** Underlines words of a shown reply, and lists them in `legend`. The reply's elements stay as they are. */
export function showUnsure(body: HTMLElement, legend: HTMLElement, content: string, unsure: readonly Unsure[] = []): void {
  legend.hidden = unsure.length === 0;
  if (unsure.length === 0 && !marks.has(body)) return;
  const word = ([at, length]: Unsure) => content.slice(at, at + length);
  const list = unsure.map((one) => `${word(one)} ${one[2]} %`).join(", ");
  const what = unsure.length === 1 ? "1 word" : `${unsure.length} words`;
  const summary = document.createElement("summary");
  summary.textContent = `Underlined: ${what} with a probability below ${100 * LEAST} %`;
  legend.replaceChildren(summary, list);
  // By the browser's highlights, which leave the text as it is for copying; where there are none, the list has to do.
  if (!("highlights" in CSS)) return;
  const words = [...content.matchAll(WORDS)];
  const shown: { node: Text; at: number; word: string }[] = [];
  const walker = document.createTreeWalker(body, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT, (node) =>
    node instanceof Element && node.matches(".thoughts, .code-bar, button") ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_ACCEPT,
  );
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (node instanceof Text) for (const { 0: word, index } of node.data.matchAll(WORDS)) shown.push({ node, at: index, word });
  }
  const places = align(shown.map(({ word }) => word), words.map(([word]) => word));
  const low = new Set(unsure.map(([at]) => at));
  const ranges = shown.flatMap(({ node, at, word }, i) => {
    const place = words[places[i] ?? -1];
    if (!place || !low.has(place.index)) return [];
    const range = new Range();
    range.setStart(node, at);
    range.setEnd(node, at + word.length);
    return [range];
  });
  for (const old of marks.keys()) if (!old.isConnected && old !== body) marks.delete(old);
  marks.set(body, ranges);
  CSS.highlights.set("unsure", new Highlight(...[...marks.values()].flat()));
}
