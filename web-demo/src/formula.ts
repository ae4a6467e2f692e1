// Mathematics, typeset by KaTeX. Fetched when a reply contains the first formula.
import katex from "katex";
import "katex/dist/katex.min.css";

/** A formula in TeX as an element, or undefined if it is not valid. Nothing in it can link, fetch or style the page. */
export function typeset(tex: string, display: boolean): HTMLElement | undefined {
  const element = document.createElement("span");
  element.className = "formula";
  try {
    katex.render(tex, element, { displayMode: display, trust: false, strict: "ignore", maxSize: 20, maxExpand: 1000 });
  } catch {
    return undefined;
  }
  return element;
}
