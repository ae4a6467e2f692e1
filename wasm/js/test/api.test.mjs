// The API beyond plain chat, in Node: `npm run build -w wasm` first.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFile } from "node:fs/promises";
import { after, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { Engine, ShohinError } from "shohin";
import { extended } from "./gguf.mjs";
import { scripted } from "./scripted.mjs";

const MODEL = fileURLToPath(new URL("../../../models/sprout.gguf", import.meta.url));
const ask = (content) => [{ role: "user", content }];
const greedy = { preset: "greedy", maxTokens: 24 };
const fails = (code) => (error) => error instanceof ShohinError && (assert.equal(error.code, code, error.message), true);

async function collect(chunks) {
  const all = [];
  for await (const chunk of chunks) all.push(chunk);
  const joined = (key) => all.map((chunk) => chunk[key] ?? "").join("");
  return { all, text: joined("text"), reasoning: joined("reasoning"), finish: all.at(-1).finish };
}

async function collectAll(chunks) {
  for await (const _ of chunks);
}

describe("a small model", () => {
  let engine, bytes;
  before(async () => {
    bytes = await readFile(MODEL);
    engine = await Engine.load(bytes, { context: 256 });
  });
  after(() => engine.dispose());

  test("reports log-probabilities, which do not change the text", async () => {
    const plain = await collect(engine.chat(ask("Hello!"), greedy));
    const { all, text } = await collect(engine.chat(ask("Hello!"), { ...greedy, logprobs: 3 }));
    assert.equal(text, plain.text);
    assert.ok(plain.all.every((chunk) => chunk.logprobs === undefined));
    const logprobs = all.flatMap((chunk) => chunk.logprobs);
    assert.deepEqual(logprobs.map((one) => one.token), all.flatMap((chunk) => chunk.tokens));
    assert.equal(Buffer.concat(logprobs.map((one) => Buffer.from(one.bytes))).toString(), text);
    for (const { token, logprob, top } of logprobs) {
      assert.equal(top.length, 3);
      assert.deepEqual([top[0].token, top[0].logprob], [token, logprob]); // it was greedy
      assert.ok(logprob <= 0 && top[1].logprob <= logprob && top[2].logprob <= top[1].logprob);
      assert.ok(top.reduce((sum, one) => sum + Math.exp(one.logprob), 0) <= 1 + 1e-5);
    }
  });

  test("searches with beams", async () => {
    const search = (options) => collect(engine.generate("Once upon a", options));
    // One beam is greedy decoding; of one token, beams are the likeliest ones.
    const greedily = await collect(engine.generate("Once upon a", { preset: "greedy", maxTokens: 12, logprobs: 4 }));
    const measured = greedily.all.flatMap((chunk) => chunk.logprobs);
    const one = await search({ beams: 1, maxTokens: 12 });
    assert.equal(one.text, greedily.text);
    assert.deepEqual(one.all.flatMap((chunk) => chunk.tokens), measured.map(({ token }) => token));
    const sum = measured.reduce((sum, { logprob }) => sum + logprob, 0);
    assert.ok(Math.abs(one.finish.beams[0].logprob - sum) < 1e-3 && Math.abs(one.finish.beams[0].score - sum / 12) < 1e-3);
    const first = (await search({ beams: 4, maxTokens: 1 })).finish.beams;
    assert.deepEqual(first.map(({ tokens }) => tokens[0]), measured[0].top.map(({ token }) => token));
    first.forEach(({ logprob }, i) => assert.ok(Math.abs(logprob - measured[0].top[i].logprob) < 1e-4));

    const { all, text, finish } = await search({ beams: 4, maxTokens: 12, lengthPenalty: 0 });
    assert.equal(all.length, 1);
    assert.equal(finish.beams.length, 4);
    assert.deepEqual([finish.text, finish.beams[0].text, finish.usage.completionTokens], [text, text, finish.beams[0].tokens.length]);
    assert.ok(finish.beams.every(({ score, logprob }, i) => score === logprob && (i === 0 || score <= finish.beams[i - 1].score)));
    assert.ok(finish.beams[0].logprob >= sum - 1e-3);
    assert.equal(new Set(finish.beams.map(({ tokens }) => tokens.join())).size, 4);

    const chat = await collect(engine.chat(ask("Hello!"), { beams: 3, maxTokens: 30 }));
    assert.deepEqual(chat.finish.message, { role: "assistant", content: chat.text });
    assert.equal(chat.finish.reason, "stop");
    // The conversation's own cache is as it was.
    const next = await collect(engine.generate("Once upon a", { preset: "greedy", maxTokens: 1 }));
    assert.equal(next.finish.usage.cachedTokens, next.finish.usage.promptTokens - 1);
    const controller = new AbortController();
    const endless = search({ beams: 64, signal: controller.signal });
    setTimeout(() => controller.abort(), 20);
    await assert.rejects(endless, fails("aborted"));
    await assert.rejects(search({ beams: 2, maxTokens: 1.5 }), fails("option"));
  });

  test("answers requests in OpenAI's format", async () => {
    const request = { model: "mine", messages: [{ role: "user", content: [{ type: "text", text: "Hello!" }] }], temperature: 0, max_tokens: 3, logprobs: true, top_logprobs: 2 };
    const answer = await engine.createChatCompletion(request);
    assert.equal(answer.object, "chat.completion");
    assert.equal(answer.model, "mine");
    const [choice] = answer.choices;
    assert.equal(choice.finish_reason, "length");
    assert.equal(choice.message.content, (await collect(engine.chat(ask("Hello!"), { ...greedy, maxTokens: 3 }))).text);
    assert.equal(choice.logprobs.content.map(({ token }) => token).join(""), choice.message.content);
    assert.equal(choice.logprobs.content[0].top_logprobs.length, 2);
    assert.deepEqual([answer.usage.completion_tokens, answer.usage.total_tokens], [3, answer.usage.prompt_tokens + 3]);

    const chunks = [];
    const stream = await engine.createChatCompletion({ ...request, stream: true, stream_options: { include_usage: true } });
    for await (const chunk of stream) chunks.push(chunk);
    assert.equal(chunks[0].choices[0].delta.role, "assistant");
    assert.equal(new Set(chunks.map(({ id, object }) => id + object)).size, 1);
    assert.equal(chunks.map(({ choices }) => choices[0]?.delta.content ?? "").join(""), choice.message.content);
    assert.equal(chunks.at(-2).choices[0].finish_reason, "length");
    assert.ok(chunks.slice(0, -1).every(({ usage }) => usage === null));
    assert.deepEqual([chunks.at(-1).choices, chunks.at(-1).usage.completion_tokens], [[], 3]);

    // Log-probabilities are those of the text: of tokens that a stop text cut off there are none.
    const longer = { ...request, max_tokens: 24 };
    const { content } = (await engine.createChatCompletion(longer)).choices[0].message;
    assert.ok(content.length > 9, content);
    const cut = { ...longer, stop: content.slice(4, 9) };
    const [whole] = (await engine.createChatCompletion(cut)).choices;
    assert.equal(whole.message.content, content.slice(0, 4));
    const streamed = [];
    for await (const { choices } of await engine.createChatCompletion({ ...cut, stream: true })) streamed.push(...(choices[0]?.logprobs?.content ?? []));
    assert.deepEqual(streamed, whole.logprobs.content);
    let begins = 0;
    for (const { token } of streamed) {
      assert.ok(begins < whole.message.content.length, token);
      begins += token.length;
    }
    assert.ok(begins >= whole.message.content.length);

    for (const [wrong, code] of [
      [{ n: 2 }, "unsupported"],
      [{ response_format: { type: "xml" } }, "unsupported"],
      [{ response_format: { type: "json_schema", json_schema: { schema: { not: { type: "string" } } } } }, "unsupported"],
      [{ tool_choice: "required" }, "argument"],
      [{ top_logprobs: 21 }, "argument"],
      [{ messages: "Hello" }, "argument"],
      [{ messages: [null] }, "argument"],
      [{ messages: [{ content: "Hello" }] }, "argument"],
      [{ messages: [{ role: "user", content: 3 }] }, "argument"],
      [{ messages: [{ role: "user", content: [null] }] }, "argument"],
      [{ messages: [{ role: "assistant", tool_calls: [{ type: "function" }] }] }, "argument"],
      [{ response_format: { type: "json_schema" } }, "argument"],
      [{ response_format: "json_object" }, "argument"],
      [{ tool_choice: { type: "function" } }, "argument"],
      [{ logit_bias: { 1: 100 } }, "unsupported"],
      [{ reasoning_effort: "some" }, "argument"],
      [{ functions: [] }, "unsupported"],
      [{ parallel_tool_calls: 0 }, "argument"],
      [{ messages: [{ role: "user", content: [{ type: "image_url" }] }] }, "unsupported"],
      [{ temperature: -4 }, "option"],
    ]) {
      await assert.rejects(engine.createChatCompletion({ ...request, ...wrong }), fails(code));
      await assert.rejects(engine.createChatCompletion({ ...request, ...wrong, stream: true }), fails(code));
    }
    const harmless = { user: "me", store: false, metadata: {}, parallel_tool_calls: true, logit_bias: null };
    assert.deepEqual((await engine.createChatCompletion({ ...request, ...harmless })).choices, answer.choices);
  });

  test("names options in errors as the caller wrote them", async () => {
    const says = (call) => call.then(() => "nothing", ({ code, message }) => `${code}: ${message}`);
    for (const [name, value] of Object.entries({ topP: 2, minP: -1, typicalP: 0, repetitionPenalty: 0, presencePenalty: 1e9, frequencyPenalty: 1e9, penaltyLastN: 1e9, dryMultiplier: -1, dryBase: 0, dryAllowedLength: 0, dryLastN: 1e9 })) {
      for (const chunks of [engine.chat(ask("?"), { [name]: value }), engine.generate("?", { [name]: value })]) {
        assert.match(await says(collect(chunks)), new RegExp(`^option: ${name} is ${value}, expected`));
      }
    }
    for (const [name, value] of Object.entries({ top_p: 2, presence_penalty: 1e9, frequency_penalty: 1e9, max_tokens: -2, temperature: -1 })) {
      for (const stream of [false, true]) assert.match(await says(engine.createChatCompletion({ messages: ask("?"), [name]: value, stream }).then((answer) => stream && collectAll(answer))), new RegExp(`^option: ${name} is ${value}, expected`));
    }
  });

  const FORM = {
    type: "object",
    properties: { animal: { enum: ["cow", "cat"] }, legs: { type: "integer", minimum: 0, maximum: 8 }, names: { type: "array", items: { type: "string" }, maxItems: 2 } },
    required: ["animal", "legs"],
  };

  test("constrains replies to a schema, however little room they have", async () => {
    const responseFormat = { type: "json_schema", schema: FORM };
    for (const options of [{ preset: "greedy" }, { maxTokens: 30 }, { temperature: 2, topK: 0, maxTokens: 40, seed: 3 }, { temperature: 2, topK: 0, maxTokens: 26, seed: 3 }]) {
      const { all, text, finish } = await collect(engine.chat(ask("Tell me about a cow."), { ...options, responseFormat }));
      const value = JSON.parse(text);
      assert.ok(["cow", "cat"].includes(value.animal) && Number.isInteger(value.legs) && value.legs >= 0 && value.legs <= 8, text);
      assert.ok(Object.keys(value).every((name) => name in FORM.properties) && (value.names ?? []).length <= 2, text);
      assert.deepEqual([finish.reason, finish.message.content], ["stop", text]);
      assert.equal(finish.usage.completionTokens, all.flatMap((chunk) => chunk.tokens).length);
      assert.equal(await engine.detokenize(all.flatMap((chunk) => chunk.tokens)), text);
      // In the order of the schema, and dense.
      assert.ok(text.startsWith('{"animal":"c') && text === JSON.stringify(value), text);
    }
    const spaced = [];
    for (const seed of [1, 2, 3, 4]) {
      const whitespace = { responseFormat: { ...responseFormat, whitespace: true }, temperature: 50, topK: 0, topP: 1, maxTokens: 60, seed };
      spaced.push((await collect(engine.chat(ask("Tell me about a cow."), whitespace))).text);
    }
    assert.ok(spaced.some((text) => text !== JSON.stringify(JSON.parse(text))), spaced.join());
    const cut = await collect(engine.chat(ask("Hello!"), { maxTokens: 4, responseFormat }));
    assert.equal(cut.finish.reason, "length");
    // The next turn is not constrained.
    const free = await collect(engine.chat(ask("Hello!"), greedy));
    assert.throws(() => JSON.parse(free.text));
    const object = await collect(engine.generate("Once", { maxTokens: 30, responseFormat: { type: "json_object" } }));
    assert.equal(Object.prototype.toString.call(JSON.parse(object.text)), "[object Object]");
    const answer = await engine.createChatCompletion({
      messages: ask("Tell me about a cat."),
      response_format: { type: "json_schema", json_schema: { name: "form", schema: FORM, strict: true } },
      max_tokens: 60,
    });
    assert.ok(Number.isInteger(JSON.parse(answer.choices[0].message.content).legs));
  });

  test("survives invalid arguments", async () => {
    const deep = Array.from({ length: 100_000 }).reduce((inner) => ({ not: inner }), {});
    const round = {};
    round.not = round;
    await assert.rejects(engine.detokenize({ length: 2 ** 40 }), fails("argument"));
    await assert.rejects(engine.detokenize(null), fails("argument"));
    for (const schema of [deep, round]) {
      await assert.rejects(collect(engine.chat(ask("?"), { responseFormat: { type: "json_schema", schema } })), fails("argument"));
      await assert.rejects(collect(engine.chat(ask("?"), { tools: [schema] })), fails("argument"));
    }
    assert.equal(await engine.detokenize(await engine.tokenize("Hello!")), "Hello!");
  });

  test("names the unsupported part of a schema", async () => {
    const says = async (schema, code, what) =>
      assert.rejects(collect(engine.chat(ask("?"), { responseFormat: { type: "json_schema", schema } })), (error) => fails(code)(error) && what.test(error.message));
    await says({ properties: { a: { not: { type: "string" } } } }, "unsupported", /^\/properties\/a\/not is/);
    await says({ type: "integer", minimum: 3, maximum: 2 }, "option", /schema/);
    await says(undefined, "argument", /schema/);
    await assert.rejects(collect(engine.chat(ask("?"), { responseFormat: { type: "xml" } })), fails("argument"));
  });

  test("holds several conversations with separate caches", async () => {
    const [a, b] = [await engine.conversation(), await engine.conversation({ context: 128 })];
    assert.deepEqual([a.context, b.context], [256, 128]);
    const alone = async (conversation, content) => (await collect(conversation.chat(ask(content), greedy))).finish;
    const together = await Promise.all([alone(a, "Hello!"), alone(b, "Tell me a joke."), alone(engine, "What is my name?")]);
    const again = [await alone(a, "Hello!"), await alone(b, "Tell me a joke."), await alone(engine, "What is my name?")];
    again.forEach((finish, i) => {
      assert.equal(finish.text, together[i].text);
      assert.equal(finish.usage.cachedTokens, finish.usage.promptTokens - 1);
    });
    await a.dispose();
    await assert.rejects(alone(a, "Hello!"), fails("disposed"));
    assert.equal((await alone(b, "Tell me a joke.")).text, together[1].text);
    await b.dispose();
  });

  test("continues from a snapshot, and detects a damaged or foreign one", async () => {
    const first = await collect(engine.chat(ask("Hello!"), greedy));
    const snapshot = await engine.snapshot();
    assert.deepEqual(snapshot.messages, [...ask("Hello!"), first.finish.message]);
    const next = [...snapshot.messages, ...ask("What is my name?")];
    const want = await collect(engine.chat(next, greedy));

    const other = await Engine.load(bytes, { context: 200 });
    assert.equal((await other.restore(snapshot)).recomputed, false);
    // The messages are part of the state.
    assert.deepEqual(await other.restore(snapshot.state), { messages: snapshot.messages, recomputed: false });
    const got = await collect(other.chat(next, greedy));
    assert.equal(got.text, want.text);
    assert.ok(got.finish.usage.cachedTokens >= first.finish.usage.promptTokens + first.finish.usage.completionTokens - 1);

    const f32 = await Engine.load(bytes, { context: 200, kv: "f32" });
    for (let i = 0; i < 12; i++) {
      const state = Uint8Array.from(snapshot.state);
      state[8 + Math.floor(((i + 0.5) * (state.length - 8)) / 12)] ^= 1;
      await assert.rejects(other.restore({ ...snapshot, state }), fails("snapshot_damaged"));
    }
    await assert.rejects(other.restore({ ...snapshot, state: snapshot.state.subarray(0, 20) }), fails("snapshot_damaged"));
    await assert.rejects(f32.restore(snapshot), fails("snapshot_foreign"));
    const again = await f32.restore(snapshot, { recompute: true });
    assert.deepEqual(again, { messages: snapshot.messages, recomputed: true });
    assert.ok((await collect(f32.chat(next, greedy))).finish.usage.cachedTokens > first.finish.usage.promptTokens);
    await assert.rejects(engine.save("x"), fails("unsupported"));
    await Promise.all([other.dispose(), f32.dispose()]);
  });

  test("embeds texts without affecting conversations", async () => {
    const talk = await collect(engine.chat(ask("Hello!"), greedy));
    const vectors = await Promise.all(["A cat sat.", "A cat sat.", "Count to nine."].map((text) => engine.embed(text)));
    assert.equal(vectors[0].length, engine.info.model.hidden);
    assert.deepEqual(vectors[0], vectors[1]);
    assert.notDeepEqual(vectors[0], vectors[2]);
    assert.ok(Math.abs(Math.hypot(...vectors[0]) - 1) < 1e-5);
    const raw = await engine.embed("A cat sat.", { normalize: false });
    raw.forEach((x, i) => assert.ok(Math.abs(x / Math.hypot(...raw) - vectors[0][i]) < 1e-5));
    assert.notDeepEqual(await engine.embed("A cat sat.", { pooling: "last" }), vectors[0]);
    await assert.rejects(engine.embed(""), fails("length"));
    await assert.rejects(engine.embed("x", { pooling: "max" }), fails("argument"));
    await assert.rejects(engine.embed("x", { signal: AbortSignal.abort() }), fails("aborted"));
    const after = await collect(engine.chat(ask("Hello!"), greedy));
    assert.deepEqual([after.text, after.finish.usage.cachedTokens], [talk.text, talk.finish.usage.promptTokens - 1]);
  });

  test("embeds texts as the file asks", async () => {
    const load = (...values) => Engine.load(extended(bytes, values), { context: 128 });
    const [plain, last, first] = await Promise.all([
      engine.embed("A cat sat.", { pooling: "last" }),
      load(["qwen3.pooling_type", 3], ["tokenizer.ggml.add_eos_token", true]),
      load(["qwen3.pooling_type", 2]),
    ]);
    const vector = await last.embed("A cat sat.");
    assert.deepEqual(await last.embed("A cat sat.", { pooling: "last" }), vector);
    assert.notDeepEqual(vector, plain, "the end of the text is not one of its tokens");
    await assert.rejects(first.embed("x"), fails("unsupported"));
    assert.equal((await first.embed("x", { pooling: "mean" })).length, first.info.model.hidden);
    await Promise.all([last.dispose(), first.dispose()]);
  });

  test("refuses a file other than the requested one", async () => {
    const sha256 = createHash("sha256").update(bytes).digest("hex");
    await (await Engine.load(MODEL, { sha256: sha256.toUpperCase(), bytes: bytes.length })).dispose();
    await assert.rejects(Engine.load(MODEL, { bytes: bytes.length + 1 }), fails("integrity"));
    const changed = Uint8Array.from(bytes);
    changed[changed.length - 1] ^= 1;
    await assert.rejects(Engine.load(changed, { sha256 }), fails("integrity"));
  });
});

describe("a model that thinks and calls tools", () => {
  const CALL = '\n{"name": "add", "arguments": {"a": 1}}\n';
  const load = (pieces) => Engine.load(scripted(pieces), { activations: "f32" });
  const options = { preset: "greedy", maxTokens: 60 };

  test("separates thoughts from the reply", async () => {
    const engine = await load(["<think>", "\nOne, ", "two, ", "three.\n", "</think>", "\n\n", "The reply", " is this."]);
    const { all, text, reasoning, finish } = await collect(engine.chat(ask("?"), { ...options, thinking: true }));
    assert.deepEqual([text, reasoning], ["The reply is this.", "One, two, three."]);
    assert.deepEqual(finish.message, { role: "assistant", content: text, reasoning });
    assert.equal(finish.text, "<think>\nOne, two, three.\n</think>\n\nThe reply is this.");
    assert.ok(all.length > 1);
    const answer = await engine.createChatCompletion({ messages: ask("?"), temperature: 0, thinking: true });
    assert.deepEqual([answer.choices[0].message.content, answer.choices[0].message.reasoning], [text, reasoning]);
    assert.ok(answer.usage.completion_tokens_details.reasoning_tokens >= 3);
    await engine.dispose();
  });

  test("continues a reply that was cut off", async () => {
    const engine = await load(["<think>", "\nOne, ", "two, ", "three.\n", "</think>", "\n\n", "The reply", " is", " this."]);
    const whole = (await collect(engine.chat(ask("?"), { ...options, thinking: true }))).finish;
    for (let maxTokens = 1; maxTokens < whole.usage.completionTokens; maxTokens++) {
      const begun = (await collect(engine.chat(ask("?"), { ...options, thinking: true, maxTokens }))).finish.message;
      const messages = [...ask("?"), begun];
      const more = await collect(engine.chat(messages, { ...options, thinking: true, continueFinalMessage: true }));
      assert.deepEqual(more.finish.message, whole.message, `after ${maxTokens} tokens`);
      assert.equal(begun.content + more.text, whole.message.content);
      assert.deepEqual((await engine.snapshot()).messages, [...ask("?"), whole.message]);
    }
    await assert.rejects(engine.reply("?", { continueFinalMessage: true }), (error) => fails("argument")(error) && /^continueFinalMessage needs a reply/.test(error.message));
    const session = engine.session({ preset: "greedy", thinking: true });
    await collect(session.send("?", { maxTokens: 3 }));
    assert.deepEqual(session.messages, [...ask("?"), { role: "assistant", content: "", reasoning: "One, two, " }]);
    await collect(session.send([], { continueFinalMessage: true, maxTokens: 60 }));
    assert.deepEqual(session.messages, [...ask("?"), whole.message]);
    await engine.dispose();
  });

  test("ends thoughts at their budget", async () => {
    const engine = await load(["<think>", "a ", "b ", "c ", "d ", "e "]);
    const { reasoning, finish } = await collect(engine.chat(ask("?"), { ...options, thinking: { budget: 3 } }));
    assert.equal(reasoning, "a b ");
    assert.ok(finish.text.startsWith("<think>a b \n</think>\n\n"), finish.text);
    assert.equal(finish.usage.reasoningTokens, 3);
    const whole = await collect(engine.chat(ask("?"), { ...options, thinking: true }));
    assert.equal(whole.reasoning, "a b c d e ");
    await engine.dispose();
  });

  const add = { type: "function", function: { name: "add", parameters: { type: "object", properties: { a: { type: "integer" } }, required: ["a"], additionalProperties: false } } };
  const note = { type: "function", function: { name: "note", parameters: { type: "object", properties: { text: { type: "string" } }, required: ["text"] } } };

  test("calls with valid arguments, although the model prefers others", async () => {
    const engine = await load(["<think>", "I know.", "</think>", "\n\n", "<tool_call>", '\n{"name": "sub", "arguments": {}}\n', "</tool_call>"]);
    const call = async (more) => (await collect(engine.chat(ask("?"), { ...options, tools: [add, note], ...more }))).finish;
    for (const thinking of [false, true]) {
      for (const [toolChoice, names] of [["auto", ["add", "note"]], ["required", ["add", "note"]], [{ name: "note" }, ["note"]]]) {
        const { message, reason } = await call({ thinking, toolChoice, maxTokens: 120 });
        assert.ok(message.toolCalls?.length > 0, JSON.stringify([thinking, toolChoice, message]));
        if (thinking) assert.equal(message.reasoning, "I know.");
        assert.ok(["stop", "length"].includes(reason));
        for (const { name, arguments: text } of message.toolCalls) {
          const value = JSON.parse(text);
          assert.ok(names.includes(name) && (name === "add" ? Number.isInteger(value.a) : typeof value.text === "string"), text);
        }
      }
    }
    const request = { messages: ask("?"), tools: [add, note], tool_choice: { type: "function", function: { name: "add" } }, temperature: 0, max_tokens: 90 };
    const [choice] = (await engine.createChatCompletion(request)).choices;
    assert.equal(choice.finish_reason, "tool_calls");
    assert.ok(choice.message.tool_calls.every((made) => made.function.name === "add"));
    await assert.rejects(call({ toolChoice: { name: "sub" } }), (error) => fails("argument")(error) && /^toolChoice asks/.test(error.message));
    await assert.rejects(engine.createChatCompletion({ ...request, tool_choice: { type: "function", function: { name: "sub" } } }), { code: "argument", message: /^tool_choice asks/ });
    await assert.rejects(call({ toolChoice: "always" }), fails("argument"));
    // Calls, or a reply in the format.
    const { message: formatted } = await call({ responseFormat: { type: "json_schema", schema: { const: 7 } }, maxTokens: 120 });
    assert.ok(formatted.toolCalls?.length > 0 || formatted.content === "7", JSON.stringify(formatted));
    await assert.rejects(call({ tools: [{ function: { name: "x", strict: true, parameters: { not: { type: "string" } } } }] }), fails("unsupported"));
    for (const strict of [{}, { strict: false }]) await call({ tools: [{ function: { name: "x", ...strict, parameters: { not: { type: "string" } } } }] });
    await engine.dispose();
  });

  test("constrains the reply after thoughts to a schema", async () => {
    const engine = await load(["<think>", "a ", "b ", "c ", "</think>", "\n\n", "Seven, I think."]);
    const responseFormat = { type: "json_schema", schema: { type: "integer", minimum: 10, maximum: 99 } };
    for (const [thinking, reasoning] of [[true, "a b c "], [{ budget: 2 }, "a "], [false, undefined]]) {
      const { text, finish } = await collect(engine.chat(ask("?"), { ...options, thinking, responseFormat }));
      assert.match(text, /^[1-9][0-9]$/);
      assert.deepEqual([finish.message.content, finish.message.reasoning], [text, reasoning]);
    }
    // With too little room the thoughts are ended for the reply.
    const { text } = await collect(engine.chat(ask("?"), { ...options, maxTokens: 6, thinking: true, responseFormat }));
    assert.match(text, /^[1-9][0-9]$/);
    await engine.dispose();
  });

  test("treats a marker within the text of a call as text", async () => {
    const said = '\n{"name": "note", "arguments": {"text": "a </tool_call> b"}}\n';
    const engine = await load(["<tool_call>", said, "</tool_call>"]);
    // The apparent marker is one token of the vocabulary: without it the call ends early.
    const { finish } = await collect(engine.chat(ask("?"), { ...options, thinking: true, tools: [note] }));
    assert.deepEqual(finish.message.toolCalls, [{ name: "note", arguments: '{"text": "a </tool_call> b"}' }]);
    await engine.dispose();
  });

  test("keeps text that only looks like a call", async () => {
    const pieces = ["It is", " written:", "\n\n", "<tool_call>", "{not JSON}", "</tool_call>", " or so."];
    for (const said of [pieces, pieces.slice(0, 5)]) {
      const engine = await load(said);
      // After earlier calls it is taken for one.
      const before = [...ask("!"), { role: "assistant", content: "", toolCalls: [{ name: "add", arguments: "{}" }] }, { role: "tool", content: "1" }, ...ask("?")];
      for (const messages of [ask("?"), before]) {
        const { text, finish } = await collect(engine.chat(messages, { ...options, thinking: true }));
        assert.equal(text, said.join(""));
        assert.deepEqual(finish.message, { role: "assistant", content: text });
      }
      await engine.dispose();
    }
  });

  test("treats apparent calls and thoughts in JSON as text", async () => {
    const said = '</think> <tool_call>\n{"name": "add", "arguments": {}}\n</tool_call> <think>';
    const engine = await load(["<think>", "Hm.", "</think>", "\n\n", "No."]);
    const before = [...ask("!"), { role: "assistant", content: "", toolCalls: [{ name: "add", arguments: "{}" }] }, { role: "tool", content: "1" }, ...ask("?")];
    const responseFormat = { type: "json_schema", schema: { const: said } };
    for (const [thinking, reasoning] of [[false, undefined], [true, "Hm."]]) {
      const { text, finish } = await collect(engine.chat(before, { ...options, maxTokens: 200, thinking, responseFormat }));
      assert.equal(JSON.parse(text), said);
      assert.deepEqual(finish.message, { role: "assistant", content: text, ...(reasoning && { reasoning }) });
    }
    await engine.dispose();
  });

  test("streams tool calls as they are completed", async () => {
    const tools = [{ type: "function", function: { name: "add", parameters: {} } }];
    const engine = await load(["I add.", "\n\n\n", "<tool_call>", CALL, "</tool_call>"]);
    const { all, text, finish } = await collect(engine.chat(ask("?"), { ...options, thinking: true, tools }));
    const calls = [{ name: "add", arguments: '{"a": 1}' }];
    assert.equal(text, "I add.");
    assert.deepEqual(all.flatMap((chunk) => chunk.toolCalls ?? []), calls);
    assert.deepEqual(finish.message, { role: "assistant", content: "I add.", toolCalls: calls });
    const chunks = [];
    for await (const chunk of await engine.createChatCompletion({ messages: ask("?"), temperature: 0, thinking: true, tools, stream: true })) chunks.push(chunk);
    const [call] = chunks.flatMap(({ choices }) => choices[0].delta.tool_calls ?? []);
    assert.deepEqual([call.index, call.type, call.function], [0, "function", calls[0]]);
    assert.equal(chunks.at(-1).choices[0].finish_reason, "tool_calls");
    await engine.dispose();
  });
});
