// `shohin/langchain` with LangChain, in Node: `npm run build -w wasm` first.
import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import { readFile } from "node:fs/promises";
import { after, before, describe, test } from "node:test";
import { InMemoryCache } from "@langchain/core/caches";
import { AIMessage, HumanMessage, SystemMessage, ToolMessage } from "@langchain/core/messages";
import { StringOutputParser } from "@langchain/core/output_parsers";
import { ChatPromptTemplate } from "@langchain/core/prompts";
import { tool } from "@langchain/core/tools";
import { Engine } from "shohin";
import { ChatShohin, ShohinEmbeddings } from "shohin/langchain";
import { z } from "zod";
import { scripted } from "./scripted.mjs";

const MODEL = await readFile(new URL("../../../models/sprout.gguf", import.meta.url));
const NANO = await readFile(new URL("../../../models/sprout-nano.gguf", import.meta.url));
const options = { temperature: 0, maxTokens: 24 };

describe("a small model", () => {
  let engine, model, wanted;
  before(async () => {
    engine = await Engine.load(MODEL, { threads: 1 });
    model = new ChatShohin({ engine, options });
    wanted = await engine.reply("Hello!", options);
  });
  after(() => engine.dispose());

  test("is invoked and streamed, with usage", async () => {
    const message = await model.invoke("Hello!");
    const { promptTokens, completionTokens } = wanted.finish.usage;
    const check = ({ text, usage_metadata, response_metadata }) => {
      assert.deepEqual([text, usage_metadata.input_tokens, usage_metadata.output_tokens, response_metadata.finish_reason], [wanted.text, promptTokens, completionTokens, "stop"]);
      assert.equal(usage_metadata.input_token_details.cache_read, promptTokens - 1);
    };
    check(message);
    let whole;
    const heard = [];
    for await (const chunk of await model.stream([new HumanMessage("Hello!")], { callbacks: [{ handleLLMNewToken: (text) => void heard.push(text) }] })) whole = whole ? whole.concat(chunk) : chunk;
    check(whole);
    assert.equal(heard.join(""), wanted.text);
  });

  test("takes part in chains", async () => {
    const chain = ChatPromptTemplate.fromMessages([["human", "{word}!"]]).pipe(model).pipe(new StringOutputParser());
    assert.equal(await chain.invoke({ word: "Hello" }), wanted.text);
    const replies = await model.batch(["Hello!", "Hello!"]);
    assert.deepEqual(replies.map(({ text }) => text), [wanted.text, wanted.text]);
  });

  test("overrides options by those of a call, and reports the engine's errors", async () => {
    const { text, response_metadata } = await model.invoke("Hello!", { options: { maxTokens: 2 } });
    assert.deepEqual([response_metadata.finish_reason, wanted.text.startsWith(text)], ["length", true]);
    assert.equal((await model.invoke("Hello!", { stop: [wanted.text.slice(3, 6)] })).text, wanted.text.slice(0, 3));
    const image = new HumanMessage({ content: [{ type: "image_url", image_url: "data:," }] });
    await assert.rejects(model.invoke([image]), { name: "ShohinError", code: "unsupported", message: /^messages\[0\]\.content\[0\] is of type "image_url"/ });
    await assert.rejects(model.invoke("?", { options: { minp: 1 } }), { code: "argument", message: /did you mean minP/ });
    const abort = new AbortController();
    await assert.rejects(async () => {
      for await (const _chunk of await model.stream("Hello!", { signal: abort.signal })) abort.abort();
    }, /abort/i);
    const { signal } = new AbortController();
    const listeners = () => getEventListeners(signal, "abort").length;
    for (let i = 0; i < 3; i++) await model.invoke("Hello!", { signal });
    for await (const _chunk of model._streamResponseChunks([new HumanMessage("Hello!")], { signal })) assert.ok(listeners() > 0);
    for await (const _chunk of model._streamResponseChunks([new HumanMessage("Hello!")], { signal })) break;
    assert.equal(listeners(), 0);
    for await (const _chunk of await model.stream("Hello!")) break;
    assert.equal((await model.invoke("Hello!")).text, wanted.text);
  });

  test("writes objects of a schema", async () => {
    const schema = z.object({ animal: z.enum(["cow", "cat"]), legs: z.number().int().min(0).max(8) });
    const structured = new ChatShohin({ engine, options: { temperature: 0, maxTokens: 60 } }).withStructuredOutput(schema);
    assert.ok(schema.safeParse(await structured.invoke("Describe a cow.")).success);
    const { raw, parsed } = await model.withStructuredOutput({ type: "object", properties: { legs: { const: 4 } }, required: ["legs"] }, { includeRaw: true }).invoke("?");
    assert.deepEqual([raw.text, parsed], ['{"legs":4}', { legs: 4 }]);
  });

  test("writes the arguments of a function definition", async () => {
    const parameters = { type: "object", properties: { legs: { const: 4 } }, required: ["legs"] };
    const seen = [];
    const recording = { chat: (messages, options) => (seen.push(options), engine.chat(messages, options)) };
    const structured = new ChatShohin({ engine: recording, options }).withStructuredOutput({ name: "cow", description: "Describes a cow", parameters });
    assert.deepEqual(await structured.invoke("?"), { legs: 4 });
    assert.deepEqual(seen[0].responseFormat.schema, { description: "Describes a cow", ...parameters });
  });

  test("counts the engine's tokens", async () => {
    const text = "What does a cow say?";
    const { length } = await engine.tokenize(text);
    const parts = [{ type: "text", text: "What does " }, { type: "image_url", image_url: "data:," }, { type: "text", text: "a cow say?" }];
    assert.deepEqual([await model.getNumTokens(text), await model.getNumTokens(parts)], [length, length]);
    const talk = await engine.conversation();
    await assert.rejects(new ChatShohin({ engine: talk }).getNumTokens(text), { name: "ShohinError", code: "argument" });
    await talk.dispose();
  });

  test("caches by its model and its options", async () => {
    const cache = new InMemoryCache(new Map());
    const other = await Engine.load(NANO, { threads: 1 });
    const talks = [await engine.conversation(), await engine.conversation()];
    let chats = 0;
    const asked = async (engine, options, call) => {
      const before = chats;
      const recording = Object.assign(Object.create(engine), { chat: (messages, options) => ((chats += 1), engine.chat(messages, options)) });
      const { text } = await new ChatShohin({ engine: recording, options, cache }).invoke("Hello!", call);
      return [text, chats - before];
    };
    const short = { ...options, maxTokens: 2 };
    const call = { options: { seed: 5 } };
    const [long] = await asked(engine, options);
    assert.equal(long, wanted.text);
    assert.deepEqual(await asked(engine, options), [long, 0]);
    const [cut, once] = await asked(engine, short);
    assert.ok(once === 1 && cut.length < long.length);
    assert.deepEqual([await asked(engine, options, call), await asked(engine, short, call)], [[long, 1], [cut, 1]]);
    for (const engine of [other, ...talks]) assert.equal((await asked(engine, options))[1], 1);
    await other.dispose();
  });

  test("refuses what is not an engine", () => {
    for (const fields of [undefined, {}, { engine: null }, { engine: MODEL }]) {
      for (const Class of [ChatShohin, ShohinEmbeddings]) assert.throws(() => new Class(fields), { name: "ShohinError", code: "argument", message: /^the engine must be an Engine/ });
    }
  });

  test("embeds texts", async () => {
    const embeddings = new ShohinEmbeddings({ engine, options: { pooling: "last" } });
    const texts = ["A cow.", "The weather is fine."];
    const vectors = (await engine.embed(texts, { pooling: "last" })).map((vector) => [...vector]);
    assert.deepEqual(await embeddings.embedDocuments(texts), vectors);
    assert.deepEqual(await embeddings.embedQuery(texts[0]), vectors[0]);
  });
});

describe("a model that thinks and calls tools", () => {
  const load = async (t, pieces) => {
    const engine = await Engine.load(scripted(pieces), { activations: "f32", threads: 1 });
    t.after(() => engine.dispose());
    return engine;
  };
  const add = tool(({ a, b }) => a + b, { name: "add", description: "Adds", schema: z.object({ a: z.literal(2), b: z.literal(3) }) });

  test("calls tools and reads their results, in the order of the calls", async (t) => {
    const engine = await load(t, ["It is", " five."]);
    const seen = [];
    const recording = { chat: (messages, options) => (seen.push({ messages, options }), engine.chat(messages, options)) };
    const model = new ChatShohin({ engine: recording, options: { temperature: 0, maxTokens: 60, thinking: true } });
    const messages = [new SystemMessage("Add."), new HumanMessage("2 + 3?")];
    for (const tool_choice of ["any", "add", { type: "function", function: { name: "add" } }]) {
      const call = await model.bindTools([add], { tool_choice }).invoke(messages);
      assert.deepEqual(call.tool_calls.map(({ name, args }) => [name, args]), [["add", { a: 2, b: 3 }]]);
      const result = await add.invoke(call.tool_calls[0]);
      assert.equal((await model.bindTools([add]).invoke([...messages, call, result])).text, "It is five.");
      assert.deepEqual(seen.at(-1).messages.slice(2).map(({ role, content }) => [role, content]), [["assistant", ""], ["tool", "5"]]);
    }
    assert.equal((await model.bindTools([add], { tool_choice: "none" }).invoke(messages)).text, "It is five.");
    assert.equal(seen.at(-1).options.tools, undefined);
    const said = new AIMessage({ content: "", tool_calls: ["x", "y"].map((id) => ({ id, name: "add", args: {} })) });
    const results = ["y", "x"].map((id) => new ToolMessage({ content: id, tool_call_id: id }));
    await model.invoke([...messages, said, ...results]);
    assert.deepEqual(seen.at(-1).messages.slice(3).map(({ content }) => content), ["x", "y"]);
  });

  test("takes definitions of functions in other formats", async (t) => {
    const engine = await load(t, ["It is", " five."]);
    const model = new ChatShohin({ engine, options: { temperature: 0, maxTokens: 60 } });
    const schema = { type: "object", properties: { a: { const: 2 } }, required: ["a"], additionalProperties: false };
    for (const given of [{ input_schema: schema }, { type: "custom", input_schema: schema }, { parameters: schema }]) {
      const { tool_calls: [call] } = await model.bindTools([{ name: "add", description: "Adds", ...given }], { tool_choice: "any" }).invoke("2 + 3?");
      assert.deepEqual([call.name, call.args], ["add", { a: 2 }]);
    }
    const wrong = [
      [{ name: "add", input_schema: schema, cache_control: {} }, /no field "cache_control" in this tools\[0\]\.function/],
      [{ type: "web_search", name: "search" }, /^tools\[0\]\.type is "web_search"/],
    ];
    for (const [given, message] of wrong) await assert.rejects(model.bindTools([given]).invoke("?"), { code: "argument", message });
  });

  test("separates thoughts from the reply", async (t) => {
    const engine = await load(t, ["<think>", "\nOne, ", "two.\n", "</think>", "\n\n", "The reply", " is this."]);
    const model = new ChatShohin({ engine, options: { temperature: 0, thinking: true } });
    const { text, additional_kwargs, usage_metadata } = await model.invoke("?");
    assert.deepEqual([text, additional_kwargs.reasoning_content], ["The reply is this.", "One, two."]);
    assert.ok(usage_metadata.output_token_details.reasoning >= 2);
  });
});
