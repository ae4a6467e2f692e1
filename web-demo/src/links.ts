// Links to the page: with a message, with a model, or with somebody's answer. None of them makes the page download or
// compute anything unasked.
import { listCache } from "shohin";
import { decode, LinkError } from "./answer.js";
import { OFFERS } from "./catalog.js";
import * as format from "./format.js";
import { nameFromAddress, pickModel } from "./models.js";
import { page } from "./page.js";
import { loadProse, showText } from "./reply-text.js";
import { closes } from "./settings.js";

/** Characters of a message that a link may bring. */
const LONGEST = 8_000;
/** Milliseconds that a server may take to tell the size of a model. */
const PATIENCE = 10_000;

/** Says something about the link that was followed. */
function notice(text: string | undefined): void {
  page.notice.hidden = text === undefined;
  page.noticeText.textContent = text ?? "";
}

/** Puts a message into the field, where it waits to be sent. */
function fill(text: string): void {
  if (text.length > LONGEST) return notice(`The message in the link is too long: expected at most ${format.plural(LONGEST, "character")}, found ${format.plural(text.length, "character")}.`);
  if (page.prompt.value.trim() !== "") return notice("The link has a message, too. It was left out, as there is one in the field already.");
  page.prompt.value = text;
  page.prompt.dispatchEvent(new Event("input"));
  notice("The message below comes from the link you followed. It is sent only when you press Send.");
}

/** Asks whether to load the model that a link names. */
async function offerModel(named: string): Promise<void> {
  const same = (name: string) => name.toLowerCase() === named.toLowerCase();
  if (same("sprout")) return ask("sprout", "It comes with this page: nothing is downloaded.", "Use sprout", () => pickModel());
  const known = OFFERS.find(({ name, url }) => same(name) || url === named);
  const address = known?.url ?? (URL.canParse(named) ? named : undefined);
  const url = address === undefined ? undefined : new URL(address);
  if (url?.protocol !== "https:") {
    const names = ["sprout", ...OFFERS.map(({ name }) => name)].join(", ");
    return notice(`The link asks for the model “${named.slice(0, 100)}”, which this page does not know. Expected one of ${names}, or the https address of a GGUF file.`);
  }
  const name = known?.name ?? nameFromAddress(url);
  const load = () => pickModel(name, url);
  const copy = (await listCache(url).catch(() => [])).find((entry) => entry.url === url.href);
  if (copy?.complete) return ask(name, "It is kept in this browser: nothing is downloaded.", `Use ${name}`, load);
  const from = `from ${url.host}`;
  if (known) return ask(name, `A download of ${format.bytes(known.size - (copy?.bytes ?? 0))} ${from}.`, "Download", load);
  // To ask a server for the size tells it of the visitor.
  ask(name, `It would be downloaded ${from}, which this page knows nothing about. ${url.host} is not contacted before you agree.`, "Ask for its size", async () => {
    const size = await sizeOf(url);
    ask(name, size === undefined ? `${url.host} does not tell the size of the download.` : `A download of ${format.bytes(size)} ${from}.`, "Download", load);
  });
}

async function sizeOf(url: URL): Promise<number | undefined> {
  try {
    const response = await fetch(url, { method: "HEAD", signal: AbortSignal.timeout(PATIENCE) });
    const length = response.ok ? response.headers.get("Content-Length") : null;
    return length === null ? undefined : Number(length);
  } catch {
    return undefined;
  }
}

function ask(name: string, detail: string, label: string, agree: () => void): void {
  page.askText.textContent = `The link you followed asks for the model ${name}.`;
  page.askDetail.textContent = detail;
  page.askYes.textContent = label;
  page.askYes.onclick = () => {
    page.ask.close();
    agree();
  };
  if (!page.ask.open) page.ask.showModal();
  page.askNo.focus();
}

/** Shows the answer of a link, which nothing can tell from one that somebody made up. */
async function showAnswer(fragment: string): Promise<void> {
  try {
    const { question, answer, source } = await decode(fragment);
    page.sharedQuestion.textContent = question;
    await loadProse();
    showText(page.sharedAnswer, answer);
    // Nobody vouches for where they lead.
    for (const link of page.sharedAnswer.querySelectorAll("a")) link.replaceWith(...link.childNodes);
    page.sharedSource.textContent = source ? `The link says: ${source}` : "";
    page.sharedAsk.onclick = () => {
      hideAnswer();
      page.prompt.value = question;
      page.prompt.dispatchEvent(new Event("input"));
      page.prompt.focus();
    };
    page.shared.hidden = false;
    page.shared.scrollIntoView({ block: "nearest" });
    page.sharedTitle.focus();
  } catch (error) {
    removeFragment();
    if (!(error instanceof LinkError)) throw error;
    notice(`The answer in the link cannot be read: ${error.message}.`);
  }
}

function hideAnswer(): void {
  page.shared.hidden = true;
  removeFragment();
}

function removeFragment(): void {
  const url = new URL(location.href);
  url.hash = "";
  history.replaceState(history.state, "", url);
}

/** Does what the address says, and removes that from the address. An answer stays there, for a reload. */
function follow(): void {
  const url = new URL(location.href);
  const fragment = new URLSearchParams(url.hash.slice(1));
  const [prompt, model] = ["prompt", "model"].map((key) => fragment.get(key) || url.searchParams.get(key));
  const answer = fragment.get("answer");
  if (prompt || model) {
    url.searchParams.delete("prompt");
    url.searchParams.delete("model");
    if (fragment.has("prompt") || fragment.has("model")) url.hash = "";
    history.replaceState(history.state, "", url);
  }
  if (prompt) fill(prompt);
  if (model) void offerModel(model);
  if (answer !== null) void showAnswer(answer);
}

export function initLinks(): void {
  closes(page.ask, page.askNo);
  page.noticeClose.addEventListener("click", () => {
    notice(undefined);
    page.prompt.focus();
  });
  page.composer.addEventListener("submit", () => notice(undefined));
  page.closeShared.addEventListener("click", () => {
    hideAnswer();
    page.prompt.focus();
  });
  addEventListener("hashchange", follow);
  follow();
}
