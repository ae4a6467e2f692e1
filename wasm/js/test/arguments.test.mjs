// Validation of arguments, in Node: `npm run build -w wasm` first.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { createServer } from "node:http";
import { readFile } from "node:fs/promises";
import { after, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import * as shohin from "shohin";
import { MISTAKES } from "./mistakes.mjs";

const { Engine, ShohinError } = shohin;
const MODEL = fileURLToPath(new URL("../../../models/sprout.gguf", import.meta.url));
const ask = (content) => [{ role: "user", content }];

async function finishOf(chunks) {
  let finish;
  for await (const chunk of chunks) finish = chunk.finish;
  return finish;
}

describe("arguments", () => {
  let engine, want;
  before(async () => {
    engine = await Engine.load(await readFile(MODEL), { context: 128 });
    want = (await finishOf(engine.chat(ask("Hello!"), { preset: "greedy", maxTokens: 5 }))).text;
  });
  after(() => engine?.dispose());

  for (const [what, call, code, place] of MISTAKES) {
    test(`${what} is refused by name, and the engine continues`, { timeout: 300_000 }, async () => {
      const error = await call(engine).then(
        () => assert.fail("nothing was refused"),
        (error) => error,
      );
      assert.ok(error instanceof ShohinError, String(error));
      assert.equal(error.code, code, error.message);
      assert.ok(error.message.includes(place), error.message);
      assert.equal((await finishOf(engine.chat(ask("Hello!"), { preset: "greedy", maxTokens: 5 }))).text, want);
    });
  }

  test("are accepted in the formats of other libraries", async () => {
    const options = { preset: "greedy", maxTokens: 5 };
    const parts = [{ type: "text", text: "Hel" }, { type: "text", text: "lo!" }];
    assert.equal((await finishOf(engine.chat(ask(parts), options))).text, want);
    assert.deepEqual((await engine.snapshot()).messages[0], { role: "user", content: "Hello!" });
    assert.equal((await finishOf(engine.chat(ask("Hello!"), { ...options, stop: undefined, tools: null, seed: null }))).text, want);
    const whole = await finishOf(engine.chat(ask("Hello!"), { preset: "greedy" }));
    assert.equal((await finishOf(engine.chat(ask("Hello!"), { preset: "greedy", maxTokens: Infinity }))).text, whole.text);
    const stop = whole.text.slice(2, 6);
    assert.equal((await finishOf(engine.chat(ask("Hello!"), { preset: "greedy", stop }))).reason, "stop_string");
    const free = { ...options, toolChoice: "auto", tools: [], responseFormat: { type: "text", whitespace: null } };
    assert.equal((await finishOf(engine.chat(ask("Hello!"), free))).text, want);
    class Defaults {
      get preset() {
        return "greedy";
      }
    }
    assert.equal((await finishOf(engine.chat(ask("Hello!"), Object.create(new Defaults(), { maxTokens: { value: 5, enumerable: true } })))).text, want);
    const called = [...ask("2 + 3?"), { role: "assistant", content: null, toolCalls: [{ name: "add", arguments: "{}" }] }, { role: "user", content: "Well?" }];
    // This model has no template for tools; the message must pass validation.
    const error = await engine.tokenizeChat(called).catch((error) => error);
    assert.ok(!(error instanceof ShohinError) || error.code !== "argument", String(error));
  });

  test("of a snapshot without messages are enough for a new conversation", async () => {
    const talk = await engine.conversation();
    const state = new Uint8Array(100);
    await assert.rejects(talk.restore({ messages: [], state }), (error) => error.code.startsWith("snapshot_"));
    assert.deepEqual(await talk.restore({ messages: ask("Hello!"), state }, { recompute: true }), { messages: ask("Hello!"), recomputed: true });
    await talk.dispose();
  });
});

describe("the package in Node", () => {
  test("exports what is documented", () => {
    const names = ["Conversation", "Engine", "LocalConversation", "LocalEngine", "MODELS", "ShohinError", "clearCache", "deleteCache", "deleteSnapshot", "listCache", "listSnapshots"];
    assert.deepEqual(Object.keys(shohin).sort(), names);
  });

  test("refuses addresses of copies that are none, although it keeps no copies", async () => {
    const { deleteCache, listCache } = shohin;
    assert.deepEqual([await listCache(), await listCache("bonsai-1.7b"), await deleteCache(new URL("https://localhost/a"))], [[], [], false]);
    for (const call of [deleteCache, listCache]) {
      for (const url of [5, {}, null]) await assert.rejects(call(url), { name: "ShohinError", code: "argument", message: /^the address is .*, but must be a URL$/ });
      await assert.rejects(call("a", { hubs: "b" }), { code: "argument" });
    }
    await assert.rejects(deleteCache(), { code: "argument" });
  });

  test("prints uncaught errors in a few lines", async () => {
    const script = `import { Engine } from "shohin"; await Engine.load("/no/such/file.gguf");`;
    const cwd = new URL("../", import.meta.url);
    const { stderr } = await promisify(execFile)(process.execPath, ["--input-type=module", "-e", script], { cwd }).catch((error) => error);
    assert.match(stderr, /ShohinError.*\/no\/such\/file\.gguf/);
    assert.ok(stderr.length < 2500, `${stderr.length} characters`);
  });

  test("finds its module where wasmUrl says", async () => {
    const script = `import { Engine } from "shohin";
      for (const wasmUrl of ["nowhere.wasm", new URL("nowhere.wasm", import.meta.url), "package.json", "dist/shohin_wasm_bg.wasm"]) {
        const said = await Engine.load("../models/sprout.gguf", { wasmUrl, threads: 1 }).then(({ info }) => info.model.variant, ({ code, message }) => code + (/another file/.test(message) ? ": another file" : ""));
        console.log(said);
      }`;
    const { stdout } = await promisify(execFile)(process.execPath, ["--input-type=module", "-e", script], { cwd: new URL("../../", import.meta.url) });
    assert.deepEqual(stdout.trim().split("\n"), ["wasm", "wasm", "wasm: another file", "Custom"]);
  });

  test("throws one class of errors", async () => {
    const server = createServer((_request, response) => response.writeHead(502).end());
    await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
    const { port } = server.address();
    try {
      const urls = [`http://127.0.0.1:${port}/model.gguf`, "http://127.0.0.1:1/model.gguf"];
      const found = await Promise.all(urls.map((url) => Engine.load(url).catch((error) => error)));
      assert.deepEqual(found.map(({ constructor, code }) => [constructor, code]), [[ShohinError, "http"], [ShohinError, "network"]]);
      for (const error of found) assert.deepEqual(Object.keys(error).sort(), ["code", "name"]);
    } finally {
      server.closeAllConnections();
      server.close();
    }
  });
});
