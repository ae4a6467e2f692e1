// Speeds measured on this device, and what they let expect of a larger model.
import type { EngineInfo, Finish } from "shohin";

/** Milliseconds of a download that its speed is taken from. */
const WINDOW = 10_000;
/** Milliseconds without which there is no speed yet. */
const LEAST = 500;

let samples: { at: number; loaded: number }[] = [];
let latest: number | undefined;

/** A download begins or continues: what is already kept did not arrive at any speed. */
export function beginDownload(): void {
  samples = [];
}

/** Notes how far a download has come. */
export function noteDownload(loaded: number, at = performance.now()): void {
  samples.push({ at, loaded });
  while (samples.length > 2 && at - samples[1]!.at >= WINDOW) samples.shift();
  const [first] = samples;
  if (at - first!.at < LEAST) return;
  const speed = ((loaded - first!.loaded) / (at - first!.at)) * 1000;
  if (speed > 0) latest = speed;
}

/** Bytes per second of the last download of this visit. */
export function downloadSpeed(): number | undefined {
  return latest;
}

/** Weights in bytes that a device reads per second while it writes a reply: the fastest reply, as other work only slows one down. */
const throughput = new Map<string, number>();

/** Notes how fast a reply was written. */
export function noteReply({ backend, model }: EngineInfo, { usage, timings }: Finish): void {
  if (usage.completionTokens < 4 || !(timings.tokensPerSecond > 0)) return;
  throughput.set(backend, Math.max(throughput.get(backend) ?? 0, timings.tokensPerSecond * model.fileBytes));
}

/** Tokens per second to expect of a model of this size: each token takes all of its weights once. */
export function expectedSpeed(backend: string, bytes: number): number | undefined {
  const most = throughput.get(backend);
  return most === undefined ? undefined : most / bytes;
}
