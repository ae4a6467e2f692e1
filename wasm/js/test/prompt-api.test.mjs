// The interface of the Prompt API, in Node and in a page: `npm run build -w wasm` first.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, before, describe, test } from "node:test";
import { Engine, ShohinError } from "shohin";
import { createLanguageModel } from "shohin/prompt-api";
import { launch, serve } from "./chromium.mjs";
import { scripted } from "./scripted.mjs";

const MODEL = await readFile(new URL("../../../models/sprout-nano.gguf", import.meta.url));
const IDL = await readFile(new URL("prompt-api.idl", import.meta.url), "utf8");
const settings = { model: MODEL, context: 256, threads: 1 };
const greedy = { samplingMode: "most-predictable" };
const named = (name, message = /./) => (error) => {
  assert.ok(error instanceof DOMException, `${error}`);
  assert.equal(error.name, name, error.message);
  assert.match(error.message, message);
  return true;
};
const user = (content) => ({ role: "user", content });
const assistant = (content) => ({ role: "assistant", content });
const isNumber = { type: "integer", minimum: 3, maximum: 4 };

/** The pieces of a stream. */
async function pieces(stream) {
  const all = [];
  for await (const piece of stream) all.push(piece);
  return all;
}

/** Members of an interface or dictionary in the excerpt of the specification. */
function membersOf(kind, name) {
  const [, body] = new RegExp(`^${kind} ${name} [^{]*\\{\n(.*?)\n\\};`, "ms").exec(IDL);
  return body.split("\n").map((line) => {
    const operation = /(\w+)\(([^()]*)\);$/.exec(line);
    if (!operation) return { line, name: /(\w+)(?: = [^;]*)?;$/.exec(line)[1], readonly: line.includes("readonly ") };
    const required = operation[2].split(", ").filter((argument) => argument && !argument.startsWith("optional "));
    return { line, name: operation[1], isStatic: line.includes("static "), length: required.length };
  });
}

describe("the members of the specification", () => {
  test("are those of the interface", async () => {
    const LanguageModel = createLanguageModel(settings);
    const prototype = Object.getPrototypeOf(LanguageModel.prototype);
    assert.ok(LanguageModel.prototype instanceof EventTarget);
    assert.equal(LanguageModel.name, "LanguageModel");
    assert.throws(() => new LanguageModel(), TypeError);
    const members = membersOf("interface", "LanguageModel");
    for (const { line, name, isStatic, length, readonly } of members) {
      const found = isStatic ? Object.getOwnPropertyDescriptor(LanguageModel, name) : Object.getOwnPropertyDescriptor(prototype, name);
      if (length === undefined) assert.deepEqual([typeof found?.get, typeof found?.set], ["function", readonly ? "undefined" : "function"], line);
      else assert.deepEqual([typeof found?.value, found?.value.length], ["function", length], line);
    }
    const known = members.map(({ name }) => name);
    // `start` is not in the declarations.
    const declared = await readFile(new URL("../../dist/prompt-api/language-model.d.ts", import.meta.url), "utf8");
    assert.deepEqual([...declared.matchAll(/^ {4}(?:get |set )?(\w+)\(/gm)].map(([, name]) => name).filter((name) => !known.includes(name)), []);
  });

  test("are those of the options", async () => {
    const declared = await readFile(new URL("../../dist/prompt-api/options.d.ts", import.meta.url), "utf8");
    for (const [, dictionary] of IDL.matchAll(/^dictionary (\w+)/gm)) {
      const [, body] = new RegExp(`export interface ${dictionary} [^{]*\\{\n(.*?)\n\\}`, "s").exec(declared);
      const found = [...body.matchAll(/^ {4}(?:readonly )?(\w+)(\??):/gm)].map(([, name, optional]) => name + optional);
      const wanted = membersOf("dictionary", dictionary).map(({ line, name }) => (line.includes("required ") || dictionary === "LanguageModelParams" ? name : `${name}?`));
      assert.deepEqual(found, wanted, dictionary);
    }
    const monitor = await new Promise((resolve) => createLanguageModel(settings).create({ monitor: resolve }).then((session) => session.destroy()));
    for (const { name } of membersOf("interface", "CreateMonitor")) assert.ok(name in monitor && monitor instanceof EventTarget);
  });
});

describe("a session", () => {
  let engine, LanguageModel, session;
  before(async () => {
    engine = await Engine.load(MODEL, { context: 256, threads: 1 });
    LanguageModel = createLanguageModel({ model: engine });
    session = await LanguageModel.create(greedy);
  });
  after(() => engine.dispose());

  test("replies as the engine does, whole or streamed", async () => {
    const reply = async (messages) => (await engine.reply(messages, { preset: "greedy" })).text;
    const first = await reply("Hello!");
    assert.equal(await session.prompt("Hello!"), first);
    const messages = [user("Hello!"), assistant(first), user("What does a cow say?")];
    const second = await reply(messages);
    const all = await pieces(session.promptStreaming([user([{ type: "text", value: "What does a " }, { type: "text", value: "cow say?" }])]));
    assert.equal(all.join(""), second);
    assert.ok(all.length > 1, `${all}`);
    assert.equal(session.contextUsage, (await engine.tokenizeChat([...messages, assistant(second)])).length);
    assert.equal(session.contextWindow, engine.context);
    assert.deepEqual([session.inputUsage, session.inputQuota], [session.contextUsage, session.contextWindow]);
  });

  test("begins with its initial prompts, and appends", async () => {
    const initialPrompts = [{ role: "system", content: "Be kind." }, user("Hello!"), assistant("Hello!")];
    const other = await LanguageModel.create({ ...greedy, initialPrompts });
    const usage = other.contextUsage;
    assert.equal(usage, (await engine.tokenizeChat(initialPrompts)).length);
    const more = await other.measureContextUsage("What does a cow say?");
    assert.equal(more, await other.measureInputUsage("What does a cow say?"));
    assert.equal(await other.append("What does a cow say?"), undefined);
    assert.equal(other.contextUsage, usage + more);
    const text = await other.prompt([assistant("Moo."), user("And a cat?")]);
    const wanted = await engine.reply([...initialPrompts, user("What does a cow say?"), assistant("Moo."), user("And a cat?")], { preset: "greedy" });
    assert.equal(text, wanted.text);
    await assert.rejects(other.prompt([{ role: "system", content: "Be unkind." }]), TypeError);
    other.destroy();
  });

  test("satisfies a JSON Schema, which is added to the prompt unless omitted", async () => {
    const other = await LanguageModel.create(greedy);
    const [plain, told] = [await other.measureContextUsage("Legs?"), await other.measureContextUsage("Legs?", { responseConstraint: isNumber })];
    assert.ok(told > plain, `${told} > ${plain}`);
    assert.equal(await other.measureContextUsage("Legs?", { responseConstraint: isNumber, omitResponseConstraintInput: true }), plain);
    for (const omitResponseConstraintInput of [false, true]) {
      assert.match(await other.prompt("Legs?", { responseConstraint: isNumber, omitResponseConstraintInput }), /^[34]$/);
    }
    assert.match(await other.prompt("Legs?", { responseConstraint: /[345] legs/ }), /^[345] legs$/);
    const usage = other.contextUsage;
    const circular = {};
    circular.self = circular;
    for (const responseConstraint of [/\d/i, circular, { type: "string", pattern: "(?=x)" }]) {
      await assert.rejects(other.prompt("Legs?", { responseConstraint }), named("NotSupportedError"));
    }
    await assert.rejects(other.prompt("Legs?", { omitResponseConstraintInput: true }), TypeError);
    await assert.rejects(other.prompt("Legs?", { responseConstraint: 5 }), TypeError);
    assert.equal(other.contextUsage, usage);
    other.destroy();
  });

  test("continues the beginning of a reply", async () => {
    const whole = await engine.reply([user("What does a cow say?")], { preset: "greedy", maxTokens: 12 });
    const begun = whole.text.slice(0, whole.text.indexOf(" ", 4));
    const session = await LanguageModel.create(greedy);
    const more = await session.prompt([user("What does a cow say?"), { ...assistant(begun), prefix: true }]);
    assert.ok(`${begun}${more}`.startsWith(whole.text), `${begun}|${more}, of ${whole.text}`);
    const json = await session.prompt([user("How many legs?"), { ...assistant('{"legs":'), prefix: true }], {
      responseConstraint: { type: "object", properties: { legs: isNumber }, required: ["legs"], additionalProperties: false },
    });
    assert.match(json, /^[34]\}$/);
    session.destroy();
  });

  test("reads prompts, and lists in them, from any iterable, once", async () => {
    function* once(...items) {
      yield* items;
    }
    const content = [{ type: "text", value: "What does a " }, { type: "text", value: "cow say?" }];
    const initialPrompts = [{ role: "system", content: "Be kind." }, user("Hello!"), assistant("Hello!")];
    const wanted = await engine.reply([...initialPrompts, user("What does a cow say?")], { preset: "greedy" });
    const open = () => LanguageModel.create({ ...greedy, initialPrompts: once({ role: "system", content: once({ type: "text", value: "Be kind." }) }, user("Hello!"), assistant("Hello!")) });
    const prompt = () => once(user(once(...content)));
    const other = await open();
    assert.equal(await other.measureContextUsage(prompt()), await other.measureContextUsage("What does a cow say?"));
    assert.equal(await other.prompt(prompt()), wanted.text);
    const streaming = await open();
    assert.equal((await pieces(streaming.promptStreaming(new Set([user(content)])))).join(""), wanted.text);
    const usage = streaming.contextUsage;
    await streaming.append(prompt());
    assert.ok(streaming.contextUsage > usage);
    for (const session of [other, streaming]) session.destroy();
    await assert.rejects(LanguageModel.create({ initialPrompts: null }), TypeError);
    for (const call of ["prompt", "append", "measureContextUsage"]) {
      await assert.rejects(session[call]({}), { name: "TypeError", message: "the prompt is [object Object], but must be a string or a sequence of messages" });
    }
    await assert.rejects(pieces(session.promptStreaming({})), TypeError);
  });

  test("refuses what is not text, and options out of range", async () => {
    const before = session.contextUsage;
    for (const type of ["image", "audio", "tool-call", "tool-response"]) {
      const prompt = [user([{ type, value: new Uint8Array(4) }])];
      await assert.rejects(session.prompt(prompt), named("NotSupportedError", /text only/));
      await assert.rejects(session.append(prompt), named("NotSupportedError"));
      await assert.rejects(session.measureContextUsage(prompt), named("NotSupportedError"));
      await assert.rejects(pieces(session.promptStreaming(prompt)), named("NotSupportedError"));
      await assert.rejects(LanguageModel.create({ initialPrompts: prompt }), named("NotSupportedError"));
      for (const name of ["expectedInputs", "expectedOutputs"]) {
        await assert.rejects(LanguageModel.create({ [name]: [{ type }] }), named("NotSupportedError", /text only/));
        assert.equal(await LanguageModel.availability({ [name]: [{ type }] }), "unavailable");
      }
    }
    const text = (options) => LanguageModel.create(options);
    assert.equal(await LanguageModel.availability({ expectedInputs: [{ type: "text", languages: ["en", "ja"] }] }), "available");
    for (const wrong of [{ topK: 0 }, { temperature: -1 }, { topK: NaN }, { expectedInputs: [{ type: "text", languages: ["no language"] }] }]) {
      await assert.rejects(text(wrong), RangeError);
      await assert.rejects(LanguageModel.availability(wrong), RangeError);
    }
    for (const wrong of [5, { signal: 5 }, { monitor: 5 }, { samplingMode: "wild" }, { tools: [{ name: "x" }] }, { expectedInputs: [{ type: "smell" }] }, { initialPrompts: [{ role: "cow", content: "" }] }]) {
      await assert.rejects(text(wrong), TypeError);
    }
    await assert.rejects(session.prompt([{ role: "user" }]), TypeError);
    await assert.rejects(session.prompt([user([{ type: "text", value: 5 }])]), TypeError);
    await assert.rejects(session.prompt([{ ...user("x"), prefix: true }]), named("SyntaxError"));
    await assert.rejects(session.append([{ ...assistant("x"), prefix: true }]), named("NotSupportedError", /prefix/));
    await assert.rejects(LanguageModel.create({ tools: [{ name: "add", description: "Adds", inputSchema: {}, execute() {} }] }), named("NotSupportedError", /tools/));
    assert.equal(session.contextUsage, before);
  });

  test("ends a call with the reason of its signal, and stays as it was", async () => {
    const before = session.contextUsage;
    for (const call of ["prompt", "append", "measureContextUsage"]) await assert.rejects(session[call]("x", { signal: AbortSignal.abort() }), named("AbortError"));
    await assert.rejects(session.clone({ signal: AbortSignal.abort("enough") }), (reason) => reason === "enough");
    await assert.rejects(LanguageModel.create({ signal: AbortSignal.abort("enough") }), (reason) => reason === "enough");
    const abort = new AbortController();
    const stream = session.promptStreaming("Tell me a story.", { signal: abort.signal });
    await assert.rejects(async () => {
      for await (const _ of stream) abort.abort("enough");
    }, (reason) => reason === "enough");
    // Leaving the loop cancels the stream.
    for await (const _ of session.promptStreaming("Tell me a story.")) break;
    assert.equal((await session.clone()).contextUsage, before);
  });

  test("continues in its clones independently", async () => {
    const original = await LanguageModel.create(greedy);
    await original.prompt("Hello!");
    const [usage, clone] = [original.contextUsage, await original.clone()];
    assert.ok(clone instanceof LanguageModel && clone !== original);
    assert.deepEqual([clone.contextUsage, clone.topK, clone.temperature, clone.samplingMode], [usage, original.topK, original.temperature, "most-predictable"]);
    const text = await clone.prompt("What does a cow say?");
    assert.equal(original.contextUsage, usage);
    original.destroy();
    assert.ok(clone.contextUsage > usage);
    const empty = await (await LanguageModel.create(greedy)).clone();
    assert.equal(empty.contextUsage, 0);
    await empty.prompt("Hello!");
    assert.equal(await empty.prompt("What does a cow say?"), text);
  });

  test("drops its oldest turns, never its initial prompts, when the context is full", async () => {
    const initialPrompts = [{ role: "system", content: "Be kind." }];
    const other = await LanguageModel.create({ ...greedy, initialPrompts });
    const events = [];
    for (const type of ["contextoverflow", "quotaoverflow"]) {
      other.addEventListener(type, (event) => events.push(event.type));
      other[`on${type}`] = () => events.push(`on${type}`);
    }
    const long = "cow ".repeat(60);
    await other.append([user(long), assistant("Moo.")]);
    assert.deepEqual(events, []);
    const start = (await engine.tokenizeChat(initialPrompts)).length;
    for (let i = 0; i < 4 && events.length === 0; i++) await other.append([user(long), assistant("Moo.")]);
    assert.deepEqual(events, ["contextoverflow", "oncontextoverflow", "quotaoverflow", "onquotaoverflow"]);
    assert.ok(other.contextUsage > start && other.contextUsage < other.contextWindow);
    other.oncontextoverflow = other.onquotaoverflow = null;
    assert.equal(other.oncontextoverflow, null);
    const [text] = [await other.prompt(long)];
    assert.equal(typeof text, "string");
    const usage = other.contextUsage;
    const tooLong = (error) => named("QuotaExceededError", /256/)(error) && (assert.equal(error.quota, 256), assert.ok(error.requested >= 256), true);
    await assert.rejects(other.prompt("cow ".repeat(400)), tooLong);
    await assert.rejects(LanguageModel.create({ initialPrompts: [user("cow ".repeat(400))] }), tooLong);
    assert.equal(other.contextUsage, usage);
  });

  test("ends its calls when it is destroyed", async () => {
    const other = await LanguageModel.create(greedy);
    const [running, waiting] = [other.prompt("Tell me a story."), other.append("x")];
    other.destroy();
    other.destroy();
    for (const call of [running, waiting, other.prompt("x"), other.append("x"), other.measureContextUsage("x"), other.clone()]) await assert.rejects(call, named("AbortError"));
    await assert.rejects(pieces(other.promptStreaming("x")), named("AbortError"));
    assert.equal(typeof await session.prompt("Hello!"), "string");
  });

  test("has the sampling settings of its options", async () => {
    const { defaultTopK, maxTopK, defaultTemperature, maxTemperature } = await LanguageModel.params();
    const { presets, model } = engine.info;
    assert.deepEqual([defaultTopK, maxTopK, defaultTemperature, maxTemperature], [presets.bonsai.topK, model.vocabulary, presets.bonsai.temperature, 2]);
    for (const [options, topK, temperature] of [
      [{}, defaultTopK, defaultTemperature],
      [{ samplingMode: "most-predictable" }, presets.greedy.topK, presets.greedy.temperature],
      [{ samplingMode: "creative" }, presets.creative.topK, presets.creative.temperature],
      [{ topK: 5.5, temperature: 0.25 }, 5, 0.25],
      [{ topK: Infinity, temperature: Infinity }, maxTopK, 2],
    ]) {
      const other = await LanguageModel.create(options);
      assert.deepEqual([other.topK, other.temperature], [topK, temperature]);
      assert.equal(other.samplingMode, options.samplingMode ?? null);
      other.destroy();
    }
  });
});

test("a session runs tools", async () => {
  // It calls whenever it replies, until the next prompt does not fit.
  const pieces = ["I add.", "\n\n\n", "<tool_call>", '\n{"name": "add", "arguments": {"a": 2}}\n', "</tool_call>"];
  const LanguageModel = createLanguageModel({ model: scripted(pieces), activations: "f32", context: 1016, threads: 1 });
  const called = [];
  const inputSchema = { type: "object", properties: { a: { const: 2 } }, required: ["a"], additionalProperties: false };
  /** Its fields are those of the class. */
  class Add {
    get name() {
      return "add";
    }
    get description() {
      return "Adds";
    }
    get inputSchema() {
      return inputSchema;
    }
    async execute(...args) {
      return called.push(args);
    }
  }
  const session = await LanguageModel.create({ ...greedy, tools: new Set([new Add()]).values() });
  const plain = await LanguageModel.create(greedy);
  assert.ok((await session.measureContextUsage("2 + 3?")) > (await plain.measureContextUsage("2 + 3?")) + 50);
  await assert.rejects(session.prompt("2 + 3?"), named("QuotaExceededError", /1016/));
  assert.ok(called.length > 3, `${called.length}`);
  assert.deepEqual([called, session.contextUsage], [Array(called.length).fill([{ a: 2 }]), 0]);
  session.destroy();
  plain.destroy();

  const roomy = createLanguageModel({ model: scripted(pieces), activations: "f32", context: 4096, threads: 1 });
  const endless = await roomy.create({ ...greedy, tools: [{ name: "add", description: "Adds", inputSchema, execute: () => 5 }] });
  await assert.rejects(endless.prompt("2 + 3?"), (error) => named("OperationError", /^the model went on calling tools/)(error) && error.cause.code === "tool_rounds");
  endless.destroy();
});

describe("the model of sessions", () => {
  test("is loaded once, reports its progress, and is disposed with the last session", async () => {
    const LanguageModel = createLanguageModel(settings);
    assert.equal(await LanguageModel.availability(), "available");
    assert.equal(await LanguageModel.params(), null);
    const seen = [];
    const monitor = (target) => {
      target.ondownloadprogress = ({ type, loaded, total }) => seen.push([type, loaded, total]);
    };
    const [one, two] = await Promise.all([LanguageModel.create({ ...greedy, monitor }), LanguageModel.create(greedy)]);
    assert.deepEqual([seen[0], seen.at(-1)], [["downloadprogress", 0, 1], ["downloadprogress", 1, 1]]);
    assert.ok(seen.every(([, loaded], i) => i === 0 || loaded > seen[i - 1][1]));
    assert.equal(await one.prompt("Hello!"), await two.prompt("Hello!"));
    one.destroy();
    assert.equal(typeof await two.prompt("What does a cow say?"), "string");
    assert.notEqual(await LanguageModel.params(), null);
    two.destroy();
    assert.equal(await LanguageModel.params(), null);
    const again = await LanguageModel.create(greedy);
    assert.equal(typeof await again.prompt("Hello!"), "string");
    again.destroy();
  });

  test("is not loaded after an abort or a failure", async () => {
    const LanguageModel = createLanguageModel(settings);
    const abort = new AbortController();
    const [one, two] = [LanguageModel.create({ signal: abort.signal }), LanguageModel.create()];
    abort.abort("enough");
    await assert.rejects(one, (reason) => reason === "enough");
    (await two).destroy();
    const alone = new AbortController();
    const three = LanguageModel.create({ signal: alone.signal });
    alone.abort("enough");
    await assert.rejects(three, (reason) => reason === "enough");
    assert.equal(await LanguageModel.params(), null);
    await assert.rejects(LanguageModel.create({ monitor: () => { throw new Error("no"); } }), { message: "no" });

    const missing = createLanguageModel({ model: "missing.gguf" });
    assert.equal(await missing.availability(), "unavailable");
    await assert.rejects(missing.create(), (error) => named("NotReadableError", /missing\.gguf/)(error) && error.cause instanceof ShohinError && error.cause.code === "read");
    await assert.rejects(createLanguageModel({ model: "bonsai-9b" }).create(), TypeError);
    for (const LanguageModel of [createLanguageModel(), createLanguageModel({}), createLanguageModel({ model: null })]) {
      for (const call of ["create", "availability"]) await assert.rejects(LanguageModel[call](), { name: "TypeError", message: /^the model must be a URL/ });
    }
  });

  test("is not available once the page has disposed its engine", async () => {
    const engine = await Engine.load(MODEL, { context: 256, threads: 1 });
    const LanguageModel = createLanguageModel({ model: engine });
    assert.equal(await LanguageModel.availability(), "available");
    await engine.dispose();
    assert.deepEqual([await LanguageModel.availability(), await LanguageModel.params()], ["unavailable", null]);
    await assert.rejects(LanguageModel.create(), named("InvalidStateError"));
  });
});

test("a page has the same interface, over the same engine", async () => {
  const blank = (_request, response) =>
    response.writeHead(200, { "Content-Type": "text/html" }).end('<!doctype html><title>test</title><script type="importmap">{ "imports": { "shohin": "/index.js", "shohin/prompt-api": "/prompt-api.js" } }</script>');
  const body = (_request, response) => response.writeHead(200, { "Content-Length": MODEL.length }).end(MODEL);
  const ending = (_request, response) =>
    response.writeHead(200, { "Content-Type": "text/javascript" }).end('import "./worker.js"; new BroadcastChannel("end").onmessage = () => { throw new Error("ended"); };');
  const server = await serve(new URL("../../dist/", import.meta.url), { "/": blank, "/model.gguf": body, "/ending.js": ending });
  const browser = await launch();
  try {
    const page = await browser.newPage();
    page.setDefaultTimeout(120_000);
    await page.goto(server.url);
    const seen = await page.evaluate(async () => {
      const [{ createLanguageModel }, { ShohinError }] = [await import("shohin/prompt-api"), await import("shohin")];
      const before = globalThis.LanguageModel;
      const LanguageModel = createLanguageModel({ model: "model.gguf", context: 256 });
      const availability = [await LanguageModel.availability()];
      const events = [];
      const session = await LanguageModel.create({ samplingMode: "most-predictable", monitor: (target) => target.addEventListener("downloadprogress", (event) => events.push(event)) });
      availability.push(await LanguageModel.availability());
      const whole = await session.prompt("Hello!");
      const reader = (await session.clone()).promptStreaming("What does a cow say?").getReader();
      let streamed = "";
      for (let next = await reader.read(); !next.done; next = await reader.read()) streamed += next.value;
      const same = (await session.prompt("What does a cow say?")) === streamed;
      const quota = await session.prompt("cow ".repeat(400)).catch((error) => error);
      const missing = await createLanguageModel({ model: "missing.gguf" }).create().catch((error) => error);
      session.destroy();
      const { Engine } = await import("/local.js");
      const engine = await Engine.load("model.gguf", { context: 256 });
      const local = await createLanguageModel({ model: engine }).create({ samplingMode: "most-predictable" });
      const sameLocal = (await local.prompt("Hello!")) === whole;
      await engine.dispose();
      const disposed = await local.prompt("Hello!").catch((error) => error);
      const own = await (await import("shohin")).Engine.load("model.gguf", { context: 256 });
      const Own = createLanguageModel({ model: own });
      const closed = [await Own.availability(), await own.dispose(), await Own.availability()];

      const Ending = createLanguageModel({ model: "model.gguf", context: 256, workerUrl: "/ending.js" });
      const ended = await Ending.create();
      const failing = (async () => {
        for (;;) await ended.prompt("Hello!");
      })().catch((error) => error.cause.code);
      new BroadcastChannel("end").postMessage("now");
      const code = await failing;
      const next = await Ending.create({ samplingMode: "most-predictable" });
      return {
        again: [code, (await next.prompt("Hello!")) === whole],
        local: [sameLocal, disposed instanceof DOMException, disposed.name],
        availability,
        closed,
        first: events[0].loaded,
        last: events.at(-1).loaded,
        isProgress: events.every((event) => event instanceof ProgressEvent),
        whole,
        same,
        quota: [quota.name, quota instanceof DOMException, quota.quota],
        missing: [missing.name, missing.cause instanceof ShohinError],
        untouched: globalThis.LanguageModel === before,
      };
    });
    assert.ok(seen.whole.length > 5, seen.whole);
    assert.deepEqual({ ...seen, whole: "" }, {
      again: ["worker", true],
      local: [true, true, "InvalidStateError"],
      availability: ["downloadable", "available"],
      closed: ["available", undefined, "unavailable"],
      first: 0,
      last: 1,
      isProgress: true,
      whole: "",
      same: true,
      quota: ["QuotaExceededError", true, 256],
      missing: ["NetworkError", true],
      untouched: true,
    });
  } finally {
    await browser.close();
    await server.close();
  }
});
