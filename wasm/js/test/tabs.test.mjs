// One engine for several tabs, in Chromium and Firefox: `npm run build -w wasm` first.
import assert from "node:assert/strict";
import { createReadStream } from "node:fs";
import { after, afterEach, before, beforeEach, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { Engine as NodeEngine } from "shohin";
import { launch as launchChromium, serve } from "./chromium.mjs";
import { launch as launchFirefox } from "./firefox.mjs";
import { thorough } from "./thorough.mjs";

const DIST = new URL("../../dist/", import.meta.url);
const MODEL = fileURLToPath(new URL("../../../models/sprout.gguf", import.meta.url));
const ISOLATION = { "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp" };
const PROMPTS = ["Hello!", "Tell me a story about a cat."];

for (const [name, launch] of [["Chromium", launchChromium], ["Firefox", launchFirefox]]) {
  // Of what concerns messages alone, one browser shows as much.
  const alike = name === "Chromium" ? {} : thorough;
  describe(`one engine for several tabs in ${name}`, { timeout: 300_000 }, () => {
    let browser, server, context, texts, asked;
    /** The response to a request for the model, if a test gives one. */
    let respond;

    before(async () => {
      const html = (headers) => (_request, response) => response.writeHead(200, { ...headers, "Content-Type": "text/html" }).end("<!doctype html><title>test</title>");
      const model = (request, response) => {
        asked += 1;
        if (respond) return respond(request, response);
        createReadStream(MODEL).pipe(response);
      };
      const probe = (_request, response) =>
        response.writeHead(200, { ...ISOLATION, "Content-Type": "text/javascript" }).end(`
          onconnect = ({ ports: [port] }) => port.postMessage({ isolated: self.crossOriginIsolated === true, worker: typeof Worker === "function",
            memory: typeof SharedArrayBuffer === "function", write: "createSyncAccessHandle" in FileSystemFileHandle.prototype });`);
      server = await serve(DIST, { "/": html(ISOLATION), "/model.gguf": model, "/probe.js": probe }, ISOLATION);
      browser = await launch();
      const engine = await NodeEngine.load(MODEL, { threads: 1 });
      texts = [];
      for (const prompt of PROMPTS) texts.push(String(await engine.reply(prompt, { preset: "greedy" })));
      await engine.dispose();
    });
    after(async () => {
      await browser?.close();
      await server?.close();
    });
    beforeEach(async () => {
      [asked, respond, server.sent.length] = [0, undefined, 0];
      context = await browser.newContext();
    });
    afterEach(() => context.close());

    async function open() {
      const page = await context.newPage();
      page.setDefaultTimeout(120_000);
      await visit(page);
      return page;
    }
    async function visit(page) {
      await page.goto(server.url);
      await page.evaluate(async () => {
        const shohin = await import("/index.js");
        globalThis.load = async (options = {}) => {
          globalThis.stages = [];
          globalThis.engine = await shohin.Engine.load("model.gguf", { shared: true, ...options, onProgress: ({ stage }) => stages.at(-1) !== stage && stages.push(stage) });
          return engine.info;
        };
        globalThis.say = async (prompt) => String(await engine.reply(prompt, { preset: "greedy" }));
        globalThis.code = (promise) => promise.then(() => "none", (error) => (error instanceof shohin.ShohinError ? error.code : String(error)));
      });
    }
    const load = (page, options) => page.evaluate((options) => load(options), options);
    const say = (page, prompt) => page.evaluate((prompt) => say(prompt), prompt);
    const modules = () => server.sent.filter(({ path }) => path.endsWith(".wasm")).length;
    /** Waits until the page has received a part of an endless reply. */
    const begin = (page) =>
      page.evaluate(() =>
        new Promise((resolve, reject) => {
          globalThis.endless = code((async () => {
            for (;;) for await (const { text } of engine.generate("Once", { seed: 1 })) text && resolve();
          })());
          endless.then(reject);
        }),
      );

    test("answers each tab as if it were alone", async () => {
      const [first, second] = [await open(), await open()];
      const infos = await Promise.all([load(first), load(second)]);
      assert.deepEqual(infos.map(({ shared, threads }) => [shared, threads]), [[true, 1], [true, 1]]);
      assert.deepEqual([asked, modules()], [1, 1]);
      assert.deepEqual(await Promise.all([say(first, PROMPTS[0]), say(second, PROMPTS[1])]), texts);
      assert.deepEqual(await Promise.all([say(first, PROMPTS[1]), say(second, PROMPTS[0])]), [...texts].reverse());
      for (const page of [first, second]) assert.deepEqual((await page.evaluate(() => stages)).at(-1), "prepare");
    });

    test("goes on when a tab is closed during a reply, also the one that loaded it", async () => {
      const [first, second] = [await open(), await open()];
      await load(first);
      await load(second);
      await begin(first);
      const saying = say(second, PROMPTS[1]);
      await first.close();
      assert.equal(await saying, texts[1]);
      assert.equal(await say(second, PROMPTS[0]), texts[0]);
      const third = await open();
      assert.equal((await load(third)).shared, true);
      assert.equal(await say(third, PROMPTS[1]), texts[1]);
      assert.deepEqual([asked, modules()], [1, 1]);
    });

    test("ends with its last tab, and is loaded again", async () => {
      const page = await open();
      for (let i = 0; i < 3; i++) {
        assert.equal((await load(page)).shared, true);
        assert.equal(await say(page, PROMPTS[0]), texts[0]);
        await page.evaluate(() => engine.dispose());
        assert.equal(await page.evaluate(() => code(engine.tokenize("x"))), "disposed");
      }
      await page.waitForFunction(async () => !(await navigator.locks.query()).held.some(({ name }) => name.startsWith("shohin.")));
    });

    test("is there again when its only tab is reloaded", async () => {
      const page = await open();
      for (let i = 0; i < 3; i++) {
        assert.equal((await load(page)).shared, true);
        await begin(page);
        await visit(page);
      }
      assert.equal((await load(page)).shared, true);
      assert.equal(await say(page, PROMPTS[0]), texts[0]);
      assert.equal(asked, 1);
    });

    test("replaces damaged blocks of a copy", alike, async () => {
      const page = await open();
      await load(page);
      await page.evaluate(async () => {
        await engine.dispose();
        const directory = await (await navigator.storage.getDirectory()).getDirectoryHandle("shohin");
        for await (const [name, handle] of directory) {
          if (name.endsWith(".json")) continue;
          const bytes = new Uint8Array(await (await handle.getFile()).arrayBuffer());
          bytes[bytes.length >> 1] ^= 1;
          const file = await handle.createWritable();
          await file.write(bytes);
          await file.close();
        }
      });
      assert.equal((await load(page)).shared, true);
      assert.equal(await say(page, PROMPTS[0]), texts[0]);
      assert.equal(asked, 2);
    });

    test("reports a failure to every tab, and can try again", alike, async () => {
      const tabs = [await open(), await open()];
      const codes = (options) => Promise.all(tabs.map((page) => page.evaluate((options) => code(load(options)), options)));
      respond = (_request, response) => response.writeHead(403).end();
      for (const cache of [true, false]) assert.deepEqual(await codes({ cache }), ["http", "http"]);
      respond = (_request, response) => response.end("GGUF, but not really");
      assert.deepEqual(await codes({}), ["malformed", "malformed"]);
      respond = undefined;
      assert.deepEqual(await codes({ context: 0 }), ["option", "option"]);
      assert.deepEqual(await codes({}), ["none", "none"]);
      for (const page of tabs) assert.deepEqual([await page.evaluate(() => engine.info.shared), await say(page, PROMPTS[0])], [true, texts[0]]);
    });

    test("shows all tabs the progress of one load, which goes on without one that aborts or is closed", alike, async () => {
      const tabs = [await open(), await open(), await open()];
      let release;
      const released = new Promise((resolve) => (release = resolve));
      respond = (_request, response) => {
        const file = createReadStream(MODEL);
        file.once("data", async (piece) => {
          file.pause();
          response.write(piece);
          await released;
          file.pipe(response);
        });
      };
      const [first, second, third] = tabs;
      await first.evaluate(() => {
        globalThis.abort = new AbortController();
        globalThis.loaded = code(load({ cache: false, signal: abort.signal }));
      });
      await first.waitForFunction(() => stages.length > 0);
      for (const page of [second, third]) await page.evaluate(() => void (globalThis.loaded = code(load({ cache: false }))));
      for (const page of [second, third]) await page.waitForFunction(() => stages[0] === "download");
      await first.evaluate(() => abort.abort());
      assert.equal(await first.evaluate(() => loaded), "aborted");
      await third.close();
      release();
      assert.equal(await second.evaluate(() => loaded), "none");
      assert.deepEqual(await second.evaluate(() => stages), ["download", "prepare"]);
      assert.equal(await say(second, PROMPTS[0]), texts[0]);
      assert.deepEqual([asked, modules()], [1, 1]);
    });

    test("keeps conversations, snapshots and aborts of tabs apart", alike, async () => {
      const [first, second] = [await open(), await open()];
      await load(first);
      await load(second);
      await begin(first);
      // The tab's own number for it, as in the other tab.
      for (const page of [first, second]) await page.evaluate(async () => (globalThis.talk = await engine.conversation()));
      await first.evaluate(() => talk.dispose());
      const seen = await second.evaluate(async (prompt) => {
        const abort = new AbortController();
        const aborted = code(engine.reply(prompt, { preset: "greedy", signal: abort.signal }));
        abort.abort();
        const text = String(await talk.reply(prompt, { preset: "greedy" }));
        await talk.save("tab");
        const { messages } = await (await engine.conversation()).restore("tab");
        const { choices } = await engine.createChatCompletion({ messages: [{ role: "user", content: prompt }], temperature: 0 });
        return { aborted: await aborted, text, last: messages.at(-1).content, answer: choices[0].message.content };
      }, PROMPTS[1]);
      assert.deepEqual(seen, { aborted: "aborted", text: texts[1], last: texts[1], answer: texts[1] });
      await first.evaluate(() => engine.dispose());
      assert.equal(await first.evaluate(() => endless), "disposed");
      assert.equal(await say(second, PROMPTS[0]), texts[0]);
    });

    test("tells all tabs when the worker is lost, and starts another", { skip: name !== "Chromium" && "workers cannot be ended from outside" }, async () => {
      const tabs = [await open(), await open()];
      for (const page of tabs) await load(page);
      await begin(tabs[0]);
      const devtools = await browser.newBrowserCDPSession();
      const { targetInfos } = await devtools.send("Target.getTargets");
      const { targetId } = targetInfos.find(({ type }) => type === "shared_worker");
      await devtools.send("Target.closeTarget", { targetId });
      assert.equal(await tabs[0].evaluate(() => endless), "crashed");
      for (const page of tabs) await page.waitForFunction(async () => (await code(engine.tokenize("x"))) === "crashed");
      for (const page of tabs) assert.equal((await load(page)).shared, true);
      assert.equal(await say(tabs[1], PROMPTS[0]), texts[0]);
    });

    test("is not for other options, files, and browsers that have or allow none", alike, async () => {
      const [first, second] = [await open(), await open()];
      await load(first);
      assert.equal((await load(second, { context: 64 })).context, 64);
      assert.equal((await load(first, { kv: "q8" })).shared, true);
      const own = await second.evaluate(async () => {
        const { Engine } = await import("/index.js");
        const shared = async (source, options) => {
          const engine = await Engine.load(source, { shared: true, ...options });
          await engine.dispose();
          return engine.info.shared;
        };
        const blob = await (await fetch("model.gguf")).blob();
        const found = [await shared(blob), await shared(await blob.arrayBuffer()), await shared("model.gguf", { shared: false })];
        const lost = await code(Engine.load("model.gguf", { shared: true, workerUrl: "no-such-worker.js" }));
        if (lost !== "worker") throw new Error(lost);
        const { request } = LockManager.prototype;
        LockManager.prototype.request = () => Promise.reject(new DOMException("blocked", "SecurityError"));
        found.push(await shared("model.gguf"));
        LockManager.prototype.request = request;
        delete globalThis.SharedWorker;
        return [...found, await shared("model.gguf")];
      });
      assert.deepEqual(own, Array(5).fill(false));
    });

    test("is another for each layout of type 42", alike, async () => {
      const tabs = [await open(), await open()];
      const workers = () => tabs[0].evaluate(async () => (await navigator.locks.query()).held.filter(({ name }) => name.startsWith("shohin.worker.")).length);
      await load(tabs[0], { id42: "64" });
      await load(tabs[1], { id42: "128" });
      assert.equal(await workers(), 2);
      await load(tabs[1], { id42: "64" });
      await load(tabs[1]);
      await load(tabs[0], { id42: "auto" });
      assert.equal(await workers(), 3);
    });

    test("has one thread and reads copies only, as the browser lets shared workers do no more", async () => {
      const page = await open();
      const seen = await page.evaluate(() => new Promise((resolve) => (new SharedWorker("probe.js").port.onmessage = ({ data }) => resolve(data))));
      assert.deepEqual(seen, { isolated: false, worker: name === "Firefox", memory: false, write: false });
    });
  });
}
