// A reply as the page shows it: the blocks of its Markdown, of which only the last ones are made again while it grows.
import { copyButton } from "./copy.js";
import { read, render, type Target, type Token, type Tokens } from "./markdown.js";
import { make } from "./page.js";
import { sanitize } from "./sanitize.js";

/** A block that is shown, what it was made of, and where in the text that begins. */
interface Block {
  token: Token;
  at: number;
  node: Element;
}

interface Shown {
  /** Unless all of it has to be read again when it goes on. */
  text: string | undefined;
  blocks: Block[];
  /** Where links by name lead, and where in the text the block begins that says so; the first of a name counts. */
  targets: Map<string, { at: number; link: Target }>;
  /** All links by name, as the lexer knew them. */
  links: string;
}

const NOTHING: Shown = { text: "", blocks: [], targets: new Map(), links: "[]" };

const shown = new WeakMap<HTMLElement, Shown>();

/** So many blocks at the end may still become others when the text goes on; the second last where the last turns out to belong to it. */
const OPEN = 2;

/**
 * Shows a text; blocks that are shown already stay as they are, with what the reader selected or opened in them. Of a text
 * that goes on, only the last blocks are read again, so that a long reply takes no longer to show than a short one.
 * `whole`: it does not go on.
 */
export function showProse(target: HTMLElement, said: string, thoughts = "", whole = true): void {
  const text = said.includes("\r") ? said.replace(/\r\n?/g, "\n") : said;
  const before = shown.get(target) ?? NOTHING;
  const first = thoughts ? showThoughts(target, thoughts, said === "") : undefined;
  const goesOn = before.text !== undefined && text.startsWith(before.text.trimEnd());
  let settled = goesOn ? Math.max(0, before.blocks.length - OPEN) : 0;
  let at = settled > 0 ? before.blocks[settled]!.at : 0;
  const targets: Shown["targets"] = new Map([...before.targets].filter(([, target]) => target.at < at));
  const tokensFrom = (at: number) => read(text.slice(at), [...targets].map(([name, { link }]) => [name, link]));
  let tokens = tokensFrom(at);
  let links = JSON.stringify(Object.entries(tokens.links));
  if (settled > 0 && links !== before.links) {
    // What was read before may be called by these names.
    settled = at = 0;
    targets.clear();
    tokens = tokensFrom(at);
    links = JSON.stringify(Object.entries(tokens.links));
  }
  const relinked = links !== before.links;
  const blocks = before.blocks.slice(0, settled);
  let isSource = true;
  for (const lexed of tokens) {
    const start = at;
    const token = whole ? lexed : foreseen(lexed, start + lexed.raw.length === text.length);
    if (token.type !== "space" && token.type !== "def") {
      const old = before.blocks[blocks.length];
      blocks.push({ token, at, node: old ? renewed(old, token, relinked) : block(token) });
    }
    for (const { tag, href, title } of definitions(token)) if (!targets.has(tag)) targets.set(tag, { at, link: { href, title } });
    if (!text.startsWith(lexed.raw, at)) isSource = false;
    at += lexed.raw.length;
  }
  nest(blocks, settled);
  shown.set(target, { text: isSource ? text : undefined, blocks, targets, links });
  const ahead = first ? 1 : 0;
  for (let i = settled; i < blocks.length; i++) {
    const { node } = blocks[i]!;
    const there = target.childNodes[ahead + i] ?? null;
    if (there !== node) target.insertBefore(node, there);
  }
  while (target.childNodes.length > ahead + blocks.length) target.lastChild!.remove();
  // Colours once the code is whole: an open block would have to be read anew with every token.
  for (const { node } of whole ? blocks : blocks.slice(settled, -1)) colour(node);
}

/** Gives headings their levels for screen readers: below the page's, none of them skipped, whatever a model writes. */
function nest(blocks: readonly Block[], from: number): void {
  const isHeading = ({ token }: Block) => token.type === "heading";
  let level = Number(blocks.slice(0, from).filter(isHeading).at(-1)?.node.ariaLevel ?? 1);
  for (const { token, node } of blocks.slice(from).filter(isHeading)) {
    level = Math.min((token as Tokens.Heading).depth + 1, level + 1);
    node.ariaLevel = String(level);
  }
}

/** The last block of a text that goes on as what it is about to be: a line that begins with a bar is the head of a table. */
function foreseen(token: Token, isLast: boolean): Token {
  if (!isLast || token.type !== "paragraph" || !/^\|.*(?:\n[|:\- \t]*)?$/.test(token.raw)) return token;
  const head = token.raw.split("\n", 1)[0]!.trim().replace(/(?<=.)\|$/, "");
  const table = read(`${head}|\n${"|-".repeat(head.split(/(?<!\\)\|/).length - 1)}|`, [])[0];
  return table?.type === "table" ? { ...table, raw: token.raw } : token;
}

/** Where a block, or what is in it, gives links a name. */
function definitions(token: Token): Tokens.Def[] {
  if (token.type === "def") return [token as Tokens.Def];
  if (token.type === "list") return (token as Tokens.List).items.flatMap(({ tokens }) => tokens.flatMap(definitions));
  if (token.type === "blockquote") return (token as Tokens.Blockquote).tokens.flatMap(definitions);
  return [];
}

function showThoughts(target: HTMLElement, thoughts: string, unfinished: boolean): Node {
  const old = target.firstElementChild;
  const details = old instanceof HTMLDetailsElement ? old : make("details", { class: "thoughts" }, make("summary"), make("p"));
  if (details !== old) target.prepend(details);
  const title = unfinished ? "Thinking" : "Thoughts";
  if (details.children[0]!.textContent !== title) details.children[0]!.textContent = title;
  write(details.children[1]!, thoughts);
  return details;
}

/** Makes a text the only content of an element; what is there already stays. */
function write(element: Element, text: string): void {
  const node = element.firstChild;
  if (!(node instanceof Text) || node !== element.lastChild) element.replaceChildren(document.createTextNode(text));
  else if (text.startsWith(node.data)) node.appendData(text.slice(node.data.length));
  else node.data = text;
}

/**
 * The element of a block as it is by now: the old one, brought up to date, where it is of the same kind. `relinked`: names of
 * links lead elsewhere.
 */
function renewed({ token: old, node }: Block, token: Token, relinked: boolean): Element {
  if (old.type !== token.type) return block(token);
  if (relinked && token.type !== "code" && token.raw.includes("[")) {
    const anew = block(token);
    return node.isEqualNode(anew) ? node : anew;
  }
  if (old.raw === token.raw) return node;
  switch (token.type) {
    case "code": {
      const [before, now] = [old as Tokens.Code, token as Tokens.Code];
      if (before.lang !== now.lang) return block(token);
      const code = node.querySelector("code")!;
      if (before.text !== now.text) {
        write(code, now.text);
        delete code.dataset["coloured"];
      }
      return node;
    }
    case "list": {
      const [before, now] = [old as Tokens.List, token as Tokens.List];
      if (before.ordered !== now.ordered || before.start !== now.start || before.loose !== now.loose) return block(token);
      const item = (i: number) => block({ ...now, items: [now.items[i]!] }).firstElementChild!;
      renewParts(node, before.items.map(({ raw }) => raw), now.items.map(({ raw }) => raw), item);
      return node;
    }
    case "table": {
      const [before, now] = [old as Tokens.Table, token as Tokens.Table];
      const text = (cells: Tokens.TableCell[]) => cells.map((cell) => cell.text).join("|");
      const body = node.querySelector("tbody");
      if (!body || text(before.header) !== text(now.header) || before.align.join() !== now.align.join()) return block(token);
      const row = (i: number) => block({ ...now, rows: [now.rows[i]!] }).querySelector("tbody > tr")!;
      renewParts(body, before.rows.map(text), now.rows.map(text), row);
      return node;
    }
    default:
      return block(token);
  }
}

/** Replaces those children of an element whose source is another by now. */
function renewParts(parent: Element, before: readonly string[], now: readonly string[], make: (i: number) => Node): void {
  while (parent.children.length > now.length) parent.lastElementChild!.remove();
  now.forEach((source, i) => {
    if (i >= before.length) parent.append(make(i));
    else if (source !== before[i]) parent.children[i]!.replaceWith(make(i));
  });
}

/** The element that shows a block. */
function block(token: Token): Element {
  const fragment = render([token]);
  furnish(fragment);
  return fragment.firstElementChild ?? make("p", {}, fragment);
}

/** Makes of the elements of Markdown what they are on this page. */
function furnish(fragment: DocumentFragment): void {
  for (const link of fragment.querySelectorAll("a")) {
    if (!link.hasAttribute("href")) {
      link.replaceWith(...link.childNodes);
      continue;
    }
    link.target = "_blank";
    link.rel = "noopener noreferrer nofollow";
    link.title = link.href;
  }
  for (const box of fragment.querySelectorAll("input")) {
    box.replaceWith(make("span", { role: "img", class: "box", "aria-label": box.hasAttribute("checked") ? "done" : "open" }, box.hasAttribute("checked") ? "☑" : "☐"));
  }
  for (const head of fragment.querySelectorAll("th")) head.scope = "col";
  for (const table of fragment.querySelectorAll("table")) {
    const frame = make("div", { class: "table", tabindex: "0", role: "group", "aria-label": "Table" });
    table.replaceWith(frame);
    frame.append(table);
  }
  for (const pre of fragment.querySelectorAll("pre")) {
    const code = pre.querySelector("code")!;
    const language = code.className.replace("language-", "");
    const frame = make("div", { class: "code" });
    pre.replaceWith(frame);
    for (const [name, value] of Object.entries({ tabindex: "0", role: "group", "aria-label": language ? `Code, ${language}` : "Code" })) pre.setAttribute(name, value);
    frame.append(make("div", { class: "code-bar" }, make("span", {}, language), copyButton(() => code.textContent ?? "", "Copy the code")), pre);
  }
  for (const source of fragment.querySelectorAll("code.formula:not(.open)")) typeset(source);
}

let formulas: typeof import("./formula.js") | undefined;
/** Formulas by their source, for a paragraph that grows shows its formulas again and again; undefined where one is not valid. */
const typesetBefore = new Map<string, HTMLElement | undefined>();
/** How many of them are held. */
const MOST_FORMULAS = 500;

/** Puts a formula in the place of its source, which stays where it is not valid. */
function typeset(source: Element): void {
  if (!formulas) {
    // Without a network and a copy the source stays.
    import("./formula.js").then((module) => {
      formulas = module;
      if (source.isConnected) typeset(source);
    }, () => {});
    return;
  }
  const text = source.textContent ?? "";
  if (!typesetBefore.has(text)) {
    if (typesetBefore.size >= MOST_FORMULAS) typesetBefore.clear();
    const tex = text.replace(/^(?:\$\$?|\\[([])|(?:\$\$?|\\[)\]])$/g, "");
    const made = formulas.typeset(tex, source.classList.contains("display"));
    if (made && source.classList.contains("display")) {
      for (const [name, value] of Object.entries({ class: "formula display", tabindex: "0", role: "group", "aria-label": "Formula" })) made.setAttribute(name, value);
    }
    typesetBefore.set(text, made);
  }
  const made = typesetBefore.get(text);
  if (made) source.replaceWith(made.cloneNode(true));
}

let highlighter: typeof import("./highlight.js") | undefined;
/** Longer code, in characters, stays as it is: its colours would take too long. */
const MOST_CODE = 30_000;

/** Colours the code in a block. */
function colour(node: Element): void {
  for (const code of node.querySelectorAll<HTMLElement>("pre > code[class]:not([data-coloured])")) void colourCode(code);
}

async function colourCode(code: HTMLElement): Promise<void> {
  const text = code.textContent ?? "";
  if (text.length > MOST_CODE) return;
  highlighter ??= await import("./highlight.js").catch(() => undefined);
  // It may have gone on meanwhile, or be selected: that would be lost.
  if (!highlighter || code.textContent !== text || isSelected(code)) return;
  code.dataset["coloured"] = "";
  const html = highlighter.highlight(text, code.className.replace("language-", ""));
  if (html !== undefined) code.replaceChildren(sanitize(html));
}

function isSelected(element: Element): boolean {
  const selection = getSelection();
  return selection !== null && !selection.isCollapsed && selection.containsNode(element, true);
}
