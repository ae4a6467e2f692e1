// Light, dark, or as the system says. The choice is remembered.
import * as preferences from "./preferences.js";

type Mode = "auto" | "light" | "dark";

const NAMES: Record<Mode, string> = { auto: "as the system", light: "light", dark: "dark" };
const NEXT: Record<Mode, Mode> = { auto: "light", light: "dark", dark: "auto" };
const KEY = "shohin.theme";

export function initTheme(button: HTMLButtonElement): void {
  // Read by index.html.
  const stored = document.documentElement.dataset["theme"];
  let mode: Mode = stored === "light" || stored === "dark" ? stored : "auto";

  const apply = () => {
    document.documentElement.dataset["theme"] = mode;
    button.title = `Theme: ${NAMES[mode]}`;
    button.setAttribute("aria-label", button.title);
  };
  button.addEventListener("click", () => {
    mode = NEXT[mode];
    preferences.write(KEY, mode);
    apply();
  });
  apply();
}
