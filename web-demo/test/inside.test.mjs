// "How it works", and what a reply can be besides text, in headless Chromium: `npm run build` first.
import assert from "node:assert/strict";
import { readFile, stat } from "node:fs/promises";
import { after, afterEach, before, beforeEach, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { launch, serve } from "../../wasm/js/test/chromium.mjs";
import { faults } from "./axe.mjs";
import { soon } from "./soon.mjs";

const model = (name) => fileURLToPath(new URL(`../../models/${name}.gguf`, import.meta.url));

describe("how it works", () => {
  let browser, server, elsewhere, page, problems;

  before(async () => {
    browser = await launch();
    server = await serve(new URL("../dist/", import.meta.url));
    elsewhere = await serve(new URL("../../models/", import.meta.url), {}, { "Access-Control-Allow-Origin": "*" });
  });
  after(async () => {
    await browser?.close();
    await server?.close();
    await elsewhere?.close();
  });
  beforeEach(async () => {
    const context = await browser.newContext({ viewport: { width: 1024, height: 768 }, serviceWorkers: "block" });
    page = await context.newPage();
    page.setDefaultTimeout(120_000);
    problems = [];
    page.on("pageerror", (error) => problems.push(String(error)));
    page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
    await page.goto(server.url);
    await page.locator("#model[data-state=ready]").waitFor();
  });
  afterEach(async () => {
    await page.context().close();
    assert.deepEqual(problems, []);
  });

  const done = (n = 0) => page.locator("#conversation [data-role=assistant]").nth(n).locator("xpath=self::*[@data-state='done']").waitFor();

  /** All values of the bars of a list, in percent. */
  const shares = (list) => page.locator(`${list} .value`).evaluateAll((values) => values.map(({ textContent }) => Number.parseFloat(textContent.replace("< ", ""))));

  test("draws weights of the file, and says their share", async () => {
    await page.click("#open-inside");
    await page.locator("#patch").waitFor();
    const note = await page.locator("#patch-note").innerText();
    assert.match(note, /^24 × 48 of the 2,048 × 256 weights of token_embd\.weight, decoded from the file\. Stored as PQ2_0: each 128 share one scale\.$/);
    // PQ2_0: a scale, then 2 bits for each weight plus one; 256 columns take two groups.
    const file = await readFile(model("sprout"));
    const start = file.indexOf("token_embd.weight");
    assert.ok(start > 0);
    const data = Math.ceil(64_480 / 32) * 32;
    const weights = Array.from({ length: 24 * 48 }, (_, i) => ((file[data + Math.floor(i / 48) * 68 + 2 + ((i % 48) >> 2)] >> (2 * ((i % 48) & 3))) & 3) - 1);
    const percent = (value) => `${((100 * weights.filter((weight) => weight === value).length) / weights.length).toFixed(1)} %`;
    const legend = (await page.locator("#patch-legend li").allInnerTexts()).map((text) => text.replace(/\s/g, " "));
    assert.deepEqual(legend, [`+1: ${percent(1)}`, `0: ${percent(0)}`, `−1: ${percent(-1)}`]);
    // Each cell is drawn as its weight: a full square, a dot or a hollow square.
    const drawn = await page.evaluate(() => {
      const canvas = document.querySelector("#patch");
      const context = canvas.getContext("2d");
      const size = canvas.width / 48;
      const filled = (x, y) => context.getImageData(x, y, 1, 1).data[3] > 100;
      return Array.from({ length: 24 * 48 }, (_, i) => {
        const [x, y] = [(i % 48) * size, Math.floor(i / 48) * size];
        if (!filled(x + size / 2, y + size / 2)) return -1;
        return filled(x + size / 4, y + size / 4) ? 1 : 0;
      });
    });
    assert.deepEqual(drawn, weights);
    // Other files, of which a format or all is another.
    await page.click("#close-inside");
    await page.setInputFiles("#file", model("sprout-q1"));
    await page.locator("#status").filter({ hasText: "sprout-q1.gguf is ready" }).waitFor({ state: "attached" });
    await page.click("#open-inside");
    await page.locator("#patch-note").filter({ hasText: "Q1_0" }).waitFor();
    await soon(async () => assert.equal(await page.locator("#patch-legend li").count(), 2));
  });

  test("reads a file from elsewhere again only on request", async () => {
    const asked = [];
    page.on("request", (request) => request.url().startsWith(elsewhere.url) && asked.push(request.url()));
    await page.click("#model");
    await page.fill("#url", `${elsewhere.url}sprout-nano.gguf`);
    await page.click("#url-form button");
    await page.locator("#status").filter({ hasText: "sprout-nano.gguf is ready" }).waitFor({ state: "attached" });
    const before = asked.length;
    await page.click("#open-inside");
    assert.match(await page.locator("#patch-note").innerText(), /is downloaded again as far as that/);
    await soon(async () => assert.equal(await page.locator("#patch").isVisible(), false));
    await page.click("#patch-read");
    await page.locator("#patch").waitFor();
    assert.equal(asked.length, before + 1);
    await soon(async () => assert.equal(await page.locator("#patch-read").isVisible(), false));
    // Another look does not read it anew.
    await page.click("#close-inside");
    await page.click("#open-inside");
    await page.locator("#patch").waitFor();
    assert.equal(asked.length, before + 1);
  });

  test("shows the candidates for each token, the size and the time", async () => {
    await page.click("#open-inside");
    await soon(async () => assert.match(await page.locator("#size-note").innerText(), /weights, \d\.\d\d bits of file for each/));
    const sizes = await page.locator("#sizes .value").allInnerTexts();
    const { size } = await stat(model("sprout"));
    assert.equal(sizes[0].replace(/\s/g, " "), `${(size / 1e6).toFixed(1)} MB`);
    await soon(async () => assert.equal(await page.locator("#times li").count(), 0, "nothing is measured yet"));
    await page.click("#inside-ask");
    await page.locator("#candidates li").first().waitFor();
    await done();
    await page.locator("#times li").nth(1).waitFor();
    const tokens = Number(await page.locator("#step").getAttribute("max"));
    const written = Number(/(\d+) tokens written/.exec(await page.locator("#time-note").innerText())[1]);
    assert.ok(tokens > 3 && Math.abs(tokens - written) <= 1, `${tokens} of ${written}`);
    let text = "";
    for (let n = 1; n <= 4; n++) {
      await page.locator("#step").fill(String(n));
      const all = await shares("#candidates");
      assert.ok(all.length >= 5 && all.reduce((sum, share) => sum + share) <= 100.6, all.join());
      assert.deepEqual(all.slice(0, 5), all.slice(0, 5).sort((a, b) => b - a));
      text += await page.locator("#candidates .chosen .name").textContent();
    }
    const reply = await page.locator("#conversation [data-role=assistant] [data-part=text]").innerText();
    assert.ok(reply.replace(/\s/g, "").startsWith(text.replace(/[␣↵]/g, "").slice(0, 4)), `${reply}: ${text}`);
    // With the keyboard.
    await page.locator("#step").focus();
    await page.keyboard.press("ArrowRight");
    await soon(async () => assert.match(await page.locator("#step-text").innerText(), /^5 of \d+$/));
    // Closed, nothing more is computed than a reply takes.
    await page.keyboard.press("Escape");
    await page.locator("#inside").waitFor({ state: "hidden" });
    await page.fill("#prompt", "Hello!");
    await page.keyboard.press("Enter");
    await page.locator("#send").focus();
    await done(1);
    await page.click("#open-inside");
    await soon(async () => assert.equal(await page.locator("#step").getAttribute("max"), String(tokens)));
  });

  test("stands beside the conversation where there is room", async () => {
    await page.setViewportSize({ width: 1400, height: 800 });
    await page.locator("#open-inside").focus();
    await page.keyboard.press("Enter");
    await page.fill("#prompt", "Hello!");
    await page.press("#prompt", "Enter");
    await page.locator("#candidates li").first().waitFor();
    await done();
    const [panel, foot] = [await page.locator("#inside").boundingBox(), await page.locator("#foot").boundingBox()];
    assert.ok(foot.x + foot.width <= panel.x);
    await page.setViewportSize({ width: 390, height: 800 });
    const isModal = (expected) =>
      soon(async () => assert.equal(await page.locator("#inside").evaluate((panel) => panel.matches(":modal")), expected));
    await isModal(true);
    await page.setViewportSize({ width: 1400, height: 800 });
    await isModal(false);
    await page.locator("#close-inside").focus();
    await page.keyboard.press("Escape");
    await page.locator("#inside").waitFor({ state: "hidden" });
  });

  test("has nothing that axe finds fault with", async () => {
    await page.click("#open-inside");
    await page.click("#inside-ask");
    await done();
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
      assert.deepEqual(await faults(page, colorScheme), []);
    }
    for (const [width, colorScheme] of process.env.SCREENSHOTS ? [[1400, "light"], [1024, "dark"], [390, "light"]] : []) {
      await page.emulateMedia({ colorScheme });
      await page.setViewportSize({ width, height: 900 });
      await page.screenshot({ path: `${process.env.SCREENSHOTS}/inside-${width}-${colorScheme}.png` });
    }
  });
});
