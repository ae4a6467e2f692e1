// Cross-origin isolation, and with it threads, on a host that sends no headers for it: `npm run build` first. CHROME is the browser's path.
import assert from "node:assert/strict";
import { availableParallelism } from "node:os";
import { after, afterEach, before, describe, test } from "node:test";
import { launch, serve } from "../../wasm/js/test/chromium.mjs";
import { soon } from "./soon.mjs";

const DIST = new URL("../dist/", import.meta.url);
/** As GitHub Pages answers. */
const PLAIN = { "Cache-Control": "max-age=600" };
const ALL = availableParallelism() > 1 ? `${availableParallelism()} threads` : "1 thread";

describe("the page on a host without headers for isolation", () => {
  let browser;
  before(async () => (browser = await launch()));
  after(() => browser?.close());

  const ends = [];
  afterEach(async () => {
    for (const end of ends.splice(0)) await end();
  });

  /** A server of the page and a visitor of it. */
  async function visitor(headers = PLAIN, options = {}) {
    const site = await serve(DIST, {}, headers);
    const context = await browser.newContext({ viewport: { width: 1280, height: 768 }, ...options });
    // Short replies are enough.
    await context.addInitScript(() => (localStorage["shohin.settings"] ??= '{"maxTokens":12}'));
    ends.push(async () => {
      await context.close();
      await site.close();
    });
    const open = async () => {
      const page = await context.newPage();
      page.setDefaultTimeout(120_000);
      page.loads = 0;
      // Not the event "load": a reload may come before it.
      page.on("request", (request) => {
        if (request.isNavigationRequest() && request.frame() === page.mainFrame()) page.loads += 1;
      });
      page.problems = [];
      page.on("pageerror", (error) => page.problems.push(String(error)));
      page.on("console", (message) => message.type() === "error" && page.problems.push(message.text()));
      await page.goto(site.url);
      return page;
    };
    return { site, context, open };
  }

  const ready = (page) => page.locator("#model[data-state=ready]").waitFor();
  const controlled = (page) => page.waitForFunction(() => navigator.serviceWorker.controller !== null);
  const isIsolated = (page) => page.evaluate(() => crossOriginIsolated);
  const replies = (page) => page.locator("#conversation [data-role=assistant]");

  async function threads(page) {
    await ready(page);
    return /\d+ threads?/.exec(await page.locator("#facts").textContent())[0];
  }

  async function hear(page, message = "Hello!") {
    const before = await replies(page).count();
    await page.fill("#prompt", message);
    await page.click("#send");
    await replies(page).nth(before).locator("xpath=self::*[@data-state='done']").waitFor();
    await soon(async () => assert.notEqual(await replies(page).nth(before).locator("[data-part=text]").innerText(), ""));
  }

  test("chats with one thread at the first visit, undisturbed, and with all from the next on, offline too", async () => {
    const { site, open } = await visitor();
    const page = await open();
    await page.fill("#prompt", "Something that I am writing");
    await controlled(page);
    assert.deepEqual([await isIsolated(page), await threads(page)], [false, "1 thread"]);
    await soon(async () => assert.equal(await page.locator("#prompt").inputValue(), "Something that I am writing"));
    await hear(page);
    assert.equal(page.loads, 1);

    await page.reload();
    assert.deepEqual([await isIsolated(page), await threads(page)], [true, ALL]);
    await soon(async () => assert.equal(await replies(page).count(), 1, "the conversation is still there"));
    await hear(page);
    assert.equal(page.loads, 2);
    assert.deepEqual(page.problems, []);

    await site.close();
    await page.reload();
    assert.deepEqual([await isIsolated(page), await threads(page)], [true, ALL]);
    await hear(page);
  });

  test("opens offline with one thread if those files were never downloaded", async () => {
    const { site, open } = await visitor();
    const page = await open();
    await ready(page);
    await controlled(page);
    await site.close();
    await page.reload();
    assert.deepEqual([await isIsolated(page), await threads(page)], [true, "1 thread"]);
    await hear(page);
  });

  test("loads models from other origins while isolated, if they allow it by CORS alone", async () => {
    const { open } = await visitor();
    const page = await open();
    await ready(page);
    await controlled(page);
    await page.reload();
    const answered = [];
    const models = await serve(new URL("../../models/", import.meta.url), {}, { "Access-Control-Allow-Origin": "*" });
    ends.push(models.close);
    page.on("response", (response) => response.url().startsWith(models.url) && answered.push(response.headers()));
    await page.click("#model");
    await page.fill("#url", `${models.url}sprout-nano.gguf`);
    await page.click("#url-form button");
    await page.locator("#status").filter({ hasText: "sprout-nano.gguf is ready" }).waitFor({ state: "attached" });
    assert.deepEqual([await isIsolated(page), await threads(page)], [true, ALL]);
    assert.ok(answered.length > 0 && answered.every((headers) => !("cross-origin-resource-policy" in headers)));
    await hear(page);
    assert.deepEqual(page.problems, []);
  });

  test("has one tab of before beside one with threads, with the same conversations", async () => {
    const { open } = await visitor();
    const first = await open();
    await ready(first);
    await controlled(first);
    const second = await open();
    assert.deepEqual([await isIsolated(first), await isIsolated(second)], [false, true]);
    assert.deepEqual([await threads(first), await threads(second)], ["1 thread", ALL]);
    await hear(first, "From the first tab");
    await second.click("#chat-list .open:has-text('From the first tab')");
    await replies(second).waitFor();
    await hear(second, "From the second tab");
    await replies(first).nth(1).waitFor();
    assert.deepEqual([first.loads, second.loads], [1, 1]);
    assert.deepEqual([...first.problems, ...second.problems], []);
  });

  test("reloads a tab that was opened in the background, once, before it is looked at", async () => {
    const { context, open } = await visitor();
    // Every page of a headless browser is visible.
    await context.addInitScript(() => Object.defineProperty(Document.prototype, "visibilityState", { get: () => "hidden" }));
    const page = await open();
    await page.waitForFunction(() => crossOriginIsolated);
    assert.equal(await threads(page), ALL);
    assert.equal(page.loads, 2);
    // Not again in this tab, whatever becomes of the service worker.
    await page.evaluate(async () => (await navigator.serviceWorker.getRegistration()).unregister());
    await page.reload();
    await controlled(page);
    await ready(page);
    assert.deepEqual([await isIsolated(page), page.loads], [false, 3]);
  });

  test("does not reload where there are no service workers, and chats with one thread", async () => {
    const { context, open } = await visitor(PLAIN, { serviceWorkers: "block" });
    await context.addInitScript(() => Object.defineProperty(Document.prototype, "visibilityState", { get: () => "hidden" }));
    const page = await open();
    assert.deepEqual([await isIsolated(page), await threads(page)], [false, "1 thread"]);
    await hear(page);
    assert.equal(page.loads, 1);
  });

  test("keeps the headers that a host sends itself", async () => {
    const own = { "Cross-Origin-Opener-Policy": "same-origin-allow-popups", "Cross-Origin-Embedder-Policy": "credentialless" };
    const { site, open } = await visitor({ ...PLAIN, ...own });
    const page = await open();
    await ready(page);
    await controlled(page);
    const headers = () =>
      page.evaluate(async () => {
        const script = document.querySelector("script[src]").src;
        const answers = await Promise.all([fetch("./"), fetch(script)]);
        return answers.map(({ headers }) => [headers.get("Cross-Origin-Opener-Policy"), headers.get("Cross-Origin-Embedder-Policy")]);
      });
    assert.deepEqual(await headers(), [Object.values(own), Object.values(own)]);
    await site.close();
    await page.reload();
    assert.equal(await isIsolated(page), false);
    assert.deepEqual(await headers(), [Object.values(own), Object.values(own)]);
    await hear(page);
  });
});
