// The package in headless Chromium, from plain files on a server without special headers: `npm run build -w wasm` first.
import assert from "node:assert/strict";
import { createReadStream, existsSync } from "node:fs";
import { readFile, stat } from "node:fs/promises";
import { after, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { launch, serve } from "./chromium.mjs";
import { watchThreads } from "./threads.mjs";

const MODEL = fileURLToPath(new URL("../../../models/sprout.gguf", import.meta.url));
const EXPECTED = JSON.parse(await readFile(new URL("../../../models/sprout.expected.json", import.meta.url), "utf8")).models["sprout.gguf"];
/** The build for Chromium, which has relaxed SIMD. */
const BEST = existsSync(new URL("../../dist/shohin_wasm_relaxed_bg.wasm", import.meta.url)) ? "relaxed" : "simd128";

describe("in a browser", () => {
  let browser, server, page;

  before(async () => {
    server = await serve(new URL("../../dist/", import.meta.url), {
      "/": (_request, response) => response.writeHead(200, { "Content-Type": "text/html" }).end("<!doctype html><title>test</title>"),
      "/model.gguf": (_request, response) => createReadStream(MODEL).pipe(response),
      "/nano.gguf": (_request, response) => createReadStream(new URL("../../../models/sprout-nano.gguf", import.meta.url)).pipe(response),
      "/stuck.gguf": (_request, response) => response.writeHead(200, { "Content-Length": 1e6 }).write("GGUF"),
      "/broken.gguf": (_request, response) => {
        response.writeHead(200, { "Content-Length": 1e6 });
        response.write("GGUF", () => response.destroy());
      },
      "/gone.gguf": (_request, response) => response.writeHead(410).end(),
      "/mistakes.mjs": (_request, response) => {
        response.writeHead(200, { "Content-Type": "text/javascript" });
        createReadStream(new URL("mistakes.mjs", import.meta.url)).pipe(response);
      },
    });
    browser = await launch();
    page = await browser.newPage();
    page.setDefaultTimeout(120_000);
    await page.goto(server.url);
    await page.evaluate(async () => {
      const { Engine, ShohinError } = await import("/index.js");
      const ask = (content) => [{ role: "user", content }];
      /** Runs a generation to its end. */
      const collect = async (chunks) => {
        const seen = [];
        for await (const chunk of chunks) seen.push(chunk);
        return { chunks: seen.length, tokens: seen.flatMap((chunk) => chunk.tokens), ...seen.at(-1).finish };
      };
      /** The error code of a rejected promise. */
      const code = (promise) =>
        promise.then(
          () => "none",
          (error) => (error instanceof ShohinError ? error.code : `not a ShohinError: ${error}`),
        );
      Object.assign(globalThis, { Engine, ShohinError, ask, collect, code });
    });
  });
  after(async () => {
    await browser?.close();
    await server?.close();
  });

  test("gives the reference implementation's text, token by token", async () => {
    const replies = await page.evaluate(async (chats) => {
      const engine = await Engine.load("model.gguf", { activations: "f32", kv: "f32" });
      const replies = [];
      for (const { messages, continuation_ids } of chats) {
        const prompt = [...(await engine.tokenizeChat(messages))];
        replies.push({ prompt, ...(await collect(engine.chat(messages, { preset: "greedy", maxTokens: continuation_ids.length + 1 }))) });
      }
      await engine.dispose();
      return replies;
    }, EXPECTED.chats);
    replies.forEach((reply, i) => {
      assert.deepEqual(reply.prompt, EXPECTED.chats[i].prompt_ids);
      assert.deepEqual(reply.tokens, EXPECTED.chats[i].continuation_ids);
      assert.equal(reply.text, EXPECTED.chats[i].text);
    });
  });

  test("accepts a URL, a File and bytes, reports progress, and does not change the bytes", async () => {
    const { texts, left, stages, info } = await page.evaluate(async () => {
      const bytes = await (await fetch("model.gguf")).arrayBuffer();
      const shifted = new Uint8Array(bytes.byteLength + 5);
      shifted.set(new Uint8Array(bytes), 5);
      const sources = [new URL("model.gguf", location.href), new File([bytes], "x.gguf"), bytes, shifted.subarray(5)];
      const texts = [];
      const stages = [];
      let info;
      for (const source of sources) {
        const progress = [];
        const engine = await Engine.load(source, { cache: false, onProgress: (step) => progress.push(step) });
        info = engine.info;
        const { text } = await collect(engine.generate("Once upon a time", { preset: "greedy", maxTokens: 6 }));
        texts.push(text);
        stages.push([progress[0].stage, progress.at(-1).stage, progress.at(-1).loaded]);
        await engine.dispose();
      }
      return { texts, left: bytes.byteLength, stages, info };
    });
    const { length } = await readFile(MODEL);
    assert.equal(new Set(texts).size, 1);
    assert.equal(left, length);
    assert.deepEqual(stages, [["download", "prepare", length], ...Array(3).fill(["read", "prepare", length])]);
    assert.equal(info.isa.replace(/dot$/, ""), BEST);
    assert.equal(info.backend, "cpu");
  });

  test("gives a typed error for everything that can go wrong while loading", async () => {
    const codes = await page.evaluate(async () => {
      const slow = new AbortController();
      setTimeout(() => slow.abort(), 300);
      return Promise.all([
        code(Engine.load("broken.gguf")),
        code(Engine.load("gone.gguf")),
        code(Engine.load("http://127.0.0.1:1/x.gguf")),
        code(Engine.load("index.js")),
        code(Engine.load(new TextEncoder().encode("GGUF"))),
        code(Engine.load(7)),
        code(Engine.load("http://")),
        code(Engine.load("stuck.gguf", { signal: slow.signal })),
        code(Engine.load("model.gguf", { signal: AbortSignal.abort() })),
        code(Engine.load("model.gguf", { workerUrl: "no-such-worker.js" })),
        code(Engine.load("model.gguf", { wasmUrl: "no-such.wasm" })),
        code(Engine.load("model.gguf", { kv: "f8" })),
        code(Engine.load("model.gguf", { context: 1e9 }).then((engine) => engine.dispose())),
      ]);
    });
    assert.deepEqual(codes, [
      "network", "http", "network", "malformed", "truncated", "argument", "argument",
      "aborted", "aborted", "worker", "wasm", "argument", "none",
    ]);
  });

  test("streams in chunks, aborts, survives an abandoned loop, and queues", async () => {
    const seen = await page.evaluate(async () => {
      const engine = await Engine.load("model.gguf");
      const long = { temperature: 1, topK: 0, topP: 1, seed: 3 };
      const whole = await collect(engine.chat(ask("Tell me a story about a cat."), long));
      const abort = new AbortController();
      let early = "";
      const aborted = await code((async () => {
        for await (const chunk of engine.chat(ask("Tell me a story about a cat."), { ...long, signal: abort.signal })) {
          early += chunk.text;
          abort.abort();
        }
      })());
      for await (const _ of engine.chat(ask("Tell me a story about a dog."), long)) break;
      const before = await code(collect(engine.chat(ask("x"), { signal: AbortSignal.abort() })));
      const [a, b] = await Promise.all([collect(engine.chat(ask("Tell me a story about a cat."), long)), collect(engine.chat(ask("Hello!"), { preset: "greedy" }))]);
      const option = await code(collect(engine.chat(ask("x"), { temperature: -1 })));
      const unsendable = await code(collect(engine.chat(ask("x"), { stop: () => {} })));
      let begin;
      const begun = new Promise((resolve) => (begin = resolve));
      const pending = code((async () => {
        for await (const _ of engine.chat(ask("Tell me a story about a fox."), long)) begin();
      })());
      await begun;
      await engine.dispose();
      return { chunks: whole.chunks, text: whole.text, early, aborted, before, again: a.text, b: b.text, option, unsendable, pending: await pending, after: await code(engine.tokenize("x")) };
    });
    assert.ok(seen.chunks > 2, `${seen.chunks} chunks`);
    assert.ok(seen.early.length > 0 && seen.early.length < seen.text.length && seen.text.startsWith(seen.early));
    assert.equal(seen.aborted, "aborted");
    assert.equal(seen.before, "aborted");
    assert.equal(seen.again, seen.text);
    assert.notEqual(seen.b, "");
    assert.equal(seen.option, "option");
    assert.equal(seen.unsendable, "argument");
    assert.equal(seen.pending, "disposed");
    assert.equal(seen.after, "disposed");
  });

  test("refuses invalid arguments by name, and continues", async () => {
    const { refused, text, again } = await page.evaluate(async () => {
      const { MISTAKES } = await import("/mistakes.mjs");
      const engine = await Engine.load("model.gguf");
      const say = async () => (await collect(engine.chat(ask("Hello!"), { preset: "greedy", maxTokens: 5 }))).text;
      const text = await say();
      const refused = [];
      for (const [what, call, expected, place] of MISTAKES) {
        const found = await call(engine).then(() => ({ code: "none" }), (error) => error);
        refused.push([what, found.code, found.message?.includes(place), found instanceof ShohinError].join());
        if (refused.at(-1) === [what, expected, true, true].join()) refused.pop();
      }
      const again = await say();
      await engine.dispose();
      return { refused, text, again };
    });
    assert.deepEqual(refused, []);
    assert.equal(again, text);
  });

  test("aborts requests that its worker does not answer", async () => {
    const codes = await page.evaluate(async () => {
      // A worker that is busy forever after it has loaded.
      const script = `import(${JSON.stringify(new URL("/worker.js", location.href).href)}).then(() => {
        const { onmessage } = self;
        self.onmessage = (event) => {
          if (event.data.method !== "load") for (;;);
          onmessage.call(self, event);
        };
        for (const event of early) self.onmessage(event);
      });
      const early = [];
      self.onmessage = (event) => early.push(event);`;
      const workerUrl = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
      const engine = await Engine.load(new URL("model.gguf", location.href), { workerUrl, wasmUrl: new URL("/shohin_wasm_bg.wasm", location.href) });
      const abort = new AbortController();
      const { signal } = abort;
      const pending = [code(collect(engine.chat(ask("Hello!"), { signal }))), code(engine.embed("x", { signal })), code(engine.createChatCompletion({ messages: ask("Hello!"), stream: true }, { signal })), code(engine.tokenize("x"))];
      setTimeout(() => abort.abort(), 100);
      const codes = await Promise.all(pending.slice(0, 3));
      await engine.dispose();
      return [...codes, await pending[3]];
    });
    assert.deepEqual(codes, ["aborted", "aborted", "aborted", "disposed"]);
  });

  test("computes only the new turn of a conversation", async () => {
    const { one, two } = await page.evaluate(async () => {
      const engine = await Engine.load("model.gguf");
      const messages = ask("Hello!");
      const one = await collect(engine.chat(messages, { preset: "greedy", maxTokens: 40 }));
      messages.push({ role: "assistant", content: one.text }, { role: "user", content: "What is my name?" });
      const two = await collect(engine.chat(messages, { preset: "greedy", maxTokens: 1 }));
      await engine.dispose();
      return { one, two };
    });
    assert.ok(two.usage.cachedTokens >= one.usage.promptTokens + one.usage.completionTokens);
  });

  test("keeps a download, and resumes it after an interruption", async () => {
    const { size } = await stat(MODEL);
    const asked = [];
    // Stalls after a third, until `whole` is set.
    let [whole, etag, ranges] = [false, '"one"', true];
    const origin = await serve(new URL("../../dist/", import.meta.url), {
      "/": (_request, response) => response.writeHead(200, { "Content-Type": "text/html" }).end("<!doctype html>"),
      "/kept.gguf": (request, response) => {
        const [, from, to] = /^bytes=(\d+)-(\d+)$/.exec((ranges && request.headers.range) || "") ?? [0, 0, size - 1];
        const [start, last] = [Number(from), Number(to)];
        asked.push(start);
        response.writeHead(start > 0 ? 206 : 200, { "Content-Length": last + 1 - start, ETag: etag });
        const end = whole ? last : Math.floor(size / 3);
        createReadStream(MODEL, { start, end }).pipe(response, { end: whole });
      },
      "/bad.gguf": (_request, response) => {
        asked.push("bad");
        response.writeHead(200, { "Content-Length": 200_000 });
        createReadStream(MODEL, { end: 199_999 }).pipe(response);
      },
    });
    const page = await browser.newPage();
    try {
      await page.goto(origin.url);
      /** Loads, or aborts as soon as a slice is kept and some progress was told. */
      const load = (url, aborts = false) =>
        page.evaluate(async ([url, aborts]) => {
          const { Engine, listCache } = await import("/index.js");
          const abort = new AbortController();
          let most = 0;
          let stages = new Set();
          const kept = async () => {
            while (most === 0 || !(await listCache(url))[0]?.bytes) await new Promise((resolve) => setTimeout(resolve, 20));
            abort.abort();
          };
          try {
            if (aborts) void kept();
            const engine = await Engine.load(url, {
              cache: true,
              signal: abort.signal,
              onProgress: ({ stage, loaded }) => {
                stages.add(stage);
                most = Math.max(most, loaded);
              },
            });
            let text = "";
            for await (const chunk of engine.generate("Once upon a time", { preset: "greedy", maxTokens: 6 })) text += chunk.text;
            await engine.dispose();
            return { text, stages: [...stages] };
          } catch (error) {
            return { code: error.code, most };
          }
        }, [url, aborts]);

      const broken = await load("kept.gguf", true);
      assert.equal(broken.code, "aborted");
      assert.ok(broken.most > 0 && broken.most < size);
      whole = true;
      const resumed = await load("kept.gguf");
      assert.notEqual(resumed.text, "");
      assert.equal(asked.length, 2);
      assert.ok(asked[0] === 0 && asked[1] > 0 && asked[1] <= size / 3 + 1, `${asked}`);
      // Complete: no more requests.
      assert.deepEqual(await load("kept.gguf"), { text: resumed.text, stages: ["read", "prepare"] });
      assert.equal(asked.length, 2);

      // It starts from the beginning after the cache was cleared, and if the file has changed.
      await page.evaluate(async () => (await import("/index.js")).clearCache());
      whole = false;
      assert.equal((await load("kept.gguf", true)).code, "aborted");
      [whole, etag] = [true, '"two"'];
      assert.equal((await load("kept.gguf")).text, resumed.text);
      assert.equal(asked.length, 5);
      assert.deepEqual([asked[2], asked[3] > 0, asked[4]], [0, true, 0]);

      // A server without ranges sends the whole file.
      await page.evaluate(async () => (await import("/index.js")).clearCache());
      [whole, ranges] = [false, false];
      assert.equal((await load("kept.gguf", true)).code, "aborted");
      whole = true;
      assert.equal((await load("kept.gguf")).text, resumed.text);

      // A refused file is not kept.
      assert.equal((await load("bad.gguf")).code, "truncated");
      assert.equal((await load("bad.gguf")).code, "truncated");
      assert.equal(asked.filter((what) => what === "bad").length, 2);
    } finally {
      await page.close();
      await origin.close();
    }
  });

  test("lists and deletes copies, repairs a damaged one, and reports missing storage", async () => {
    const { size } = await stat(MODEL);
    let asked = 0;
    const script = (text) => (_request, response) => response.writeHead(200, { "Content-Type": "text/javascript" }).end(text);
    const origin = await serve(new URL("../../dist/", import.meta.url), {
      "/": (_request, response) => response.writeHead(200, { "Content-Type": "text/html" }).end("<!doctype html>"),
      "/kept.gguf": (_request, response) => {
        asked += 1;
        response.writeHead(200, { "Content-Length": size });
        createReadStream(MODEL).pipe(response);
      },
      "/full.js": script('import "./no-room.js"; import "./worker.js";'),
      "/no-room.js": script('FileSystemSyncAccessHandle.prototype.write = () => { throw new DOMException("full", "QuotaExceededError"); };'),
    });
    const page = await browser.newPage();
    try {
      await page.goto(origin.url);
      const load = (cache, workerUrl) =>
        page.evaluate(
          async ([cache, workerUrl]) => {
            const { Engine, listCache } = await import("/index.js");
            try {
              await (await Engine.load("kept.gguf", { cache, ...(workerUrl && { workerUrl }) })).dispose();
              return await listCache();
            } catch (error) {
              return error.code;
            }
          },
          [cache, workerUrl],
        );
      const entry = { url: `${origin.url}kept.gguf`, bytes: size, total: size, complete: true };
      assert.deepEqual(await load(true), [entry]);
      assert.deepEqual(await load(true), [entry]);
      assert.equal(asked, 1);

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
      assert.deepEqual(await load(true), [entry]);
      assert.equal(asked, 2);
      assert.deepEqual(await load(true), [entry]);
      assert.equal(asked, 2);

      const deleted = await page.evaluate(async () => {
        const { deleteCache, listCache } = await import("/index.js");
        return [await deleteCache("kept.gguf"), await deleteCache("kept.gguf"), await listCache()];
      });
      assert.deepEqual(deleted, [true, false, []]);

      const devtools = await page.context().newCDPSession(page);
      await devtools.send("Storage.overrideQuotaForOrigin", { origin: new URL(origin.url).origin, quotaSize: 100_000 });
      assert.equal(await load("require"), "quota");
      assert.equal(typeof (await load(true)), "object");
      // Not even enough for a line of the index.
      assert.deepEqual([await load("require", "full.js"), await load(true, "full.js")], ["quota", []]);
    } finally {
      await page.close();
      await origin.close();
    }
  });

  test("keeps conversations over a reload, and several at once", async () => {
    const page = await browser.newPage();
    try {
      await page.goto(server.url);
      const talk = (again) =>
        page.evaluate(async (again) => {
          const { Engine, listSnapshots, deleteSnapshot } = await import("/index.js");
          const engine = await Engine.load("model.gguf", { context: 256 });
          const last = async (chunks) => {
            let finish;
            for await (const chunk of chunks) finish = chunk.finish;
            return finish;
          };
          const options = { preset: "greedy", maxTokens: 20 };
          const talk = await engine.conversation({ context: 200 });
          const messages = [{ role: "user", content: "Hello!" }];
          const next = { role: "user", content: "What is my name?" };
          if (!again) {
            const [first] = await Promise.all([last(talk.chat(messages, options)), last(engine.chat([next], options))]);
            await talk.save("mine");
            const second = await last(talk.chat([...messages, first.message, next], options));
            await engine.dispose();
            return { first, text: second.text };
          }
          const code = (promise) => promise.then(() => "none", (error) => error.code);
          const missing = await code(talk.restore("yours"));
          const { messages: restored, recomputed } = await talk.restore("mine");
          const second = await last(talk.chat([...restored, next], options));
          const names = await listSnapshots();
          const deleted = [await deleteSnapshot("mine"), await deleteSnapshot("mine")];
          const gone = await code(talk.restore("mine"));
          const vector = await engine.embed("A cat.");
          const answer = await talk.createChatCompletion({ messages, max_tokens: 2, temperature: 0 });
          await talk.dispose();
          const disposed = await code(talk.snapshot());
          await engine.dispose();
          return { missing, restored, recomputed, text: second.text, usage: second.usage, names, deleted, gone, disposed, vector: vector.length, answer };
        }, again);
      const before = await talk(false);
      await page.reload();
      const after = await talk(true);
      assert.deepEqual(after.deleted, [true, false]);
      assert.deepEqual([after.missing, after.gone, after.disposed], ["snapshot_missing", "snapshot_missing", "disposed"]);
      assert.deepEqual([after.recomputed, after.names], [false, ["mine"]]);
      assert.deepEqual(after.restored.at(-1), before.first.message);
      assert.equal(after.text, before.text);
      assert.ok(after.usage.cachedTokens >= before.first.usage.promptTokens);
      assert.ok(after.vector > 0);
      assert.equal(after.answer.usage.completion_tokens, 2);
    } finally {
      await page.close();
    }
  });

  test("can be loaded from another origin, such as a CDN", async () => {
    const cdn = await serve(new URL("../../dist/", import.meta.url), {}, { "Access-Control-Allow-Origin": "*" });
    try {
      const text = await page.evaluate(async (url) => {
        const { Engine } = await import(url);
        const engine = await Engine.load("model.gguf");
        const { text } = await collect(engine.generate("Once upon a time", { preset: "greedy", maxTokens: 6 }));
        await engine.dispose();
        return text;
      }, `${cdn.url}index.js`);
      assert.notEqual(text, "");
    } finally {
      await cdn.close();
    }
  });

  test("runs on the calling thread", async () => {
    const text = await page.evaluate(async () => {
      const { Engine } = await import("/local.js");
      const engine = await Engine.load("model.gguf");
      const { text } = await collect(engine.generate("Once upon a time", { preset: "greedy", maxTokens: 6 }));
      await engine.dispose();
      return text;
    });
    assert.notEqual(text, "");
  });

  test("computes on a GPU on request, and with auto on the CPU if the GPU is a software adapter", { skip: !existsSync(new URL("../../dist/webgpu.js", import.meta.url)) }, async () => {
    const seen = await page.evaluate(async () => {
      const bytes = await (await fetch("nano.gguf")).arrayBuffer();
      const fetched = () => performance.getEntriesByType("resource").some(({ name }) => name.includes("webgpu"));
      const exact = { activations: "f32", kv: "f32" };
      const say = async (engine) => {
        const one = await collect(engine.chat(ask("What does a cow say?"), { preset: "greedy", maxTokens: 3 }));
        const two = await collect(engine.chat([...ask("What does a cow say?"), one.message, ...ask("Hello!")], { preset: "greedy", maxTokens: 2 }));
        const { backend, memory } = engine.info;
        await engine.dispose();
        return { texts: [one.text, two.text], cached: two.usage.cachedTokens, backend, weights: memory.weights };
      };
      const cpu = await say(await Engine.load(bytes, exact));
      const { Engine: LocalEngine } = await import("/local.js");
      const before = fetched();
      const auto = await say(await Engine.load(bytes, { ...exact, backend: "auto" }));
      const gpu = await say(await Engine.load(new Blob([bytes]), { ...exact, backend: "webgpu" }));
      const local = await say(await LocalEngine.load(bytes, { ...exact, backend: "webgpu" }));
      delete Navigator.prototype.gpu;
      const without = [
        await LocalEngine.load(bytes, { backend: "webgpu" }).catch((error) => error.code),
        (await LocalEngine.load(bytes, { backend: "auto" })).info.backend,
        await code(Engine.load(new Blob([bytes.slice(0, 5000)]), { backend: "webgpu" })),
      ];
      return { cpu, before, auto, gpu, local, without };
    });
    const { cpu, gpu, local, auto } = seen;
    assert.equal(seen.before, false);
    assert.deepEqual([gpu.texts, local.texts, auto.texts], [cpu.texts, cpu.texts, cpu.texts]);
    assert.deepEqual([gpu.backend, local.backend, cpu.backend], ["webgpu", "webgpu", "cpu"]);
    assert.ok(gpu.cached > 10 && gpu.weights > 1e5, JSON.stringify(gpu));
    assert.deepEqual(seen.without, ["gpu_absent", "cpu", "truncated"]);
  });

  test("reports a GPU without enough memory", { skip: !existsSync(new URL("../../dist/webgpu.js", import.meta.url)) }, async () => {
    const page = await browser.newPage();
    try {
      await page.goto(server.url);
      const codes = await page.evaluate(async () => {
        const { Engine: LocalEngine } = await import("/local.js");
        const bytes = await (await fetch("nano.gguf")).arrayBuffer();
        // The allocation of the third buffer fails.
        const pop = GPUDevice.prototype.popErrorScope;
        let asked = 0;
        GPUDevice.prototype.popErrorScope = async function () {
          const error = await pop.call(this);
          return ++asked === 3 ? new GPUOutOfMemoryError("no room") : error;
        };
        const code = await LocalEngine.load(bytes, { backend: "webgpu" }).then(() => "", (error) => error.code);
        GPUDevice.prototype.popErrorScope = pop;
        // The page continues on the same thread.
        const engine = await LocalEngine.load(bytes, { backend: "cpu" });
        const { backend } = engine.info;
        await engine.dispose();
        return [code, backend];
      });
      assert.deepEqual(codes, ["gpu_memory", "cpu"]);
    } finally {
      await page.close();
    }
  });

  test("uses threads only where memory can be shared", async () => {
    const fetched = [];
    const says = (page, threads) =>
      page.evaluate(async (threads) => {
        const { Engine } = await import("/index.js");
        const engine = await Engine.load("model.gguf", threads ? { threads } : {});
        let text = "";
        for await (const chunk of engine.generate("Once upon a time", { preset: "greedy", maxTokens: 40 })) text += chunk.text;
        const { threads: used } = engine.info;
        await engine.dispose();
        return { text, used, cores: navigator.hardwareConcurrency, isolated: crossOriginIsolated };
      }, threads);
    const model = { "/model.gguf": (_request, response) => createReadStream(MODEL).pipe(response) };
    const empty = (headers) => (_request, response) =>
      response.writeHead(200, { ...headers, "Content-Type": "text/html" }).end("<!doctype html><title>test</title>");
    const isolation = { "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp" };
    const isolated = await serve(new URL("../../dist/", import.meta.url), { ...model, "/": empty(isolation) }, isolation);
    const team = await browser.newPage();
    team.on("request", (request) => fetched.push(new URL(request.url()).pathname));
    try {
      const alone = await says(page);
      assert.deepEqual([alone.used, alone.isolated], [1, false]);
      await team.goto(isolated.url);
      assert.deepEqual(await says(team, 1), { ...alone, isolated: true });
      assert.ok(!fetched.some((path) => path.includes("threads")), `${fetched}`);
      const many = await says(team);
      assert.deepEqual(many, { ...alone, used: Math.min(alone.cores, 16), isolated: true });
      const file = BEST === "relaxed" ? "/shohin_wasm_threads_relaxed_bg.wasm" : "/shohin_wasm_threads_bg.wasm";
      assert.deepEqual(
        fetched.filter((path) => path.includes("threads_")),
        alone.cores > 1 ? [file] : [],
      );
      // More threads than there is work.
      if (alone.cores > 1) assert.equal((await says(team, 2)).text, alone.text);
    } finally {
      await team.close();
      await isolated.close();
    }
  });

  test("ends with an error when one of its threads is terminated", async () => {
    const isolation = { "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp" };
    const routes = {
      "/": (_request, response) => response.writeHead(200, { ...isolation, "Content-Type": "text/html" }).end("<!doctype html>"),
      "/model.gguf": (_request, response) => createReadStream(MODEL).pipe(response),
    };
    const server = await serve(new URL("../../dist/", import.meta.url), routes, isolation);
    const page = await browser.newPage();
    try {
      await page.addInitScript(watchThreads);
      await page.goto(server.url);
      const seen = await page.evaluate(async () => {
        const { Engine } = await import("/index.js");
        const engine = await Engine.load("model.gguf", { threads: 2 });
        if (engine.info.threads === 1) return;
        const says = async (engine) => {
          for await (const _chunk of engine.generate("Once", { maxTokens: 5 }));
        };
        await says(engine);
        // Disposing another engine has no effect.
        const other = await Engine.load("model.gguf", { threads: 2 });
        await other.dispose();
        const disposed = await says(other).catch((error) => error.code);
        await says(engine);
        const waiting = (async () => {
          for (;;) await says(engine);
        })().catch((error) => error.code);
        workersOfThreads[0].terminate();
        return [disposed, await waiting, await engine.tokenize("x").catch((error) => error.code)];
      });
      if (seen) assert.deepEqual(seen, ["disposed", "crashed", "crashed"]);
    } finally {
      await page.close();
      await server.close();
    }
  });

  test("uses one thread if the files for more are missing", async () => {
    const isolation = { "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp" };
    for (const missing of [["/threads.js"], ["/shohin_wasm_threads_bg.wasm", "/shohin_wasm_threads_relaxed_bg.wasm"]]) {
      const routes = {
        "/": (_request, response) => response.writeHead(200, { ...isolation, "Content-Type": "text/html" }).end("<!doctype html>"),
        "/model.gguf": (_request, response) => createReadStream(MODEL).pipe(response),
        ...Object.fromEntries(missing.map((path) => [path, (_request, response) => response.writeHead(404).end()])),
      };
      const server = await serve(new URL("../../dist/", import.meta.url), routes, isolation);
      const page = await browser.newPage();
      try {
        await page.goto(server.url);
        const threads = await page.evaluate(async () => {
          const { Engine } = await import("/index.js");
          const engine = await Engine.load("model.gguf", { threads: 2 });
          for await (const _chunk of engine.generate("Once", { maxTokens: 2 }));
          await engine.dispose();
          return engine.info.threads;
        });
        assert.equal(threads, 1);
      } finally {
        await page.close();
        await server.close();
      }
    }
  });

  /** Loads an engine with each of `all` options in a page; returns their texts and builds, and the fetched modules. */
  async function loads(all, routes = {}) {
    const isolation = { "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp" };
    const fetched = [];
    const server = await serve(
      new URL("../../dist/", import.meta.url),
      {
        "/": (_request, response) => response.writeHead(200, { ...isolation, "Content-Type": "text/html" }).end("<!doctype html>"),
        "/model.gguf": (_request, response) => createReadStream(MODEL).pipe(response),
        ...routes,
      },
      isolation,
    );
    const page = await browser.newPage();
    page.on("request", (request) => fetched.push(new URL(request.url()).pathname));
    try {
      await page.goto(server.url);
      const seen = [];
      for (const options of all) {
        seen.push(
          await page.evaluate(async (options) => {
            const { Engine } = await import("/index.js");
            let engine;
            try {
              engine = await Engine.load("model.gguf", options);
            } catch (error) {
              return error.code;
            }
            const texts = [];
            for (const prompt of ["Once upon a time", "Hello! ".repeat(40)]) {
              let text = "";
              for await (const chunk of engine.generate(prompt, { preset: "greedy", maxTokens: 60 })) text += chunk.text;
              texts.push(text);
            }
            await engine.dispose();
            return { isa: engine.info.isa.replace(/dot$/, ""), threads: engine.info.threads, texts };
          }, options),
        );
      }
      return { seen, modules: [...new Set(fetched.filter((path) => path.endsWith(".wasm")))] };
    } finally {
      await page.close();
      await server.close();
    }
  }

  describe("relaxed SIMD", { skip: BEST === "relaxed" ? false : "built without it" }, () => {
    const [OURS, OTHER] = ["/shohin_wasm_relaxed_bg.wasm", "/shohin_wasm_bg.wasm"];
    const isas = ({ seen }) => seen.map((engine) => engine.isa ?? engine);
    const gone = (_request, response) => response.writeHead(404).end();
    let texts;
    let threads;

    test("is used where supported, with the same text", async () => {
      const alone = await loads([{ threads: 1 }]);
      assert.deepEqual(alone.modules, [OURS]);
      const both = await loads([{ threads: 1 }, { threads: 1, simd: "relaxed" }, { threads: 1, simd: "simd128" }, { threads: 2 }, { threads: 2, simd: "simd128" }]);
      assert.deepEqual(isas(both), ["relaxed", "relaxed", "simd128", "relaxed", "simd128"]);
      texts = alone.seen[0].texts;
      // The same number as with the other build.
      threads = both.seen[3].threads;
      assert.equal(both.seen[4].threads, threads);
      for (const engine of both.seen) assert.deepEqual(engine.texts, texts);
    });

    test("is not used where unsupported, unless requested", async () => {
      const script = await readFile(new URL("../../dist/worker.js", import.meta.url), "utf8");
      const routes = {
        "/worker.js": (_request, response) => {
          response.writeHead(200, { "Content-Type": "text/javascript", "Cross-Origin-Embedder-Policy": "require-corp" });
          response.end(`WebAssembly.validate = () => false; ${script}`);
        },
      };
      const without = await loads([{ threads: 1 }, { threads: 1, simd: "relaxed" }, { threads: 2 }, { threads: 2, simd: "relaxed" }], routes);
      assert.deepEqual(isas(without), ["simd128", "wasm", "simd128", "wasm"]);
      assert.ok(!without.modules.some((path) => path.includes("relaxed")), `${without.modules}`);
      assert.deepEqual(without.seen[0].texts, texts);
      assert.equal(without.seen[2].threads, threads);
    });

    test("is not used if its files are missing, unless requested", async () => {
      const routes = { [OURS]: gone, "/shohin_wasm_threads_relaxed_bg.wasm": gone };
      const without = await loads([{ threads: 1 }, { threads: 1, simd: "relaxed" }, { threads: 2 }, { threads: 2, simd: "relaxed" }], routes);
      assert.deepEqual(isas(without), ["simd128", "wasm", "simd128", "wasm"]);
      assert.equal(without.seen[2].threads, threads);
      // If the other build is missing, only a request for it fails.
      const other = await loads([{ threads: 1 }, { threads: 1, simd: "simd128" }], { [OTHER]: gone });
      assert.deepEqual(isas(other), ["relaxed", "wasm"]);
    });

    test("can be at another address, where its build is checked", async () => {
      const moved = await loads([
        { threads: 1, wasmUrl: OURS, simd: "relaxed" },
        { threads: 1, wasmUrl: OTHER },
        { threads: 1, wasmUrl: OTHER, simd: "relaxed" },
      ]);
      assert.deepEqual(isas(moved), ["relaxed", "simd128", "wasm"]);
    });
  });
});
