// The conversation: what was said, and saying it.
import { ShohinError, type ChatFinish, type Message } from "shohin";
import { advice } from "./advice.js";
import * as format from "./format.js";
import { loadedEngine, reload, showAlert, whenReady } from "./models.js";
import { icon, make, page } from "./page.js";
import { showProse } from "./prose.js";
import { chatOptions, systemPrompt } from "./settings.js";

const COPY = "M9 9h10v10H9zM15 9V5H5v10h4";
const COPIED = "M5 12.5l4.5 4.5L19 7.5";
const AGAIN = "M19 12a7 7 0 1 1-2.2-5.1M19 4v4h-4";

/** What the embedded model is good at. */
const SUGGESTIONS = [
  "What can you do?",
  "Tell me a story about a fox and a lantern.",
  "Hi! My name is Mira.",
  "What is the opposite of hot?",
  "Tell me a joke.",
];

let messages: Message[] = [];
/** Ends a reply; `started` once the model is at it. */
type Reply = AbortController & { started?: boolean };

let running: Reply | undefined;

export function isBusy(): boolean {
  return running !== undefined;
}

/** Ends the reply that is being written; what is there stays. */
export function stop(): void {
  running?.abort();
}

/** Ends what the model before was writing, and says who goes on. */
export function changeModel(name: string): void {
  if (running?.started) stop();
  if (messages.length > 0) page.conversation.append(make("li", { class: "note" }, `${name} goes on from here.`));
}

/** Forgets the conversation. */
export function newChat(): void {
  stop();
  running = undefined;
  messages = [];
  page.conversation.replaceChildren();
  showAlert(undefined);
  page.status.textContent = "New chat";
  showState();
}

/** Brings buttons and the welcome into agreement with what is going on. */
export function showState(): void {
  page.welcome.hidden = messages.length > 0;
  page.send.toggleAttribute("data-busy", isBusy());
  page.send.title = isBusy() ? "Stop" : "Send";
  page.send.setAttribute("aria-label", page.send.title);
  page.send.disabled = !isBusy() && page.prompt.value.trim() === "";
}

export function showSuggestions(): void {
  page.suggestions.replaceChildren(
    ...SUGGESTIONS.map((text) => {
      const button = make("button", { type: "button" }, text);
      button.addEventListener("click", () => {
        page.prompt.focus();
        void say(text);
      });
      return make("li", {}, button);
    }),
  );
}

/** Sends a message and shows the reply as it comes. */
export async function say(text: string): Promise<void> {
  if (isBusy()) return;
  messages.push({ role: "user", content: text });
  const turn = make("li", { class: "turn user", "data-role": "user" }, make("span", { class: "unseen" }, "You: "), make("div", { class: "text", "data-part": "text" }, text));
  page.conversation.append(turn);
  await reply();
}

async function reply(): Promise<void> {
  const abort: Reply = new AbortController();
  running = abort;
  const conversation = messages;
  for (const old of page.conversation.querySelectorAll(".again")) old.remove();
  const body = make("div", { class: "text", "data-part": "text" });
  const tools = make("div", { class: "tools" });
  const turn = make("li", { class: "turn assistant", "data-role": "assistant", "data-state": "busy", "aria-busy": "true" });
  turn.append(icon("#mark", "0 0 32 32"), make("div", {}, make("span", { class: "unseen" }, "Reply: "), body), tools);
  page.conversation.append(turn);
  showAlert(undefined);
  showState();
  toEnd();

  let text = "";
  let tokens = 0;
  let first = 0;
  let finish: ChatFinish | undefined;
  let failure: unknown;
  let dirty = false;
  let ended = false;
  const paint = () => {
    dirty = false;
    if (ended) return;
    const follows = isAtEnd();
    showProse(body, text);
    if (!finish && tokens > 1) {
      tools.replaceChildren(make("span", { class: "figures" }, speed((tokens - 1) / ((performance.now() - first) / 1000))));
    }
    if (follows) toEnd();
  };
  try {
    const stopped = new Promise<never>((_, reject) => {
      abort.signal.addEventListener("abort", () => reject(new ShohinError("aborted", "stopped")), { once: true });
    });
    const engine = await Promise.race([whenReady(), stopped]);
    if (!engine) throw new ShohinError("argument", "no model is loaded");
    abort.started = true;
    const system = systemPrompt();
    const prompt: Message[] = system ? [{ role: "system", content: system }, ...conversation] : [...conversation];
    for await (const chunk of engine.chat(prompt, { ...chatOptions(), signal: abort.signal })) {
      if (tokens === 0) first = performance.now();
      text += chunk.text;
      tokens += chunk.tokens.length;
      finish = chunk.finish;
      // At most once a frame, however fast the model is.
      if (!dirty) requestAnimationFrame(paint);
      dirty = true;
    }
  } catch (error) {
    failure = error;
  }

  const aborted = failure instanceof ShohinError && failure.code === "aborted";
  if (running === abort) running = undefined;
  // The chat was cleared meanwhile: nothing to show.
  if (conversation !== messages) return;
  const follows = isAtEnd();
  turn.removeAttribute("aria-busy");
  paint();
  ended = true;
  tools.replaceChildren();
  if (failure !== undefined && !aborted) showAlert(advice(failure, "The reply"));
  if (text === "" && failure !== undefined) {
    // Nothing came of it: give the message back.
    turn.remove();
    const last = messages.pop();
    page.conversation.lastElementChild?.remove();
    if (page.prompt.value === "") page.prompt.value = last?.content ?? "";
  } else {
    messages.push(finish?.message ?? { role: "assistant", content: text });
    showTools(tools, text, figures(finish, aborted));
    const dropped = finish?.usage.droppedMessages ?? 0;
    if (dropped > 0) {
      turn.before(make("li", { class: "note" }, `The model no longer sees the first ${format.plural(dropped, "message")}: its memory is full.`));
    }
    turn.dataset["state"] = "done";
    page.status.textContent = text;
  }
  showState();
  if (follows) toEnd();
  if (failure instanceof ShohinError && (failure.code === "crashed" || failure.code === "worker")) {
    const reason = page.alertText.textContent ?? undefined;
    await reload();
    if (loadedEngine()) showAlert(reason);
  }
}

function showTools(tools: HTMLElement, text: string, figures: string): void {
  const copy = make("button", { type: "button", title: "Copy", "aria-label": "Copy the reply" }, icon(COPY));
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text);
    copy.replaceChildren(icon(COPIED));
    page.status.textContent = "Copied";
    setTimeout(() => copy.replaceChildren(icon(COPY)), 1500);
  });
  const again = make("button", { type: "button", class: "again", title: "Try again", "aria-label": "Try again" }, icon(AGAIN));
  again.addEventListener("click", () => {
    if (isBusy()) return;
    messages.pop();
    tools.parentElement?.remove();
    page.prompt.focus();
    void reply();
  });
  tools.replaceChildren(copy, again, make("span", { class: "figures" }, figures));
}

/** What is said below a reply. */
function figures(finish: ChatFinish | undefined, aborted: boolean): string {
  if (!finish) return aborted ? "Stopped" : "Broken off";
  const parts = [format.plural(finish.usage.completionTokens, "token")];
  if (finish.timings.tokensPerSecond > 0) parts.push(speed(finish.timings.tokensPerSecond));
  if (finish.reason === "length") parts.push("cut at the token limit");
  if (finish.reason === "context_full") parts.push("cut: the model's memory is full");
  return parts.join(" · ");
}

function speed(tokensPerSecond: number): string {
  return `${format.rate(tokensPerSecond)} tokens/s`;
}

function toEnd(): void {
  scrollTo({ top: document.documentElement.scrollHeight });
}

/** Whether the reader is at the end of the page, and so wants to follow. */
function isAtEnd(): boolean {
  const { scrollHeight, clientHeight, scrollTop } = document.documentElement;
  return scrollHeight - clientHeight - scrollTop < 80;
}
