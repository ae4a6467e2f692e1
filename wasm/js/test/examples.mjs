// The examples in the documentation.
import { readdir, readFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";

const GUIDES = new URL("../../../docs/web/", import.meta.url);

/** The code blocks of a Markdown text: language and code. */
export function blocksOf(markdown) {
  return [...markdown.matchAll(/^```(\w+)\n(.*?)^```$/gms)].map(([, kind, text]) => ({ kind, text }));
}

/** The pages of `docs/web`, by name: path, text and code blocks. */
export async function guides() {
  const names = (await readdir(GUIDES)).filter((file) => file.endsWith(".md")).sort();
  const pages = names.map(async (file) => {
    const url = new URL(file, GUIDES);
    const text = await readFile(url, "utf8");
    return [file.slice(0, -".md".length), { path: fileURLToPath(url), text, blocks: blocksOf(text) }];
  });
  return Object.fromEntries(await Promise.all(pages));
}
