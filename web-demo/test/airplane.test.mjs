// The badge that says that the page works offline, in headless Chromium: `npm run build` first.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, before, describe, test } from "node:test";
import { launch, serve } from "../../wasm/js/test/chromium.mjs";

describe("the page says that it works offline", () => {
  let browser, server, page, context;

  before(async () => {
    const model = await readFile(new URL("../../models/sprout-nano.gguf", import.meta.url));
    browser = await launch();
    server = await serve(new URL("../dist/", import.meta.url), {
      "/kept.gguf": (_request, response) => response.writeHead(200, { "Content-Length": model.length }).end(model),
    });
    context = await browser.newContext();
    page = await context.newPage();
    page.setDefaultTimeout(120_000);
    await page.goto(server.url);
  });
  after(async () => {
    await browser?.close();
    await server?.close();
  });

  const badge = (text) => page.waitForFunction((text) => document.querySelector("#gauge-offline").textContent === text, text);
  const loaded = (name) => page.locator("#status").filter({ hasText: `${name} is ready` }).waitFor({ state: "attached" });
  const ask = async () => {
    const replies = page.locator("#conversation [data-role=assistant]");
    const before = await replies.count();
    await page.fill("#prompt", "Hello!");
    await page.press("#prompt", "Enter");
    await replies.nth(before).locator("xpath=self::*[@data-state='done']").waitFor();
  };
  const pick = async (address) => {
    await page.click("#model");
    await page.fill("#url", address);
    await page.click("#url-form button");
  };

  test("once its files are kept, and of a reply without a network that it came", async () => {
    await badge("works offline");
    await context.setOffline(true);
    await badge("works offline");
    await ask();
    await badge("offline now");
    // It is true.
    await page.reload();
    await badge("works offline");
    await ask();
    await badge("offline now");
    await context.setOffline(false);
    await badge("works offline");
  });

  test("on a phone without another line", async () => {
    await page.click("#new-chat");
    await page.setViewportSize({ width: 360, height: 640 });
    await page.reload();
    await badge("works offline");
    const lines = await page.locator("#gauge").evaluate((gauge) => new Set([...gauge.children].filter((part) => part.offsetHeight > 0).map((part) => Math.round(part.getBoundingClientRect().bottom / 8))).size);
    assert.equal(lines, 1);
    await page.setViewportSize({ width: 1024, height: 768 });
  });

  test("not with a model that is not kept", async () => {
    await page.setInputFiles("#file", { name: "mine.gguf", mimeType: "", buffer: await readFile(new URL("../../models/sprout-nano.gguf", import.meta.url)) });
    await loaded("mine.gguf");
    await badge("");
    await pick(`${server.url}kept.gguf`);
    await loaded("kept.gguf");
    await badge("works offline");
    await page.click("#model");
    await page.click("#offers li:has-text('sprout') button");
    await loaded("sprout");
    await badge("works offline");
    await pick(`${server.url}kept.gguf`);
    await loaded("kept.gguf");
    // Deleted from elsewhere, as by the browser.
    await page.evaluate(async () => {
      const root = await navigator.storage.getDirectory();
      for await (const name of root.keys()) await root.removeEntry(name, { recursive: true }).catch(() => {});
    });
    await ask();
    await badge("");
  });

  test("not when a file of the page is gone", async () => {
    await page.click("#model");
    await page.click("#offers li:has-text('sprout') button");
    await loaded("sprout");
    await badge("works offline");
    const remove = (pattern) =>
      page.evaluate(async (pattern) => {
        for (const name of await caches.keys()) {
          const cache = await caches.open(name);
          for (const request of await cache.keys()) if (new RegExp(pattern).test(request.url)) await cache.delete(request);
        }
      }, pattern);
    await remove("\\.wasm$");
    await ask();
    await badge("");
  });
});
