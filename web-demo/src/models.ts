// The model the page talks to: the embedded one at first, then whatever the visitor loads.
import { clearCache, Engine, ShohinError, type Progress } from "shohin";
import { advice } from "./advice.js";
import * as format from "./format.js";
import { make, page } from "./page.js";
import { learnPresets } from "./settings.js";

const SPROUT = new URL("sprout.gguf", document.baseURI);

interface Source {
  /** What messages call it. */
  name: string;
  from: URL | File;
  embedded?: boolean;
}

const sprout: Source = { name: "The embedded model", from: SPROUT, embedded: true };

/** Called when another model takes over, and whenever loading has ended. */
export const on = { change: (_name: string) => {}, ready: () => {} };

let engine: Engine | undefined;
let current: Source | undefined;
let loading: { abort: AbortController; done: Promise<void> } | undefined;

/** The loaded model, if there is one. */
export function loadedEngine(): Engine | undefined {
  return engine;
}

/** Waits for the model that is being loaded. */
export async function whenReady(): Promise<Engine | undefined> {
  while (loading) await loading.done;
  return engine;
}

export function showAlert(text: string | undefined): void {
  // Emptied first, so that a repeated message is read out again.
  page.alertText.textContent = "";
  page.alert.hidden = text === undefined;
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
  return source?.embedded ? "sprout" : engine.info.model.name || source?.name || "The model";
}

function showModel(): void {
  const state = engine ? "ready" : loading ? "loading" : "failed";
  page.model.dataset["state"] = state;
  page.useSprout.hidden = state === "ready" && (current?.embedded ?? false);
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
    ["Name", name],
    ["Architecture", model.architecture],
    ["Parameters", format.count(model.parameters)],
    ["File", format.bytes(model.fileBytes)],
    ["Formats", model.formats.join(", ")],
    ["Context", format.plural(context, "token")],
    ["Memory", format.bytes(memory.weights + memory.kv + memory.scratch)],
    ["Computes on", [backend.toUpperCase(), isa, threads > 1 ? `${threads} threads` : ""].filter(Boolean).join(", ")],
  ];
  page.facts.replaceChildren(...facts.flatMap(([term, value]) => [make("dt", {}, term), make("dd", {}, value)]));
}

/** Loads a model; the one before stays until the new one works. */
async function load(source: Source): Promise<void> {
  loading?.abort.abort();
  await loading?.done;
  const abort = new AbortController();
  let done = () => {};
  loading = { abort, done: new Promise((resolve) => (done = resolve)) };
  showAlert(undefined);
  page.loading.hidden = false;
  showProgress(source, { stage: source.from instanceof File ? "read" : "download", loaded: 0 });
  // Two large models need not fit beside each other.
  if (engine && !current?.embedded) {
    await engine.dispose();
    engine = undefined;
  }
  showModel();
  let fallBack = false;
  try {
    const next = await Engine.load(source.from, {
      signal: abort.signal,
      onProgress: (progress) => showProgress(source, progress),
      // The embedded model comes with the page and is as current as it.
      cache: !source.embedded,
    });
    if (current) on.change(nameOf(next, source));
    await engine?.dispose();
    engine = next;
    current = source;
    learnPresets(next.info);
    page.status.textContent = `${title(source)} is ready`;
  } catch (error) {
    fallBack = !engine && !source.embedded;
    if (!(error instanceof ShohinError && error.code === "aborted")) showAlert(advice(error, source.name));
  } finally {
    loading = undefined;
    done();
    page.loading.hidden = true;
    showModel();
    on.ready();
  }
  if (fallBack) {
    const reason = page.alert.hidden ? undefined : (page.alertText.textContent ?? undefined);
    await load(sprout);
    showAlert(reason);
  }
}

/** Starts afresh after the engine failed. */
export async function reload(): Promise<void> {
  const again = current ?? sprout;
  await engine?.dispose();
  engine = undefined;
  await load(again);
}

export function initModels(): void {
  page.loadingCancel.addEventListener("click", () => loading?.abort.abort());
  page.alertClose.addEventListener("click", () => {
    showAlert(undefined);
    page.prompt.focus();
  });
  page.openFile.addEventListener("click", () => page.file.click());
  page.useSprout.addEventListener("click", () => {
    page.settings.close();
    void load(sprout);
  });
  page.file.addEventListener("change", () => {
    const [file] = page.file.files ?? [];
    page.file.value = "";
    if (file) openFile(file);
  });
  page.urlForm.addEventListener("submit", (event) => {
    event.preventDefault();
    const text = page.url.value.trim();
    if (!URL.canParse(text) || !/^https?:$/.test(new URL(text).protocol)) {
      page.url.setCustomValidity("Give the full address of a GGUF file, starting with https://");
      page.url.reportValidity();
      return;
    }
    const from = new URL(text);
    page.settings.close();
    void load({ name: decodeURIComponent(from.pathname.split("/").pop() || from.host), from });
  });
  page.forget.addEventListener("click", async () => {
    await clearCache().catch((error: unknown) => showAlert(advice(error, "The kept models")));
    page.status.textContent = page.forgotten.textContent = "Deleted";
    setTimeout(() => (page.forgotten.textContent = ""), 3000);
  });
  page.url.addEventListener("input", () => page.url.setCustomValidity(""));

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
    const [file] = event.dataTransfer?.files ?? [];
    if (file) openFile(file);
  });

  void load(sprout);
}

function openFile(file: File): void {
  page.settings.close();
  void load({ name: file.name, from: file });
}
