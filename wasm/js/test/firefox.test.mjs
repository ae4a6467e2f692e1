// The package in headless Firefox: `npm run build -w wasm` first.
import assert from "node:assert/strict";
import { createReadStream, existsSync } from "node:fs";
import { stat } from "node:fs/promises";
import { after, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { Engine as NodeEngine } from "shohin";
import { serve } from "./chromium.mjs";
import { launch } from "./firefox.mjs";
import { thorough } from "./thorough.mjs";
import { watchThreads } from "./threads.mjs";

const DIST = new URL("../../dist/", import.meta.url);
const MODEL = fileURLToPath(new URL("../../../models/sprout.gguf", import.meta.url));
/** The build for Firefox 146 and later, which have relaxed SIMD. */
const BEST = existsSync(new URL("shohin_wasm_relaxed_bg.wasm", DIST)) ? "relaxed" : "simd128";
const ISOLATION = { "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp" };
const PROMPTS = ["Hello!", "Tell me a story about a cat."];

const html = (headers) => (_request, response) => response.writeHead(200, { ...headers, "Content-Type": "text/html" }).end("<!doctype html><title>test</title>");
const model = (_request, response) => createReadStream(MODEL).pipe(response);

describe("in Firefox", () => {
  let browser, server, isolated, page, texts;

  before(async () => {
    server = await serve(DIST, {
      "/": html({}),
      "/model.gguf": model,
      "/mistakes.mjs": (_request, response) => {
        response.writeHead(200, { "Content-Type": "text/javascript" });
        createReadStream(new URL("mistakes.mjs", import.meta.url)).pipe(response);
      },
      "/broken.gguf": (_request, response) => {
        response.writeHead(200, { "Content-Length": 1e6 });
        response.write("GGUF", () => response.destroy());
      },
      "/gone.gguf": (_request, response) => response.writeHead(410).end(),
    });
    isolated = await serve(DIST, { "/": html(ISOLATION), "/model.gguf": model }, ISOLATION);
    browser = await launch();
    page = await open(server.url);
    const engine = await NodeEngine.load(MODEL, { threads: 1 });
    texts = [];
    for (const content of PROMPTS) {
      for await (const { finish } of engine.chat([{ role: "user", content }], { preset: "greedy" })) if (finish) texts.push(finish.text);
    }
    await engine.dispose();
  });
  after(async () => {
    await browser?.close();
    await server?.close();
    await isolated?.close();
  });

  async function prepare(page) {
    await page.evaluate(async () => {
      const shohin = await import("/index.js");
      const ask = (content) => [{ role: "user", content }];
      /** Runs a generation to its end. */
      const collect = async (chunks) => {
        let finish;
        for await (const chunk of chunks) finish = chunk.finish;
        return finish;
      };
      /** The error code of a rejected promise. */
      const code = (promise) =>
        promise.then(
          () => "none",
          (error) => (error instanceof shohin.ShohinError ? error.code : `not a ShohinError: ${error}`),
        );
      const greedy = { preset: "greedy" };
      const replies = async (engine, prompts) => {
        const texts = [];
        for (const prompt of prompts) texts.push((await collect(engine.chat(ask(prompt), greedy))).text);
        return texts;
      };
      Object.assign(globalThis, shohin, { ask, collect, code, greedy, replies });
    });
  }

  async function open(url) {
    const page = await browser.newPage();
    page.setDefaultTimeout(120_000);
    await page.goto(url);
    await prepare(page);
    return page;
  }

  test("gives the text of Node, in a worker and on the calling thread", async () => {
    const seen = await page.evaluate(async (prompts) => {
      const { Engine: LocalEngine } = await import("/local.js");
      const seen = [];
      for (const load of [() => Engine.load("model.gguf"), () => LocalEngine.load("model.gguf"), () => Engine.load("model.gguf", { simd: "simd128" })]) {
        const engine = await load();
        const { isa, backend, threads } = engine.info;
        seen.push({ isa: isa.replace(/dot$/, ""), backend, threads, texts: await replies(engine, prompts) });
        await engine.dispose();
      }
      return seen;
    }, PROMPTS);
    const best = { isa: BEST, backend: "cpu", threads: 1, texts };
    assert.deepEqual(seen, [best, best, { ...best, isa: "simd128" }]);
  });

  test("computes with threads where memory can be shared, with the same text", async () => {
    const team = await open(isolated.url);
    const seen = await team.evaluate(async (prompts) => {
      const engine = await Engine.load("model.gguf");
      const texts = await replies(engine, prompts);
      const { threads, isa } = engine.info;
      await engine.dispose();
      return { isolated: crossOriginIsolated, all: threads === Math.min(navigator.hardwareConcurrency, 16), isa: isa.replace(/dot$/, ""), texts };
    }, PROMPTS);
    assert.deepEqual(seen, { isolated: true, all: true, isa: BEST, texts });
    await team.close();
  });

  test("gives typed errors, and computes on the CPU where there is no GPU", async () => {
    const seen = await page.evaluate(async () => {
      // Firefox has WebGPU on some systems only.
      Object.defineProperty(Navigator.prototype, "gpu", { value: undefined, configurable: true });
      const { Engine: LocalEngine, ShohinError: LocalError } = await import("/local.js");
      const auto = await LocalEngine.load("model.gguf", { backend: "auto" });
      const { backend } = auto.info;
      await auto.dispose();
      const codes = await Promise.all([
        LocalEngine.load("model.gguf", { backend: "webgpu" }).catch((error) => error instanceof LocalError && error.code),
        code(Engine.load("broken.gguf")),
        code(Engine.load("gone.gguf")),
        code(Engine.load("http://127.0.0.1:1/x.gguf")),
        code(Engine.load("index.js")),
        code(Engine.load(new TextEncoder().encode("GGUF"))),
        code(Engine.load("http://")),
        code(Engine.load("model.gguf", { workerUrl: "no-such-worker.js" })),
        code(Engine.load("model.gguf", { wasmUrl: "no-such.wasm" })),
        code(Engine.load("model.gguf", { signal: AbortSignal.abort() })),
      ]);
      return { backend, codes };
    });
    assert.deepEqual(seen, {
      backend: "cpu",
      codes: ["gpu_absent", "network", "http", "network", "malformed", "truncated", "argument", "worker", "wasm", "aborted"],
    });
  });

  test("refuses invalid arguments by name, aborts, and continues", thorough, async () => {
    const seen = await page.evaluate(async () => {
      const { MISTAKES } = await import("/mistakes.mjs");
      const engine = await Engine.load("model.gguf");
      const refused = [];
      for (const [what, call, expected, place] of MISTAKES) {
        const found = await call(engine).then(() => ({ code: "none" }), (error) => error);
        const passed = found instanceof ShohinError && found.code === expected && found.message.includes(place);
        if (!passed) refused.push(`${what}: ${found.code}: ${found.message}`);
      }
      const abort = new AbortController();
      let early = "";
      const aborted = await code((async () => {
        for await (const chunk of engine.chat(ask("Tell me a story about a cat."), { ...greedy, signal: abort.signal })) {
          early += chunk.text;
          abort.abort();
        }
      })());
      const [text] = await replies(engine, ["Tell me a story about a cat."]);
      await engine.dispose();
      return { refused, aborted, early, text, disposed: await code(engine.tokenize("x")) };
    });
    assert.deepEqual([seen.refused, seen.aborted, seen.text, seen.disposed], [[], "aborted", texts[1], "disposed"]);
    assert.ok(seen.early.length > 0 && seen.early.length < seen.text.length && seen.text.startsWith(seen.early), seen.early);
  });

  test("a reply satisfies a schema", thorough, async () => {
    const { text, reason } = await page.evaluate(async () => {
      const engine = await Engine.load("model.gguf");
      const schema = { type: "object", properties: { legs: { type: "integer", minimum: 0, maximum: 8 } }, required: ["legs"], additionalProperties: false };
      const finish = await collect(engine.chat(ask("Tell me about a cow."), { ...greedy, responseFormat: { type: "json_schema", schema } }));
      await engine.dispose();
      return finish;
    });
    const { legs, ...rest } = JSON.parse(text);
    assert.deepEqual([Number.isInteger(legs) && legs >= 0 && legs <= 8, rest, reason], [true, {}, "stop"], text);
  });

  test("keeps a download, resumes it after an interruption, and repairs a damaged copy", async () => {
    const { size } = await stat(MODEL);
    const asked = [];
    // Stalls after a third, until `whole` is set.
    let whole = false;
    const origin = await serve(DIST, {
      "/": html({}),
      "/kept.gguf": (request, response) => {
        const [, from, to] = /^bytes=(\d+)-(\d+)$/.exec(request.headers.range ?? "") ?? [0, 0, size - 1];
        const [start, last] = [Number(from), Number(to)];
        asked.push(start);
        const range = start > 0 && { "Content-Range": `bytes ${start}-${last}/${size}` };
        response.writeHead(range ? 206 : 200, { "Content-Length": last + 1 - start, ETag: '"one"', ...range });
        createReadStream(MODEL, { start, end: whole ? last : Math.floor(size / 3) }).pipe(response, { end: whole });
      },
    });
    const page = await open(origin.url);
    /** Loads the model, or aborts once two slices have come; returns the stages, the text and the copies, or the error code. */
    const load = (impatient) =>
      page.evaluate(async (impatient) => {
        const abort = new AbortController();
        const stages = new Set();
        const onProgress = ({ stage, loaded }) => {
          stages.add(stage);
          if (impatient && loaded > 300_000) abort.abort();
        };
        try {
          const engine = await Engine.load("kept.gguf", { cache: "require", signal: abort.signal, onProgress });
          const [text] = await replies(engine, ["Hello!"]);
          await engine.dispose();
          return { stages: [...stages], text, copies: await listCache() };
        } catch (error) {
          return error.code ?? String(error);
        }
      }, impatient);
    const copies = [{ url: `${origin.url}kept.gguf`, bytes: size, total: size, complete: true }];
    assert.equal(await load(true), "aborted");
    whole = true;
    const resumed = await load();
    assert.deepEqual([resumed.text, resumed.copies], [texts[0], copies]);
    assert.ok(asked.length === 2 && asked[1] > 0 && asked[1] <= size / 3 + 1, `${asked}`);
    // Complete: no more requests.
    assert.deepEqual(await load(), { stages: ["read", "prepare"], text: texts[0], copies });
    assert.equal(asked.length, 2);
    // One bit in the middle.
    await page.evaluate(async () => {
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
    const repaired = await load();
    assert.deepEqual([repaired.text, repaired.copies, asked.length], [texts[0], copies, 3]);
    const deleted = await page.evaluate(async () => [await deleteCache("kept.gguf"), await deleteCache("kept.gguf"), await listCache()]);
    assert.deepEqual(deleted, [true, false, []]);
    await page.close();
    await origin.close();
  });

  test("keeps a conversation over a reload", async () => {
    const before = await page.evaluate(async () => {
      const engine = await Engine.load("model.gguf");
      const talk = await engine.conversation();
      const first = await collect(talk.chat(ask("Hi! My name is Mira."), greedy));
      await talk.save("mine");
      const { text } = await collect(talk.chat([...ask("Hi! My name is Mira."), first.message, ...ask("What is my name?")], greedy));
      await engine.dispose();
      return { first, text };
    });
    assert.match(before.text, /Mira/);
    await page.goto(`${server.url}?again`);
    await prepare(page);
    const after = await page.evaluate(async () => {
      const engine = await Engine.load("model.gguf");
      const talk = await engine.conversation();
      const missing = await code(talk.restore("yours"));
      const { messages, recomputed } = await talk.restore("mine");
      const { text, usage } = await collect(talk.chat([...messages, ...ask("What is my name?")], greedy));
      const deleted = [await listSnapshots(), await deleteSnapshot("mine"), await deleteSnapshot("mine")];
      await engine.dispose();
      return { missing, last: messages.at(-1), recomputed, text, cached: usage.cachedTokens, deleted };
    });
    const { cached, ...rest } = after;
    assert.deepEqual(rest, { missing: "snapshot_missing", last: before.first.message, recomputed: false, text: before.text, deleted: [["mine"], true, false] });
    assert.ok(cached >= before.first.usage.promptTokens, `${cached}`);
  });

  test("ends with an error when one of its threads is terminated", async () => {
    const origin = await serve(DIST, { "/": html(ISOLATION), "/model.gguf": model }, ISOLATION);
    const page = await browser.newPage();
    await page.addInitScript(watchThreads);
    await page.goto(origin.url);
    await prepare(page);
    const codes = await page.evaluate(async () => {
      const engine = await Engine.load("model.gguf", { threads: 2 });
      if (engine.info.threads === 1) return;
      const says = () => collect(engine.generate("Once", { maxTokens: 5 }));
      await says();
      const waiting = code((async () => {
        for (;;) await says();
      })());
      workersOfThreads[0].terminate();
      return [await waiting, await code(engine.tokenize("x"))];
    });
    if (codes) assert.deepEqual(codes, ["crashed", "crashed"]);
    await page.close();
    await origin.close();
  });
});
