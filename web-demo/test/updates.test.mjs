// The copy that the service worker keeps of the built page, while the server gets a new version or falls silent: `npm run build`
// first. CHROME is the browser's path.
import assert from "node:assert/strict";
import { mkdtemp, readdir, readFile, rm } from "node:fs/promises";
import { createServer } from "node:http";
import { availableParallelism, tmpdir } from "node:os";
import { extname, join, relative } from "node:path";
import { after, afterEach, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { build } from "vite";
import { launch, TYPES } from "../../wasm/js/test/chromium.mjs";

const ROOT = fileURLToPath(new URL("../", import.meta.url));
const ISOLATED = { "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp" };

/** All files of a directory by their paths from there, without the compressed copies that `cargo xtask demo` adds. */
async function filesOf(directory) {
  const entries = await readdir(directory, { recursive: true, withFileTypes: true });
  const paths = entries.filter((entry) => entry.isFile() && extname(entry.name) !== ".br").map((entry) => join(entry.parentPath, entry.name));
  return new Map(await Promise.all(paths.map(async (path) => [`/${relative(directory, path)}`, await readFile(path)])));
}

/** The page with another script, another worker and another model. */
async function secondVersion() {
  const changes = {
    name: "second version",
    transform: (code, id) => (/\/(src\/main\.ts|dist\/worker\.js)$/.test(id.split("?")[0]) ? `${code}\nglobalThis.version = 2;\n` : undefined),
    generateBundle(_options, bundle) {
      const model = bundle["sprout.gguf"];
      if (model) model.source = Buffer.concat([model.source, Buffer.alloc(32)]);
    },
  };
  const outDir = await mkdtemp(join(tmpdir(), "shohin-page-"));
  await build({ root: ROOT, logLevel: "silent", plugins: [changes], worker: { plugins: () => [changes] }, build: { outDir, emptyOutDir: true } });
  const files = await filesOf(outDir);
  await rm(outDir, { recursive: true });
  return files;
}

describe("the kept copy of the page", () => {
  let browser, first, second;
  before(async () => {
    [browser, first, second] = [await launch(), await filesOf(join(ROOT, "dist")), await secondVersion()];
    const gone = [...first.keys()].filter((path) => !second.has(path));
    assert.ok(gone.some((path) => path.includes("/worker-")) && gone.some((path) => path.includes("/index-")), `${gone}`);
  });
  after(() => browser?.close());

  const visits = [];
  afterEach(async () => {
    for (const { site, context } of visits.splice(0)) {
      await context.close();
      await site.close();
    }
  });

  /** A server of the first version, and a page open on it whose copy is complete. */
  async function visit(headers) {
    const site = { files: first, silent: false, paths: [], unanswered: [] };
    const server = createServer((request, response) => {
      const path = new URL(request.url, "http://localhost").pathname.replace(/\/$/, "/index.html");
      if (site.silent) return site.unanswered.push(path);
      site.paths.push(path);
      const content = site.files.get(path);
      response.writeHead(content ? 200 : 404, { ...headers, "Content-Type": TYPES[extname(path)] ?? "application/octet-stream" }).end(content);
    });
    await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
    site.url = `http://127.0.0.1:${server.address().port}/`;
    site.close = () => new Promise((resolve) => (server.close(resolve), server.closeAllConnections()));
    const context = await browser.newContext({ viewport: { width: 1280, height: 768 } });
    visits.push({ site, context });
    const open = async () => {
      const page = await context.newPage();
      page.setDefaultTimeout(120_000);
      await page.goto(site.url);
      return page;
    };
    const page = await open();
    await ready(page);
    await page.waitForFunction(() => navigator.serviceWorker.controller !== null);
    return { site, page, open };
  }

  const ready = (page) => page.locator("#model[data-state=ready]").waitFor();
  const versionOf = (page) => page.evaluate(() => globalThis.version ?? 1);

  async function hear(page) {
    const replies = page.locator("#conversation [data-role=assistant]");
    const before = await replies.count();
    await page.fill("#prompt", "Hello!");
    await page.click("#send");
    await replies.nth(before).locator("xpath=self::*[@data-state='done']").waitFor();
    return replies.nth(before).locator("[data-part=text]").innerText();
  }

  async function set(page, id, value) {
    await page.click("#open-settings");
    if (id === "threads") await page.selectOption("#threads", value);
    else await page.fill(`#${id}`, value).then(() => page.locator(`#${id}`).blur());
    await page.click("#close-settings");
  }

  /** Lets the browser look for a new version, and waits until it has a copy or has failed to get one. */
  const update = (page) =>
    page.evaluate(async () => {
      const registration = await navigator.serviceWorker.getRegistration();
      await registration.update();
      const { installing } = registration;
      if (installing) await new Promise((resolve) => installing.addEventListener("statechange", resolve, { once: true }));
    });

  async function deploy(site, page) {
    site.files = second;
    await update(page);
  }

  /** The paths of each kept version. */
  const copies = (page) =>
    page.evaluate(async () => {
      const names = (await caches.keys()).filter((name) => name.startsWith("shohin-"));
      return Promise.all(names.map(async (name) => (await (await caches.open(name)).keys()).map(({ url }) => new URL(url).pathname)));
    });
  const modules = (paths) => paths.filter((path) => path.endsWith(".wasm")).map((path) => /_(threads_)?/.exec(path.split("shohin_wasm")[1])[1] ?? "single");

  for (const [words, headers] of [["fresh for ten minutes", { "Cache-Control": "max-age=600" }], ["without Cache-Control", {}]]) {
    test(`is replaced as a whole, and not while a tab uses it: files ${words}`, async () => {
      const { site, page, open } = await visit(headers);
      await deploy(site, page);
      assert.equal((await copies(page)).length, 2);
      // The tab of before has all it needs, though the server has no more of it.
      const before = site.paths.length;
      await set(page, "context", "128");
      await page.locator("#facts").filter({ hasText: "128 tokens" }).waitFor({ state: "attached" });
      await ready(page);
      assert.notEqual(await hear(page), "");
      assert.deepEqual(site.paths.slice(before).filter((path) => !second.has(path)), []);
      assert.equal(await versionOf(page), 1);
      // A reload has the new one.
      await page.reload();
      await ready(page);
      assert.equal(await versionOf(page), 2);

      await page.close();
      let next = await open();
      while ((await copies(next)).length > 1) {
        await next.close();
        await new Promise((resolve) => setTimeout(resolve, 100));
        next = await open();
      }
      await ready(next);
      assert.equal(await versionOf(next), 2);
      const [kept, ...others] = await copies(next);
      assert.deepEqual(others, []);
      assert.deepEqual(kept.filter((path) => !second.has(path.replace(/\/$/, "/index.html"))), []);
      const size = await next.evaluate(async () => (await (await caches.match("sprout.gguf")).arrayBuffer()).byteLength);
      assert.equal(size, second.get("/sprout.gguf").length);
      await site.close();
      await next.reload();
      await ready(next);
      assert.equal(await versionOf(next), 2);
      assert.notEqual(await hear(next), "");
    });
  }

  test("is never of two versions, though the server is for a while", async () => {
    const { site, page } = await visit({});
    site.files = new Map([...second, ["/index.html", first.get("/index.html")]]);
    await update(page);
    assert.equal(await page.evaluate(async () => (await navigator.serviceWorker.getRegistration()).waiting), null);
    await site.close();
    await page.reload();
    await ready(page);
    assert.notEqual(await hear(page), "");
  });

  test("is what opens while the server is silent", async () => {
    const { site, page } = await visit({});
    site.silent = true;
    await page.reload();
    await ready(page);
    // Three seconds are waited for the page, and for nothing that it loads.
    assert.deepEqual(site.unanswered.filter((path) => path !== "/sw.js"), ["/index.html"]);
    assert.notEqual(await hear(page), "");
    // And the server is asked again once it answers.
    site.silent = false;
    site.files = second;
    while ((await versionOf(page)) === 1) {
      await new Promise((resolve) => setTimeout(resolve, 500));
      await page.reload();
      await ready(page);
    }
    assert.equal(await versionOf(page), 2);
  });

  test("has one WebAssembly module, the one in use, and others once they are used", async () => {
    const { site, page } = await visit({ ...ISOLATED, "Cache-Control": "max-age=600" });
    const threads = availableParallelism() > 1 ? ["threads_"] : ["single"];
    assert.deepEqual(modules((await copies(page))[0]), threads);
    assert.deepEqual(modules(site.paths), threads, "and nothing else is downloaded");
    if (availableParallelism() > 1) {
      await set(page, "threads", "1");
      await page.locator("#facts").filter({ hasText: "1 thread" }).waitFor({ state: "attached" });
      await ready(page);
      assert.deepEqual(modules((await copies(page))[0]).sort(), ["single", "threads_"]);
      // The next version has them, too.
      await deploy(site, page);
      assert.deepEqual((await copies(page)).map((paths) => modules(paths).sort()), [["single", "threads_"], ["single", "threads_"]]);
    }
    const plain = await visit({});
    assert.deepEqual(modules((await copies(plain.page))[0]), ["single"]);
    assert.deepEqual([...new Set(modules(plain.site.paths))], ["single"]);
  });

  test("has what formulas need once a reply had one, in the next version too", { timeout: 300_000 }, async () => {
    const { site, page } = await visit({ ...ISOLATED, "Cache-Control": "max-age=600" });
    const extras = async () => (await copies(page)).map((paths) => paths.filter((path) => /(formula|highlight)-|KaTeX_/.test(path)).length);
    assert.deepEqual(await extras(), [0]);
    const formulas = [...first.keys()].filter((path) => /formula-|KaTeX_/.test(path));
    assert.ok(formulas.length > 3);
    await page.evaluate((path) => fetch(path).then((response) => response.text()), formulas.find((path) => /formula-.*\.js$/.test(path)));
    while ((await extras())[0] < formulas.length) await new Promise((resolve) => setTimeout(resolve, 20));
    await deploy(site, page);
    assert.deepEqual(await extras(), [formulas.length, formulas.length]);
  });
});
