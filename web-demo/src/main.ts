import { changeModel, followFoot, isBusy, resume, say, showGauge, showState, showSuggestions, stop } from "./chat.js";
import { initChats, showList } from "./chats.js";
import { writeAgain } from "./history.js";
import { initModels, on } from "./models.js";
import { page } from "./page.js";
import { registerServiceWorker } from "./service-worker.js";
import { initSettings } from "./settings.js";
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
page.prompt.addEventListener("input", () => {
  fit();
  showState();
});
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open]") && isBusy()) end();
});
on.change = changeModel;
on.ready = () => {
  showState();
  showGauge();
};

on.deleted = () => void writeAgain().then(showList);

initTheme(page.theme);
initSettings();
showSuggestions();
showState();
followFoot();
void resume();
initChats();
initModels();
void showUnkept();
if (matchMedia("(hover: hover)").matches) page.prompt.focus();

// Not while developing: it would keep what was just changed.
if (import.meta.env.PROD) void registerServiceWorker();
