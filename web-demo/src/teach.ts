// The panel "Teach it": questions and answers become an adapter in this browser, which the model then has.
import { ShohinError, type Engine, type Fact, type TeachProgress } from "shohin";
import { download } from "./export.js";
import * as format from "./format.js";
import { loadedEngine, loadedFile, onReady } from "./models.js";
import { make, page } from "./page.js";
import { closes } from "./settings.js";
import * as lessons from "./lessons.js";

/** The adapter's name in the engine. */
const NAME = "taught";
/** More than this many questions take minutes. */
const MOST = 24;
/** Beside the conversation where there is room for both; over it elsewhere. */
const wide = matchMedia("(min-width: 80rem)");

let taught: lessons.Taught | undefined;
/** The engine that what was taught was last given to. */
let given: Engine | undefined;
let learning: AbortController | undefined;
let losses: number[] = [];

/** What was taught belongs to the model that it was taught. */
function modelOf(engine: Engine): string {
  const { name, fileBytes, parameters } = engine.info.model;
  return `${name} ${parameters} ${fileBytes}`;
}

function row(fact?: Fact): HTMLLIElement {
  const field = (name: string, value: string, placeholder: string) => {
    const input = make("input", { type: "text", name, placeholder, autocomplete: "off", maxlength: "300", dir: "auto", "aria-label": name === "question" ? "Question" : "Answer" });
    input.value = value;
    return input;
  };
  const away = make("button", { type: "button", class: "plain", "aria-label": "Remove this question" }, "Remove");
  const item = make("li", {}, field("question", fact?.question ?? "", "What is my dog called?"), field("answer", fact?.answer ?? "", "Your dog is called Biscuit."), away);
  away.addEventListener("click", () => {
    const next = item.nextElementSibling ?? item.previousElementSibling;
    item.remove();
    if (page.teachFacts.childElementCount === 0) page.teachFacts.append(row());
    ((next ?? page.teachFacts.firstElementChild)?.querySelector("input") as HTMLInputElement | null)?.focus();
    showTeach();
  });
  return item;
}

/** What the form says, without rows that are empty; undefined if one is half filled. */
function written(): Fact[] | undefined {
  const facts: Fact[] = [];
  for (const item of page.teachFacts.children) {
    const [question = "", answer = ""] = Array.from(item.querySelectorAll("input"), ({ value }) => value.trim());
    if (question === "" && answer === "") continue;
    if (question === "" || answer === "") return undefined;
    facts.push({ question, answer });
  }
  return facts;
}

function fill(facts: readonly Fact[]): void {
  page.teachFacts.replaceChildren(...facts.map(row));
  if (facts.length === 0) page.teachFacts.append(row());
}

function say(text: string): void {
  page.teachNote.textContent = text;
}

/** The losses so far, on a scale on which a tenth is always as far. */
function showChart(): void {
  const svg = page.teachChart;
  svg.toggleAttribute("hidden", losses.length < 2);
  if (losses.length < 2) return;
  const [low, high] = [Math.log10(0.01), Math.log10(10)];
  const y = (loss: number) => 58 - (56 * (Math.min(Math.max(Math.log10(Math.max(loss, 1e-9)), low), high) - low)) / (high - low);
  const x = (i: number) => 2 + (296 * i) / Math.max(losses.length - 1, 20);
  svg.querySelector("polyline")?.setAttribute("points", losses.map((loss, i) => `${x(i).toFixed(1)},${y(loss).toFixed(1)}`).join(" "));
  svg.setAttribute("aria-label", `Loss over ${losses.length} steps: from ${losses[0]!.toFixed(2)} to ${losses.at(-1)!.toFixed(2)}`);
}

/** Brings the panel up to date. */
function showTeach(): void {
  if (!page.teach.open) return;
  const engine = loadedEngine();
  const onCpu = engine?.info.backend === "cpu";
  page.teachGo.hidden = learning !== undefined;
  page.teachStop.hidden = learning === undefined;
  page.teachGo.disabled = !onCpu;
  page.teachMore.disabled = page.teachFacts.childElementCount >= MOST;
  page.teachLearned.hidden = taught === undefined;
  page.teachImport.disabled = !onCpu;
  if (!engine) say("No model is loaded.");
  else if (!onCpu) say("Teaching runs on the CPU: choose it in the settings.");
  page.teachUse.checked = taught?.on ?? false;
  page.teachKnown.replaceChildren(...(taught?.facts ?? []).map(({ question, answer }) => make("li", { dir: "auto" }, make("b", {}, question), ` ${answer}`)));
  if (taught && taught.facts.length === 0) page.teachKnown.append(make("li", {}, "From a file, which does not say what."));
  showChart();
}

/** Gives the engine what was taught, or takes it away. */
async function apply(): Promise<void> {
  const engine = loadedEngine();
  if (!engine || engine.info.backend !== "cpu") return;
  given = engine;
  if (engine.adapters.list().some(({ name }) => name === NAME)) engine.adapters.remove(NAME);
  if (taught?.on) await engine.adapters.add(taught.file, { name: NAME });
}

async function keep(): Promise<void> {
  const engine = loadedEngine();
  if (engine && !(await lessons.keep(modelOf(engine), taught))) say("This browser has no room left for it: it is gone when the page is closed.");
}

/** At a new model: what it was taught before. */
async function modelChanged(): Promise<void> {
  const engine = loadedEngine();
  if (engine === given) return showTeach();
  given = engine;
  learning?.abort();
  taught = engine && (await lessons.kept(modelOf(engine)));
  if (engine !== loadedEngine()) return;
  try {
    await apply();
  } catch (error) {
    // Of another version of the model, or damaged.
    taught = undefined;
    say(`What was taught cannot be used: ${(error as Error).message}`);
  }
  fill(taught?.facts ?? []);
  showTeach();
}

function reported(progress: TeachProgress): void {
  if (progress.stage === "ask") say(`Asking what it says so far: ${Math.round(100 * progress.share)} %`);
  else if (progress.stage === "prepare") say("Reading its answers…");
  else {
    losses.push(progress.loss);
    say(`Step ${progress.step}: ${Math.round(100 * progress.sure)} % sure of the hardest word`);
    showChart();
  }
}

async function learn(): Promise<void> {
  const [engine, facts] = [loadedEngine(), written()];
  if (!engine || learning) return;
  if (!facts) return say("Each question needs its answer.");
  if (facts.length === 0) return say("Write a question and the answer you want.");
  const mine = (learning = new AbortController());
  losses = [];
  showTeach();
  try {
    const file = loadedFile();
    const { file: bytes, learned, answers } = await engine.teach(facts, { name: NAME, signal: mine.signal, onProgress: reported, ...(file instanceof File && { model: file }) });
    if (engine !== loadedEngine()) return;
    taught = { facts, file: new Uint8Array(bytes), on: true };
    const missed = answers.filter(({ expected, after }) => expected.trim() !== after.trim());
    say(learned ? "Learned. Ask it." : `Not learned: ${missed.map(({ question, after }) => `“${question}” is answered “${after}”`).join("; ")}`);
    await keep();
  } catch (error) {
    if (mine.signal.aborted) {
      say("Stopped: nothing has changed.");
    } else say(error instanceof ShohinError ? `It failed: ${error.message}` : "It failed.");
  } finally {
    if (learning === mine) learning = undefined;
    showTeach();
  }
}

async function imported(file: File): Promise<void> {
  const before = taught;
  try {
    const bytes = new Uint8Array(await file.arrayBuffer());
    taught = { facts: lessons.factsOf(bytes), file: bytes, on: true };
    await apply();
    await keep();
    fill(taught.facts);
    say(`${file.name} is in use (${format.bytes(bytes.length)}).`);
  } catch (error) {
    taught = before;
    await apply().catch(() => {});
    say(`${file.name} cannot be used: ${(error as Error).message}`);
  }
  showTeach();
}

export function initTeach(): void {
  onReady.add(() => void modelChanged());
  page.teachForm.addEventListener("submit", (event) => {
    event.preventDefault();
    void learn();
  });
  page.teachStop.addEventListener("click", () => learning?.abort());
  page.teachMore.addEventListener("click", () => {
    const added = row();
    page.teachFacts.append(added);
    added.querySelector("input")?.focus();
    showTeach();
  });
  page.teachUse.addEventListener("change", async () => {
    if (!taught) return;
    taught = { ...taught, on: page.teachUse.checked };
    await apply();
    await keep();
  });
  page.teachExport.addEventListener("click", () => {
    if (taught) download("taught.gguf", new Blob([taught.file as Uint8Array<ArrayBuffer>], { type: "application/octet-stream" }));
  });
  page.teachForget.addEventListener("click", async () => {
    taught = undefined;
    await apply();
    await keep();
    losses = [];
    fill([]);
    say("Forgotten.");
    showTeach();
  });
  page.teachImport.addEventListener("click", () => page.teachFile.click());
  page.teachFile.addEventListener("change", () => {
    const file = page.teachFile.files?.[0];
    page.teachFile.value = "";
    if (file) void imported(file);
  });
  page.openTeach.addEventListener("click", () => {
    if (page.teach.open) return page.teach.close();
    if (page.teachFacts.childElementCount === 0) fill(taught?.facts ?? []);
    // There is room for one beside the conversation.
    page.inside.close();
    if (wide.matches) page.teach.show();
    else page.teach.showModal();
    showTeach();
  });
  // Without this, only a modal dialog closes with Escape and gives the focus back.
  page.teach.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || page.teach.matches(":modal")) return;
    event.stopPropagation();
    page.teach.close();
  });
  closes(page.teach, page.closeTeach);
  void modelChanged();
}
