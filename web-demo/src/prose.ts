// A reply as the page shows it: Markdown, made into elements one by one. What a model writes only ever becomes text
// nodes and checked link targets, so nothing it writes can become markup or be fetched.
import { Lexer, type Links, type Token, type Tokens, type TokensList } from "marked";
import { icon, make } from "./page.js";

const COPY = "M9 9h10v10H9zM15 9V5H5v10h4";
const COPIED = "M5 12.5l4.5 4.5L19 7.5";

/** A block that is shown, what it was made of, and where in the text that begins. */
interface Block {
  token: Token;
  at: number;
  node: Node;
}

interface Shown {
  /** Unless all of it has to be read again when it goes on. */
  text: string | undefined;
  blocks: Block[];
  /** Where links by name lead, and where in the text the block begins that says so; the first of a name counts. */
  targets: Map<string, { at: number; link: Links[string] }>;
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
 */
export function showProse(target: HTMLElement, said: string, thoughts = ""): void {
  const text = said.includes("\r") ? said.replace(/\r\n?/g, "\n") : said;
  const before = shown.get(target) ?? NOTHING;
  const first = thoughts ? showThoughts(target, thoughts, said === "") : undefined;
  let settled = before.text !== undefined && text.startsWith(before.text) ? Math.max(0, before.blocks.length - OPEN) : 0;
  let at = settled > 0 ? before.blocks[settled]!.at : 0;
  const targets: Shown["targets"] = new Map([...before.targets].filter(([, target]) => target.at < at));
  let tokens = read(text.slice(at), targets);
  let links = JSON.stringify(Object.entries(tokens.links));
  if (settled > 0 && links !== before.links) {
    // What was read before may be called by these names.
    settled = at = 0;
    targets.clear();
    tokens = read(text, targets);
    links = JSON.stringify(Object.entries(tokens.links));
  }
  const relinked = links !== before.links;
  const blocks = before.blocks.slice(0, settled);
  let whole = true;
  for (const token of tokens) {
    if (token.type !== "space" && token.type !== "def") {
      const old = before.blocks[blocks.length];
      blocks.push({ token, at, node: old ? renewed(old, token, relinked) : block(token) });
    }
    for (const { tag, href, title } of definitions(token)) if (!targets.has(tag)) targets.set(tag, { at, link: { href, title } });
    if (!text.startsWith(token.raw, at)) whole = false;
    at += token.raw.length;
  }
  shown.set(target, { text: whole ? text : undefined, blocks, targets, links });
  const ahead = first ? 1 : 0;
  for (let i = settled; i < blocks.length; i++) {
    const { node } = blocks[i]!;
    const there = target.childNodes[ahead + i] ?? null;
    if (there !== node) target.insertBefore(node, there);
  }
  while (target.childNodes.length > ahead + blocks.length) target.lastChild!.remove();
}

/** Reads a text before which links were given names. */
function read(text: string, targets: Shown["targets"]): TokensList {
  const lexer = new Lexer({ gfm: true });
  for (const [tag, { link }] of targets) lexer.tokens.links[tag] = link;
  return lexer.lex(text);
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
  if (!(node instanceof Text)) element.replaceChildren(document.createTextNode(text));
  else if (text.startsWith(node.data)) node.appendData(text.slice(node.data.length));
  else node.data = text;
}

/**
 * The node of a block as it is by now: the old one, brought up to date, where it is of the same kind. `relinked`: names of
 * links lead elsewhere.
 */
function renewed({ token: old, node }: Block, token: Token, relinked: boolean): Node {
  if (old.type !== token.type) return block(token);
  if (relinked && token.type !== "code" && token.raw.includes("[")) {
    const anew = block(token);
    return node.isEqualNode(anew) ? node : anew;
  }
  if (old.raw === token.raw) return node;
  const element = node as Element;
  switch (token.type) {
    case "code": {
      const [before, now] = [old as Tokens.Code, token as Tokens.Code];
      if (before.lang !== now.lang) return block(token);
      write(element.querySelector("pre > code")!, now.text);
      return node;
    }
    case "list": {
      const [before, now] = [old as Tokens.List, token as Tokens.List];
      if (before.ordered !== now.ordered || before.start !== now.start || before.loose !== now.loose) return block(token);
      renewParts(element, before.items.map(({ raw }) => raw), now.items.map(({ raw }) => raw), (i) => item(now.items[i]!));
      return node;
    }
    case "table": {
      const [before, now] = [old as Tokens.Table, token as Tokens.Table];
      const text = (cells: Tokens.TableCell[]) => cells.map((cell) => cell.text).join("|");
      if (text(before.header) !== text(now.header) || before.align.join() !== now.align.join()) return block(token);
      renewParts(element.querySelector("tbody")!, before.rows.map(text), now.rows.map(text), (i) => row(now.rows[i]!, "td"));
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

function block(token: Token): Node {
  switch (token.type) {
    case "heading": {
      // Headings of the page come first.
      const level = Math.min(6, (token as Tokens.Heading).depth + 2) as 3 | 4 | 5 | 6;
      return make(`h${level}`, {}, ...inline(token));
    }
    case "code":
      return code(token as Tokens.Code);
    case "blockquote":
      return make("blockquote", {}, ...blocks((token as Tokens.Blockquote).tokens));
    case "hr":
      return make("hr");
    case "list":
      return list(token as Tokens.List);
    case "table":
      return table(token as Tokens.Table);
    case "paragraph":
      return make("p", {}, ...inline(token));
    case "text":
      return make("p", {}, ...inline(token));
    default:
      // Markup, and whatever else there may be, is shown as it was written.
      return make("p", {}, token.raw.trimEnd());
  }
}

function blocks(tokens: Token[]): Node[] {
  return tokens.filter((token) => token.type !== "space" && token.type !== "def").map(block);
}

function list(token: Tokens.List): Node {
  const items = token.items.map(item);
  if (!token.ordered) return make("ul", {}, ...items);
  const start = Number(token.start);
  return make("ol", start !== 1 && Number.isSafeInteger(start) ? { start: String(start) } : {}, ...items);
}

function item(token: Tokens.ListItem): Node {
  const nodes = token.tokens
    // The box of a task is drawn from `checked`.
    .filter((part) => part.type !== "space" && part.type !== "checkbox")
    .flatMap((part) => (part.type === "text" || (part.type === "paragraph" && !token.loose) ? inline(part) : [block(part)]));
  const box = token.task && make("span", { role: "img", class: "box", "aria-label": token.checked ? "done" : "open" }, token.checked ? "☑ " : "☐ ");
  return make("li", {}, box, ...nodes);
}

function table(token: Tokens.Table): Node {
  const head = make("thead", {}, row(token.header, "th"));
  const body = make("tbody", {}, ...token.rows.map((cells) => row(cells, "td")));
  return make("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" }, make("table", {}, head, body));
}

function row(cells: Tokens.TableCell[], tag: "th" | "td"): Node {
  return make(
    "tr",
    {},
    ...cells.map((cell) => make(tag, { ...(tag === "th" && { scope: "col" }), ...(cell.align && { class: cell.align }) }, ...inline(cell))),
  );
}

function code(token: Tokens.Code): Node {
  const language = /^[\w+#.-]{1,20}/.exec(token.lang ?? "")?.[0] ?? "";
  const content = make("code", {}, document.createTextNode(token.text));
  const copy = copyButton(() => content.textContent ?? "", "Copy the code");
  const pre = make("pre", { tabindex: "0", role: "region", "aria-label": language ? `Code, ${language}` : "Code" }, content);
  return make("div", { class: "code" }, make("div", { class: "code-bar" }, make("span", {}, language), copy), pre);
}

function inline(token: unknown): (Node | string)[] {
  const { tokens, text } = token as { tokens?: Token[]; text?: string };
  return tokens ? tokens.flatMap(span) : [text ?? ""];
}

function span(token: Token): (Node | string)[] {
  switch (token.type) {
    case "text":
      return "tokens" in token && token.tokens ? inline(token) : [token.raw];
    case "escape":
      return [(token as Tokens.Escape).text];
    case "strong":
      return [make("strong", {}, ...inline(token))];
    case "em":
      return [make("em", {}, ...inline(token))];
    case "del":
      return [make("del", {}, ...inline(token))];
    case "codespan":
      return [make("code", {}, (token as Tokens.Codespan).text)];
    case "br":
      return [make("br")];
    case "link":
    case "image":
      return [link(token as Tokens.Link | Tokens.Image)];
    default:
      return [token.raw];
  }
}

/** A link where its target is one a reader may follow; pictures become links, so that nothing is fetched unasked. */
function link(token: Tokens.Link | Tokens.Image): Node {
  const words = token.type === "link" ? inline(token) : [token.text || token.href];
  const target = URL.canParse(token.href) ? new URL(token.href) : undefined;
  if (!target || !["https:", "http:", "mailto:"].includes(target.protocol)) return make("span", {}, ...words);
  return make("a", { href: target.href, target: "_blank", rel: "noopener noreferrer nofollow", title: target.href }, ...words);
}

/** A button that copies a text. */
export function copyButton(text: () => string, label: string): HTMLButtonElement {
  const button = make("button", { type: "button", title: "Copy", "aria-label": label }, icon(COPY));
  button.addEventListener("click", async () => {
    const status = document.getElementById("status");
    try {
      await navigator.clipboard.writeText(text());
    } catch {
      if (status) status.textContent = "The browser does not allow copying";
      return;
    }
    button.replaceChildren(icon(COPIED));
    if (status) status.textContent = "Copied";
    setTimeout(() => button.replaceChildren(icon(COPY)), 1500);
  });
  return button;
}
