// The settings sheet: sampling, the system prompt, the form of replies, and what the engine may use. Choices are remembered.
import type { ChatOptions, EngineInfo, LoadOptions, Preset } from "shohin";
import * as format from "./format.js";
import { make, page } from "./page.js";
import * as preferences from "./preferences.js";
import { FUNCTIONS } from "./tools.js";

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
  thinking: "off" | "on" | "budget";
  /** Tokens of thought. */
  budget: number;
  format: "text" | "json" | "schema";
  /** A JSON Schema as it was written, and valid JSON. */
  schema: string;
  tools: boolean;
  /** Whether words of low probability are underlined. */
  confidence: boolean;
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
  thinking: "off",
  budget: 200,
  format: "text",
  schema: JSON.stringify({ type: "object", properties: { answer: { type: "string" } }, required: ["answer"], additionalProperties: false }, null, 2),
  tools: false,
  confidence: false,
  backend: "cpu",
  threads: "",
  context: "",
  told: "",
};

let settings: Settings = DEFAULT;
let info: EngineInfo | undefined;
/** Why the GPU is left alone until the next choice or visit. */
let gpuTrouble: string | undefined;
/** Why the CPU computes where the choice is left to the page. */
let whyCpu = "";

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
  page.thinking.value = settings.thinking;
  page.budget.value = String(settings.budget);
  page.format.value = settings.format;
  page.schema.value = settings.schema;
  page.tools.checked = settings.tools;
  page.confidence.checked = settings.confidence;
  faultSchema("");
  showReplies();
  page.context.value = settings.context;
  page.backend.value = settings.backend;
  if (page.backend.value === "") page.backend.value = settings.backend = DEFAULT.backend;
  const threads = [...page.threads.options].some(({ value }) => value === settings.threads);
  page.threads.value = threads ? settings.threads : "";
  for (const input of NUMBERS) calm(input);
  showValues();
}

const NUMBERS = [page.maxTokens, page.seed, page.budget, page.context];

/** Says beside a field what would be right in it. */
function fault(input: HTMLInputElement): void {
  const range = `A whole number from ${format.whole(Number(input.min))} to ${format.whole(Number(input.max))}`;
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

/** Says what is wrong with the schema; nothing, if that is empty. */
function faultSchema(words: string): void {
  if (page.schemaFault.textContent !== words) page.schemaFault.textContent = words;
  if (words) page.schema.setAttribute("aria-invalid", "true");
  else page.schema.removeAttribute("aria-invalid");
}

/** Why a text is not a JSON Schema. */
function schemaTrouble(text: string): string | undefined {
  try {
    const schema: unknown = JSON.parse(text);
    const isSchema = typeof schema === "boolean" || (typeof schema === "object" && schema !== null && !Array.isArray(schema));
    return isSchema ? undefined : `A JSON Schema is an object, found ${Array.isArray(schema) ? "an array" : JSON.stringify(schema)}.`;
  } catch (error) {
    return `This is not JSON: ${(error as Error).message}.`;
  }
}

/** Hides the fields that are of no use with the choices made, and says which choices the model does not have. */
function showReplies(): void {
  const thinks = info?.model.thinking !== false;
  page.thinking.disabled = !thinks;
  page.thinkingNote.hidden = thinks;
  page.thinkingNote.textContent = thinks ? "" : "This model does not think before it answers.";
  page.budgetField.hidden = !thinks || settings.thinking !== "budget";
  page.schemaField.hidden = settings.format !== "schema";
  const why = info?.model.tools === false ? "This model has no template for tools." : settings.format !== "text" ? "Not with replies in JSON." : "";
  document.documentElement.toggleAttribute("data-underlines", settings.confidence);
  page.tools.disabled = why !== "";
  page.toolsNote.hidden = why === "";
  page.toolsNote.textContent = why;
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
  });
  showValues();
}

function keepReplies({ type, target }: Event): void {
  const trouble = schemaTrouble(page.schema.value);
  if (!trouble) faultSchema("");
  else if (type === "change" && target === page.schema) faultSchema(trouble);
  store({
    thinking: page.thinking.value as Settings["thinking"],
    budget: page.budget.validity.valid ? page.budget.valueAsNumber : settings.budget,
    format: page.format.value as Settings["format"],
    schema: trouble ? settings.schema : page.schema.value,
    tools: page.tools.checked,
    confidence: page.confidence.checked,
  });
  showReplies();
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
  // As earlier versions stored it.
  if ((known.thinking as unknown) === true) settings.thinking = "on";
  if (!["off", "on", "budget"].includes(settings.thinking)) settings.thinking = DEFAULT.thinking;
  if (!["text", "json", "schema"].includes(settings.format)) settings.format = DEFAULT.format;
  if (schemaTrouble(settings.schema)) settings.schema = DEFAULT.schema;
  const cores = crossOriginIsolated ? navigator.hardwareConcurrency || 1 : 1;
  const counts = [1, 2, 4, 8, 16, 32].filter((n) => n < cores);
  page.threads.append(make("option", { value: "" }, cores > 1 ? `All (${cores})` : "One"), ...counts.map((n) => make("option", { value: String(n) }, String(n))));
  page.threads.disabled = cores === 1;
  if (!crossOriginIsolated) page.computeNote.append(` One thread: browsers allow more only to pages served ${isSecureContext ? "" : "over HTTPS and "}with cross-origin isolation.`);
  show();

  page.preset.addEventListener("change", () => {
    const values = info?.presets[page.preset.value as Preset];
    if (!values) return;
    page.temperature.value = String(values.temperature);
    page.topK.value = String(values.topK);
    page.topP.value = String(values.topP);
  });
  for (const form of [page.sampling, page.replies, page.compute]) {
    form.addEventListener("input", judge);
    form.addEventListener("change", judge);
  }
  page.sampling.addEventListener("input", keep);
  page.sampling.addEventListener("change", keep);
  page.sampling.addEventListener("submit", (event) => event.preventDefault());
  page.replies.addEventListener("input", keepReplies);
  page.replies.addEventListener("change", keepReplies);
  page.replies.addEventListener("submit", (event) => event.preventDefault());
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

/** Learns from an engine what the presets stand for, what its model can do, and why the CPU computes if it was chosen. */
export function learn(loaded: EngineInfo, why = "There is no GPU here that can run this model."): void {
  info = loaded;
  whyCpu = why;
  if (info.backend === "webgpu" && settings.told !== "") store({ told: "" });
  showBackend();
  showReplies();
}

/** What the visitor tells the model, and the format of replies: the engine enforces that, but does not tell the model. */
export function systemPrompt(): string {
  const format = settings.format === "json" ? "Answer with a JSON object." : settings.format === "schema" ? `Answer with JSON that satisfies this JSON Schema: ${JSON.stringify(JSON.parse(settings.schema))}` : "";
  return [settings.system.trim(), format].filter(Boolean).join("\n\n");
}

/** Whether replies are JSON. */
export function repliesInJson(): boolean {
  return settings.format !== "text";
}

/** Whether words of low probability are underlined. */
export function underlines(): boolean {
  return settings.confidence;
}

export function chatOptions(): ChatOptions {
  const { preset, temperature, topK, topP, maxTokens, seed } = settings;
  const thinks = info?.model.thinking === true && settings.thinking !== "off";
  const thinking = thinks && (settings.thinking === "on" || { budget: settings.budget });
  const tools = settings.tools && info?.model.tools === true && !repliesInJson();
  const responseFormat: ChatOptions["responseFormat"] =
    settings.format === "text" ? undefined : settings.format === "json" ? { type: "json_object" } : { type: "json_schema", schema: JSON.parse(settings.schema) as object };
  return {
    preset,
    temperature,
    topK,
    topP,
    maxTokens,
    thinking,
    overflow: "trim",
    ...(seed !== "" && { seed: Number(seed) }),
    ...(tools && { tools: FUNCTIONS }),
    ...(responseFormat && { responseFormat }),
  };
}

/** Says what computes, and why not what was chosen. */
function showBackend(): void {
  const now = info?.backend === "webgpu" ? `Now: the GPU (${info.isa}).` : "Now: the CPU.";
  const why = gpuTrouble ?? (settings.backend === "auto" && info?.backend === "cpu" ? whyCpu : "");
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
