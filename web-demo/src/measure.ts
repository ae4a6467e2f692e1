// Which device runs a model faster: measured once per model and machine, when the choice is left to the page.
import { ShohinError, type Engine } from "shohin";
import * as preferences from "./preferences.js";

/** Tokens per second of a model on each device. */
export interface Measured {
  cpu: number;
  gpu: number;
}

const KEY = "shohin.measured";
/** Models and machines that are remembered. */
const MOST = 32;
/** Tokens of a measurement, after some that compile shaders and fill caches. */
const [WARM_UP, TOKENS] = [1, 8];

let found: Promise<string | undefined> | undefined;

/** The name of the GPU, if there is one that is not emulated in software. */
export function adapter(): Promise<string | undefined> {
  return (found ??= (async () => {
    try {
      const { gpu } = navigator as { gpu?: { requestAdapter(): Promise<{ info: Record<string, string | boolean> } | null> } };
      const info = (await gpu?.requestAdapter())?.info;
      if (!info || info["isFallbackAdapter"]) return undefined;
      const { vendor, architecture, device, description } = info;
      return String(description || [vendor, device || architecture].filter(Boolean).join(" ") || "unnamed");
    } catch {
      return undefined;
    }
  })());
}

function all(): Record<string, Measured> {
  try {
    const value: unknown = JSON.parse(preferences.read(KEY) ?? "{}");
    return typeof value === "object" && value !== null ? (value as Record<string, Measured>) : {};
  } catch {
    return {};
  }
}

async function keyOf(model: string): Promise<string> {
  return JSON.stringify([model, await adapter(), crossOriginIsolated]);
}

/** What was measured of a model on this machine. */
export async function measured(model: string): Promise<Measured | undefined> {
  const known = all()[await keyOf(model)];
  return Number.isFinite(known?.cpu) && Number.isFinite(known?.gpu) ? known : undefined;
}

async function remember(model: string, speeds?: Measured): Promise<void> {
  const key = await keyOf(model);
  const others = Object.entries(all()).filter(([other]) => other !== key);
  preferences.write(KEY, JSON.stringify(Object.fromEntries([...others, ...(speeds ? [[key, speeds] as const] : [])].slice(-MOST))));
}

/** Forgets what was measured of a model, so that its next load measures again. */
export function forget(model: string): Promise<void> {
  return remember(model);
}

/** Tokens per second of a short reply. */
async function speedOf(engine: Engine, signal: AbortSignal): Promise<number> {
  // The engine's own conversation stays as it is.
  const conversation = await engine.conversation({ context: 64 });
  try {
    let speed = 0;
    for (const maxTokens of [WARM_UP, TOKENS]) {
      for await (const { finish } of conversation.generate("Once there was", { preset: "greedy", maxTokens, signal })) {
        if (finish) speed = finish.timings.tokensPerSecond;
      }
    }
    return speed;
  } finally {
    await conversation.dispose();
  }
}

/**
 * Loads a model on the faster device. Where neither is known to be, it is loaded on both if `both` allows that, one after the
 * other, and a short reply tells; without a usable GPU there is nothing to measure.
 */
export async function loadFaster(model: string, load: (backend: "auto" | "cpu") => Promise<Engine>, both: () => Promise<boolean>, signal: AbortSignal): Promise<Engine> {
  if ((await adapter()) === undefined) return load("auto");
  const known = await measured(model);
  if (known) return load(known.gpu >= known.cpu ? "auto" : "cpu");
  const gpu = await load("auto");
  if (gpu.info.backend === "cpu" || !(await both())) return gpu;
  try {
    const speeds = { gpu: await speedOf(gpu, signal), cpu: 0 };
    const cpu = await load("cpu");
    try {
      speeds.cpu = await speedOf(cpu, signal);
    } catch (error) {
      await cpu.dispose();
      throw error;
    }
    // A model that ends at once tells nothing.
    if (speeds.gpu > 0 && speeds.cpu > 0) await remember(model, speeds);
    const [faster, slower] = speeds.gpu >= speeds.cpu ? [gpu, cpu] : [cpu, gpu];
    await slower.dispose();
    return faster;
  } catch (error) {
    // With no room for both, one still works.
    if (!signal.aborted && error instanceof ShohinError && !error.code.startsWith("gpu_")) return gpu;
    await gpu.dispose();
    if (signal.aborted) throw error;
    return load("cpu");
  }
}
