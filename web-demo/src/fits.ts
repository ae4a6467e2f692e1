// Whether a model fits this device, said before it is downloaded.
import type { Offer } from "./catalog.js";
import * as format from "./format.js";

/** What is known of this device. */
export interface Device {
  /** Bytes of memory, in browsers that tell. */
  memory?: number;
  /** Bytes that may still be kept, once known. */
  room?: number;
  /** Whether it runs iOS or iPadOS, where each browser is Safari. */
  ios: boolean;
}

/** Whether a model fits, and why not. Without a verdict the browser does not tell enough. */
export interface Fit {
  verdict?: "fits" | "tight" | "does not fit";
  reasons: string[];
}

/** iOS ends a tab at about this size, without an error that a page could catch. */
const IOS_TAB = 1.5e9;
/** What WebAssembly can address. */
const ADDRESSABLE = 4 * 2 ** 30;
/** The context that a model is loaded with unless another is set. */
const CONTEXT = 4096;

/** The device this page runs on. */
export function device(room?: number): Device {
  // In GiB, rounded, and not in all browsers.
  const { deviceMemory } = navigator as { deviceMemory?: number };
  // iPadOS calls itself a Mac, which has no touch screen.
  const ios = /iPhone|iPad|iPod/.test(navigator.userAgent) || (navigator.platform === "MacIntel" && navigator.maxTouchPoints > 1);
  return { ios, ...(deviceMemory !== undefined && { memory: deviceMemory * 2 ** 30 }), ...(room !== undefined && { room }) };
}

/** Bytes of memory that a model takes with a context. */
export function memoryOf({ size, tokenSize }: Offer, context = CONTEXT): number {
  return size + tokenSize * context;
}

/** Whether a model fits a device; `missing` bytes of it are still to be downloaded. */
export function fit(offer: Offer, { memory, room, ios }: Device, missing: number, context?: number): Fit {
  const need = memoryOf(offer, context);
  const never: string[] = [];
  const hardly: string[] = [];
  if (need > ADDRESSABLE) never.push(`a tab addresses at most ${format.bytes(ADDRESSABLE)}; a smaller context takes less`);
  if (memory !== undefined && need > memory) never.push("more memory than this device has");
  else if (memory !== undefined && need > memory / 2) hardly.push("more than half of this device's memory");
  if (ios && need > IOS_TAB) never.push(`iOS closes tabs of more than about ${format.bytes(IOS_TAB)}`);
  else if (ios && need > IOS_TAB / 2) hardly.push(`iOS closes tabs of more than about ${format.bytes(IOS_TAB)}`);
  if (room !== undefined && missing > room) hardly.push(`no room to keep it, ${format.bytes(missing)} are needed`);
  const verdict = never.length > 0 ? "does not fit" : hardly.length > 0 ? "tight" : memory !== undefined || ios ? "fits" : undefined;
  return { ...(verdict && { verdict }), reasons: [...never, ...hardly] };
}
