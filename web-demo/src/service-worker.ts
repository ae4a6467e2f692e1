// Registers the service worker, with which the page opens without a network and is isolated on any host from the second visit on.
import * as preferences from "./preferences.js";

const RELOADED = "shohin.reloaded";

/**
 * Isolation, and so threads, takes a navigation that the service worker answers. The first visit has none yet when it is
 * opened, and goes on as it is: by the time there is one the model is loaded and the visitor is reading or writing. Only a tab that was
 * opened in the background and not looked at yet is loaded again, once.
 */
export async function registerServiceWorker(): Promise<void> {
  let isSeen = document.visibilityState === "visible";
  document.addEventListener("visibilitychange", () => (isSeen = true), { once: true });
  try {
    const { serviceWorker } = navigator;
    const isFirst = serviceWorker.controller === null && !crossOriginIsolated;
    serviceWorker.addEventListener("controllerchange", () => {
      if (!isFirst || isSeen || preferences.read(RELOADED, "tab")) return;
      preferences.write(RELOADED, "yes", "tab");
      if (preferences.read(RELOADED, "tab")) location.reload();
    });
    // Not waited for: after a reload during the first visit, Chromium may not say for minutes that it is registered.
    serviceWorker.register("./sw.js").catch(() => {});
    const { active } = await serviceWorker.ready;
    // By each page: one that is being loaded when the service worker asks for all pages does not become its own.
    const claim = () => {
      if (active?.state === "activated" && serviceWorker.controller === null) active.postMessage("claim");
    };
    active?.addEventListener("statechange", claim);
    claim();
  } catch {
    // There are none over plain HTTP, nor where storage is blocked.
  }
}
