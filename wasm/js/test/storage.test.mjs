// Copies of models in several tabs, and browsers without storage: `npm run build -w wasm` first.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, before, beforeEach, describe, test } from "node:test";
import { launch, launchWith, serve } from "./chromium.mjs";
import { enlarged, origin } from "./gguf.mjs";

const DIST = new URL("../../dist/", import.meta.url);
/** 9 MB. */
const model = enlarged(await readFile(new URL("../../../models/sprout-nano.gguf", import.meta.url)), 8);
const blank = (_request, response) => response.writeHead(200, { "Content-Type": "text/html" }).end("<!doctype html><title>test</title>");

/** Loads in a page; `globalThis.progress` has its progress. */
const load = (page, source, options = {}) =>
  page.evaluate(
    async ([source, options]) => {
      const { Engine } = await import("/index.js");
      const progress = (globalThis.progress = []);
      const started = performance.now();
      try {
        const engine = await Engine.load(source, { cache: true, ...options, onProgress: (each) => progress.push(each) });
        await engine.dispose();
        return { stages: progress.map(({ stage }) => stage).filter((stage, i, all) => stage !== all[i - 1]) };
      } catch (error) {
        return { name: error.name, code: error.code, message: error.message, after: performance.now() - started };
      }
    },
    [source, options],
  );

describe("copies in several tabs", () => {
  let browser, server, first, second;
  const { state, answer } = origin(model);
  before(async () => {
    server = await serve(DIST, { "/": blank, "/model.gguf": answer });
    browser = await launch();
  });
  after(async () => {
    await browser?.close();
    await server?.close();
  });
  beforeEach(async () => {
    await first?.context().close();
    const context = await browser.newContext();
    [first, second] = [await context.newPage(), await context.newPage()];
    for (const page of [first, second]) {
      page.setDefaultTimeout(120_000);
      await page.goto(server.url);
    }
    Object.assign(state, { asked: [], sent: 0, hold: undefined });
  });

  const list = () => second.evaluate(async () => (await import("/index.js")).listCache());
  /** Waits until a tab reports that so many bytes were fetched, by whomever. */
  const fetched = (page, bytes) =>
    page.waitForFunction((bytes) => globalThis.progress?.some(({ stage, loaded }) => stage === "download" && loaded >= bytes), bytes);
  /** Holds the download after so many bytes; returns what lets it go on. */
  const hold = (bytes) => {
    let release;
    const released = new Promise((resolve) => (release = resolve));
    state.hold = () => (state.sent >= bytes ? released : undefined);
    return release;
  };

  test("are fetched once, and all show the progress", async () => {
    const release = hold(4 << 20);
    const loads = [load(first, "model.gguf")];
    await fetched(first, 1 << 20);
    loads.push(load(second, "model.gguf"));
    await fetched(second, 1 << 20);
    release();
    assert.deepEqual(await Promise.all(loads), [{ stages: ["download", "prepare"] }, { stages: ["download", "read", "prepare"] }]);
    assert.equal(state.asked.filter(([at]) => at === 0).length, 1);
    // What was on its way on the first connection when others took over.
    assert.ok(state.sent < 1.5 * model.length, `${state.sent} bytes sent`);
    assert.deepEqual((await list()).map(({ bytes, complete }) => [bytes, complete]), [[model.length, true]]);
    // Both read the copy, one after the other.
    state.asked = [];
    const again = await Promise.all([load(first, "model.gguf"), load(second, "model.gguf")]);
    assert.ok(again.every(({ stages }) => stages?.at(-2) === "read"), JSON.stringify(again));
    assert.deepEqual(state.asked, []);
  });

  test("are completed by the next tab when the first is closed", async () => {
    const release = hold(4 << 20);
    const lost = load(first, "model.gguf").catch(() => "closed");
    await fetched(first, 1 << 20);
    const loading = load(second, "model.gguf");
    await fetched(second, 1 << 20);
    state.asked = [];
    await first.close();
    release();
    assert.deepEqual([await lost, (await loading).stages], ["closed", ["download", "prepare"]]);
    // From where the first had come to.
    assert.ok(state.asked.length > 0 && state.asked.every(([at]) => at >= 1 << 20), `${state.asked}`);
    assert.deepEqual((await list()).map(({ bytes, complete }) => [bytes, complete]), [[model.length, true]]);
  });

  test("are not waited for when the wait is aborted, or the other tab falls silent", async () => {
    await first.evaluate(async (url) => {
      const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(url)));
      const name = [...hash].map((byte) => byte.toString(16).padStart(2, "0")).join("");
      await new Promise((resolve) => navigator.locks.request(`shohin.copy.${name}`, () => (resolve(), new Promise(() => {}))));
    }, `${server.url}model.gguf`);
    assert.deepEqual(await load(second, "model.gguf", { stallTimeout: 300 }), { stages: ["download", "prepare"] });
    assert.deepEqual(await list(), []);
    const { code } = await load(second, "model.gguf", { stallTimeout: 300, cache: "require" });
    assert.equal(code, "quota");
    const aborted = await second.evaluate(async () => {
      const { Engine } = await import("/index.js");
      const abort = new AbortController();
      const onProgress = () => abort.abort();
      return Engine.load("model.gguf", { cache: true, signal: abort.signal, onProgress }).catch(({ code }) => code);
    });
    assert.equal(aborted, "aborted");
  });

  test("are not waited for by a model that has the file twice", async () => {
    const { code, after } = await load(first, ["model.gguf", "model.gguf"]);
    assert.ok(code === "missing_key" && after < 20_000, `${code} after ${after} ms`);
  });

  test("are not begun where there is no room for them", async () => {
    const client = await first.context().newCDPSession(first);
    const quota = (quotaSize) => client.send("Storage.overrideQuotaForOrigin", { origin: new URL(server.url).origin, quotaSize });
    await quota(5 << 20);
    const release = hold(4 << 20);
    const loading = load(first, "model.gguf");
    await fetched(first, 1 << 20);
    assert.deepEqual(await list(), []);
    // No other tab waits for a copy that is not made.
    assert.equal((await load(second, "model.gguf", { cache: "require" })).code, "quota");
    release();
    assert.deepEqual(await loading, { stages: ["download", "prepare"] });
    assert.deepEqual(await list(), []);
  });
});

describe("blocked storage", () => {
  let server;
  before(async () => (server = await serve(DIST, { "/": blank, "/model.gguf": origin(model).answer }, { "Access-Control-Allow-Origin": "*" })));
  after(() => server?.close());

  /** How each call ends that uses storage. */
  const reported = (frame, loads) =>
    frame.evaluate(
      async ([url, loads]) => {
        const { clearCache, deleteCache, deleteSnapshot, Engine, listCache, listSnapshots } = await import(`${url}index.js`);
        const engine = loads && (await Engine.load("model.gguf", { cache: true }));
        const calls = [listSnapshots(), deleteSnapshot("a"), listCache(), deleteCache(`${url}a`), clearCache()];
        if (engine) calls.push(engine.save("a"), engine.restore("a"));
        return Promise.all(calls.map((call) => call.then(() => "none", ({ name, code }) => `${name} ${code}`)));
      },
      [server.url, loads],
    );

  test("is reported by typed errors where the user blocks it", async () => {
    // Chromium's own setting.
    const context = await launchWith({ profile: { default_content_setting_values: { cookies: 2 } } });
    try {
      const page = context.pages()[0] ?? (await context.newPage());
      await page.goto(server.url);
      assert.deepEqual(await reported(page, true), Array(7).fill("ShohinError read"));
      // Here `indexedDB.open` throws.
      await page.evaluate(() => document.body.append(Object.assign(document.createElement("iframe"), { sandbox: "allow-scripts", src: "/" })));
      const frame = await (await page.waitForSelector("iframe")).contentFrame();
      await frame.waitForLoadState();
      assert.deepEqual(await reported(frame, false), Array(5).fill("ShohinError read"));
    } finally {
      await context.close();
    }
  });
});
