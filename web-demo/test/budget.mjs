// What a first visit of the built page costs: `npm run budget -w web-demo` prints it. CHROME is the browser's path.
import { fileURLToPath } from "node:url";
import { launch, longestTask, serve } from "../../wasm/js/test/chromium.mjs";

/** A server of the build, as fresh for ten minutes as on GitHub Pages. `/blank` is an empty page of the same origin. */
export function servePage() {
  const blank = (_request, response) => response.writeHead(200, { "Content-Type": "text/html" }).end("<!doctype html><title>Blank</title>");
  return serve(new URL("../dist/", import.meta.url), { "/blank": blank }, { "Cache-Control": "max-age=600" });
}

/** What the page notes of itself, in milliseconds since its navigation began. It asks by itself: commands of Playwright are tasks, too. */
function observe() {
  const seen = (globalThis.seen = { shifts: 0 });
  new PerformanceObserver((list) => {
    // A message is input, after which the browser, too, leaves out half a second; but it knows of no message that a script sends.
    const isAnswer = (time) => time >= seen.asked && time < seen.asked + 500;
    for (const { value, hadRecentInput, startTime } of list.getEntries()) if (!hadRecentInput && !isAnswer(startTime)) seen.shifts += value;
  }).observe({ type: "layout-shift", buffered: true });
  new PerformanceObserver((list) => {
    for (const { name, startTime } of list.getEntries()) if (name === "first-contentful-paint") seen.painted = startTime;
  }).observe({ type: "paint", buffered: true });
  const done = () => seen.controlled && document.querySelector("[data-role=assistant][data-state=done]") && console.log("the visit is done");
  navigator.serviceWorker?.addEventListener("controllerchange", () => {
    seen.controlled ??= performance.now();
    done();
  });
  const ask = () => {
    const prompt = document.querySelector("#prompt");
    prompt.value = "Hello!";
    prompt.dispatchEvent(new Event("input"));
    seen.asked = performance.now();
    prompt.form.requestSubmit();
  };
  new MutationObserver(() => {
    if (!seen.ready && document.querySelector("#model")?.dataset.state === "ready") {
      seen.ready = performance.now();
      // Who reads the page first, types later than that.
      setTimeout(ask, 100);
    }
    if (seen.asked && document.querySelector("[data-role=assistant] [data-part=text]")?.textContent) seen.replied ??= performance.now();
    if (seen.replied) done();
  }).observe(document, { subtree: true, childList: true, characterData: true, attributes: true });
}

/** What the longest task of a first visit, slowed down fourfold, may take on a free processor, in milliseconds. */
export const LONGEST_TASK = 50;

/**
 * A first visit with one message, until the service worker has its copy. `sent` are the files that the server has sent, with the
 * bytes of the responses; `shifts` is the cumulative layout shift; `painted`, `ready`, `controlled` and `firstToken` are milliseconds.
 */
export async function firstVisit(browser, { url, sent }, { viewport = { width: 1280, height: 768 }, slowdown = 1 } = {}) {
  const context = await browser.newContext({ viewport });
  try {
    await context.addInitScript(observe);
    const page = await context.newPage();
    page.setDefaultTimeout(120_000);
    await page.goto(`${url}blank`);
    sent.length = 0;
    const session = await context.newCDPSession(page);
    await session.send("Emulation.setCPUThrottlingRate", { rate: slowdown });
    const visit = async () => {
      const done = page.waitForEvent("console", (message) => message.text() === "the visit is done");
      await page.goto(url);
      await done;
    };
    // Tracing costs time itself.
    const tasks = slowdown > 1 ? await longestTask(browser, page, visit) : await visit();
    const seen = await page.evaluate(() => globalThis.seen);
    return { ...seen, firstToken: seen.replied - seen.asked, sent: [...sent], tasks };
  } finally {
    await context.close();
  }
}

export const total = (sent) => sent.reduce((sum, { bytes }) => sum + bytes, 0);

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [browser, server] = [await launch(), await servePage()];
  try {
    const fast = await firstVisit(browser, server);
    const slow = await firstVisit(browser, server, { slowdown: 4 });
    for (const { path, bytes } of fast.sent) console.log(`${String(bytes).padStart(9)}  ${path}`);
    console.log(`${String(total(fast.sent)).padStart(9)}  bytes transferred by a first visit (budget 2,000,000)`);
    const line = (value, unit, words) => console.log(`${value.padStart(9)}  ${unit}${words}`);
    const milliseconds = (value, words) => line(value.toFixed(0), "ms ", words);
    milliseconds(fast.painted, "to the first contentful paint");
    milliseconds(fast.ready, "until the model is ready (budget 1200)");
    milliseconds(fast.controlled, "until the service worker is in control");
    milliseconds(fast.firstToken, "from a message to the first token (budget 300)");
    line(fast.shifts.toFixed(3), "", "cumulative layout shift (budget 0.05)");
    milliseconds(slow.tasks.task, `in the longest task of the main thread, slowed down fourfold (budget ${LONGEST_TASK})`);
    milliseconds(slow.tasks.script, "in the longest script of it");
  } finally {
    await browser.close();
    await server.close();
  }
}
