// The model the page talks to: the embedded one at first, then whatever the visitor picks.
import { deleteCache, Engine, listCache, ShohinError, type CacheEntry, type Progress } from "shohin";
import { advice, isGpuTrouble } from "./advice.js";
import { OFFERS, type Offer } from "./catalog.js";
import { device, fit, memoryOf } from "./fits.js";
import * as format from "./format.js";
import { adapter, forget, loadFaster, measured } from "./measure.js";
import { make, page } from "./page.js";
import * as preferences from "./preferences.js";
import { persist, room, withoutTrials } from "./room.js";
import { avoidGpu, closes, learn, loadOptions, onLoadOptions, resetContext } from "./settings.js";

const SPROUT = new URL("sprout.gguf", document.baseURI);
const LAST = "shohin.model";

interface Source {
  /** What messages call it. */
  name: string;
  /** An address, or the file, or all files of a model in parts. */
  from: URL | File[];
  embedded?: boolean;
}

const sprout: Source = { name: "The embedded model", from: SPROUT, embedded: true };

/** Called with the name of a model that takes over. */
export const onModel = { change: (_name: string) => {} };

/** Called whenever loading has ended. */
export const onReady = new Set<() => void>();

/** Called when a kept model was deleted. */
export const onDeleted = new Set<() => void>();

let engine: Engine | undefined;
let current: Source | undefined;
/** The load that was asked for last, until it has ended; it may still wait for the one before. */
let loading: { source: Source; abort: AbortController; done: Promise<void> } | undefined;
let kept: CacheEntry[] = [];
/** Bytes that may still be kept, once known. */
let free: number | undefined;
/** Addresses of models of which it was said that they are not kept. */
const unkept = new Set<string>();
/** Until it is known which model comes first. */
let starting: Promise<void> | undefined;

/** The loaded model, if there is one. */
export function loadedEngine(): Engine | undefined {
  return engine;
}

/** The first file of the loaded model: its address, or the file itself. */
export function loadedFile(): URL | File | undefined {
  if (!engine || !current) return undefined;
  const { from } = current;
  return from instanceof URL ? from : [...from].sort((a, b) => (a.name < b.name ? -1 : 1))[0];
}

/** Whether the loaded model is here at the next visit, too: it comes with the page, or is kept as a whole. */
export async function modelIsKept(): Promise<boolean> {
  return engine !== undefined && current !== undefined && (current.embedded || (await copyOf(current)).whole);
}

/** Waits for the model that is being loaded. */
export async function whenReady(): Promise<Engine | undefined> {
  await starting;
  while (loading) await loading.done;
  return engine;
}

/** Shows an alert; `retry` does again what has failed. */
export function showAlert(text: string | undefined, retry?: () => void): void {
  // Emptied first, so that a repeated message is read out again.
  page.alertText.textContent = "";
  page.alert.hidden = text === undefined;
  page.alertRetry.hidden = retry === undefined;
  page.alertRetry.onclick = () => {
    // The button is gone then.
    page.prompt.focus();
    retry?.();
  };
  page.alertText.textContent = text ?? "";
}

function showProgress(source: Source, { stage, loaded, total }: Progress): void {
  page.loadingName.textContent = stage === "prepare" ? `Preparing ${title(source)}` : title(source);
  page.loadingSize.textContent = total === undefined ? format.bytes(loaded) : `${format.bytes(loaded)} of ${format.bytes(total)}`;
  if (total === undefined) page.loadingBar.removeAttribute("value");
  else page.loadingBar.value = total > 0 ? Math.min(1, loaded / total) : 0;
}

function title(source: Source): string {
  return source.embedded ? "sprout" : source.name;
}

function nameOf(engine: Engine, source: Source | undefined): string {
  const offered = source && offerOf(source);
  return source?.embedded ? "sprout" : offered?.name || engine.info.model.name || source?.name || "The model";
}

function showModel(): void {
  page.model.dataset["state"] = engine ? "ready" : loading ? "loading" : "failed";
  if (!engine) {
    page.modelName.textContent = loading ? "Loading" : "No model";
    page.modelSize.textContent = "";
    page.facts.replaceChildren();
    return;
  }
  const { model, context, memory, backend, isa, threads } = engine.info;
  const name = nameOf(engine, current);
  page.modelName.textContent = name;
  page.modelSize.textContent = format.bytes(model.fileBytes);
  page.model.title = `${name}: ${format.count(model.parameters)} parameters, ${format.bytes(model.fileBytes)}`;
  page.about.textContent = `${name}, ${format.count(model.parameters)} weights in ${format.bytes(model.fileBytes)}, runs entirely in this tab. Nothing you type leaves it.`;
  const facts: [string, string][] = [
    ["Model", name],
    ["Shape", `${model.architecture}, ${format.count(model.parameters)} parameters`],
    ["Formats", model.formats.join(", ")],
    ["Computes on", [backend.toUpperCase(), isa, format.plural(threads, "thread")].filter(Boolean).join(", ")],
    ["Context", format.plural(context, "token")],
    ["Memory", `${format.bytes(memory.weights)} weights, ${format.bytes(memory.kv)} context, ${format.bytes(memory.scratch)} work`],
  ];
  page.facts.replaceChildren(...facts.flatMap(([term, value]) => [make("dt", {}, term), make("dd", {}, value)]));
}

function sameSource(a: Source | undefined, b: Source): boolean {
  return a !== undefined && (a.from instanceof URL && b.from instanceof URL ? a.from.href === b.from.href : a.from === b.from);
}

/** What the page says of a model before it is downloaded. */
function offerOf({ from }: Source): Offer | undefined {
  return from instanceof URL ? OFFERS.find(({ url }) => url === from.href) : undefined;
}

/** Whether the model that came with the page is the one that answers. */
export function isEmbedded(): boolean {
  return engine !== undefined && current?.embedded === true;
}

/** Whether a model answers that is offered. */
export function isUsed({ url }: Offer): boolean {
  return engine !== undefined && current !== undefined && addressOf(current) === url;
}

/** Loads an offered model in the place of the current one. */
export function use({ name, url }: Offer): Promise<boolean> {
  return load({ name, from: new URL(url) });
}

/** What is kept of an offered model. */
export async function copyOfOffer({ url }: Offer): Promise<CacheEntry | undefined> {
  return (await listCache(url).catch(() => [])).find((entry) => entry.url === url);
}

/** Loads a model; the one before stays until the new one works. Tells whether no other was asked for meanwhile. */
async function load(source: Source): Promise<boolean> {
  const before = loading;
  const abort = new AbortController();
  let done = () => {};
  const mine = { source, abort, done: new Promise<void>((resolve) => (done = resolve)) };
  loading = mine;
  const isLast = () => loading === mine;
  before?.abort.abort();
  showAlert(undefined);
  page.loading.hidden = false;
  showProgress(source, { stage: source.from instanceof URL ? "download" : "read", loaded: 0 });
  const url = addressOf(source);
  await before?.done;
  if (!isLast()) {
    done();
    return false;
  }
  // Set again once the model works: one that takes the tab down is not loaded at every visit.
  preferences.write(LAST);
  if (url) persist();
  // Two large models need not fit beside each other, nor the embedded one beside one that hardly fits.
  const offered = offerOf(source);
  const fits = !offered || ["fits", undefined].includes(fit(offered, device(), 0, loadOptions().context).verdict);
  if (engine && (!current?.embedded || !fits || sameSource(current, source))) {
    await engine.dispose();
    engine = undefined;
  }
  showModel();
  showOffers();
  let failure: unknown;
  let reason: string | undefined;
  let arrived = 0;
  try {
    const onProgress = (progress: Progress) => {
      arrived = Math.max(arrived, progress.loaded);
      showProgress(source, progress);
    };
    const options = loadOptions();
    const open = (backend = options.backend) =>
      Engine.load(source.from, {
        signal: abort.signal,
        onProgress,
        // The embedded model comes with the page and is as current as it.
        cache: !source.embedded,
        ...(offered && { sha256: offered.sha256 }),
        ...options,
        ...(backend && { backend }),
      });
    // It is read a second time for that, but not downloaded; and iOS would close a tab that holds a large model twice.
    const both = async () => source.embedded || (fits && !device().ios && (!url || (await copyOf(source)).whole));
    const next = await withoutTrials(() => (options.backend === "auto" ? loadFaster(identity(source), open, both, abort.signal) : open()));
    if (current && !sameSource(current, source)) onModel.change(nameOf(next, source));
    await engine?.dispose();
    engine = next;
    current = source;
    const speeds = options.backend === "auto" ? await measured(identity(source)) : undefined;
    learn(next.info, speeds && speeds.cpu > speeds.gpu ? "The CPU is faster with this model." : undefined);
    void showMeasured();
    if (url) preferences.write(LAST, JSON.stringify({ name: source.name, url }));
    page.status.textContent = `${title(source)} is ready`;
  } catch (error) {
    failure = error;
    if (!(error instanceof ShohinError && error.code === "aborted")) {
      const copy = await copyOf(source);
      reason = advice(error, source.name, { ...copy, any: arrived > 0 || copy.kept > 0 });
    }
  }
  const last = isLast();
  // From here to the next load nothing may be waited for: who waits for a model would find none.
  if (last) loading = undefined;
  done();
  if (!last) return false;
  if (failure !== undefined) {
    const code = failure instanceof ShohinError ? failure.code : "";
    if (reason && isGpuTrouble(failure)) {
      // Whether there is a GPU at all has nothing to do with the model.
      const isNew = avoidGpu(reason, code === "gpu_absent" ? undefined : source.name);
      const last = await load(source);
      if (last && isNew) showAlert(reason);
      return last;
    }
    // A context this model or this machine cannot hold would keep every other model from loading, too.
    if (reason && ["option", "memory", "limit"].includes(code) && loadOptions().context !== undefined) {
      resetContext();
      const last = await load(source);
      if (last) showAlert(reason);
      return last;
    }
    // Back to what worked.
    const back = engine ? undefined : current && !sameSource(current, source) ? current : source.embedded ? undefined : sprout;
    if (back && !(await load(back))) return false;
    if (reason) showAlert(reason, ["network", "timeout", "http"].includes(code) ? () => void load(source) : undefined);
  }
  page.loading.hidden = loading === undefined;
  showModel();
  for (const listener of onReady) listener();
  if (failure === undefined) await tellUnkept(source);
  if (page.models.open) {
    await listKept();
    await showRoom();
  }
  return true;
}

/** What measurements of a model go by. */
function identity({ from }: Source): string {
  return from instanceof URL ? from.href : from.map(({ name, size }) => `${name} ${size}`).join(", ");
}

/** Says which GPU there is, and how fast it and the CPU run the model. */
async function showMeasured(): Promise<void> {
  const [gpu, speeds] = [await adapter(), current && (await measured(identity(current)))];
  page.measured.hidden = gpu === undefined;
  page.measuredText.textContent = `GPU: ${gpu}.${speeds ? ` Measured with this model: GPU ${format.rate(speeds.gpu)}, CPU ${format.rate(speeds.cpu)} tokens/s.` : ""}`;
  page.measure.hidden = speeds === undefined || loadOptions().backend !== "auto";
}

/** Starts afresh: after the engine failed, or to use other settings. */
export async function reload(): Promise<void> {
  const [again, old] = [loading?.source ?? current ?? sprout, engine];
  engine = undefined;
  await old?.dispose();
  await load(again);
}

/** Whether downloads are kept: not over plain HTTP, nor where storage is blocked. */
export function keepsModels(): Promise<boolean> {
  return listCache(SPROUT).then(() => true, () => false);
}

/** Where a model is downloaded from, of those that are kept. */
function addressOf({ from, embedded }: Source): string | undefined {
  return from instanceof URL && !embedded ? from.href : undefined;
}

/** How much of a model is here, of how much if known, and whether that is all; of one in parts, all of them count. */
async function copyOf(source: Source): Promise<{ kept: number; total?: number; whole: boolean }> {
  const url = addressOf(source);
  if (!url) return { kept: 0, whole: false };
  const count = Number(/-\d{5}-of-(\d{5})(?=\.gguf)/.exec(url)?.[1] ?? 1);
  const files = await listCache(url).catch(() => []);
  const sum = (bytes: (entry: CacheEntry) => number) => files.reduce((all, entry) => all + bytes(entry), 0);
  const total = files.length === count ? sum(({ total }) => total ?? Number.NaN) : Number.NaN;
  const kept = sum(({ bytes }) => bytes);
  return { kept, ...(total >= 0 && { total }), whole: kept === total };
}

/** Says once of a model that works that it is not kept. */
async function tellUnkept(source: Source): Promise<void> {
  const url = addressOf(source);
  // Where nothing is kept at all, the page has said so.
  if (!url || unkept.has(url) || (await copyOf(source)).whole || !(await keepsModels()) || current !== source || loading) return;
  unkept.add(url);
  showAlert(`${source.name} works, but is not kept: this browser has no room for it. The next visit downloads it again. Delete another model to make room.`);
}

/** The model of the last visit, if it is here as a whole. */
async function lastModel(): Promise<Source | undefined> {
  try {
    const { name, url } = JSON.parse(preferences.read(LAST) ?? "null") as { name: string; url: string };
    const whole = (await listCache(url)).some((entry) => entry.complete && entry.url === url);
    return whole ? { name: String(name), from: new URL(url) } : undefined;
  } catch {
    return undefined;
  }
}

/** What a model is called of which only the address is known. */
export function nameFromAddress(url: URL): string {
  try {
    return decodeURIComponent(url.pathname.split("/").pop() || url.host);
  } catch {
    return url.host;
  }
}

/** One line of a list: a name, what is known of it, and what can be done with it. */
function line(name: string, detail: string, ...actions: (HTMLElement | false)[]): HTMLLIElement {
  return make("li", {}, make("div", {}, make("strong", {}, name), make("span", { class: "quiet" }, detail)), make("div", { class: "buttons" }, ...actions));
}

function action(label: string, name: string, act: () => void): HTMLButtonElement {
  // The name is part of the label, or every button would be read out alike.
  const button = make("button", { type: "button", class: "button" }, label, make("span", { class: "unseen" }, ` ${name}`));
  button.addEventListener("click", act);
  return button;
}

function pick(source: Source): void {
  page.models.close();
  void load(source);
}

/** Loads a model from an address, or the embedded one. */
export function pickModel(name?: string, from?: URL): void {
  pick(from ? { name: name ?? nameFromAddress(from), from } : sprout);
}

/** Name, weight formats and size of the loaded model. */
export function modelFacts(): string | undefined {
  if (!engine) return undefined;
  const { formats, fileBytes } = engine.info.model;
  return [nameOf(engine, current), formats.join(", "), format.bytes(fileBytes)].filter(Boolean).join(" · ");
}

function offer(offered: Offer): HTMLLIElement {
  const { name, url, size, note } = offered;
  const source = { name, from: new URL(url) };
  const copy = kept.find((entry) => entry.url === url);
  const state = copy?.complete ? ", kept here" : copy ? `, ${format.bytes(copy.bytes)} of it here` : "";
  const missing = copy?.complete ? 0 : size - (copy?.bytes ?? 0);
  const { context } = loadOptions();
  const { verdict, reasons } = fit(offered, device(free), missing, context);
  const detail = [`${format.bytes(size)}${state}`, `${format.bytes(memoryOf(offered, context))} of memory`, note].join(" · ");
  const isUsed = sameSource(current, source) && engine;
  const item = line(name, detail, isUsed ? make("span", { class: "used" }, "In use") : action(copy?.complete ? "Use" : copy ? "Resume" : "Download", name, () => pick(source)));
  // Without a verdict the browser does not tell enough.
  if (verdict) item.firstElementChild?.append(make("span", { "data-verdict": verdict }, [verdict, reasons.join(", ")].filter(Boolean).join(": ")));
  return item;
}

function showOffers(): void {
  if (!page.models.open) return;
  const focused = document.activeElement?.textContent;
  const used = current?.embedded && engine;
  page.offers.replaceChildren(
    line("sprout", "Comes with the page · a toy that knows a small world", used ? make("span", { class: "used" }, "In use") : action("Use", "sprout", () => pick(sprout))),
    ...OFFERS.map(offer),
  );
  page.kept.replaceChildren(
    ...kept.map((entry) => {
      const known = OFFERS.find(({ url }) => url === entry.url);
      const name = known?.name ?? nameFromAddress(new URL(entry.url));
      const size = entry.complete || entry.total === undefined ? format.bytes(entry.bytes) : `${format.bytes(entry.bytes)} of ${format.bytes(entry.total)}`;
      const remove = action("Delete", name, async () => {
        try {
          await deleteCache(entry.url);
          page.status.textContent = `${name} is deleted`;
        } catch {
          page.status.textContent = page.keptNote.textContent = `${name} is being read or downloaded, and cannot be deleted now.`;
          return;
        }
        for (const listener of onDeleted) listener();
        await listKept();
        void showRoom();
        // The button is gone.
        page.closeModels.focus();
      });
      const source = !known && { name, from: new URL(entry.url) };
      return line(name, size, source && !sameSource(current, source) && action(entry.complete ? "Use" : "Resume", name, () => pick(source)), remove);
    }),
  );
  for (const button of page.models.querySelectorAll("button")) if (focused && button.textContent === focused) button.focus();
}

/** Lists what is kept. Only while it is shown: see `listCache`. */
async function listKept(): Promise<void> {
  kept = (await listCache().catch(() => [])).sort((a, b) => b.bytes - a.bytes);
  showOffers();
}

/** Says for how much there is room, and which models have none. */
async function showRoom(): Promise<void> {
  if (!(await keepsModels())) {
    page.keptNote.textContent = `${isSecureContext ? "This browser keeps no models for this page" : "Over plain HTTP no models are kept"}: each visit downloads them again.`;
    return;
  }
  free = await room();
  showOffers();
  const words = kept.length === 0 ? "Models from an address are kept, so that they are downloaded once. " : "";
  page.keptNote.textContent = free === undefined ? words : `${words}The browser has room for ${format.bytes(free)} more.`;
}

export function initModels(): void {
  page.loadingCancel.addEventListener("click", () => loading?.abort.abort());
  page.alertClose.addEventListener("click", () => {
    showAlert(undefined);
    page.prompt.focus();
  });
  page.model.addEventListener("click", async () => {
    page.models.showModal();
    // Not those of the last time.
    kept = [];
    showOffers();
    await listKept();
    await showRoom();
  });
  closes(page.models, page.closeModels);
  onLoadOptions.change = () => void reload();
  page.measure.addEventListener("click", () => {
    if (loading || !current) return;
    page.measuredText.textContent = "Measuring.";
    page.backend.focus();
    void forget(identity(current)).then(reload);
  });
  page.openFile.addEventListener("click", () => page.file.click());
  page.file.addEventListener("change", () => {
    const files = [...(page.file.files ?? [])];
    page.file.value = "";
    openFiles(files);
  });
  page.urlForm.addEventListener("submit", (event) => {
    event.preventDefault();
    const text = page.url.value.trim();
    if (!URL.canParse(text) || !/^https?:$/.test(new URL(text).protocol)) {
      page.url.setCustomValidity("Give the full address of a GGUF file, starting with https://");
      page.url.setAttribute("aria-invalid", "true");
      page.url.reportValidity();
      return;
    }
    const from = new URL(text);
    pick({ name: nameFromAddress(from), from });
  });
  page.url.addEventListener("input", () => {
    page.url.setCustomValidity("");
    page.url.removeAttribute("aria-invalid");
  });

  // Files may be dropped anywhere.
  let depth = 0;
  const carriesFile = (event: DragEvent) => event.dataTransfer?.types.includes("Files") ?? false;
  const shade = (deeper: number) => {
    depth = Math.max(0, depth + deeper);
    page.drop.hidden = depth === 0;
  };
  addEventListener("dragenter", (event) => carriesFile(event) && shade(1));
  addEventListener("dragleave", (event) => carriesFile(event) && shade(-1));
  addEventListener("dragover", (event) => carriesFile(event) && event.preventDefault());
  addEventListener("drop", (event) => {
    if (!carriesFile(event)) return;
    event.preventDefault();
    depth = 0;
    page.drop.hidden = true;
    openFiles([...(event.dataTransfer?.files ?? [])]);
  });

  if (!preferences.read(LAST)) return void load(sprout);
  starting = lastModel().then((last) => {
    // Unless the visitor was quicker. Not awaited: `whenReady` waits for it by itself.
    if (!loading) void load(last ?? sprout);
  });
}

function openFiles(files: File[]): void {
  const [first] = files;
  if (!first) return;
  // Parts of a model go by its name.
  const name = files.length > 1 ? first.name.replace(/-\d{5}-of-\d{5}.*(?=\.gguf$)/, "") : first.name;
  pick({ name, from: files });
}
