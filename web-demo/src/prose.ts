// A reply as the page shows it: Markdown, made into elements one by one. What a model writes only ever becomes text
// nodes and checked link targets, so nothing it writes can become markup or be fetched.
import { Lexer, type Token, type Tokens } from "marked";
import { icon, make } from "./page.js";

const COPY = "M9 9h10v10H9zM15 9V5H5v10h4";
const COPIED = "M5 12.5l4.5 4.5L19 7.5";

/** A block that is shown, and what it was made of. */
interface Block {
  raw: string;
  node: Node;
}

const shown = new WeakMap<HTMLElement, Block[]>();

/** Shows a text; blocks that are shown already stay as they are, with what the reader selected or opened in them. */
export function showProse(target: HTMLElement, said: string, thoughts = ""): void {
  const before = shown.get(target) ?? [];
  const next: Block[] = [];
  let first: Node | undefined;
  if (thoughts) {
    const old = target.firstElementChild;
    const details = old instanceof HTMLDetailsElement ? old : make("details", { class: "thoughts" }, make("summary"), make("p"));
    details.children[0]!.textContent = said === "" ? "Thinking" : "Thoughts";
    details.children[1]!.textContent = thoughts;
    first = details;
  }
  const tokens = Lexer.lex(said, { gfm: true }).filter((token) => token.type !== "space" && token.type !== "def");
  tokens.forEach((token, i) => {
    const old = before[i];
    next.push(old?.raw === token.raw ? old : { raw: token.raw, node: block(token) });
  });
  shown.set(target, next);
  const nodes = [...(first ? [first] : []), ...next.map(({ node }) => node)];
  nodes.forEach((node, i) => {
    if (target.childNodes[i] !== node) target.insertBefore(node, target.childNodes[i] ?? null);
  });
  while (target.childNodes.length > nodes.length) target.lastChild!.remove();
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
  const items = token.items.map((item) => {
    const nodes = item.tokens
      // The box of a task is drawn from `checked`.
      .filter((part) => part.type !== "space" && part.type !== "checkbox")
      .flatMap((part) => (part.type === "text" || (part.type === "paragraph" && !item.loose) ? inline(part) : [block(part)]));
    const box = item.task && make("span", { role: "img", class: "box", "aria-label": item.checked ? "done" : "open" }, item.checked ? "☑ " : "☐ ");
    return make("li", {}, box, ...nodes);
  });
  if (!token.ordered) return make("ul", {}, ...items);
  const start = Number(token.start);
  return make("ol", start !== 1 && Number.isSafeInteger(start) ? { start: String(start) } : {}, ...items);
}

function table(token: Tokens.Table): Node {
  const row = (cells: Tokens.TableCell[], tag: "th" | "td") =>
    make(
      "tr",
      {},
      ...cells.map((cell) => make(tag, { ...(tag === "th" && { scope: "col" }), ...(cell.align && { class: cell.align }) }, ...inline(cell))),
    );
  const head = make("thead", {}, row(token.header, "th"));
  const body = make("tbody", {}, ...token.rows.map((cells) => row(cells, "td")));
  return make("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" }, make("table", {}, head, body));
}

function code(token: Tokens.Code): Node {
  const language = /^[\w+#.-]{1,20}/.exec(token.lang ?? "")?.[0] ?? "";
  const copy = copyButton(() => token.text, "Copy the code");
  const pre = make("pre", { tabindex: "0", role: "region", "aria-label": language ? `Code, ${language}` : "Code" }, make("code", {}, token.text));
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
