// Light, dark, or as the system says. The choice is remembered.
type Mode = "auto" | "light" | "dark";

const NAMES: Record<Mode, string> = { auto: "as the system", light: "light", dark: "dark" };
const NEXT: Record<Mode, Mode> = { auto: "light", light: "dark", dark: "auto" };
const KEY = "shohin.theme";

export function initTheme(button: HTMLButtonElement): void {
  const stored = localStorage.getItem(KEY);
  let mode: Mode = stored === "light" || stored === "dark" ? stored : "auto";

  const apply = () => {
    document.documentElement.dataset["theme"] = mode;
    button.dataset["mode"] = mode;
    button.title = `Theme: ${NAMES[mode]}`;
    button.setAttribute("aria-label", button.title);
  };
  button.addEventListener("click", () => {
    mode = NEXT[mode];
    localStorage.setItem(KEY, mode);
    apply();
  });
  apply();
}
