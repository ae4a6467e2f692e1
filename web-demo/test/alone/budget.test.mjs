// What the built page may cost a visitor, and what any page should have: `npm run build` first. CHROME is the browser's path.
import assert from "node:assert/strict";
import { readdir, readFile, stat } from "node:fs/promises";
import { createRequire } from "node:module";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { brotliDecompressSync } from "node:zlib";
import { launch } from "../../../wasm/js/test/chromium.mjs";
import { firstVisit, LONGEST_TASK, servePage, total } from "../budget.mjs";

const DIST = fileURLToPath(new URL("../../dist/", import.meta.url));
const PHONE = { width: 360, height: 640 };

describe("the budget", () => {
  let browser, server;
  before(async () => ([browser, server] = await Promise.all([launch(), servePage()])));
  after(async () => {
    await browser?.close();
    await server?.close();
  });

  test("a first visit transfers under 2 MB, each file once, and shifts little", async (t) => {
    for (const viewport of [{ width: 1280, height: 768 }, PHONE]) {
      const { sent, shifts } = await firstVisit(browser, server, { viewport });
      const bytes = total(sent);
      t.diagnostic(`${viewport.width} pixels wide: ${bytes} bytes, layout shift ${shifts.toFixed(3)}`);
      const files = sent.map(({ path }) => path);
      for (const kind of [/^\/$/, /\/index-.*\.js$/, /\.css$/, /\/worker-.*\.js$/, /\/sw\.js$/, /\.wasm$/, /\.gguf$/]) {
        assert.equal(files.filter((file) => kind.test(file)).length, 1, `${kind}: ${files}`);
      }
      assert.ok(bytes > 1e6 && bytes < 2e6, `${bytes} bytes: ${JSON.stringify(sent)}`);
      assert.ok(shifts < 0.05, `${shifts}`);
    }
  });

  test("no task of a first visit takes long on a slow processor", async (t) => {
    // Other work on the machine adds to a task, by the caches and cores that it takes: one of several visits has to be undisturbed. Limits
    // are above the budget for that, and below what one script for the whole page took, 200 ms on a free processor and twice that on a busy one.
    const isShort = ({ task, script }) => task < 3 * LONGEST_TASK && script < 2 * LONGEST_TASK;
    const visits = [];
    while (visits.length < 3 && !visits.some(isShort)) {
      const { tasks } = await firstVisit(browser, server, { slowdown: 4 });
      t.diagnostic(`longest task ${tasks.task.toFixed(0)} ms, longest script ${tasks.script.toFixed(0)} ms`);
      visits.push(tasks);
    }
    assert.ok(visits.some(isShort), JSON.stringify(visits));
  });

  test("every text and module has a brotli copy that is the same, the model has none, and the service worker lists none", async () => {
    const entries = await readdir(DIST, { recursive: true, withFileTypes: true });
    const paths = entries.filter((entry) => entry.isFile()).map((entry) => join(entry.parentPath, entry.name));
    const copies = paths.filter((path) => path.endsWith(".br"));
    for (const path of copies) {
      const file = path.slice(0, -3);
      assert.ok((await stat(path)).size < (await stat(file)).size);
      assert.ok(brotliDecompressSync(await readFile(path)).equals(await readFile(file)), path);
    }
    const without = paths.filter((path) => /\.(html|js|css|svg|wasm)$/.test(path) && !copies.includes(`${path}.br`));
    assert.deepEqual(without, []);
    assert.ok(!copies.some((path) => path.includes(".gguf")));
    assert.doesNotMatch(await readFile(join(DIST, "sw.js"), "utf8"), /\.br"/);
  });

  test("the page says what it is, and a phone shows all of it large enough to read and to touch", async () => {
    const axe = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
    const context = await browser.newContext({ viewport: PHONE, hasTouch: true });
    const page = await context.newPage();
    page.setDefaultTimeout(120_000);
    const problems = [];
    page.on("pageerror", (error) => problems.push(String(error)));
    page.on("console", (message) => ["error", "warning"].includes(message.type()) && problems.push(message.text()));
    page.on("request", (request) => request.url().startsWith(server.url) || problems.push(`asks for ${request.url()}`));
    await page.goto(server.url);
    await page.locator("#model[data-state=ready]").waitFor();
    const head = await page.evaluate(() => ({
      doctype: document.doctype?.name,
      charset: document.characterSet,
      lang: document.documentElement.lang,
      title: document.title,
      description: document.querySelector("meta[name=description]")?.content,
      viewport: document.querySelector("meta[name=viewport]")?.content,
    }));
    assert.deepEqual([head.doctype, head.charset, head.lang], ["html", "UTF-8", "en"]);
    assert.match(head.title, /^Shohin\b.{0,60}$/);
    assert.match(head.description, /^.{20,160}$/);
    assert.match(head.viewport, /width=device-width/);
    assert.doesNotMatch(head.viewport, /user-scalable|maximum-scale/);

    /** What axe and this test find fault with, of what is visible now. */
    const faults = async (where) => {
      await page.evaluate(axe);
      const found = await page.evaluate(async () => {
        const values = ["target-size", "link-name", "button-name", "label", "image-alt", "document-title", "html-has-lang", "meta-viewport"];
        const { violations } = await globalThis.axe.run(document, { runOnly: { type: "rule", values } });
        const faults = violations.flatMap(({ id, nodes }) => nodes.map(({ html }) => `${id}: ${html.slice(0, 120)}`));
        // Smaller text is tiresome to read, and iOS zooms in on a field with less than 16 pixels.
        const size = (element) => Number.parseFloat(getComputedStyle(element).fontSize);
        const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
        for (let node = walker.nextNode(); node; node = walker.nextNode()) {
          const element = node.parentElement;
          if (node.data.trim() && element.checkVisibility({ visibilityProperty: true }) && size(element) < 12) faults.push(`${size(element)} pixels: ${node.data}`);
        }
        for (const field of document.querySelectorAll("input:not([type=range], [type=checkbox], [type=file]), select, textarea")) {
          if (field.checkVisibility() && size(field) < 16) faults.push(`${size(field)} pixels in ${field.outerHTML}`);
        }
        for (const image of document.querySelectorAll("img:not([width][height])")) faults.push(image.outerHTML);
        return faults;
      });
      return found.map((fault) => `${where}: ${fault}`);
    };
    const found = await faults("welcome");
    await page.fill("#prompt", "Hello!");
    await page.click("#send");
    await page.locator("[data-role=assistant][data-state=done]").waitFor();
    found.push(...(await faults("conversation")));
    for (const [open, close] of [["#model", "#close-models"], ["#open-settings", "#close-settings"], ["#open-chats", "#close-drawer"]]) {
      await page.click(open);
      found.push(...(await faults(open)));
      await page.click(close);
    }
    assert.deepEqual(found, []);
    assert.deepEqual(problems, []);
    await context.close();
  });
});
