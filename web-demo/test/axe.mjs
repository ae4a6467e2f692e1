// What axe finds fault with: its usual rules, and the contrast of text that WCAG asks for at level AAA, 7:1.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

/** The faults of what is visible of a page now, or of an element in it, each beginning with `where`. */
export async function faults(page, where, element) {
  // By the debugger: the page's own policy allows no such script.
  await page.evaluate(AXE);
  const { violations, passes } = await page.evaluate((element) => globalThis.axe.run(element ?? document, { rules: { "color-contrast-enhanced": { enabled: true } } }), element);
  if (![...violations, ...passes].some(({ id }) => id === "color-contrast-enhanced")) throw new Error(`${where}: no contrast was measured`);
  const contrast = ({ any }) => (any[0]?.data?.contrastRatio ? ` (${any[0].data.fgColor} on ${any[0].data.bgColor}: ${any[0].data.contrastRatio})` : "");
  return violations.flatMap(({ id, nodes }) => nodes.map((node) => `${where}: ${id}: ${node.html.slice(0, 160)}${contrast(node)}`));
}
