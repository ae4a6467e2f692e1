import { changeModel, followFoot, initSuggestions, isBusy, resume, say, showGauge, showState, stop } from "./chat.js";
import { watchWhile } from "./confidence.js";
import { draft, keepDraft } from "./drafts.js";
import { initInstall } from "./install.js";
import { initModels, onModel, onReady, showAlert } from "./models.js";
import { page } from "./page.js";
import { part } from "./parts.js";
import * as preferences from "./preferences.js";
import { loadProse } from "./reply-text.js";
import { registerServiceWorker } from "./service-worker.js";
import { initSettings, underlines } from "./settings.js";
import { nextTask } from "./task.js";
import { initTheme } from "./theme.js";
import { showUnkept } from "./unkept.js";

/** Lets the field grow with its text where the style sheet alone cannot. */
function fit(): void {
  if (CSS.supports("field-sizing", "content")) return;
  page.prompt.style.height = "auto";
  page.prompt.style.height = `${page.prompt.scrollHeight}px`;
}

function send(): void {
  const text = page.prompt.value.trim();
  if (text === "" || isBusy()) return;
  page.prompt.value = "";
  keepDraft("");
  fit();
  void say(text);
}

/** The button is of no use then, and would lose the focus. */
function end(): void {
  stop();
  page.prompt.focus();
}

page.composer.addEventListener("submit", (event) => {
  event.preventDefault();
  if (isBusy()) end();
  else send();
});
page.prompt.addEventListener("keydown", (event) => {
  // While an input method composes a character, Enter belongs to it.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
page.prompt.addEventListener("input", ({ isTrusted }) => {
  // What a link has put there is the visitor's only once it is changed.
  if (isTrusted) keepDraft(page.prompt.value);
  fit();
  showState();
});
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog:modal") && isBusy()) end();
});
onModel.change = changeModel;
onReady.add(() => {
  showState();
  showGauge();
});

preferences.onFull.tell = () => {
  preferences.onFull.tell = () => {};
  showAlert("This browser has no room left for the choices made on this page: they are gone when it is closed. Delete conversations or data of this site to make room.");
};

const PARTS = [
  part(async () => (await import("./links.js")).initLinks),
  part(async () => (await import("./chats.js")).initChats, page.newChat, page.openChats, page.forgetChats, page.importChats, page.exportChats),
  part(async () => (await import("./inside.js")).initInside, page.openInside),
  part(async () => (await import("./teach.js")).initTeach, page.openTeach),
  part(async () => (await import("./growth.js")).initGrowth),
  part(async () => (await import("./airplane.js")).initAirplane),
];

/** Starts the rest of the page, task by task. */
async function start(): Promise<void> {
  await nextTask();
  showState();
  initTheme(page.theme);
  followFoot();
  watchWhile(underlines);
  await nextTask();
  initSettings();
  await nextTask();
  void resume();
  initModels();
  await nextTask();
  // Not while developing: it would keep what was just changed.
  if (import.meta.env.PROD) void registerServiceWorker();
  for (const startPart of PARTS) {
    await nextTask();
    await startPart();
  }
  void showUnkept();
  await loadProse();
  // So that it is here without a network, too; it says so itself where it is not.
  await import("./share.js").catch(() => {});
}

if (page.prompt.value === "" && draft() !== "") {
  page.prompt.value = draft();
  fit();
}
// Before the browser offers it.
initInstall();
initSuggestions();
void start();
// The layout is known by then: a focus earlier would have to compute it, in the same task.
if (matchMedia("(hover: hover)").matches) {
  requestAnimationFrame(() =>
    setTimeout(() => {
      if (document.activeElement === document.body) page.prompt.focus();
    }),
  );
}
