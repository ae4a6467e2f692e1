// The built page in headless Firefox, as a visitor uses it: `npm run build` first. FIREFOX is the browser's path.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, afterEach, before, beforeEach, describe, test } from "node:test";
import { serve } from "../../wasm/js/test/chromium.mjs";
import { launch } from "../../wasm/js/test/firefox.mjs";
import { faults } from "./axe.mjs";
import { soon } from "./soon.mjs";

const ISOLATED = { "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp" };

describe("the page in Firefox", () => {
  let browser, server, page, problems;

  before(async () => {
    server = await serve(new URL("../dist/", import.meta.url), {}, ISOLATED);
    browser = await launch({ "ui.prefersReducedMotion": 1 });
  });
  after(async () => {
    await browser?.close();
    await server?.close();
  });
  beforeEach(async () => {
    page = await browser.newPage({ viewport: { width: 1280, height: 768 } });
    page.setDefaultTimeout(120_000);
    problems = [];
    page.on("pageerror", (error) => problems.push(String(error)));
    page.on("console", (message) => ["error", "warning"].includes(message.type()) && problems.push(message.text()));
  });
  afterEach(async () => {
    await page.close();
    assert.deepEqual(problems, []);
  });

  const ready = () => page.locator("#model[data-state=ready]").waitFor();
  const replies = () => page.locator("#conversation [data-role=assistant]");
  const text = (reply) => reply.locator("[data-part=text]").innerText();

  async function ask(message) {
    const before = await replies().count();
    await page.locator("#prompt").pressSequentially(message);
    await page.keyboard.press("Enter");
    await replies().nth(before).locator("xpath=self::*[@data-state='done']").waitFor();
    return text(replies().nth(before));
  }

  test("streams a reply, takes settings, and goes on after a reload", async () => {
    await page.goto(server.url);
    await ready();
    await page.click("#open-settings");
    await page.selectOption("#preset", "greedy");
    await page.locator("#max-tokens").press("Control+A");
    await page.keyboard.type("48");
    await page.keyboard.press("Escape");
    assert.equal(await page.locator("#settings").evaluate((dialog) => dialog.open), false);
    await page.evaluate(() => {
      globalThis.seen = new Set();
      const note = () => seen.add(document.querySelector("#conversation [data-role=assistant] [data-part=text]")?.textContent ?? "");
      new MutationObserver(note).observe(document.querySelector("#conversation"), { subtree: true, childList: true, characterData: true });
    });
    const story = await ask("Tell me a story about a cat.");
    const seen = await page.evaluate(() => [...seen].filter((text) => text !== ""));
    assert.ok(seen.length > 1, "the reply came all at once");
    seen.forEach((text, i) => assert.ok(text.startsWith(seen[i - 1] ?? ""), text));
    await soon(async () => assert.match(await replies().last().locator(".tools").innerText(), /^48 tokens · [\d.,]+ tokens\/s.* cut at the token limit/));
    await page.click("#new-chat");
    await ask("Hi! My name is Mira.");

    await page.goto(`${server.url}?again`);
    await ready();
    await replies().first().waitFor();
    await soon(async () => assert.equal(await page.locator("#max-tokens").inputValue(), "48"));
    assert.match(await ask("What is my name?"), /Mira/);
    await page.click("#chat-list .open:has-text('a cat')");
    await page.locator("#conversation").filter({ hasText: "a cat" }).waitFor();
    assert.equal((await text(replies().first())).trim(), story.trim());
  });

  test("is kept by a service worker that answers at once, at every first visit", async () => {
    for (let visit = 0; visit < 5; visit++) {
      const context = await browser.newContext();
      const page = await context.newPage();
      page.setDefaultTimeout(20_000);
      await page.goto(server.url);
      await page.locator("#model[data-state=ready]").waitFor();
      await page.waitForFunction(() => navigator.serviceWorker.controller?.state === "activated");
      await page.goto(`${server.url}?again`);
      await page.locator("#model[data-state=ready]").waitFor();
      await context.close();
    }
  });

  test("has dark scrollbars and sliders in its dark face", async () => {
    await page.setViewportSize({ width: 700, height: 500 });
    await page.goto(server.url);
    await ready();
    while ((await page.locator("html").getAttribute("data-theme")) !== "dark") await page.click("#theme");
    await page.click("#open-settings");
    const slider = await page.locator("#temperature").boundingBox();
    const png = (await page.screenshot({ caret: "initial" })).toString("base64");
    // Playwright adds a style sheet of its own for that, which the policy of the page blocks.
    problems = problems.filter((problem) => !problem.includes("blocked an inline style"));
    // The end of the slider, and the right edge of the window.
    const places = [[slider.x + slider.width - 8, slider.y + slider.height / 2], [697, 490], [680, 490]];
    const colors = await page.evaluate(async ([png, places]) => {
      const bitmap = await createImageBitmap(new Blob([Uint8Array.from(atob(png), (c) => c.charCodeAt(0))]));
      const context = new OffscreenCanvas(bitmap.width, bitmap.height).getContext("2d");
      context.drawImage(bitmap, 0, 0);
      return places.map(([x, y]) => [...context.getImageData(Math.round(x), Math.round(y), 1, 1).data].slice(0, 3));
    }, [png, places]);
    for (const color of colors) assert.ok(Math.max(...color) < 128, JSON.stringify(colors));
  });

  test("has two faces, fits a phone, and has nothing that axe finds fault with", async () => {
    await page.goto(server.url);
    await ready();
    const paper = () => page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
    const [found, papers] = [[], []];
    for (const [width, height, name] of [[1280, 768, "wide"], [360, 640, "phone"]]) {
      await page.setViewportSize({ width, height });
      await ask("Tell me a story about a lost kite.");
      // The newest reply is not behind the message field.
      await page.waitForFunction(() => {
        const reply = [...document.querySelectorAll("#conversation > li")].at(-1).getBoundingClientRect();
        return reply.bottom <= document.querySelector("#composer").getBoundingClientRect().top;
      });
      for (const theme of ["light", "dark"]) {
        while ((await page.locator("html").getAttribute("data-theme")) !== theme) await page.click("#theme");
        papers.push(await paper());
        if (name === "wide") found.push(...(await faults(page, theme)));
        for (const [open, close] of [["#open-settings", "#close-settings"], ["#model", "#close-models"]]) {
          await page.click(open);
          assert.ok((await page.evaluate(() => document.documentElement.scrollWidth - innerWidth)) <= 0, `${name}: ${open}`);
          const { x, width: wide } = await page.locator("dialog[open]").boundingBox();
          assert.ok(x >= 0 && x + wide <= width, `${name}: ${open} from ${x}, ${wide} wide`);
          if (name === "phone") found.push(...(await faults(page, `${open}, ${theme}`)));
          await page.click(close);
        }
      }
    }
    assert.deepEqual(found, []);
    const [light, dark] = ["rgb(246, 244, 237)", "rgb(20, 23, 19)"];
    assert.deepEqual(papers, [light, dark, light, dark]);
  });

  test("opens and answers without a network after the first visit", async () => {
    const alone = await serve(new URL("../dist/", import.meta.url));
    try {
      await page.goto(alone.url);
      await page.waitForFunction(() => navigator.serviceWorker.controller !== null);
      await ready();
    } finally {
      await alone.close();
    }
    await page.goto(alone.url);
    await ready();
    assert.notEqual(await ask("Hello!"), "");
    // Threads come with the second visit; until then the module for them is not kept.
    problems = problems.filter((problem) => !/Failed to load .*\/threads-/.test(problem));
  });
});
