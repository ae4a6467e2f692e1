// What an error means to the person in front of the page.
import { ShohinError } from "shohin";
import * as format from "./format.js";

/** Whether the CPU can do what the GPU could not. */
export function isGpuTrouble(thrown: unknown): boolean {
  return thrown instanceof ShohinError && thrown.code.startsWith("gpu_");
}

/** How far a download has come. */
export interface Arrived {
  /** Bytes that are kept here. */
  kept: number;
  /** Bytes of the whole, if known. */
  total?: number;
  /** Whether the server let the page read anything of it. */
  any: boolean;
}

function resumes({ kept, total }: Arrived): string {
  if (kept === 0) return "Try again later.";
  const all = total === undefined ? "" : ` of ${format.bytes(total)}`;
  return `${format.bytes(kept)}${all} are kept; try again continues from there.`;
}

export function advice(thrown: unknown, subject: string, arrived: Arrived = { kept: 0, any: false }): string {
  if (!(thrown instanceof ShohinError)) return `Something went wrong: ${String(thrown)}`;
  const detail = thrown.message.replace(/\.?$/, ".");
  switch (thrown.code) {
    case "network":
      if (!navigator.onLine) return `${subject} could not be downloaded: this device is offline. ${resumes(arrived)}`;
      if (arrived.any) return `${subject} could not be downloaded: the connection was lost. ${resumes(arrived)}`;
      return `${subject} could not be downloaded. Check the connection; the server also has to allow other sites to read the file (CORS).`;
    case "timeout":
      return `${subject} could not be downloaded: ${detail} ${resumes(arrived)}`;
    case "http":
      return `${subject} could not be loaded: ${detail}${arrived.kept > 0 ? ` ${resumes(arrived)}` : ""}`;
    case "read":
    case "argument":
      return `${subject} could not be loaded: ${detail}`;
    case "malformed":
      return `${subject} is not a GGUF model, or it is damaged: ${detail}`;
    case "truncated":
      return `${subject} is incomplete: ${detail}`;
    case "memory":
      return `${subject} does not fit into this tab's memory: ${detail}`;
    case "context_full":
      return "This message is longer than the model can hold. Shorten it, or start a new chat.";
    case "crashed":
      return `The engine stopped unexpectedly; the model is being loaded again. (${thrown.message})`;
    case "gpu_absent":
      return "There is no GPU that this page can use; the CPU computes instead.";
    case "gpu_unsupported":
      return "The GPU cannot run this model; the CPU computes instead.";
    case "gpu_memory":
      return "The GPU has no room for this model; the CPU computes instead.";
    case "gpu_lost":
      return "The GPU was taken away; the CPU goes on in its place.";
    case "gpu_device":
      return `The GPU does not work as it should; the CPU goes on in its place. (${thrown.message})`;
    case "wasm":
    case "worker":
      return `The engine could not be started: ${detail}`;
    default:
      return `${subject} cannot be used: ${detail}`;
  }
}
