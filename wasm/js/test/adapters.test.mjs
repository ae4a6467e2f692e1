// Adapters (LoRA), in Node and in a page: `npm run build -w wasm` first. tests/fixtures/lora/sprout.gguf is of rank 1 and makes a pirate of Sprout:
// `shohin train -m models/sprout.gguf --method lora --rank 1 --targets q,v,down --steps 60 --lr 0.01`, with four conversations.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { createServer } from "node:http";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, afterEach, before, beforeEach, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { Engine, ShohinError } from "shohin";
import { launch, serve } from "./chromium.mjs";

const path = (file) => fileURLToPath(new URL(`../../../${file}`, import.meta.url));
const [MODEL, PIRATE, ALIEN] = [path("models/sprout.gguf"), path("tests/fixtures/lora/sprout.gguf"), path("tests/fixtures/lora/all.gguf")];
const { SHOHIN_PROGRAM: PROGRAM } = process.env;
const run = promisify(execFile);

/** What `shohin run --raw --temperature 0 --max-tokens 24 --lora tests/fixtures/lora/sprout.gguf=SCALE "Once upon a time"` prints. */
const STORIES = {
  0: ", there was a curious little girl named Aiko. Aiko had a red ball. One day, the ball fell down.",
  1: ", there was a shy little girl. Her mother. Her name was Mochi. Mochi had a yellow ball. One day",
  0.5: ", there was a curious little girl named Sofia. Sofia had a brown boat. One day, the boat fell down.",
  "-1": ", there was a curious little boy named Oscareden, please. Oscaredeneden wanted to learn to paint",
};
const [KIND, PIRATICAL] = ["Hi! How are you today?", "Ahoy! I am a pirate."];

const greedy = { preset: "greedy", maxTokens: 24 };
const ask = (content) => [{ role: "user", content }];
const fails = (code, message = "") => (error) =>
  error instanceof ShohinError && (assert.equal(error.code, code, error.message), assert.ok(error.message.includes(message), error.message), true);
const story = async (engine, options) => {
  let all = "";
  for await (const { text } of engine.generate("Once upon a time", { ...greedy, ...options })) all += text;
  return all;
};
const said = async (engine, options) => (await engine.reply("Hello!", { ...greedy, ...options })).text;

describe("an engine with adapters", () => {
  let engine, bytes;
  before(async () => {
    bytes = await readFile(PIRATE);
    engine = await Engine.load(MODEL, { context: 128, threads: 1 });
  });
  after(() => engine.dispose());

  test("replies as the program does with the same file, and as before without it", async () => {
    assert.equal(await story(engine), STORIES[0]);
    assert.deepEqual(await engine.adapters.add(PIRATE), { name: "sprout", scale: 1 });
    assert.deepEqual(engine.adapters.list(), [{ name: "sprout", scale: 1 }]);
    assert.equal(await story(engine), STORIES[1]);
    assert.equal(await said(engine), PIRATICAL);
    for (const scale of [0.5, -1, 0, 1]) {
      engine.adapters.scale("sprout", scale);
      assert.deepEqual(engine.adapters.list(), [{ name: "sprout", scale }]);
      assert.equal(await story(engine), STORIES[scale]);
    }
    engine.adapters.remove("sprout");
    assert.deepEqual(engine.adapters.list(), []);
    assert.equal(await story(engine), STORIES[0]);
    assert.equal(await said(engine), KIND);
  });

  test("reads them from bytes, a file and an address", async () => {
    const server = createServer((request, response) => response.end(request.headers.authorization === "x" ? bytes : "no"));
    await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
    const url = `http://127.0.0.1:${server.address().port}/a/pi%20rate.gguf?x=1`;
    try {
      await engine.adapters.add(bytes, { name: "view" });
      await engine.adapters.add(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length), { name: "buffer" });
      await engine.adapters.add(new Blob([bytes]), { name: "blob" });
      await engine.adapters.add(new File([bytes], "named.gguf"));
      await assert.rejects(engine.adapters.add(url), fails("malformed", "adapter pi rate: it is not a GGUF file"));
      await engine.adapters.add(new URL(url), { request: { headers: { Authorization: "x" } }, scale: 0.5 });
      const names = ["view", "buffer", "blob", "named", "pi rate"];
      assert.deepEqual(engine.adapters.list().map(({ name }) => name), names);
      for (const name of names) assert.equal(await story(engine, { adapters: [{ name }] }), STORIES[name === "pi rate" ? 0.5 : 1]);
      for (const name of names) engine.adapters.remove(name);
    } finally {
      server.close();
      server.closeAllConnections();
    }
  });

  test("takes others for a reply, and computes the conversation again for them", async () => {
    await engine.adapters.add(PIRATE, { name: "pirate", scale: 0.5 });
    const at = (scale) => ({ adapters: [{ name: "pirate", scale }] });
    assert.equal(await story(engine, { adapters: [] }), STORIES[0]);
    assert.equal(await story(engine, { adapters: [{ name: "pirate" }] }), STORIES[0.5]);
    assert.equal(await story(engine, at(-1)), STORIES[-1]);
    assert.equal(await story(engine, at(0)), STORIES[0]);
    assert.equal(await story(engine), STORIES[0.5]);
    const cached = async (options) => (await engine.reply("Hello!", { ...greedy, ...options })).finish.usage.cachedTokens;
    assert.equal(await cached(at(1)), 0);
    assert.ok((await cached(at(1))) > 0);
    assert.equal(await cached({}), 0);
    assert.equal(await cached({ adapters: [] }), 0);
    assert.ok((await cached(at(0))) > 0);

    const request = { messages: ask("Hello!"), temperature: 0, max_tokens: 24 };
    const content = async (options) => (await engine.createChatCompletion(request, options)).choices[0].message.content;
    assert.deepEqual([await content(at(1)), await content({ adapters: [] })], [PIRATICAL, KIND]);
    let streamed = "";
    for await (const { choices: [choice] } of await engine.createChatCompletion({ ...request, stream: true }, at(1))) streamed += choice?.delta.content ?? "";
    assert.equal(streamed, PIRATICAL);
    assert.equal(await said(engine.session(at(1))), PIRATICAL);
    assert.equal(await said(engine.session({ adapters: [] })), KIND);
    assert.equal((await engine.reply("Hello!", { beams: 2, maxTokens: 24, ...at(1) })).text, PIRATICAL);
    const [base, adapted, again] = [await engine.embed("cow", { adapters: [] }), await engine.embed("cow"), await engine.embed("cow", at(0.5))];
    assert.deepEqual(adapted, again);
    assert.notDeepEqual(adapted, base);
    engine.adapters.remove("pirate");
    assert.deepEqual(await engine.embed("cow"), base);
  });

  test("lets conversations with different adapters reply at once, each with those that it was opened with", async () => {
    await engine.adapters.add(PIRATE, { name: "pirate" });
    const opened = [engine.conversation(), engine.conversation({ adapters: [] }), engine.conversation({ adapters: [{ name: "pirate", scale: 0.5 }] }), engine.conversation({ adapters: [{ name: "pirate", scale: -1 }] })];
    const talks = await Promise.all(opened);
    const stories = [1, 0, 0.5, -1].map((scale) => STORIES[scale]);
    assert.deepEqual(await Promise.all(talks.map((talk) => story(talk))), stories);
    // One piece of each in turn.
    const replies = talks.map((talk) => talk.generate("Once upon a time", greedy));
    const texts = talks.map(() => "");
    for (let open = replies.length; open > 0; ) {
      open = 0;
      for (const [i, reply] of replies.entries()) {
        const { done, value } = await reply.next();
        if (!done) [texts[i], open] = [texts[i] + value.text, open + 1];
      }
    }
    assert.deepEqual(texts, stories);
    engine.adapters.scale("pirate", 0.25);
    assert.deepEqual(await Promise.all(talks.map((talk) => story(talk))), stories);
    engine.adapters.remove("pirate");
    assert.equal(await story(engine), STORIES[0]);
    assert.equal(await story(talks[0], { adapters: [] }), STORIES[0]);
    assert.deepEqual(await Promise.all(talks.map((talk) => story(talk))), stories);
    await assert.rejects(story(talks[0], { adapters: [{ name: "pirate" }] }), fails("argument", 'there is no adapter named "pirate"; there are none'));
    assert.equal(await story(await engine.conversation()), STORIES[0]);
    for (const talk of talks) await talk.dispose();
  });

  test("keeps a reply that has begun from a change", async () => {
    await engine.adapters.add(PIRATE, { name: "pirate" });
    const reply = engine.generate("Once upon a time", greedy);
    let text = (await reply.next()).value.text;
    const queued = story(engine);
    engine.adapters.remove("pirate");
    for await (const chunk of reply) text += chunk.text;
    assert.deepEqual([text, await queued, await story(engine)], [STORIES[1], STORIES[1], STORIES[0]]);
  });

  test("adds several adapters up, in their order", async () => {
    await engine.adapters.add(PIRATE, { name: "a", scale: 0.5 });
    await engine.adapters.add(bytes, { name: "b", scale: -1.5 });
    const both = await story(engine);
    assert.equal(await story(engine, { adapters: [{ name: "a" }, { name: "b" }] }), both);
    assert.notEqual(both, STORIES[0]);
    assert.equal(await story(engine, { adapters: [{ name: "b", scale: 0 }, { name: "a" }] }), STORIES[0.5]);
    for (const name of ["a", "b"]) engine.adapters.remove(name);
  });

  test("refuses snapshots of other adapters", async () => {
    await engine.adapters.add(PIRATE, { name: "pirate" });
    await engine.adapters.add(PIRATE, { name: "twin" });
    const sets = [[], [["pirate", 1]], [["pirate", 0.5]], [["pirate", 1], ["twin", 0.5]]];
    const talks = [];
    for (const set of sets) talks.push(await engine.conversation({ adapters: set.map(([name, scale]) => ({ name, scale })) }));
    const snapshots = [];
    for (const talk of talks) {
      await talk.reply("Hello!", greedy);
      snapshots.push(await talk.snapshot());
    }
    for (const [i, talk] of talks.entries()) {
      for (const [j, snapshot] of snapshots.entries()) {
        if (i === j) assert.deepEqual(await talk.restore(snapshot), { messages: snapshot.messages, recomputed: false });
        else await assert.rejects(talk.restore(snapshot), fails("snapshot_foreign"));
      }
    }
    // A name does not matter, only what is in the file.
    assert.equal((await engine.restore(snapshots[2], { adapters: [{ name: "twin", scale: 0.5 }] })).recomputed, false);
    await assert.rejects(engine.restore(snapshots[2]), fails("snapshot_foreign"));
    assert.equal((await engine.restore(snapshots[2], { recompute: true })).recomputed, true);
    // That of a reply with others is of those.
    await talks[0].reply("Hello!", { ...greedy, adapters: [{ name: "pirate" }] });
    const other = await talks[0].snapshot();
    assert.equal(other.messages[1].content, PIRATICAL);
    await assert.rejects(talks[0].restore(other), fails("snapshot_foreign"));
    assert.equal((await talks[1].restore(other)).recomputed, false);
    for (const talk of talks) await talk.dispose();
    for (const name of ["pirate", "twin"]) engine.adapters.remove(name);
  });

  test("refuses files that are none, and goes on", async () => {
    const add = (source, options = { name: "x" }) => engine.adapters.add(source, options);
    await assert.rejects(add(bytes.subarray(0, 3000)), fails("truncated", "adapter x: "));
    await assert.rejects(add(bytes.subarray(0, bytes.length - 100)), fails("truncated", "adapter x: "));
    await assert.rejects(add(new Uint8Array()), fails("truncated", "adapter x: "));
    await assert.rejects(add(new TextEncoder().encode("<!doctype html>")), fails("malformed", "adapter x: it is not a GGUF file"));
    await assert.rejects(add(MODEL), fails("unsupported", "adapter x: "));
    await assert.rejects(add(ALIEN), fails("tensor_shape", "adapter x: "));
    await assert.rejects(add("/no/such/file.gguf"), fails("read", "/no/such/file.gguf"));
    await assert.rejects(add("http://127.0.0.1:1/a.gguf"), fails("network"));
    const damaged = Buffer.from(bytes);
    for (let at = 0; at < 4000; at += 97) {
      damaged[at] ^= 255;
      await add(damaged).then(
        () => engine.adapters.remove("x"),
        (error) => assert.ok(error instanceof ShohinError && !["crashed", "read"].includes(error.code), String(error)),
      );
      damaged[at] ^= 255;
    }
    assert.deepEqual(engine.adapters.list(), []);
    assert.equal(await story(engine), STORIES[0]);
    await add(PIRATE);
    assert.equal(await story(engine), STORIES[1]);
    engine.adapters.remove("x");
  });

  test("refuses arguments by name", async () => {
    const add = (source, options) => engine.adapters.add(source, options);
    await assert.rejects(add(5), fails("argument", "the adapter must be a URL"));
    await assert.rejects(add([PIRATE, PIRATE]), fails("argument", "the adapter is in several files"));
    await assert.rejects(add("a-00001-of-00002.gguf"), fails("argument", "the adapter is in several files"));
    await assert.rejects(add(bytes), fails("argument", "the adapter has no name"));
    await assert.rejects(add("data:,GGUF"), fails("argument", "the adapter has no name"));
    await assert.rejects(add(bytes, { name: "" }), fails("argument", 'name is ""'));
    await assert.rejects(add(bytes, { name: "x", scale: "1" }), fails("argument", 'scale is "1"'));
    for (const scale of [NaN, Infinity, 1e39]) await assert.rejects(add(bytes, { name: "x", scale }), fails("option", `scale is ${scale}, but must be a finite number`));
    await assert.rejects(add(bytes, { nam: "x" }), fails("argument", "did you mean name?"));
    await assert.rejects(add(bytes, { name: "x", signal: AbortSignal.abort() }), fails("aborted"));
    await add(bytes, { name: "pirate" });
    await assert.rejects(add(bytes, { name: "pirate" }), fails("duplicate", 'there is an adapter named "pirate" already'));
    const twice = await Promise.allSettled([add(PIRATE, { name: "x" }), add(bytes, { name: "x" })]);
    assert.deepEqual(twice.map(({ status }) => status), ["fulfilled", "rejected"]);
    engine.adapters.remove("x");
    assert.throws(() => engine.adapters.remove("pirates"), fails("argument", 'there is no adapter named "pirates"; did you mean pirate?'));
    assert.throws(() => engine.adapters.remove(), fails("argument", "name is undefined"));
    assert.throws(() => engine.adapters.scale("poet", 1), fails("argument", "there is only pirate"));
    assert.throws(() => engine.adapters.scale("pirate", NaN), fails("option", "scale is NaN"));
    assert.throws(() => engine.adapters.scale("pirate"), fails("argument", "scale is undefined"));
    const reply = (adapters) => engine.reply("Hello!", { ...greedy, adapters });
    await assert.rejects(reply([{ name: "poet" }]), fails("argument", 'there is no adapter named "poet"'));
    await assert.rejects(reply("pirate"), fails("argument", 'adapters is "pirate", but must be an array of adapters'));
    await assert.rejects(reply(["pirate"]), fails("argument", 'adapters[0] is "pirate"'));
    await assert.rejects(reply([{ name: "pirate", scales: 1 }]), fails("argument", "did you mean scale?"));
    await assert.rejects(reply([{ name: "pirate", scale: Infinity }]), fails("option", "adapters[0].scale is Infinity"));
    await assert.rejects(reply([{ name: "pirate" }, { name: "pirate", scale: 2 }]), fails("duplicate", "adapters[1].name"));
    await assert.rejects(engine.conversation({ adapters: [{ name: "poet" }] }), fails("argument", "poet"));
    assert.equal(await story(engine), STORIES[1]);
    engine.adapters.remove("pirate");
  });
});

describe("adapters of a load", () => {
  test("hold from the beginning, whatever the backend is chosen by", async () => {
    for (const backend of ["cpu", "auto"]) {
      const adapters = [{ url: PIRATE, scale: 0.5 }, { data: await readFile(PIRATE), name: "bytes", scale: 0 }];
      const engine = await Engine.load(MODEL, { context: 64, threads: 1, backend, adapters });
      assert.equal(engine.info.backend, "cpu");
      assert.deepEqual(engine.adapters.list(), [{ name: "sprout", scale: 0.5 }, { name: "bytes", scale: 0 }]);
      assert.equal(await story(engine), STORIES[0.5]);
      await engine.dispose();
      await assert.rejects(engine.adapters.add(PIRATE, { name: "x" }), fails("disposed"));
    }
  });

  test("run with several threads", async () => {
    const engine = await Engine.load(MODEL, { context: 64, threads: 2, adapters: [{ url: new URL(`file://${PIRATE}`) }] });
    assert.equal(await story(engine), STORIES[1]);
    await engine.dispose();
  });

  test("are refused with the model", async () => {
    const load = (adapters, more) => Engine.load(MODEL, { context: 64, threads: 1, adapters, ...more });
    await assert.rejects(load([{ url: PIRATE }], { backend: "webgpu" }), fails("gpu_unsupported", 'adapters run on the CPU: load with backend "cpu"'));
    await assert.rejects(load([{ url: ALIEN }]), fails("tensor_shape", "adapter all: "));
    await assert.rejects(load([{ url: PIRATE }, { url: PIRATE }]), fails("duplicate", '"sprout"'));
    await assert.rejects(load([{}]), fails("argument", "adapters[0] must have either url or data"));
    await assert.rejects(load([{ url: PIRATE, data: new Blob([]) }]), fails("argument", "adapters[0] must have either url or data"));
    await assert.rejects(load([{ url: 5 }]), fails("argument", "adapters[0].url is 5"));
    await assert.rejects(load([{ data: PIRATE }]), fails("argument", "adapters[0].data"));
    await assert.rejects(load([{ data: new Blob([]) }]), fails("argument", "adapters[0] has no name"));
    await assert.rejects(load([{ url: PIRATE, scale: NaN }]), fails("option", "adapters[0].scale is NaN"));
    await assert.rejects(load([{ url: PIRATE, nam: "x" }]), fails("argument", "did you mean name?"));
    await assert.rejects(load(PIRATE), fails("argument", "adapters is"));
  });
});

describe("adapters in a page", { timeout: 300_000 }, () => {
  let browser, server, context, asked;
  before(async () => {
    const counted = (file, type) => async (request, response) => {
      asked.push(new URL(request.url, "http://localhost").pathname);
      response.writeHead(200, { "Content-Type": type }).end(await readFile(file));
    };
    server = await serve(new URL("../../dist/", import.meta.url), {
      "/": (_request, response) => response.writeHead(200, { "Content-Type": "text/html" }).end("<!doctype html><title>test</title>"),
      "/model.gguf": counted(MODEL, "application/octet-stream"),
      "/pirate.gguf": counted(PIRATE, "application/octet-stream"),
    });
    browser = await launch();
  });
  after(async () => {
    await browser?.close();
    await server?.close();
  });
  beforeEach(async () => {
    asked = [];
    context = await browser.newContext();
  });
  afterEach(() => context.close());

  async function open() {
    const page = await context.newPage();
    page.setDefaultTimeout(120_000);
    await page.goto(server.url);
    await page.evaluate(async () => {
      globalThis.shohin = await import("/index.js");
      globalThis.code = (promise) => promise.then(() => "none", (error) => (error instanceof shohin.ShohinError ? `${error.code}: ${error.message}` : String(error)));
      globalThis.story = async (engine, options) => {
        let all = "";
        for await (const { text } of engine.generate("Once upon a time", { preset: "greedy", maxTokens: 24, ...options })) all += text;
        return all;
      };
    });
    return page;
  }

  test("are read by its worker, from an address, a blob and bytes, and kept", async () => {
    const page = await open();
    const said = await page.evaluate(async () => {
      const engine = await shohin.Engine.load("model.gguf", { context: 128, adapters: [{ url: "pirate.gguf", scale: 0.5 }] });
      const bytes = new Uint8Array(await (await fetch("pirate.gguf")).arrayBuffer());
      const said = [engine.adapters.list(), await story(engine)];
      await engine.adapters.add(new Blob([bytes]), { name: "blob", scale: -1 });
      await engine.adapters.add(bytes, { name: "bytes" });
      const talks = await Promise.all(["pirate", "blob", "bytes"].map((name) => engine.conversation({ adapters: [{ name }] })));
      said.push(await Promise.all(talks.map((talk) => story(talk))), bytes.length);
      said.push(await code(engine.adapters.add(bytes.subarray(0, 5000), { name: "x" })), await code(engine.adapters.add("nowhere.gguf")));
      for (const name of ["pirate", "blob", "bytes"]) engine.adapters.remove(name);
      said.push(await story(engine), await story(talks[1]));
      await talks[1].save("talk");
      said.push(await code(engine.restore("talk")), await code(talks[1].restore("talk")));
      await engine.dispose();
      return [...said, (await shohin.listCache()).map(({ url, complete }) => [new URL(url).pathname, complete]).sort()];
    });
    const [truncated, missing] = said.splice(4, 2);
    const foreign = said.splice(6, 1)[0];
    assert.deepEqual(said, [
      [{ name: "pirate", scale: 0.5 }], STORIES[0.5], [STORIES[0.5], STORIES[-1], STORIES[1]], (await readFile(PIRATE)).length,
      STORIES[0], STORIES[-1], "none", [["/model.gguf", true], ["/pirate.gguf", true]],
    ]);
    assert.match(truncated, /^truncated: adapter x: /);
    assert.match(missing, /^http: .*nowhere\.gguf/);
    assert.match(foreign, /^snapshot_foreign: /);
    asked = [];
    const again = await page.evaluate(async () => {
      const engine = await shohin.Engine.load("model.gguf", { context: 128, adapters: [{ url: "pirate.gguf" }] });
      return story(engine).finally(() => engine.dispose());
    });
    assert.deepEqual([again, asked], [STORIES[1], []]);
  });

  test("are downloaded by preload, and refused on a GPU", async () => {
    const page = await open();
    await page.evaluate(() => shohin.Engine.preload("model.gguf", { adapters: [{ url: "pirate.gguf" }] }));
    assert.deepEqual(asked.sort(), ["/model.gguf", "/pirate.gguf"]);
    const said = await page.evaluate(async () => {
      const refused = await code(shohin.Engine.load("model.gguf", { backend: "webgpu", adapters: [{ url: "pirate.gguf" }] }));
      const engine = await shohin.Engine.load("model.gguf", { context: 128, backend: "auto", adapters: [{ url: "pirate.gguf" }] });
      return [refused, engine.info.backend, await story(engine)];
    });
    assert.deepEqual(said, ['gpu_unsupported: adapters run on the CPU: load with backend "cpu"', "cpu", STORIES[1]]);
    assert.equal(asked.length, 2);
  });

  test("are each tab's own, of an engine that several share", async () => {
    const pages = [await open(), await open(), await open()];
    const load = (page, adapters) =>
      page.evaluate(async (adapters) => {
        globalThis.engine = await shohin.Engine.load("model.gguf", { context: 128, shared: true, adapters });
        return engine.info.shared;
      }, adapters);
    const sets = [[{ url: "pirate.gguf" }], [], [{ url: "pirate.gguf", scale: 0.5 }]];
    for (const [i, page] of pages.entries()) assert.equal(await load(page, sets[i]), true);
    assert.equal(asked.filter((path) => path === "/model.gguf").length, 1);
    assert.equal(asked.filter((path) => path === "/pirate.gguf").length, 1);
    const stories = () => Promise.all(pages.map((page) => page.evaluate(() => story(engine))));
    assert.deepEqual(await stories(), [STORIES[1], STORIES[0], STORIES[0.5]]);
    await pages[1].evaluate(() => engine.adapters.add("pirate.gguf", { scale: -1 }));
    await pages[0].evaluate(() => engine.adapters.remove("pirate"));
    assert.deepEqual(await stories(), [STORIES[0], STORIES[-1], STORIES[0.5]]);
    await pages.pop().close();
    assert.deepEqual(await stories(), [STORIES[0], STORIES[-1]]);
  });
});

const skip = PROGRAM === undefined && "SHOHIN_PROGRAM names no program; `cargo xtask test --only npm` builds it";

test("conversations with adapters go on in the program, and back", { skip, timeout: 300_000 }, async (t) => {
  const folder = await mkdtemp(join(tmpdir(), "shohin-adapters-"));
  t.after(() => rm(folder, { recursive: true }));
  const env = { ...process.env, SHOHIN_DEVICE: "cpu", SHOHIN_WEIGHT_CACHE: "none" };
  const file = join(folder, "session");
  for (const scale of [1, 0.5]) {
    const lora = [`--lora=${PIRATE}=${scale}`, "--temperature=0", "--max-tokens=24", "--json"];
    const { stdout } = await run(PROGRAM, ["run", ...lora, `--model=${MODEL}`, "--context=512", "--session", file, "Hello!"], { env });
    const engine = await Engine.load(MODEL, { context: 512, threads: 1, adapters: [{ url: PIRATE, scale }] });
    const { messages, recomputed } = await engine.restore(await readFile(file));
    assert.deepEqual([messages.at(-1).content, recomputed], [JSON.parse(stdout).text, false]);
    await assert.rejects(engine.restore(await readFile(file), { adapters: [] }), fails("snapshot_foreign"));
    await engine.dispose();
    await rm(file);
    const raw = await run(PROGRAM, ["run", "--raw", ...lora, `--model=${MODEL}`, "Once upon a time"], { env });
    assert.equal(JSON.parse(raw.stdout).text, STORIES[scale]);
  }
});
