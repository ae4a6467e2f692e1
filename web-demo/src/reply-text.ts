// The text of replies: as Markdown once the modules that render it are here, as plain text until then.
import { make } from "./page.js";
import { nextTask } from "./task.js";

/** A text to try the modules on. */
const FIRST = "Once, *there* was `text`.\n\n- **text**";

let prose: typeof import("./prose.js") | undefined;
let loading: Promise<void> | undefined;

/** Fetches the modules that render Markdown. Without a network and a copy of them, replies stay plain text. */
export function loadProse(): Promise<void> {
  return (loading ??= (async () => {
    try {
      // In small tasks: together with what they first do, as compiling their expressions, they would hold up the reply.
      const { sanitize } = await import("./sanitize.js");
      await nextTask();
      sanitize("<p>text</p>");
      await nextTask();
      const { read, render } = await import("./markdown.js");
      await nextTask();
      const tokens = read(FIRST, []);
      await nextTask();
      render(tokens);
      prose = await import("./prose.js");
    } catch {
      loading = undefined;
    }
  })());
}

/** Shows a reply and its thoughts; `whole`: it does not go on. */
export function showText(target: HTMLElement, said: string, thoughts = "", whole = true): void {
  if (prose) prose.showProse(target, said, thoughts, whole);
  else target.replaceChildren(make("p", { class: "plain-text" }, said || thoughts));
}
