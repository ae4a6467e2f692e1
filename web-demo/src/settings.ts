// The settings sheet: sampling, the system prompt, and what the engine may use. Choices are remembered.
import type { ChatOptions, EngineInfo, LoadOptions, Preset } from "shohin";
import { make, page } from "./page.js";
import * as preferences from "./preferences.js";

type Backend = NonNullable<LoadOptions["backend"]>;

interface Settings {
  preset: Preset;
  temperature: number;
  topK: number;
  topP: number;
  maxTokens: number;
  /** Empty: random. */
  seed: string;
  system: string;
  thinking: boolean;
  backend: Backend;
  /** Empty: as many as there are. */
  threads: string;
  /** Empty: the engine's own choice. */
  context: string;
  /** What kept the GPU from being used, once it has been told. */
  told: string;
}

const KEY = "shohin.settings";
const DEFAULT: Settings = {
  preset: "bonsai",
  temperature: 0.5,
  topK: 20,
  topP: 0.85,
  maxTokens: 400,
  seed: "",
  system: "",
  thinking: false,
  backend: "cpu",
  threads: "",
  context: "",
  told: "",
};

let settings: Settings = DEFAULT;
let info: EngineInfo | undefined;
/** Why the GPU is left alone until the next choice or visit. */
let gpuTrouble: string | undefined;

/** Called when something has changed that a model is loaded with. */
export const onLoadOptions = { change: () => {} };

function stored(): Partial<Settings> {
  try {
    const value: unknown = JSON.parse(preferences.read(KEY) ?? "{}");
    return typeof value === "object" && value !== null ? value : {};
  } catch {
    return {};
  }
}

function show(): void {
  page.preset.value = settings.preset;
  page.temperature.value = String(settings.temperature);
  page.topK.value = String(settings.topK);
  page.topP.value = String(settings.topP);
  page.maxTokens.value = String(settings.maxTokens);
  page.seed.value = settings.seed;
  page.system.value = settings.system;
  page.thinking.checked = settings.thinking;
  page.context.value = settings.context;
  page.backend.value = settings.backend;
  if (page.backend.value === "") page.backend.value = settings.backend = DEFAULT.backend;
  const threads = [...page.threads.options].some(({ value }) => value === settings.threads);
  page.threads.value = threads ? settings.threads : "";
  for (const input of NUMBERS) calm(input);
  showValues();
}

const NUMBERS = [page.maxTokens, page.seed, page.context];

/** Says beside a field what would be right in it. */
function fault(input: HTMLInputElement): void {
  const whole = new Intl.NumberFormat("en");
  const range = `A whole number from ${whole.format(Number(input.min))} to ${whole.format(Number(input.max))}`;
  const words = input.required ? `${range}.` : `${range}, or nothing: ${input.placeholder}.`;
  const element = document.getElementById(`${input.id}-fault`);
  // A live region would read the same words again.
  if (element && element.textContent !== words) element.textContent = words;
  input.setAttribute("aria-invalid", "true");
}

function calm(input: HTMLInputElement): void {
  const element = document.getElementById(`${input.id}-fault`);
  if (element) element.textContent = "";
  input.removeAttribute("aria-invalid");
}

/** Finds fault with what was left in a number field, and with nothing that is still being typed. */
function judge(event: Event): void {
  const input = NUMBERS.find((input) => input === event.target);
  if (input?.validity.valid) calm(input);
  else if (input && event.type === "change") fault(input);
}

/** The numbers beside the sliders. */
function showValues(): void {
  for (const slider of [page.temperature, page.topK, page.topP]) {
    const output = document.getElementById(`${slider.id}-value`);
    if (output) output.textContent = slider === page.topK ? slider.value : Number(slider.value).toFixed(2);
  }
}

function store(changes: Partial<Settings>): void {
  settings = { ...settings, ...changes };
  preferences.write(KEY, JSON.stringify(settings));
}

function keep(): void {
  const number = (input: HTMLInputElement, old: number) => (input.validity.valid && input.value !== "" ? input.valueAsNumber : old);
  store({
    preset: page.preset.value as Preset,
    temperature: number(page.temperature, settings.temperature),
    topK: number(page.topK, settings.topK),
    topP: number(page.topP, settings.topP),
    maxTokens: number(page.maxTokens, settings.maxTokens),
    seed: page.seed.validity.valid ? page.seed.value : settings.seed,
    system: page.system.value,
    thinking: page.thinking.checked,
  });
  showValues();
}

/** Lets a dialog be closed by its button and by a click beside it; Escape closes it anyway. */
export function closes(dialog: HTMLDialogElement, button: HTMLButtonElement): void {
  button.addEventListener("click", () => dialog.close());
  // A click beside the sheet lands on the dialog itself.
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
}

export function initSettings(): void {
  const known = stored();
  settings = { ...DEFAULT };
  for (const key of Object.keys(DEFAULT) as (keyof Settings)[]) {
    if (typeof known[key] === typeof DEFAULT[key]) Object.assign(settings, { [key]: known[key] });
  }
  const cores = crossOriginIsolated ? navigator.hardwareConcurrency || 1 : 1;
  const counts = [1, 2, 4, 8, 16, 32].filter((n) => n < cores);
  page.threads.append(make("option", { value: "" }, cores > 1 ? `All (${cores})` : "One"), ...counts.map((n) => make("option", { value: String(n) }, String(n))));
  page.threads.disabled = cores === 1;
  if (!crossOriginIsolated) page.computeNote.append(` Threads need a page that is served ${isSecureContext ? "" : "over HTTPS and "}with cross-origin isolation; this one is not.`);
  show();

  page.preset.addEventListener("change", () => {
    const values = info?.presets[page.preset.value as Preset];
    if (!values) return;
    page.temperature.value = String(values.temperature);
    page.topK.value = String(values.topK);
    page.topP.value = String(values.topP);
  });
  for (const form of [page.sampling, page.compute]) {
    form.addEventListener("input", judge);
    form.addEventListener("change", judge);
  }
  page.sampling.addEventListener("input", keep);
  page.sampling.addEventListener("change", keep);
  page.sampling.addEventListener("submit", (event) => event.preventDefault());
  page.compute.addEventListener("submit", (event) => event.preventDefault());
  page.compute.addEventListener("change", ({ target }) => {
    const valid = page.context.validity.valid;
    if (target === page.context && !valid) return;
    // Who chooses anew wants it tried anew, and to hear what comes of it.
    gpuTrouble = undefined;
    if (page.backend.value !== settings.backend) store({ told: "" });
    const context = valid ? page.context.value : settings.context;
    store({ backend: page.backend.value as Backend, threads: page.threads.value, context });
    onLoadOptions.change();
  });

  page.openSettings.addEventListener("click", () => {
    // What is in force, not what was left in a field and could not be taken.
    show();
    page.settings.showModal();
  });
  closes(page.settings, page.closeSettings);
}

/** Learns from an engine what the presets stand for and what its model can do. */
export function learn(loaded: EngineInfo): void {
  info = loaded;
  if (info.backend === "webgpu" && settings.told !== "") store({ told: "" });
  showBackend();
  const thinks = info.model.thinking;
  page.thinking.disabled = !thinks;
  page.thinkingNote.textContent = thinks ? "" : "not with this model";
}

export function systemPrompt(): string {
  return settings.system.trim();
}

export function chatOptions(): ChatOptions {
  const { preset, temperature, topK, topP, maxTokens, seed } = settings;
  const thinking = settings.thinking && info?.model.thinking === true;
  return { preset, temperature, topK, topP, maxTokens, thinking, overflow: "trim", ...(seed !== "" && { seed: Number(seed) }) };
}

/** Says what computes, and why not what was chosen. */
function showBackend(): void {
  const now = info?.backend === "webgpu" ? `Now: the GPU (${info.isa}).` : "Now: the CPU.";
  const why = gpuTrouble ?? (settings.backend === "auto" && info?.backend === "cpu" ? "There is no GPU here that can run this model." : "");
  page.backendNote.textContent = info ? [now, why].filter(Boolean).join(" ") : why;
}

/** Keeps to the CPU from here on; the choice is kept for the next visit. Tells whether the reason is new to this browser. */
export function avoidGpu(reason: string, model?: string): boolean {
  gpuTrouble = reason;
  showBackend();
  const trouble = [reason, model].filter(Boolean).join(" ");
  const isNew = trouble !== settings.told;
  if (isNew) store({ told: trouble });
  return isNew;
}

export function loadOptions(): Pick<LoadOptions, "backend" | "threads" | "context"> {
  const { threads, context } = settings;
  const backend = gpuTrouble === undefined ? settings.backend : "cpu";
  return { backend, ...(threads !== "" && { threads: Number(threads) }), ...(context !== "" && { context: Number(context) }) };
}

/** Leaves the size of the context to the engine again. */
export function resetContext(): void {
  store({ context: "" });
  page.context.value = "";
  calm(page.context);
}
