// The settings sheet: sampling and the system prompt. Choices are remembered.
import type { ChatOptions, EngineInfo, Preset } from "shohin";
import { page } from "./page.js";

interface Settings {
  preset: Preset;
  temperature: number;
  topK: number;
  topP: number;
  maxTokens: number;
  /** Empty: random. */
  seed: string;
  system: string;
}

const KEY = "shohin.settings";
const DEFAULT: Settings = { preset: "bonsai", temperature: 0.5, topK: 20, topP: 0.85, maxTokens: 400, seed: "", system: "" };

let settings: Settings = DEFAULT;
let presets: EngineInfo["presets"] | undefined;

function stored(): Partial<Settings> {
  try {
    const value: unknown = JSON.parse(localStorage.getItem(KEY) ?? "{}");
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
  showValues();
}

/** The numbers beside the sliders. */
function showValues(): void {
  for (const slider of [page.temperature, page.topK, page.topP]) {
    const output = document.getElementById(`${slider.id}-value`);
    if (output) output.textContent = slider === page.topK ? slider.value : Number(slider.value).toFixed(2);
  }
}

function keep(): void {
  const number = (input: HTMLInputElement, old: number) => (input.validity.valid && input.value !== "" ? input.valueAsNumber : old);
  settings = {
    preset: page.preset.value as Preset,
    temperature: number(page.temperature, settings.temperature),
    topK: number(page.topK, settings.topK),
    topP: number(page.topP, settings.topP),
    maxTokens: number(page.maxTokens, settings.maxTokens),
    seed: page.seed.validity.valid ? page.seed.value : settings.seed,
    system: page.system.value,
  };
  localStorage.setItem(KEY, JSON.stringify(settings));
  showValues();
}

export function initSettings(): void {
  const known = stored();
  settings = { ...DEFAULT };
  for (const key of Object.keys(DEFAULT) as (keyof Settings)[]) {
    if (typeof known[key] === typeof DEFAULT[key]) Object.assign(settings, { [key]: known[key] });
  }
  show();

  page.preset.addEventListener("change", () => {
    const values = presets?.[page.preset.value as Preset];
    if (!values) return;
    page.temperature.value = String(values.temperature);
    page.topK.value = String(values.topK);
    page.topP.value = String(values.topP);
  });
  page.sampling.addEventListener("input", keep);
  page.sampling.addEventListener("change", keep);
  page.sampling.addEventListener("submit", (event) => event.preventDefault());

  page.openSettings.addEventListener("click", () => page.settings.showModal());
  page.model.addEventListener("click", () => page.settings.showModal());
  page.closeSettings.addEventListener("click", () => page.settings.close());
  // A click beside the sheet lands on the dialog itself.
  page.settings.addEventListener("click", (event) => {
    if (event.target === page.settings) page.settings.close();
  });
}

/** Learns from an engine what the presets stand for. */
export function learnPresets(info: EngineInfo): void {
  presets = info.presets;
}

export function systemPrompt(): string {
  return settings.system.trim();
}

export function chatOptions(): ChatOptions {
  const { preset, temperature, topK, topP, maxTokens, seed } = settings;
  return { preset, temperature, topK, topP, maxTokens, overflow: "trim", ...(seed !== "" && { seed: Number(seed) }) };
}
