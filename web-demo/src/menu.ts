// The menu of a button: commands beside it. The browser opens and closes it, and returns the focus to the button.
import { make, page } from "./page.js";

/** Lets a button open the menu with these commands. */
export function opensMenu(button: HTMLButtonElement, label: string, commands: readonly (readonly [string, () => void])[]): void {
  button.popoverTargetElement = page.menu;
  // Before the browser opens it.
  button.addEventListener("click", () => {
    const { menu } = page;
    menu.setAttribute("aria-label", label);
    menu.replaceChildren(
      ...commands.map(([words, act], i) => {
        const command = make("button", { type: "button", ...(i === 0 && { autofocus: "" }) }, words);
        command.addEventListener("click", () => {
          menu.hidePopover();
          act();
        });
        return command;
      }),
    );
    const { right, bottom, top } = button.getBoundingClientRect();
    const below = bottom < innerHeight / 2;
    Object.assign(menu.style, {
      right: `${Math.max(8, innerWidth - right - 120)}px`,
      top: below ? `${bottom}px` : "auto",
      bottom: below ? "auto" : `${innerHeight - top}px`,
    });
  });
}

export function initMenu(): void {
  page.menu.addEventListener("keydown", (event) => {
    // It closes the menu, and stops no reply.
    if (event.key === "Escape") event.stopPropagation();
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const commands = [...page.menu.querySelectorAll("button")];
    const at = commands.findIndex((command) => command === document.activeElement);
    commands.at((at + step) % commands.length)?.focus();
  });
  // It would not scroll along with its button.
  page.chatList.addEventListener("scroll", () => page.menu.hidePopover());
}
