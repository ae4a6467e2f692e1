// `shohin/ai-sdk` with the AI SDK, in Node: `npm run build -w wasm` first.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, before, describe, test } from "node:test";
import { embedMany, generateObject, generateText, Output, stepCountIs, streamText, tool } from "ai";
import { Engine } from "shohin";
import { embeddingModel, languageModel } from "shohin/ai-sdk";
import { z } from "zod";
import { scripted } from "./scripted.mjs";

globalThis.AI_SDK_LOG_WARNINGS = false;
const MODEL = await readFile(new URL("../../../models/sprout.gguf", import.meta.url));
const prompt = "Hello!";
const greedy = { temperature: 0, maxOutputTokens: 24 };

async function collect(stream) {
  const all = [];
  for await (const part of stream) all.push(part);
  return all;
}

/** The engine, and the arguments of the calls to it. */
function recorded(engine) {
  const calls = [];
  const record = (name) => (messages, options) => (calls.push({ messages, options }), engine[name](messages, options));
  return { calls, engine: { reply: record("reply"), chat: record("chat") } };
}

describe("a small model", () => {
  let engine, model, wanted;
  before(async () => {
    engine = await Engine.load(MODEL, { threads: 1 });
    model = languageModel(engine);
    wanted = await engine.reply(prompt, { temperature: 0, maxTokens: 24 });
  });
  after(() => engine.dispose());

  test("generates the engine's text, with its usage", async () => {
    const { text, finishReason, rawFinishReason, usage, warnings, response, providerMetadata } = await generateText({ model, prompt, ...greedy });
    assert.equal(text, wanted.text);
    assert.deepEqual([finishReason, rawFinishReason, warnings, response.modelId], ["stop", "stop", [], engine.info.model.name]);
    const { promptTokens, completionTokens } = wanted.finish.usage;
    assert.deepEqual([usage.inputTokens, usage.outputTokens, usage.totalTokens], [promptTokens, completionTokens, promptTokens + completionTokens]);
    // The same prompt was computed before.
    assert.deepEqual([usage.inputTokenDetails.cacheReadTokens, usage.inputTokenDetails.noCacheTokens], [promptTokens - 1, 1]);
    assert.ok(Number.isInteger(providerMetadata.shohin.seed) && providerMetadata.shohin.timings.tokensPerSecond > 0);
    assert.equal((await generateText({ model, prompt, ...greedy, maxOutputTokens: 2 })).finishReason, "length");
    const stopped = await generateText({ model, prompt, ...greedy, stopSequences: [wanted.text.slice(3, 6)] });
    assert.deepEqual([stopped.text, stopped.finishReason, stopped.rawFinishReason], [wanted.text.slice(0, 3), "stop", "stop_string"]);
  });

  test("streams the same", async () => {
    const result = streamText({ model, prompt, ...greedy, includeRawChunks: true });
    const parts = await collect(result.fullStream);
    const ids = parts.filter(({ type }) => type.startsWith("text-")).map(({ id }) => id);
    assert.equal(new Set(ids).size, 1);
    assert.deepEqual([parts.filter(({ type }) => type === "text-start").length, parts.filter(({ type }) => type === "text-end").length], [1, 1]);
    assert.equal(parts.filter(({ type }) => type === "text-delta").map(({ text }) => text).join(""), wanted.text);
    assert.ok(parts.some(({ type, rawValue }) => type === "raw" && rawValue.tokens.length > 0));
    assert.deepEqual([await result.finishReason, (await result.usage).outputTokens, await result.warnings], ["stop", wanted.finish.usage.completionTokens, []]);
    assert.equal((await result.response).modelId, engine.info.model.name);
  });

  test("passes on all settings, of the model, of the provider options and of the call", async () => {
    const { calls, engine: recording } = recorded(engine);
    const model = languageModel(recording, { minP: 0.1, temperature: 2, dryMultiplier: 0.5 });
    const settings = { temperature: 0.5, topP: 0.9, topK: 20, presencePenalty: 0.1, frequencyPenalty: 0.2, seed: 7, maxOutputTokens: 3, stopSequences: ["x"] };
    const abortSignal = new AbortController().signal;
    await generateText({ model, prompt, system: "Be kind.", ...settings, abortSignal, providerOptions: { shohin: { minP: 0.2, overflow: "trim" } } });
    const { messages, options: { signal, ...options } } = calls[0];
    assert.ok(signal instanceof AbortSignal);
    assert.deepEqual(options, { temperature: 0.5, topP: 0.9, topK: 20, presencePenalty: 0.1, frequencyPenalty: 0.2, seed: 7, maxTokens: 3, stop: ["x"], minP: 0.2, dryMultiplier: 0.5, overflow: "trim" });
    assert.deepEqual(messages.map(({ role }) => role), ["system", "user"]);
    // From version 7 of the SDK on.
    const call = { prompt: [{ role: "user", content: [{ type: "text", text: prompt }] }], maxOutputTokens: 1 };
    for (const [reasoning, thinking, warnings] of [["none", false, 0], ["high", true, 1], ["provider-default", undefined, 0]]) {
      const result = await model.doGenerate({ ...call, reasoning });
      assert.deepEqual([calls.at(-1).options.thinking, result.warnings.length], [thinking, warnings]);
    }
  });

  test("refuses what it cannot honour, with the engine's errors", async () => {
    const says = (settings) => generateText({ model, maxRetries: 0, ...settings }).then(() => "nothing", ({ code, message }) => `${code}: ${message}`);
    assert.equal(await says({ messages: [{ role: "user", content: [{ type: "image", image: new Uint8Array([137, 80, 78, 71]) }] }] }), 'unsupported: messages[0].content[0] is of type "file", but the model reads text only');
    assert.match(await says({ prompt, temperature: -1 }), /^option: temperature is -1/);
    assert.match(await says({ prompt, providerOptions: { shohin: { minp: 1 } } }), /^argument: there is no option "minp" here; did you mean minP\?/);
    const errors = [];
    const result = streamText({ model, prompt, temperature: -1, onError: ({ error }) => errors.push(error.code) });
    const parts = await collect(result.fullStream);
    assert.deepEqual([errors, parts.find(({ type }) => type === "error").error.code, parts.at(-1).finishReason], [["option"], "option", "error"]);
  });

  test("is refused without an engine", () => {
    for (const make of [languageModel, embeddingModel]) {
      for (const engine of [undefined, null, {}, MODEL]) assert.throws(() => make(engine), { name: "ShohinError", code: "argument", message: /^the engine must be an Engine/ });
    }
  });

  test("is aborted", async () => {
    await assert.rejects(generateText({ model, prompt, abortSignal: AbortSignal.abort() }), { name: "AbortError" });
    const abort = new AbortController();
    let aborted = 0;
    const result = streamText({ model, prompt, ...greedy, abortSignal: abort.signal, onAbort: () => aborted++ });
    const types = [];
    for await (const { type } of result.fullStream) {
      types.push(type);
      if (type === "text-delta") abort.abort();
    }
    assert.deepEqual([types.at(-1), aborted], ["abort", 1]);
    // A stream that nobody reads to its end frees the engine, too.
    const { stream } = await model.doStream({ prompt: [{ role: "user", content: [{ type: "text", text: prompt }] }] });
    const reader = stream.getReader();
    await reader.read();
    await reader.cancel();
    assert.equal((await generateText({ model, prompt, ...greedy })).text, wanted.text);
  });

  test("writes objects of a schema", async () => {
    const { calls, engine: recording } = recorded(engine);
    const schema = z.object({ animal: z.enum(["cow", "cat"]), legs: z.number().int().min(0).max(8) });
    const ask = { model: languageModel(recording), prompt: "Describe a cow.", ...greedy, maxOutputTokens: 60 };
    const { object } = await generateObject({ ...ask, schema });
    const { output } = await generateText({ ...ask, output: Output.object({ schema }) });
    assert.deepEqual(output, object);
    assert.ok(schema.safeParse(object).success);
    // The model is told.
    assert.match(calls[0].messages[0].content.map(({ text }) => text).join(""), /^Describe a cow\.\n\nReply with JSON .*"animal"/);
    const any = await generateObject({ ...ask, output: "no-schema" });
    assert.equal(typeof any.object, "object");
  });

  test("embeds texts", async () => {
    const values = ["A cow.", "The weather is fine."];
    const { embeddings, usage } = await embedMany({ model: embeddingModel(engine, { pooling: "last" }), values });
    assert.deepEqual(embeddings, (await engine.embed(values, { pooling: "last" })).map((vector) => [...vector]));
    const lengths = await Promise.all(values.map(async (value) => (await engine.tokenize(value)).length));
    assert.equal(usage.tokens, lengths[0] + lengths[1]);
    await assert.rejects(embedMany({ model: embeddingModel(engine), values, abortSignal: AbortSignal.abort() }), { name: "AbortError" });
  });
});

describe("a model that thinks and calls tools", () => {
  const load = async (t, pieces) => {
    const engine = await Engine.load(scripted(pieces), { activations: "f32", threads: 1 });
    t.after(() => engine.dispose());
    return engine;
  };
  const inputSchema = z.object({ a: z.literal(2), b: z.literal(3) });
  const thinking = { shohin: { thinking: true } };
  const once = { prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "auto" }), stopWhen: stepCountIs(3) };

  test("runs tools and continues with their results", async (t) => {
    const engine = await load(t, ["It is", " five."]);
    const { calls, engine: recording } = recorded(engine);
    const add = tool({ description: "Adds", inputSchema, execute: ({ a, b }) => ({ sum: a + b }) });
    const ask = { model: languageModel(recording), tools: { add }, prompt: "2 + 3?", ...greedy, maxOutputTokens: 60, providerOptions: thinking, ...once };
    const { text, steps } = await generateText(ask);
    assert.deepEqual([text, steps.map(({ finishReason }) => finishReason)], ["It is five.", ["tool-calls", "stop"]]);
    assert.deepEqual(steps[0].toolResults.map(({ input, output }) => [input, output]), [[{ a: 2, b: 3 }, { sum: 5 }]]);
    const [, call, result] = calls[1].messages;
    assert.deepEqual([call.toolCalls[0].arguments, result.role, result.content], ['{"a":2,"b":3}', "tool", '{"sum":5}']);

    const stream = streamText(ask);
    const parts = await collect(stream.fullStream);
    const types = parts.map(({ type }) => type).filter((type) => type.startsWith("tool-"));
    assert.deepEqual(types, ["tool-input-start", "tool-input-delta", "tool-input-end", "tool-call", "tool-result"]);
    assert.equal(await stream.text, "It is five.");

    const { toolCalls } = await generateText({ ...ask, prepareStep: undefined, stopWhen: stepCountIs(1), toolChoice: { type: "tool", toolName: "add" } });
    assert.deepEqual(toolCalls.map(({ toolName }) => toolName), ["add"]);
    assert.equal((await generateText({ ...ask, prepareStep: undefined, toolChoice: "none" })).text, "It is five.");
    assert.equal(calls.at(-1).options.tools, undefined);
  });

  test("reads results in the order of their calls, and those that are errors", async (t) => {
    const engine = await load(t, ["Yes."]);
    const { calls, engine: recording } = recorded(engine);
    const call = (toolCallId, input) => ({ type: "tool-call", toolCallId, toolName: "add", input });
    const result = (toolCallId, output) => ({ type: "tool-result", toolCallId, toolName: "add", output });
    await generateText({
      model: languageModel(recording),
      messages: [
        { role: "user", content: "Add." },
        { role: "assistant", content: [{ type: "reasoning", text: "Well." }, { type: "text", text: "I add." }, ...["x", "y", "z"].map((id, i) => call(id, { a: i }))] },
        { role: "tool", content: [result("z", { type: "error-text", value: "no" }), result("x", { type: "text", value: "5" })] },
        { role: "tool", content: [result("y", { type: "content", value: [{ type: "text", text: "6" }] })] },
        { role: "user", content: "Well?" },
      ],
      providerOptions: thinking,
      maxOutputTokens: 1,
    });
    const [, said, ...rest] = calls[0].messages;
    assert.deepEqual([said.reasoning, said.toolCalls.map(({ arguments: text }) => text)], ["Well.", ['{"a":0}', '{"a":1}', '{"a":2}']]);
    const content = (message) => (typeof message.content === "string" ? message.content : message.content.map(({ text }) => text).join(""));
    assert.deepEqual(rest.map((message) => [message.role, content(message)]), [["tool", "5"], ["tool", "6"], ["tool", '{"error":"no"}'], ["user", "Well?"]]);
  });

  test("separates thoughts from the reply", async (t) => {
    const engine = await load(t, ["<think>", "\nOne, ", "two.\n", "</think>", "\n\n", "The reply", " is this."]);
    const ask = { model: languageModel(engine, { thinking: true }), prompt: "?", ...greedy };
    const { text, reasoningText, usage } = await generateText(ask);
    assert.deepEqual([text, reasoningText], ["The reply is this.", "One, two."]);
    assert.ok(usage.outputTokenDetails.reasoningTokens >= 2);
    assert.equal(usage.outputTokenDetails.textTokens, usage.outputTokens - usage.outputTokenDetails.reasoningTokens);
    const stream = streamText(ask);
    const types = (await collect(stream.fullStream)).map(({ type }) => type).filter((type) => /^(text|reasoning)-(start|end)$/.test(type));
    assert.deepEqual(types, ["reasoning-start", "reasoning-end", "text-start", "text-end"]);
    assert.equal(await stream.reasoningText, reasoningText);
  });

  test("warns of tools of other providers, and of examples", async (t) => {
    const engine = await load(t, ["Yes."]);
    const model = languageModel(engine);
    const tools = { search: { type: "provider", id: "other.search", name: "search", args: {}, inputSchema }, add: tool({ inputSchema, inputExamples: [{ input: { a: 2, b: 3 } }] }) };
    const { warnings } = await generateText({ model, prompt, tools, maxOutputTokens: 1 });
    assert.deepEqual(warnings, [{ type: "unsupported", feature: "provider-defined tool other.search" }, { type: "unsupported", feature: "inputExamples of the tool add" }]);
  });
});
