// Copying to the clipboard.
import { showAlert } from "./models.js";
import { icon, make, page } from "./page.js";

const COPY = "M9 9h10v10H9zM15 9V5H5v10h4";
const COPIED = "M5 12.5l4.5 4.5L19 7.5";
const REFUSED = "The browser does not allow the page to copy. Select the text and copy it with the browser's own command.";

/** A button that copies a text, and says whether it could. */
export function copyButton(text: () => string, label: string): HTMLButtonElement {
  const button = make("button", { type: "button", title: "Copy", "aria-label": label }, icon(COPY));
  let shown: ReturnType<typeof setTimeout> | undefined;
  button.addEventListener("click", async () => {
    if (!(await copy(text()))) return showAlert(REFUSED);
    button.replaceChildren(icon(COPIED));
    button.dataset["copied"] = "";
    page.status.textContent = "Copied";
    clearTimeout(shown);
    shown = setTimeout(() => {
      button.replaceChildren(icon(COPY));
      delete button.dataset["copied"];
    }, 1500);
  });
  return button;
}

/** Whether the text is on the clipboard now. */
async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // There is no such interface over plain HTTP, and permission may be denied.
    return copySelected(text);
  }
}

/** Copies by the command for what is selected, which needs no secure context. Focus and selection stay as they were. */
function copySelected(text: string): boolean {
  const field = make("textarea", { class: "unseen", readonly: "", "aria-hidden": "true" });
  field.value = text;
  const focused = document.activeElement;
  const selection = getSelection();
  const range = selection && selection.rangeCount > 0 ? selection.getRangeAt(0) : undefined;
  document.body.append(field);
  field.select();
  let copied = false;
  try {
    copied = document.execCommand("copy");
  } finally {
    field.remove();
    if (range) {
      selection!.removeAllRanges();
      selection!.addRange(range);
    }
    if (focused instanceof HTMLElement) focused.focus({ preventScroll: true });
  }
  return copied;
}
