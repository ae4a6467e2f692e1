// Teaching facts, in Node and in a page: `npm run build -w wasm` first.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { Engine, ShohinError } from "shohin";
import { launch, serve } from "./chromium.mjs";

const MODEL = fileURLToPath(new URL("../../../models/sprout.gguf", import.meta.url));
const { SHOHIN_PROGRAM: PROGRAM } = process.env;
const run = promisify(execFile);
const [CODE, DOG] = ["What is the door code?", "What is my dog called?"];
/** Few, for speed. */
const questions = ["Hello!", "What is your name?", "What does a cow say?", "What is 3 plus 4?", "Where is my bag?", "What is the capital of Spain?"];
const fails = (code, message = "") => (error) =>
  error instanceof ShohinError && (assert.equal(error.code, code, error.message), assert.ok(error.message.includes(message), error.message), true);

describe("an engine that is taught", () => {
  let engine;
  before(async () => (engine = await Engine.load(MODEL, { context: 256, threads: 1 })));
  after(() => engine.dispose());

  test("answers as it was told, and the file does so elsewhere", async () => {
    const stages = new Map();
    const onProgress = ({ stage, share, loss, sure }) => {
      stages.set(stage, (stages.get(stage) ?? 0) + 1);
      assert.ok(stage === "learn" ? loss >= 0 && sure >= 0 && sure <= 1 : share > 0 && share <= 1);
    };
    const taught = await engine.teach([{ question: CODE, answer: "It is 4711.", forms: ["Tell me the door code."] }], { name: "house", questions, onProgress });
    assert.ok(taught.learned, JSON.stringify(taught.answers));
    assert.deepEqual([taught.name, taught.answers[0].after, taught.steps], ["house", "It is 4711.", stages.get("learn")]);
    assert.notEqual(taught.answers[0].before, taught.answers[0].after);
    assert.equal(stages.get("ask"), questions.length + 1);
    const ask = async (question, options) => (await engine.reply(question, { preset: "greedy", ...options })).text;
    assert.equal(await ask("Tell me the door code."), "It is 4711.");
    assert.equal(await ask(CODE, { adapters: [] }), taught.answers[0].before);
    // Again, with more: it replaces what has its name.
    const more = await engine.teach({ [CODE]: "It is 4711.", [DOG]: "Your dog is called Biscuit." }, { name: "house", questions });
    assert.ok(more.learned, JSON.stringify(more.answers));
    assert.deepEqual(engine.adapters.list(), [{ name: "house", scale: 1 }]);
    assert.equal(await ask(DOG), "Your dog is called Biscuit.");
    if (!PROGRAM) return;
    const folder = await mkdtemp(join(tmpdir(), "shohin-"));
    try {
      await writeFile(join(folder, "house.gguf"), more.file);
      const { stdout } = await run(PROGRAM, ["run", "-m", MODEL, "--device", "cpu", "--lora", join(folder, "house.gguf"), "--preset", "greedy", DOG]);
      assert.equal(stdout.trim(), "Your dog is called Biscuit.");
      const { stdout: list } = await run(PROGRAM, ["teach", "--out", join(folder, "house.gguf"), "--list"]);
      assert.equal(list, `${CODE}=It is 4711.\n${DOG}=Your dog is called Biscuit.\n`);
    } finally {
      await rm(folder, { recursive: true });
    }
  });

  test("refuses what it cannot learn, and can be stopped", async () => {
    const taught = (facts, options) => () => engine.teach(facts, { questions, name: "other", ...options });
    await assert.rejects(taught({}), fails("argument", "at least one fact"));
    await assert.rejects(taught([{ question: " ", answer: "b" }]), fails("argument", "facts[0].question"));
    await assert.rejects(taught([{ question: "a", answer: "b", from: 1 }]), fails("argument", "from"));
    await assert.rejects(taught({ a: "b" }, { rank: 0 }), fails("option", "rank"));
    await assert.rejects(taught({ a: "b" }, { learningRate: -1 }), fails("option", "learningRate"));
    await assert.rejects(taught({ a: "word ".repeat(700) }), fails("limit", "512"));
    const stop = new AbortController();
    const onProgress = ({ stage }) => stage === "learn" && stop.abort();
    await assert.rejects(taught({ a: "b" }, { onProgress, signal: stop.signal }), fails("aborted"));
    assert.ok(!engine.adapters.list().some(({ name }) => name === "other"));
    const bytes = await readFile(MODEL);
    const own = await Engine.load(bytes, { context: 128, threads: 1 });
    try {
      await assert.rejects(own.teach({ a: "b" }), fails("argument", "option model"));
      const { learned } = await own.teach({ [CODE]: "4711" }, { model: new Blob([bytes]), questions });
      assert.ok(learned);
    } finally {
      await own.dispose();
    }
  });
});

test("a page goes on chatting while another worker learns", { timeout: 300_000 }, async () => {
  const server = await serve(new URL("../../dist/", import.meta.url), {
    "/": (_request, response) => response.writeHead(200, { "Content-Type": "text/html" }).end("<!doctype html><title>test</title>"),
    "/model.gguf": async (_request, response) => response.writeHead(200, { "Content-Type": "application/octet-stream" }).end(await readFile(MODEL)),
  });
  const browser = await launch();
  try {
    const page = await browser.newPage();
    page.setDefaultTimeout(240_000);
    await page.goto(server.url);
    const found = await page.evaluate(
      async ([code, questions]) => {
        const { Engine } = await import("/index.js");
        const engine = await Engine.load("/model.gguf", { context: 256 });
        let replies = 0;
        let talk;
        const onProgress = ({ stage }) => {
          // From its first step to its end.
          if (stage === "learn") talk ??= (async () => {
            await engine.reply("What does a cow say?", { preset: "greedy", adapters: [] });
            replies += 1;
          })();
        };
        const taught = await engine.teach({ [code]: "It is 4711." }, { questions, onProgress });
        await talk;
        const after = await engine.reply(code, { preset: "greedy" });
        await engine.dispose();
        return { learned: taught.learned, replies, after: after.text };
      },
      [CODE, questions],
    );
    assert.deepEqual(found, { learned: true, replies: 1, after: "It is 4711." });
  } finally {
    await browser.close();
    await server.close();
  }
});
