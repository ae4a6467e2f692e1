// Markdown as sanitized elements: marked reads it, `sanitize` checks the result.
import { Lexer, Marked, Parser, type Token, type Tokens, type TokensList } from "marked";
import { sanitize, WRITABLE } from "./sanitize.js";

export type { Token, Tokens } from "marked";

/** Where a link by name leads. */
export type Target = TokensList["links"][string];

/** A formula in TeX, between its delimiters. */
interface Formula extends Tokens.Generic {
  type: "formula" | "formula-block";
  raw: string;
  /** On a line of its own. */
  display: boolean;
  /** The end is missing. */
  open: boolean;
}

const NOT_WRITABLE = new RegExp(`<(?!/?(?:${WRITABLE})\\s*/?>)`, "gi");

const ESCAPES: Record<string, string> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
const escape = (text: string) => text.replace(/[&<>"]/g, (character) => ESCAPES[character]!);
/** The same for a text in which entities stand for characters. */
const escapeSome = (text: string) => text.replace(/&(?!#?\w+;)|[<>"]/g, (character) => ESCAPES[character]!);

/** `\(...\)`, `\[...\]`, `$$...$$`, and `$...$` without space inside the dollars, nor what goes on with a name or number after them. */
const INLINE = /^(?:\\\([^]+?\\\)|\\\[[^]+?\\\]|\$\$[^$]+\$\$|\$(?!\s)(?:\\[^]|[^\\$])+(?<!\s)\$(?![\p{Lu}\p{N}_{$]))/u;
/** Up to the end, or, where that is still to come, to the end of the text. A formula has no empty line in it. */
const BLOCK = /^ {0,3}(?:\$\$(?:(?!\n[ \t]*\n|\$\$)[^])+\$\$|\\\[(?:(?!\n[ \t]*\n|\\\])[^])+\\\])[ \t]*(?:\n|$)/;
const OPEN_BLOCK = /^ {0,3}(?:\$\$|\\\[)[ \t]*(?:\n(?:(?!\n[ \t]*\n)[^])*)?$/;
/** "5 dollars or 10", from between two prices: it begins with a number, has words in it, and nothing of TeX. */
const PRICE = /^\d[^\\^_{}=<>+*]*\p{L}{2}[^\\^_{}=<>+*]*$/u;

/** A paragraph longer than this, in characters, is shown as several: a model that never ends one must not slow the page down. */
const LONG = 6000;
/** Lines of words; others may begin a block. */
const WORDS = /^(?:\p{L}[^\n]*(?:\n|$))+$/u;
/** Up to the last sentence, or else up to the last word. */
const SENTENCES = /^[^]+[.!?]\s(?=\p{L})/u;
const WHOLE_WORDS = /^[^]+\s(?=\p{L})/u;

const marked = new Marked({
  gfm: true,
  breaks: true,
  extensions: [
    {
      name: "formula-block",
      level: "block",
      start: (text) => text.search(/\n {0,3}(?:\$\$|\\\[)/),
      tokenizer(text): Formula | undefined {
        const closed = BLOCK.exec(text);
        const raw = (closed ?? OPEN_BLOCK.exec(text))?.[0];
        return raw === undefined ? undefined : { type: "formula-block", raw, display: true, open: !closed };
      },
      renderer: (token) => `<p>${formula(token as Formula)}</p>`,
    },
    {
      name: "formula",
      level: "inline",
      start: (text) => text.search(/\$|\\[([]/),
      tokenizer(text, before): Formula | undefined {
        const raw = INLINE.exec(text)?.[0];
        if (raw === undefined) return undefined;
        if (raw[0] === "$" && (PRICE.test(raw.slice(1, -1)) || /[\p{L}\p{N}$]$/u.test(before.at(-1)?.raw ?? ""))) return undefined;
        return { type: "formula", raw, display: raw.startsWith("$$") || raw.startsWith("\\["), open: false };
      },
      renderer: (token) => formula(token as Formula),
    },
    {
      name: "paragraph",
      level: "block",
      tokenizer(text): Tokens.Paragraph | undefined {
        if (text.length <= LONG) return undefined;
        const head = text.slice(0, LONG);
        const raw = WORDS.test(head) ? (SENTENCES.exec(head) ?? WHOLE_WORDS.exec(head))?.[0] : undefined;
        return raw === undefined ? undefined : { type: "paragraph", raw, text: raw.trimEnd(), tokens: this.lexer.inline(raw.trimEnd()) };
      },
    },
  ],
  renderer: {
    // Headings of the page come first.
    heading({ depth, tokens }) {
      const tag = `h${Math.min(6, depth + 2)}`;
      return `<${tag}>${this.parser.parseInline(tokens)}</${tag}>`;
    },
    code({ text, lang }) {
      const language = /^[\w+#.-]{1,20}/.exec(lang ?? "")?.[0];
      return `<pre><code${language ? ` class="language-${escape(language)}"` : ""}>${escape(text)}</code></pre>`;
    },
    html(token) {
      const text = token.text.replace(NOT_WRITABLE, "&lt;");
      return token.block ? `<p>${text.trim().replaceAll("\n", "<br>")}</p>` : text;
    },
    link({ href, tokens }) {
      // No links within links: pictures there are their names.
      const isPicture = tokens.some(({ type }) => type === "image");
      const words = isPicture ? escapeSome(this.parser.parseInline(tokens, this.parser.textRenderer)) : this.parser.parseInline(tokens);
      return `<a href="${escapeSome(href)}">${words || escapeSome(href)}</a>`;
    },
    // Fetched, the address of a picture could carry out what was said.
    image({ href, text }) {
      const link = `<a href="${escapeSome(href)}">${escapeSome(href)}</a>`;
      return text ? `${escapeSome(text)} (${link})` : link;
    },
  },
});

function formula({ raw, display, open }: Formula): string {
  return `<code class="formula${display ? " display" : ""}${open ? " open" : ""}">${escape(raw.trim())}</code>`;
}

/** What is in blocks that were read, until they are rendered: most blocks of a list or table that grows are rendered already. */
const unread = new WeakMap<Token[], { text: string; lexer: Lexer }>();

/** Reads the blocks of a text before which links were given names. */
export function read(text: string, names: Iterable<[string, Target]>): TokensList {
  const lexer = new Lexer(marked.defaults);
  for (const [name, target] of names) lexer.tokens.links[name] = target;
  lexer.blockTokens(text, lexer.tokens);
  for (const { src, tokens } of lexer.inlineQueue) unread.set(tokens, { text: src, lexer });
  lexer.inlineQueue = [];
  return lexer.tokens;
}

/** Reads what is in a block. */
function readWithin(tokens: Token[] | undefined): void {
  const found = tokens && unread.get(tokens);
  if (!found) return;
  unread.delete(tokens);
  found.lexer.state.inRawBlock = false;
  found.lexer.inlineTokens(found.text, tokens);
}

/**
 * Elements of blocks that were read. Formulas are `code.formula` with their source; links have only addresses that may be
 * followed, or none.
 */
export function render(blocks: Token[]): DocumentFragment {
  marked.walkTokens(blocks, (token) => {
    if (token.type === "table") for (const { tokens } of [token.header, ...token.rows].flat()) readWithin(tokens);
    else if ("tokens" in token) readWithin(token.tokens);
  });
  return sanitize(Parser.parse(blocks, marked.defaults));
}
