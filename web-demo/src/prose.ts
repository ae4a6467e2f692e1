// A reply as the page shows it: paragraphs, lists, emphasis and code. Only text nodes are made of what a model writes,
// so nothing it writes can become markup.
import { make } from "./page.js";

/** Replaces what `target` shows. */
export function showProse(target: HTMLElement, text: string): void {
  const blocks: Node[] = [];
  const thinking = /^\s*<think>([\s\S]*?)(<\/think>|$)/.exec(text);
  if (thinking) {
    const thoughts = (thinking[1] ?? "").trim();
    if (thoughts) blocks.push(make("details", {}, make("summary", {}, "Thoughts"), make("p", {}, thoughts)));
    text = text.slice(thinking[0].length);
  }
  // Odd pieces are code; an unclosed fence is code up to the end.
  text.split(/^```[^\n]*\n?/m).forEach((piece, i) => {
    if (i % 2 === 1) blocks.push(make("pre", { tabindex: "0" }, make("code", {}, piece.replace(/\n$/, ""))));
    else blocks.push(...paragraphs(piece));
  });
  target.replaceChildren(...blocks);
}

function paragraphs(text: string): Node[] {
  return text
    .split(/\n\s*\n/)
    .map((part) => part.trim())
    .filter((part) => part !== "")
    .map((part) => {
      const lines = part.split("\n");
      if (lines.every((line) => /^\s*[-*] /.test(line))) return list("ul", lines, /^\s*[-*] /);
      if (lines.every((line) => /^\s*\d+[.)] /.test(line))) return list("ol", lines, /^\s*\d+[.)] /);
      return make("p", {}, ...inline(part.replace(/^#{1,6} (.*)$/gm, "**$1**")));
    });
}

function list(tag: "ul" | "ol", lines: string[], marker: RegExp): HTMLElement {
  const element = make(tag, {}, ...lines.map((line) => make("li", {}, ...inline(line.replace(marker, "")))));
  const first = tag === "ol" ? Number.parseInt(lines[0] ?? "1", 10) : 1;
  if (element instanceof HTMLOListElement && first !== 1) element.start = first;
  return element;
}

function inline(text: string): (Node | string)[] {
  return text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/).map((part) => {
    if (part.length > 2 && part.startsWith("`") && part.endsWith("`")) return make("code", {}, part.slice(1, -1));
    if (part.length > 4 && part.startsWith("**") && part.endsWith("**")) return make("strong", {}, part.slice(2, -2));
    return part;
  });
}
