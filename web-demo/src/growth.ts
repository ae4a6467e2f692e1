// Offers a real model once the embedded one is out of its depth, downloads it in the background, and lets it take over.
import { Engine, ShohinError, type ChatFinish } from "shohin";
import { advice } from "./advice.js";
import { OFFERS } from "./catalog.js";
import { isAtEnd, isBusy, onReply, toEnd } from "./chat.js";
import { device, fit } from "./fits.js";
import * as format from "./format.js";
import { copyOfOffer, isEmbedded, isUsed, loadedEngine, onReady, use, whenReady } from "./models.js";
import { page } from "./page.js";
import * as preferences from "./preferences.js";
import { persist, withoutTrials } from "./room.js";
import { loadOptions } from "./settings.js";
import { beginDownload, downloadSpeed, expectedSpeed, noteDownload, noteReply } from "./speed.js";

/** The smallest model that knows the real world. */
const OFFER = OFFERS[0]!;
const DISMISSED = "shohin.growth";
/** How the embedded model begins its reply to what lies outside its world, as it was trained to. */
const REFUSAL = /^I (do not know|cannot|can only)\b/;
/** Words of the longest question in its training. */
const MOST_WORDS = 15;
/** Messages after which a visitor has seen what it can do. */
const ENOUGH = 3;
/** Bytes per second, until a download was measured: 50 Mbit/s. */
const USUAL_SPEED = 50e6 / 8;

/** Milliseconds without a byte after which a download is said to stall. */
const STALL = 2000;

/** Where the offer stands. `waiting`: the model is here and takes over once the current reply has ended. */
let state: "hidden" | "offered" | "downloading" | "failed" | "waiting" = "hidden";
let abort: AbortController | undefined;
let failure = "";
/** Bytes of the model on this device, of how many. */
let [loaded, total] = [0, OFFER.size];
/** When bytes arrived last. */
let arrivedAt = 0;
let replies = 0;

function isOutOfDepth(question: string, { message, usage }: ChatFinish): boolean {
  return replies >= ENOUGH || REFUSAL.test(message.content) || question.trim().split(/\s+/).length > MOST_WORDS || usage.droppedMessages > 0;
}

function ofTotal(): string {
  return `${format.bytes(loaded)} of ${format.bytes(total)}`;
}

/** How long the rest takes. */
function remaining(): string {
  const speed = downloadSpeed();
  const time = `about ${format.time((total - loaded) / (speed ?? USUAL_SPEED))}`;
  return speed === undefined ? `${time} at 50\u00a0Mbit/s` : time;
}

function description(): string {
  const words = ["The embedded model is a toy that knows a small world."];
  const tokens = expectedSpeed(loadedEngine()?.info.backend ?? "cpu", OFFER.size);
  const writes = tokens === undefined ? "" : `, then about ${format.rate(tokens)} tokens/s on this device`;
  if (loaded >= total) words.push(`${OFFER.name} is kept in this browser${writes}.`);
  else if (loaded > 0) words.push(`${ofTotal()} of ${OFFER.name} are kept: the rest takes ${remaining()}${writes}.`);
  else words.push(`${OFFER.name} answers general questions, in this tab, too: a download of ${format.bytes(OFFER.size)}, ${remaining()}${writes}.`);
  const { verdict, reasons } = fit(OFFER, device(), total - loaded, loadOptions().context);
  if (verdict === "fits") words.push("It fits this device.");
  if (verdict === "tight") words.push(`It hardly fits this device: ${reasons.join(", ")}.`);
  return words.join(" ");
}

function pace(): string[] {
  const speed = downloadSpeed();
  if (performance.now() - arrivedAt > STALL) return ["no bytes arrive at the moment"];
  return speed === undefined ? [] : [`${format.bytes(speed)}/s`, `${remaining()} left`];
}

function show(next = state): void {
  const follows = isAtEnd();
  const focused = page.growth.contains(document.activeElement);
  const isNew = next !== state;
  state = next;
  page.growth.hidden = state === "hidden";
  page.growth.dataset["state"] = state;
  const busy = state === "downloading";
  page.growthTitle.textContent = busy ? `Downloading ${OFFER.name}` : state === "waiting" ? `${OFFER.name} is here` : `A real model: ${OFFER.name}`;
  page.growthBar.hidden = !busy;
  page.growthBar.value = Math.min(1, loaded / total);
  page.growthText.textContent =
    busy ? [ofTotal(), ...pace()].join(" · ")
    : state === "failed" ? failure
    : state === "waiting" ? "It goes on after this reply."
    : description();
  page.growthGo.hidden = busy || state === "waiting";
  page.growthGo.textContent = state === "failed" ? "Retry" : loaded >= total ? "Use it" : loaded > 0 ? `Continue (${ofTotal()} kept)` : "Download";
  page.growthNo.hidden = state === "waiting";
  page.growthNo.textContent = busy ? "Cancel" : "Do not offer again";
  if (!isNew) return;
  if (follows && state !== "hidden") toEnd();
  if (state !== "hidden") page.status.textContent = [page.growthTitle.textContent, !busy && page.growthText.textContent].filter(Boolean).join(". ");
  // The button that was pressed is gone.
  if (focused) (busy ? page.growthNo : page.prompt).focus();
}

/** Learns how much of the model is here. */
async function look(): Promise<void> {
  const copy = await copyOfOffer(OFFER);
  loaded = copy?.bytes ?? 0;
  total = copy?.total ?? (copy?.complete ? copy.bytes : OFFER.size);
}

async function offer(): Promise<void> {
  if (state !== "hidden" || !isEmbedded() || preferences.read(DISMISSED)) return;
  await look();
  if (state !== "hidden" || fit(OFFER, device(), total - loaded, loadOptions().context).verdict === "does not fit") return;
  show("offered");
}

async function download(): Promise<void> {
  const mine = (abort = new AbortController());
  persist();
  beginDownload();
  arrivedAt = performance.now();
  show("downloading");
  const clock = setInterval(() => show(), STALL);
  let arrived = 0;
  try {
    await withoutTrials(() =>
      Engine.preload(OFFER.url, {
        sha256: OFFER.sha256,
        signal: mine.signal,
        onProgress: (progress) => {
          if (mine.signal.aborted) return;
          arrived = Math.max(arrived, progress.loaded);
          if (progress.loaded > loaded) arrivedAt = performance.now();
          loaded = progress.loaded;
          total = progress.total ?? total;
          noteDownload(loaded);
          show();
        },
      }),
    );
  } catch (error) {
    if (mine !== abort) return;
    const code = error instanceof ShohinError ? error.code : "";
    if (["quota", "unsupported", "read"].includes(code)) {
      // Nothing is kept here, or not so much: it is loaded as it arrives instead.
      show("hidden");
      return void use(OFFER);
    }
    await look();
    failure = advice(error, OFFER.name, { kept: loaded, total, any: arrived > 0 || loaded > 0 });
    return show(code === "aborted" ? "offered" : "failed");
  } finally {
    clearInterval(clock);
  }
  loaded = total;
  show("waiting");
  takeOver();
}

/** Lets the model take the embedded one's place, but no reply is broken off for it. */
function takeOver(): void {
  if (state !== "waiting" || isBusy()) return;
  show("hidden");
  // The visitor may have picked another meanwhile.
  void whenReady().then(() => {
    if (isEmbedded()) void use(OFFER);
  });
}

/** Begins to watch how the embedded model does. */
export function initGrowth(): void {
  page.growthGo.addEventListener("click", () => {
    if (loaded < total || state === "failed") return void download();
    show("waiting");
    takeOver();
  });
  page.growthNo.addEventListener("click", () => {
    if (state === "downloading") return abort?.abort();
    preferences.write(DISMISSED, "dismissed");
    show("hidden");
  });
  onReady.add(modelChanged);
  onReply.end = (question, finish) => {
    const engine = loadedEngine();
    if (engine && finish) noteReply(engine.info, finish);
    if (finish && isEmbedded()) {
      replies += 1;
      // With a better estimate.
      if (state === "offered") show();
      else if (isOutOfDepth(question, finish)) void offer();
    }
    takeOver();
  };
  // A download that an earlier visit has begun.
  void whenReady().then(async () => {
    await look();
    if (loaded > 0) await offer();
  });
}

/** Another model answers now: the offer has lost its cause. */
function modelChanged(): void {
  if (isUsed(OFFER) || (!isEmbedded() && state === "offered")) show("hidden");
}
