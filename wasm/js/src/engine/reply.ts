// Splits a reply into thoughts, visible text and tool calls while it is generated.
import type { ToolCall } from "../api/message.js";

/** @internal */
export interface Parts {
  text: string;
  reasoning: string;
  toolCalls: ToolCall[];
}

const MARKS = ["<think>", "</think>", "<tool_call>", "</tool_call>"] as const;

type Place = "start" | "thoughts" | "after" | "text" | "call" | "between";

/**
 * A reply in Qwen3's format: `<think>` at its very beginning, then text, then `<tool_call>` blocks. Output is final: a possible
 * beginning of a marker, and line breaks that may precede one, are held back until the next text.
 * @internal
 */
export class ReplyStream {
  /** All output so far. */
  readonly all: Parts = { text: "", reasoning: "", toolCalls: [] };
  #place: Place = "start";
  #held = "";
  #parse: ((call: string) => readonly ToolCall[]) | undefined;

  /** `parse` reads `<tool_call>` blocks and ignores malformed ones. Without it they are text. */
  constructor(parse: ((call: string) => readonly ToolCall[]) | undefined) {
    this.#parse = parse;
  }

  /** Whether thoughts have begun and not ended. */
  get thinking(): boolean {
    return this.#place === "thoughts";
  }

  /** Processes the next text; `end`: it is the last. */
  push(text: string, end = false): Parts {
    const out: Parts = { text: "", reasoning: "", toolCalls: [] };
    this.#held += text;
    while (this.#advance(out, end)) {
      // until the rest is ambiguous
    }
    this.all.text += out.text;
    this.all.reasoning += out.reasoning;
    this.all.toolCalls.push(...out.toolCalls);
    return out;
  }

  /** Processes the unambiguous text of this part; returns whether another part follows. */
  #advance(out: Parts, end: boolean): boolean {
    const to = (place: Place, from: number): true => {
      this.#place = place;
      this.#held = this.#held.slice(from);
      return true;
    };
    const held = this.#held;
    const begun = held.trimStart();
    switch (this.#place) {
      case "start":
        if (begun.startsWith(MARKS[0])) return to("thoughts", held.length - begun.length + MARKS[0].length);
        if (MARKS[0].startsWith(begun) && !end) return false;
        return to("text", 0);
      case "thoughts": {
        const at = held.indexOf(MARKS[1]);
        const stop = at >= 0 ? at : certain(held, MARKS[1], end);
        const said = held.slice(0, stop);
        // Line breaks around thoughts belong to the template.
        out.reasoning += this.all.reasoning === "" && out.reasoning === "" ? said.replace(/^\n+/, "") : said;
        if (at >= 0 || end) out.reasoning = out.reasoning.replace(/\n+$/, "");
        if (at >= 0) return to("after", at + MARKS[1].length);
        this.#held = end ? "" : held.slice(stop);
        return false;
      }
      case "after": {
        const rest = held.replace(/^\n+/, "");
        this.#held = rest;
        return rest !== "" && to("text", 0);
      }
      case "text": {
        const at = this.#parse ? held.indexOf(MARKS[2]) : -1;
        const stop = certain(held, MARKS[2], end || !this.#parse);
        const said = at >= 0 ? held.slice(0, at).replace(/\n+$/, "") : held.slice(0, stop);
        out.text += said;
        if (at >= 0) return to("call", said.length);
        this.#held = held.slice(stop);
        return false;
      }
      case "call": {
        for (let at = held.indexOf(MARKS[3]); at >= 0; at = held.indexOf(MARKS[3], at + 1)) {
          const stop = at + MARKS[3].length;
          const calls = this.#parse?.(held.slice(0, stop)) ?? [];
          // A marker within a JSON string does not end the call.
          if (calls.length === 0) continue;
          out.toolCalls.push(...calls);
          // Text between calls is not shown.
          return to("between", stop);
        }
        if (end && this.all.toolCalls.length + out.toolCalls.length === 0) {
          // Not a call.
          out.text += held;
          this.#held = "";
        }
        return false;
      }
      case "between": {
        const at = held.indexOf(MARKS[2]);
        return at >= 0 && to("call", at);
      }
    }
  }
}

/** Length of `text` without a possible beginning of `mark` and the line breaks before it. */
function certain(text: string, mark: string, end: boolean): number {
  if (end) return text.length;
  let stop = text.length;
  for (let n = Math.min(mark.length - 1, text.length); n > 0; n--) {
    if (text.endsWith(mark.slice(0, n))) {
      stop -= n;
      break;
    }
  }
  while (stop > 0 && text[stop - 1] === "\n") stop -= 1;
  return stop;
}
