// The panel "How it works": weights of the loaded model, its candidates for each token, its size, and where the time went.
import type { ChatFinish } from "shohin";
import { ask, onFinish } from "./chat.js";
import { onSteps, probability, watched, watchWhile } from "./confidence.js";
import * as format from "./format.js";
import { loadedEngine, loadedFile, onReady } from "./models.js";
import { make, page } from "./page.js";
import { closes } from "./settings.js";
import { readPatch, type Patch } from "./weights.js";

/** Cells of the patch, and their size in CSS pixels. */
const [ROWS, COLUMNS, CELL] = [24, 48, 8];
const QUESTION = "Tell me a story about a fox and a lantern.";
/** Beside the conversation where there is room for both; over it elsewhere. */
const wide = matchMedia("(min-width: 80rem)");

let patch: { file: URL | File; found: Patch | undefined } | undefined;
let reading: URL | File | undefined;
let last: { finish: ChatFinish; engine: unknown } | undefined;

/** A bar of a list: its name, how long it is of 1, and its value in words. */
function bar(name: string, share: number, value: string, attributes: Record<string, string> = {}): HTMLLIElement {
  const fill = make("span", { class: "fill" });
  // The policy of the page allows no style attributes, but this.
  fill.style.inlineSize = `${Math.max(0.5, 100 * Math.min(1, share))}%`;
  return make("li", attributes, make("span", { class: "name" }, name), make("span", { class: "track", "aria-hidden": "true" }, fill), make("span", { class: "value" }, value));
}

const percent = (share: number) => (share > 0 && share < 0.001 ? "< 0.1\u00a0%" : `${(100 * share).toFixed(1)}\u00a0%`);

/** A token as text, with its white space visible. */
function visible(text: string): string {
  return text.replace(/ /g, "␣").replace(/\n/g, "↵").replace(/\t/g, "⇥") || "(nothing)";
}

function showCandidates(): void {
  const all = watched();
  const none = all.length === 0;
  page.stepField.hidden = none;
  page.askInside.hidden = !none;
  page.askInside.disabled = !loadedEngine();
  page.candidatesNote.textContent = none
    ? "Probabilities are computed for replies that begin while this is open."
    : "As the model computes them, before temperature, top-k and top-p.";
  if (none) {
    page.candidates.replaceChildren();
    return;
  }
  page.step.max = String(all.length);
  const step = all[page.step.valueAsNumber - 1]!;
  page.stepText.textContent = `${page.step.value} of ${all.length}`;
  const others = step.top.some(({ token }) => token === step.token) ? step.top : [...step.top, step];
  page.candidates.replaceChildren(
    ...others.map((one) => {
      const chosen = one.token === step.token;
      const share = probability(one);
      return bar(visible(one.text), share, `${percent(share)}${chosen ? " ✓" : ""}`, chosen ? { class: "chosen", title: "Drawn" } : {});
    }),
  );
  if (others.length > 0) page.candidates.querySelector(".chosen .value")?.append(make("span", { class: "unseen" }, " drawn"));
}

function showSizes(): void {
  const engine = loadedEngine();
  page.sizes.replaceChildren();
  page.sizeNote.textContent = engine ? "" : "No model is loaded.";
  if (!engine) return;
  const { parameters, fileBytes } = engine.info.model;
  const full = 2 * parameters;
  const most = Math.max(full, fileBytes);
  page.sizes.append(bar("This file", fileBytes / most, format.bytes(fileBytes)), bar("16 bits each", full / most, format.bytes(full)));
  const bits = (8 * fileBytes) / parameters;
  page.sizeNote.textContent = `${format.count(parameters)} weights, ${bits.toFixed(2)} bits of file for each, vocabulary included.`;
}

function showTimes(): void {
  const finish = last?.engine === loadedEngine() ? last?.finish : undefined;
  page.times.replaceChildren();
  if (!finish) {
    page.timeNote.textContent = "Measured with the next reply.";
    return;
  }
  const { timings, usage } = finish;
  const whole = timings.prefillMs + timings.decodeMs;
  const duration = (ms: number) => (ms < 1000 ? `${ms.toFixed(ms < 10 ? 1 : 0)}\u00a0ms` : `${(ms / 1000).toFixed(1)}\u00a0s`);
  page.times.append(
    bar("Reading (prefill)", timings.prefillMs / whole, duration(timings.prefillMs)),
    bar("Writing (decode)", timings.decodeMs / whole, duration(timings.decodeMs)),
  );
  const read = usage.promptTokens - usage.cachedTokens;
  const rate = (tokens: number) => (tokens > 0 ? `, ${format.rate(tokens)} tokens/s` : "");
  page.timeNote.textContent =
    `The last reply: ${format.plural(read, "token")} read${rate(timings.prefillTokensPerSecond)}, ${format.count(usage.cachedTokens)} more were still in the cache; ` +
    `${format.plural(usage.completionTokens, "token")} written${rate(timings.tokensPerSecond)}.`;
}

/** The bytes of the file from its beginning. */
async function open(file: URL | File): Promise<ReadableStream<Uint8Array>> {
  if (file instanceof File) return file.stream();
  const response = await fetch(file);
  if (!response.ok || !response.body) throw new Error(`HTTP ${response.status}`);
  return response.body;
}

async function readWeights(): Promise<void> {
  const file = loadedFile();
  if (!file || reading === file) return;
  reading = file;
  page.patchRead.disabled = true;
  page.patchNote.textContent = "Reading the file.";
  try {
    patch = { file, found: await readPatch(await open(file), ROWS, COLUMNS) };
  } catch {
    page.patchNote.textContent = "The file cannot be read now.";
    page.patchRead.disabled = false;
    return;
  } finally {
    if (reading === file) reading = undefined;
  }
  page.patchRead.disabled = false;
  showWeights();
}

function showWeights(): void {
  const file = loadedFile();
  const known = file !== undefined && patch?.file === file;
  const found = known ? patch?.found : undefined;
  // A file from elsewhere may have to be downloaded again as far as its weights: only on request.
  const ours = file instanceof File || file?.origin === location.origin;
  page.patch.hidden = page.patchLegend.hidden = !found;
  page.patchRead.hidden = !file || known || ours;
  if (found) draw(found);
  else if (!file) page.patchNote.textContent = "No model is loaded.";
  else if (known) page.patchNote.textContent = "The matrices of this file are in a format that this page does not draw.";
  else if (ours) void readWeights();
  else if (reading !== file) page.patchNote.textContent = "The first weights are at the beginning of the file, which is downloaded again as far as that: a few megabytes.";
}

function draw(found: Patch): void {
  const { weights, rows, columns, tensor, shape } = found;
  const count = (value: number) => weights.reduce((sum, weight) => sum + Number(weight === value), 0);
  const values = [1, 0, -1].filter((value) => value !== 0 || count(0) > 0);
  const label = (value: number) => (value > 0 ? "+1" : value < 0 ? "−1" : "0");
  const share = (value: number) => percent(count(value) / weights.length);
  page.patchLegend.replaceChildren(...values.map((value) => make("li", {}, make("span", { class: `cell v${value + 1}`, "aria-hidden": "true" }), `${label(value)}: ${share(value)}`)));
  page.patch.setAttribute("aria-label", `${rows} by ${columns} weights: ${values.map((value) => `${label(value)} ${share(value)}`).join(", ")}`);
  page.patchNote.textContent =
    `${rows} × ${columns} of the ${shape.map(format.whole).join(" × ")} weights of ${tensor}, decoded from the file. ` +
    `Stored as ${found.format}: each ${found.group} share one scale.`;
  const scale = Math.max(1, Math.round(devicePixelRatio));
  page.patch.width = columns * CELL * scale;
  page.patch.height = rows * CELL * scale;
  const context = page.patch.getContext("2d");
  if (!context) return;
  context.scale(scale, scale);
  const [plus, minus, zero] = ["v2", "v0", "v1"].map((name) => getComputedStyle(page.patchLegend.querySelector(`.${name}`) ?? page.patchLegend).color);
  weights.forEach((weight, i) => {
    const [x, y] = [(i % columns) * CELL, Math.floor(i / columns) * CELL];
    // Shapes, too, for who cannot tell the colours apart.
    context.fillStyle = context.strokeStyle = (weight > 0 ? plus : weight < 0 ? minus : zero)!;
    if (weight > 0) context.fillRect(x + 1, y + 1, CELL - 2, CELL - 2);
    else if (weight < 0) context.strokeRect(x + 1.5, y + 1.5, CELL - 3, CELL - 3);
    else context.fillRect(x + CELL / 2 - 1, y + CELL / 2 - 1, 2, 2);
  });
}

/** Brings the panel up to date with the loaded model. */
function showInside(): void {
  if (!page.inside.open) return;
  showCandidates();
  showWeights();
  showSizes();
  showTimes();
}

export function initInside(): void {
  const shows = () => page.inside.open;
  watchWhile(shows);
  onReady.add(showInside);
  let due = false;
  onSteps.change = () => {
    if (!shows() || due) return;
    due = true;
    // At most once a frame, however fast the model is.
    requestAnimationFrame(() => {
      due = false;
      page.step.max = String(Math.max(1, watched().length));
      page.step.value = page.step.max;
      showCandidates();
    });
  };
  onFinish.add((finish) => {
    last = { finish, engine: loadedEngine() };
    if (shows()) showTimes();
  });
  page.step.addEventListener("input", showCandidates);
  page.patchRead.addEventListener("click", () => void readWeights());
  page.askInside.addEventListener("click", () => {
    page.closeInside.focus();
    void ask(QUESTION);
  });
  page.openInside.addEventListener("click", () => {
    if (page.inside.open) return page.inside.close();
    page.teach.close();
    if (wide.matches) page.inside.show();
    else page.inside.showModal();
    page.step.max = page.step.value = String(Math.max(1, watched().length));
    showInside();
  });
  // Without this, only a modal dialog closes with Escape and gives the focus back.
  page.inside.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || page.inside.matches(":modal")) return;
    event.stopPropagation();
    page.inside.close();
  });
  closes(page.inside, page.closeInside);
  // Where the window becomes too narrow for both, or the colours change.
  wide.addEventListener("change", () => {
    if (!page.inside.open) return;
    page.inside.close();
    if (wide.matches) page.inside.show();
    else page.inside.showModal();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showInside);
  new MutationObserver(showInside).observe(document.documentElement, { attributeFilter: ["data-theme"] });
}
