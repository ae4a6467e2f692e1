// Whole replies, sessions with tools, batches of embeddings and disposal, in Node and in a page: `npm run build -w wasm` first.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, before, describe, test } from "node:test";
import { Engine, ShohinError } from "shohin";
import { launch, serve } from "./chromium.mjs";
import { scripted } from "./scripted.mjs";

const MODEL = await readFile(new URL("../../../models/sprout-nano.gguf", import.meta.url));
const greedy = { preset: "greedy", maxTokens: 60 };
const ask = (content) => [{ role: "user", content }];
const fails = (code) => (error) => error instanceof ShohinError && (assert.equal(error.code, code, error.message), true);
/** The text, the results of tools and the finish of a stream. */
const collect = async (chunks) => {
  const [texts, toolResults, finishes] = [[], [], []];
  for await (const { text, toolResults: results, finish } of chunks) {
    texts.push(text);
    if (results) toolResults.push(results);
    if (finish) finishes.push(finish);
  }
  return { text: texts.join(""), toolResults, finishes };
};

describe("a model without tools", () => {
  let engine;
  before(async () => {
    engine = await Engine.load(MODEL, { context: 256, threads: 1 });
  });
  after(() => engine.dispose());

  test("replies as a whole to a text or to messages", async () => {
    const { text, finishes: [finish] } = await collect(engine.chat(ask("Hello!"), { ...greedy, maxTokens: 5 }));
    for (const input of ["Hello!", ask("Hello!")]) {
      const reply = await engine.reply(input, { ...greedy, maxTokens: 5 });
      assert.equal(`${reply}`, text);
      assert.deepEqual([reply.text, reply.finish.message, reply.finish.reason], [text, finish.message, "length"]);
      assert.ok(!("logprobs" in reply));
    }
    const { logprobs, finish: { usage } } = await engine.reply("Hello!", { ...greedy, maxTokens: 5, logprobs: 1 });
    assert.deepEqual([logprobs.length, usage.completionTokens], [5, 5]);
    await assert.rejects(engine.reply("Hello!", { signal: AbortSignal.abort() }), { name: "AbortError", code: "aborted" });
  });

  test("keeps the messages of a session, and computes only new ones", async () => {
    const session = engine.session({ system: "Be kind.", ...greedy, maxTokens: 8 });
    const messages = [{ role: "system", content: "Be kind." }];
    for (const text of ["Hello!", "What does a cow say?", "Why?"]) {
      messages.push(...ask(text));
      const wanted = await engine.reply(messages, { ...greedy, maxTokens: 8 });
      const { finish } = await session.reply(text);
      assert.deepEqual(finish.message, wanted.finish.message);
      messages.push(finish.message);
      assert.deepEqual(session.messages, messages);
      assert.ok(finish.usage.cachedTokens >= finish.usage.promptTokens - 1);
    }
    const again = (await engine.conversation()).session({ messages });
    assert.deepEqual(again.messages, messages);
    const { finish } = await again.reply("Hello!", { ...greedy, maxTokens: 2 });
    assert.deepEqual([finish.reason, finish.usage.completionTokens], ["length", 2]);
    // The copy is the caller's.
    again.messages.pop();
    assert.equal(again.messages.length, messages.length + 2);
  });

  test("sends several messages to a session at once", async () => {
    const session = engine.session({ ...greedy, maxTokens: 4, messages: ask("Hello!") });
    const sent = [{ role: "assistant", content: "Hello." }, { role: "user", content: [{ type: "text", text: "Why?" }] }];
    const { finish } = await session.reply(sent);
    const messages = [...ask("Hello!"), sent[0], ...ask("Why?")];
    assert.equal(finish.message.content, (await engine.reply(messages, { ...greedy, maxTokens: 4 })).text);
    assert.deepEqual(session.messages, [...messages, finish.message]);
    await assert.rejects(session.reply([]), fails("argument"));
    await assert.rejects(session.reply([{ role: "cow", content: "" }]), fails("argument"));
  });

  test("answers several messages of a session one after the other", async () => {
    const session = engine.session({ ...greedy, maxTokens: 4 });
    const [one, two] = await Promise.all([session.reply("Hello!"), session.reply("Why?")]);
    assert.deepEqual(session.messages, [...ask("Hello!"), one.finish.message, ...ask("Why?"), two.finish.message]);
  });

  test("leaves the messages of a session as they were when a reply fails, is aborted or left early", async () => {
    const session = engine.session({ ...greedy, maxTokens: 4 });
    const { finish } = await session.reply("Hello!");
    const wanted = [...ask("Hello!"), finish.message];
    const abort = new AbortController();
    const sent = async () => {
      for await (const _ of session.send("A story.", { signal: abort.signal, maxTokens: 200 })) abort.abort("enough");
    };
    await assert.rejects(sent(), { name: "AbortError", code: "aborted", cause: "enough" });
    assert.deepEqual(session.messages, wanted);
    for await (const _ of session.send("A story.", { maxTokens: 200 })) break;
    assert.deepEqual(session.messages, wanted);
    await assert.rejects(session.reply("?", { topP: 2 }), fails("option"));
    assert.deepEqual(session.messages, wanted);
    // A reply left at its end is complete.
    for await (const chunk of session.send("Hello!")) if (chunk.finish) break;
    assert.equal(session.messages.length, 4);

    // One that waits can be aborted, without letting a third overtake the first.
    const first = session.send("One");
    await first.next();
    const late = new AbortController();
    const waiting = session.reply("Two", { signal: late.signal });
    const third = session.reply("Three");
    setTimeout(() => late.abort(), 20);
    await assert.rejects(waiting, { name: "AbortError", code: "aborted" });
    assert.equal(session.messages.length, 4);
    await collect(first);
    await third;
    assert.deepEqual(session.messages.filter(({ role }) => role === "user").map(({ content }) => content), ["Hello!", "Hello!", "One", "Three"]);
  });

  test("embeds several texts", async () => {
    const texts = ["A cat sat.", "Count to nine.", "A cat sat."];
    const vectors = await engine.embed(texts, { pooling: "last" });
    assert.deepEqual(vectors, await Promise.all(texts.map((text) => engine.embed(text, { pooling: "last" }))));
    assert.deepEqual([vectors[0] instanceof Float32Array, vectors[0].length], [true, engine.info.model.hidden]);
    assert.deepEqual(await engine.embed([]), []);
    await assert.rejects(engine.embed(["x", ""]), (error) => fails("length")(error) && error.message.startsWith("text[1]: "));
    await assert.rejects(engine.embed(["x", "y"], { signal: AbortSignal.abort() }), { name: "AbortError" });
  });

  test("is disposed with its conversations and sessions at the end of a block", async () => {
    const dispose = Symbol.asyncDispose ?? Symbol.for("Symbol.asyncDispose");
    const other = await Engine.load(MODEL, { context: 128, threads: 1 });
    const talk = await other.conversation();
    const session = talk.session(greedy);
    const chunks = session.send("A story.", { maxTokens: 100 });
    await chunks.next();
    await session[dispose]();
    await assert.rejects(collect(chunks), fails("disposed"));
    await assert.rejects(session.reply("?"), fails("disposed"));
    assert.ok((await talk.reply("Hello!", { ...greedy, maxTokens: 2 })).text);
    await talk[dispose]();
    await assert.rejects(talk.reply("Hello!"), fails("disposed"));
    assert.ok((await other.reply("Hello!", { ...greedy, maxTokens: 2 })).text);
    await other[dispose]();
    await assert.rejects(other.reply("Hello!"), fails("disposed"));
  });
});

describe("a model with tools", () => {
  const CALL = '\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n';
  const parameters = { type: "object", properties: { a: { const: 2 }, b: { const: 3 } }, required: ["a", "b"], additionalProperties: false };
  /** It says so unless it has to call. */
  const DONE = ["It is", " five."];
  const load = (pieces) => Engine.load(scripted(pieces), { activations: "f32", threads: 1 });
  const toolCalls = [{ name: "add", arguments: '{"a":2,"b":3}' }];
  const add = { description: "Adds", parameters, run: ({ a, b }) => a + b };

  test("continues with the results of its calls", async () => {
    await using_(await load(DONE), async (engine) => {
      for (const [run, content] of [
        [({ a, b }) => a + b, "5"],
        [async ({ a, b }) => `${a} + ${b}`, "2 + 3"],
        [() => ({ sum: 5 }), '{"sum":5}'],
        [() => {}, "null"],
        [() => { throw new Error("no numbers today"); }, '{"error":"no numbers today"}'],
        [() => 5n, /^\{"error":".*BigInt.*"\}$/],
        [({ a }, { signal }) => String(a === 2 && signal instanceof AbortSignal), "true"],
      ]) {
        const session = engine.session({ ...greedy, thinking: true, toolChoice: "required", tools: { add: { ...add, run } } });
        const { text, toolResults: [[result, ...others], ...more], finishes } = await collect(session.send("2 + 3?"));
        assert.deepEqual([others, more, finishes.length], [[], [], 1]);
        const said = typeof content === "string" ? content : assert.match(result.content, content) ?? result.content;
        assert.deepEqual({ ...result, error: undefined }, { ...toolCalls[0], content: said, error: undefined });
        assert.equal(result.error instanceof Error, said.includes("error"));
        const [question, call, answer, last] = session.messages;
        assert.deepEqual([question, call.toolCalls, answer], [ask("2 + 3?")[0], toolCalls, { role: "tool", content: said }]);
        assert.deepEqual([last, finishes[0].message, session.messages.length], [finishes[0].message, { role: "assistant", content: "It is five." }, 4]);
        assert.ok(text.endsWith("It is five."), text);
      }
      const reply = await engine.session({ ...greedy, thinking: true, tools: { add } }).reply("2 + 3?", { toolChoice: { name: "add" } });
      assert.equal(`${reply}`, "It is five.");
    });
  });

  test("stops after maxToolRounds", async () => {
    await using_(await load(["I add.", "\n\n\n", "<tool_call>", CALL, "</tool_call>"]), async (engine) => {
      const called = [];
      const tools = { add: (args) => called.push(args) };
      const session = engine.session({ ...greedy, thinking: true, tools, maxToolRounds: 3, messages: ask("Hello!") });
      await assert.rejects(session.reply("2 + 3?"), (error) => fails("tool_rounds")(error) && error.message.includes("3 rounds"));
      assert.deepEqual([called, session.messages], [Array(3).fill({ a: 2, b: 3 }), ask("Hello!")]);
    });
  });

  test("is aborted while a function runs", async () => {
    await using_(await load(DONE), async (engine) => {
      for (const dispose of [false, true]) {
        const abort = new AbortController();
        let given;
        const run = (_args, { signal }) => {
          given = signal;
          if (dispose) void session.dispose();
          else abort.abort("enough");
          return new Promise(() => {});
        };
        const session = engine.session({ ...greedy, thinking: true, toolChoice: "required", tools: { add: { ...add, run } } });
        await assert.rejects(session.reply("2 + 3?", { signal: abort.signal }), dispose ? { code: "disposed" } : { name: "AbortError", cause: "enough" });
        assert.deepEqual([given.aborted, session.messages], [true, []]);
      }
    });
  });

  test("does the same in a page's worker and on its main thread", async () => {
    const blank = (_request, response) => response.writeHead(200, { "Content-Type": "text/html" }).end("<!doctype html><title>test</title>");
    const body = (bytes) => (_request, response) => response.writeHead(200, { "Content-Length": bytes.length }).end(bytes);
    const server = await serve(new URL("../../dist/", import.meta.url), { "/": blank, "/tools.gguf": body(scripted(DONE)) });
    const browser = await launch();
    try {
      const page = await browser.newPage();
      page.setDefaultTimeout(120_000);
      await page.goto(server.url);
      for (const entry of ["/index.js", "/local.js"]) {
        const seen = await page.evaluate(
          async ([entry, parameters, greedy]) => {
            const { Engine } = await import(entry);
            const engine = await Engine.load("tools.gguf", { activations: "f32" });
            const session = engine.session({ ...greedy, thinking: true, toolChoice: "required", tools: { add: { parameters, run: ({ a, b }) => a + b } } });
            const reply = await session.reply("2 + 3?");
            const vectors = await engine.embed(["x", "y"]);
            const error = await engine.reply("?", { signal: AbortSignal.abort("enough") }).catch((error) => error);
            await engine[Symbol.asyncDispose]();
            const after = await engine.reply("?").catch(({ code }) => code);
            return [`${reply}`, session.messages.map(({ role }) => role), vectors.map(({ constructor }) => constructor.name), [error.name, error.code, error.cause], after];
          },
          [entry, parameters, greedy],
        );
        assert.deepEqual(seen, ["It is five.", ["user", "assistant", "tool", "assistant"], ["Float32Array", "Float32Array"], ["AbortError", "aborted", "enough"], "disposed"]);
      }
    } finally {
      await browser.close();
      await server.close();
    }
  });
});

/** `await using`, which Node 20 cannot parse. */
async function using_(engine, use) {
  try {
    await use(engine);
  } finally {
    await engine.dispose();
  }
}
