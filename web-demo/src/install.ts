// Installing the page as an app, where the browser offers that.
import { page } from "./page.js";

/** Of Chromium. */
interface InstallPrompt extends Event {
  prompt(): Promise<unknown>;
}

export function initInstall(): void {
  let offer: InstallPrompt | undefined;
  const show = (prompt?: InstallPrompt) => {
    offer = prompt;
    page.install.hidden = prompt === undefined;
  };
  addEventListener("beforeinstallprompt", (event) => {
    // The button takes the place of the browser's own hint.
    event.preventDefault();
    show(event as InstallPrompt);
  });
  addEventListener("appinstalled", () => {
    show();
    page.status.textContent = "Shohin is installed";
  });
  page.install.addEventListener("click", () => {
    // Each prompt can be shown once; the browser sends another if it is declined.
    const prompt = offer;
    page.newChat.focus();
    show();
    prompt?.prompt().catch(() => {});
  });
}
