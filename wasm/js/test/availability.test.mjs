// Availability, downloads ahead of a load, and copies by default: `npm run build -w wasm` first.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { after, before, beforeEach, describe, test } from "node:test";
import { Engine, ShohinError } from "shohin";
import { launch, serve } from "./chromium.mjs";
import { enlarged, origin, split } from "./gguf.mjs";
import { publish } from "./publish.mjs";

const DIST = new URL("../../dist/", import.meta.url);
const MODEL = new URL("../../../models/sprout-nano.gguf", import.meta.url);
const small = await readFile(MODEL);
/** 9 MB. */
const large = enlarged(small, 8);
const parts = split(small, 2);
const blank = (_request, response) => response.writeHead(200, { "Content-Type": "text/html" }).end("<!doctype html><title>test</title>");
const body = (bytes) => (_request, response) => response.writeHead(200, { "Content-Length": bytes.length }).end(bytes);

/** The package in a worker of the page's own. */
const WORKER = `
  import { Engine, listCache } from "/local.js";
  self.onmessage = async ({ data: [method, source] }) => {
    const said = await Engine[method](source).catch(({ code }) => code);
    const { status } = said ?? {};
    if (said?.info) await said.dispose();
    postMessage(status ?? (typeof said === "string" ? said : (await listCache()).map(({ url, complete }) => [new URL(url).pathname, complete])));
  };`;

describe("in a browser", { timeout: 300_000 }, () => {
  let browser, server, page;
  const { state, answer } = origin(large);
  before(async () => {
    server = await serve(DIST, {
      "/": blank,
      "/model.gguf": answer,
      "/nano.gguf": body(small),
      "/nano-00001-of-00002.gguf": body(parts[0]),
      "/nano-00002-of-00002.gguf": body(parts[1]),
      "/mirror/you/yours/resolve/main/nano.gguf": body(small),
      "/page.gguf": body(Buffer.from("<!doctype html><title>Sign in</title>".repeat(100))),
      "/own-worker.js": (_request, response) => response.writeHead(200, { "Content-Type": "text/javascript" }).end(WORKER),
    });
    browser = await launch();
  });
  after(async () => {
    await browser?.close();
    await server?.close();
  });
  beforeEach(async () => {
    await page?.context().close();
    page = await (await browser.newContext()).newPage();
    page.setDefaultTimeout(120_000);
    await page.goto(server.url);
    Object.assign(state, { asked: [], sent: 0, hold: undefined });
  });

  /** Calls a static method of `Engine`; `globalThis.progress` has its progress and `globalThis.abort` ends it. */
  const call = (method, source, options = {}, where = page) =>
    where.evaluate(
      async ([method, source, options]) => {
        const { Engine, ShohinError } = await import("/index.js");
        const progress = (globalThis.progress = []);
        const abort = (globalThis.abort = new AbortController());
        try {
          const result = await Engine[method](source, { ...options, signal: abort.signal, onProgress: (each) => progress.push(each) });
          if (result instanceof Engine) await result.dispose();
          if (result?.error) return { ...result, error: result.error instanceof ShohinError && result.error.code };
          return result instanceof Engine ? progress.map(({ stage }) => stage).filter((stage, i, all) => stage !== all[i - 1]) : result;
        } catch ({ name, code, message, cause }) {
          return { name, code, message, cause };
        }
      },
      [method, source, options],
    );
  const list = async (url) => {
    const entries = await page.evaluate(async (url) => (await import("/index.js")).listCache(url), url);
    return entries.map(({ url, bytes, complete }) => [new URL(url).pathname, bytes, complete]).sort();
  };
  const fetched = (bytes) => page.waitForFunction((bytes) => globalThis.progress?.some(({ loaded }) => loaded >= bytes), bytes);

  test("a model from a URL is kept, unless the options say otherwise", async () => {
    assert.deepEqual(await call("load", "nano.gguf", { cache: false }), ["download", "prepare"]);
    const blob = await page.evaluate(async () => URL.createObjectURL(await (await fetch("nano.gguf")).blob()));
    assert.deepEqual(await call("load", blob), ["download", "prepare"]);
    assert.deepEqual(await list(), []);
    assert.deepEqual(await call("load", "nano.gguf"), ["download", "prepare"]);
    assert.deepEqual(await list(), [["/nano.gguf", small.length, true]]);
    assert.deepEqual(await call("load", "nano.gguf"), ["read", "prepare"]);
    assert.deepEqual(await call("load", "nano.gguf", { cache: false }), ["download", "prepare"]);
  });

  test("a download ahead of a load can be aborted and resumed, and is all that the load needs", async () => {
    assert.deepEqual(await call("availability", "model.gguf"), { status: "downloadable", remaining: large.length });
    let release;
    const released = new Promise((resolve) => (release = resolve));
    state.sent = 0;
    state.hold = () => (state.sent >= 6 << 20 ? released : undefined);
    const preload = call("preload", "model.gguf");
    await fetched(2 << 20);
    const other = await page.context().newPage();
    await other.goto(server.url);
    const { status, remaining } = await call("availability", "model.gguf", {}, other);
    assert.equal(status, "downloading");
    assert.ok(remaining <= large.length - (1 << 20) && remaining > 0, `${remaining} bytes remain`);
    await page.evaluate(() => globalThis.abort.abort("enough"));
    const { name, code, cause } = await preload;
    assert.deepEqual([name, code, cause], ["AbortError", "aborted", "enough"]);
    release();

    const [[, kept]] = await list();
    assert.ok(kept >= 1 << 20 && kept < large.length, `${kept} bytes are kept`);
    assert.deepEqual(await call("availability", "model.gguf"), { status: "downloadable", remaining: large.length - kept });
    assert.deepEqual(await call("availability", "model.gguf", { cache: false }), { status: "downloadable", remaining: large.length });
    Object.assign(state, { asked: [], sent: 0 });
    assert.equal(await call("preload", "model.gguf"), undefined);
    assert.ok(state.sent < large.length, `${state.sent} bytes sent`);
    assert.deepEqual(await page.evaluate(() => globalThis.progress.at(-1)), { stage: "download", loaded: large.length, total: large.length });
    assert.deepEqual(await list(), [["/model.gguf", large.length, true]]);

    state.asked = [];
    assert.deepEqual(await call("availability", "model.gguf"), { status: "available", remaining: 0 });
    assert.equal(await call("preload", "model.gguf"), undefined);
    assert.deepEqual(await call("load", "model.gguf"), ["read", "prepare"]);
    assert.deepEqual(state.asked, []);
  });

  test("a model in parts is downloaded ahead, part by part", async () => {
    const total = parts[0].length + parts[1].length;
    assert.deepEqual(await call("availability", "nano-00001-of-00002.gguf"), { status: "downloadable", remaining: total });
    assert.equal(await call("preload", ["nano-00002-of-00002.gguf"]), undefined);
    assert.deepEqual(await page.evaluate(() => globalThis.progress.at(-1)), { stage: "download", loaded: total, total });
    const copies = [["/nano-00001-of-00002.gguf", parts[0].length, true], ["/nano-00002-of-00002.gguf", parts[1].length, true]];
    assert.deepEqual(await list(), copies);
    // Those of a model alone.
    assert.equal(await call("preload", "nano.gguf"), undefined);
    assert.deepEqual(await list("nano-00002-of-00002.gguf"), copies);
    assert.deepEqual(await list("nano.gguf"), [["/nano.gguf", small.length, true]]);
    assert.deepEqual(await list("other.gguf"), []);
    assert.deepEqual(await call("availability", "nano-00001-of-00002.gguf"), { status: "available", remaining: 0 });
  });

  test("a model by name is kept, and deleted, by that name", async () => {
    const headers = { "Access-Control-Allow-Origin": "*", "Content-Length": `${small.length}` };
    await page.context().route("https://huggingface.co/**", (route) => route.fulfill({ status: 200, headers, body: small }));
    assert.equal((await call("load", "bonsai-1.7b")).code, "integrity");
    assert.deepEqual(await list(), []);
    await publish(page.context(), small);
    await page.reload();
    assert.deepEqual(await call("load", "bonsai-1.7b"), ["download", "prepare"]);
    assert.deepEqual(await list(), [["/prism-ml/Bonsai-1.7B-gguf/resolve/main/Bonsai-1.7B-Q1_0.gguf", small.length, true]]);
    const deleted = await page.evaluate(async () => {
      const { deleteCache } = await import("/index.js");
      return [await deleteCache("bonsai-1.7b"), await deleteCache("hf:prism-ml/Bonsai-4B-gguf/model.gguf"), await deleteCache("bonsai").catch(({ code }) => code)];
    });
    assert.deepEqual([deleted, await list()], [[true, false, "argument"], []]);
  });

  test("a model of a mirror is listed, and deleted, by its name and the mirror", async () => {
    const [name, hub] = ["hf:you/yours/nano.gguf", `${server.url}mirror/`];
    assert.deepEqual(await call("load", name, { hub }), ["download", "prepare"]);
    const found = await page.evaluate(async ([name, hub]) => {
      const { deleteCache, listCache } = await import("/index.js");
      const listed = async (options) => (await listCache(name, options)).map(({ url }) => new URL(url).pathname);
      const refused = (promise) => promise.catch(({ code, message }) => `${code}: ${message}`);
      return {
        listed: [await listed(), await listed({ hub: new URL(hub) })],
        refused: [await refused(listCache(name, { hubs: hub })), await refused(deleteCache(name, { hub: "mirror" })), await refused(listCache(5)), await refused(deleteCache({})), await refused(deleteCache())],
        deleted: [await deleteCache(name), await deleteCache(name, { hub }), await deleteCache(name, { hub })],
      };
    }, [name, hub]);
    assert.deepEqual(found.listed, [[], ["/mirror/you/yours/resolve/main/nano.gguf"]]);
    assert.match(found.refused[0], /^argument: there is no option "hubs" here; did you mean hub\?$/);
    assert.match(found.refused[1], /^argument: hub is "mirror", but must be an http or https address$/);
    assert.deepEqual(found.refused.slice(2), ["5", "an object", "undefined"].map((what) => `argument: the address is ${what}, but must be a URL`));
    assert.deepEqual([found.deleted, await list()], [[false, true, false], []]);
  });

  test("nothing is kept of a file that is not the model", async () => {
    assert.equal((await call("preload", "page.gguf")).code, "malformed");
    assert.equal((await call("preload", "nano.gguf", { sha256: "0".repeat(64) })).code, "integrity");
    assert.equal((await call("preload", "nano.gguf", { bytes: 5 })).code, "integrity");
    assert.deepEqual(await list(), []);
    assert.equal((await call("preload", "gone.gguf")).code, "http");
    assert.deepEqual(await call("availability", "gone.gguf"), { status: "unavailable", error: "http" });
    assert.equal((await call("availability", "bonsai")).code, "argument");
  });

  test("copies are shared with an engine in a worker of the page's own, and not kept on its main thread", async () => {
    const own = (method, source) =>
      page.evaluate(
        async (request) => {
          const worker = (globalThis.own ??= new Worker("own-worker.js", { type: "module" }));
          worker.postMessage(request);
          return new Promise((resolve) => (worker.onmessage = ({ data }) => resolve(data)));
        },
        [method, source],
      );
    assert.equal(await own("availability", "nano.gguf"), "downloadable");
    assert.deepEqual(await own("preload", "nano.gguf"), [["/nano.gguf", true]]);
    assert.equal(await own("availability", "nano.gguf"), "available");
    assert.deepEqual(await own("load", "nano.gguf"), [["/nano.gguf", true]]);
    assert.deepEqual(await call("load", "nano.gguf"), ["read", "prepare"]);
    const main = await page.evaluate(async () => {
      const { Engine } = await import("/local.js");
      const { status } = await Engine.availability("nano.gguf");
      return [status, await Engine.preload("nano.gguf").catch(({ code }) => code)];
    });
    assert.deepEqual(main, ["downloadable", "unsupported"]);
  });
});

test("in Node files are available, and downloads are not kept", async () => {
  const server = await serve(new URL("../../../models/", import.meta.url));
  try {
    const url = `${server.url}sprout-nano.gguf`;
    for (const source of [fileURLToPath(MODEL), new URL(MODEL), small, new Blob([small])]) {
      assert.deepEqual(await Engine.availability(source), { status: "available", remaining: 0 });
    }
    assert.deepEqual(await Engine.availability(url), { status: "downloadable", remaining: small.length });
    const { status, error } = await Engine.availability("no-such.gguf");
    assert.deepEqual([status, error instanceof ShohinError, error.code], ["unavailable", true, "read"]);
    await assert.rejects(Engine.availability(url, { signal: AbortSignal.abort() }), { name: "AbortError", code: "aborted" });
    await assert.rejects(Engine.preload(url), { code: "unsupported" });
  } finally {
    await server.close();
  }
});
