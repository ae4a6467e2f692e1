// The engine on a GPU compared with the one on the CPU, in headless Chromium, perhaps on a software adapter:
// `npm run build -w wasm` first.
import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { after, before, describe, test } from "node:test";
import { launch, serve } from "./chromium.mjs";
import { split } from "./gguf.mjs";
import { thorough } from "./thorough.mjs";

const DIST = new URL("../../dist/", import.meta.url);

/** The small model with a template for tools. */
async function withTools() {
  const file = await readFile(new URL("../../../models/sprout-nano.gguf", import.meta.url));
  const key = "tokenizer.chat_template";
  const at = file.indexOf(key) + key.length + 12;
  file.fill(" ", at, at + Number(file.readBigUInt64LE(at - 8)));
  file.write("<|im_start|> <|im_end|> enable_thinking last_query_index <tool_response>", at);
  return file;
}

const send = (bytes) => (_request, response) => response.writeHead(200, { "Content-Length": bytes.length }).end(bytes);

describe("on a GPU", { skip: !existsSync(new URL("webgpu.js", DIST)) }, () => {
  let browser, server, page;

  before(async () => {
    const model = await withTools();
    const parts = split(model, 3).map((part, i) => [`/model-0000${i + 1}-of-00003.gguf`, send(part)]);
    server = await serve(DIST, {
      "/": (_request, response) => response.writeHead(200, { "Content-Type": "text/html" }).end("<!doctype html><title>test</title>"),
      "/model.gguf": send(model),
      ...Object.fromEntries(parts),
    });
    browser = await launch();
    page = await browser.newPage();
    page.setDefaultTimeout(120_000);
    await page.goto(server.url);
    await page.evaluate(async () => {
      const { Engine } = await import("/index.js");
      const exact = { activations: "f32", kv: "f32", context: 448 };
      const ask = (content) => [{ role: "user", content }];
      // With thinking, the next turn repeats the end of the prompt.
      const greedy = { preset: "greedy", maxTokens: 4, thinking: true };
      /** Runs a generation to its end. */
      const collect = async (chunks) => {
        const seen = [];
        for await (const chunk of chunks) seen.push(chunk);
        const logprobs = seen.flatMap((chunk) => chunk.logprobs ?? []);
        const { timings: _timings, ...finish } = seen.at(-1).finish;
        return { tokens: seen.flatMap((chunk) => chunk.tokens), ...(logprobs.length > 0 && { logprobs }), ...finish };
      };
      const code = (promise) => promise.then(() => "none", (error) => error.code);
      const cpu = await Engine.load("model.gguf", exact);
      const gpu = await Engine.load("model-00001-of-00003.gguf", { ...exact, backend: "webgpu" });
      Object.assign(globalThis, { ask, greedy, collect, code, cpu, gpu });
    });
  });
  after(async () => {
    await browser?.close();
    await server?.close();
  });

  /** The results of the same work on the GPU and the CPU, in the page. */
  const both = (work) => page.evaluate(`(async () => [await (${work})(gpu), await (${work})(cpu)])()`);

  test("adapters are refused by name", async () => {
    const said = (engine) => engine.adapters.add("model.gguf").catch(({ code, message }) => `${code}: ${message}`);
    const [gpu, cpu] = await both(said);
    assert.equal(gpu, 'gpu_unsupported: adapters run on the CPU: load with backend "cpu"');
    assert.match(cpu, /^unsupported: adapter model: /);
  });

  test("a model in parts gives the same text and probabilities as the whole one", async () => {
    const backends = await both((engine) => engine.info.backend);
    assert.deepEqual(backends, ["webgpu", "cpu"]);
    const [gpu, cpu] = await both((engine) => collect(engine.chat(ask("What does a cow say?"), { ...greedy, logprobs: 3 })));
    const { logprobs: found, ...said } = gpu;
    const { logprobs: wanted, ...want } = cpu;
    assert.deepEqual({ ...said, seed: 0 }, { ...want, seed: 0 });
    assert.equal(found.length, want.tokens.length);
    found.forEach(({ logprob, top, ...token }, i) => {
      const { logprob: exact, top: best, ...same } = wanted[i];
      assert.deepEqual([token, top.map((one) => one.token)], [same, best.map((one) => one.token)]);
      [logprob, ...top.map((one) => one.logprob)].forEach((found, i) => {
        assert.ok(Math.abs(found - [exact, ...best.map((one) => one.logprob)][i]) < 1e-3, `${found}`);
      });
    });
  });

  test("a reply satisfies a schema", async () => {
    const [gpu, cpu] = await both((engine) => {
      const schema = { type: "object", properties: { legs: { type: "integer", minimum: 0, maximum: 8 } }, required: ["legs"], additionalProperties: false };
      return collect(engine.chat(ask("Tell me about a cow."), { ...greedy, maxTokens: 16, thinking: false, responseFormat: { type: "json_schema", schema } }));
    });
    assert.equal(gpu.text, cpu.text);
    const { legs } = JSON.parse(gpu.text);
    assert.ok(Number.isInteger(legs) && legs >= 0 && legs <= 8, gpu.text);
    assert.deepEqual([gpu.reason, gpu.tokens], ["stop", cpu.tokens]);
  });

  test("a tool call satisfies its schema, and a long prompt is computed as on the CPU", thorough, async () => {
    const [gpu, cpu] = await both(async (engine) => {
      const tools = [{ type: "function", function: { name: "add", parameters: { type: "object", properties: { a: { enum: [3, 4] } }, required: ["a"], additionalProperties: false } } }];
      const { seed: _seed, ...finish } = await collect(engine.chat(ask("What is 3 and 4?"), { ...greedy, maxTokens: 60, thinking: false, tools, toolChoice: "required" }));
      return finish;
    });
    assert.deepEqual(gpu, cpu);
    // Several batches.
    assert.ok(gpu.usage.promptTokens > 300);
    assert.equal(gpu.reason, "stop");
    const [{ name, arguments: text }] = gpu.message.toolCalls;
    assert.ok(name === "add" && [3, 4].includes(JSON.parse(text).a), text);
  });

  test("conversations are separate, and only a new turn is computed", async () => {
    const [gpu, cpu] = await both(async (engine) => {
      const [one, other] = [await engine.conversation(), await engine.conversation()];
      const first = await Promise.all([collect(one.chat(ask("Hello!"), greedy)), collect(other.chat(ask("Tell me a joke."), greedy))]);
      const next = [...ask("Hello!"), first[0].message, ...ask("What is my name?")];
      const second = await collect(one.chat(next, greedy));
      await one.dispose();
      const disposed = await code(one.snapshot());
      const again = await collect(other.chat(ask("Tell me a joke."), greedy));
      await other.dispose();
      return { texts: [...first, second, again].map(({ text }) => text), usages: [second.usage, again.usage], disposed };
    });
    assert.deepEqual(gpu, cpu);
    assert.equal(gpu.texts[3], gpu.texts[1]);
    const [second, again] = gpu.usages;
    assert.ok(second.cachedTokens > 10);
    assert.equal(again.cachedTokens, again.promptTokens - 1);
  });

  test("a snapshot is restored on its backend, and recomputed on the other", async () => {
    const seen = await page.evaluate(async () => {
      const next = ask("What is my name?");
      const go = async (talk, messages) => collect(talk.chat([...messages, ...next], greedy));
      const kept = [];
      for (const engine of [gpu, cpu]) {
        const talk = await engine.conversation();
        const { message } = await collect(talk.chat(ask("Hello!"), greedy));
        const snapshot = await talk.snapshot();
        await talk.save(engine.info.backend);
        const { text } = await go(talk, snapshot.messages);
        await talk.dispose();
        kept.push({ message, snapshot, text });
      }
      const out = [];
      for (const [own, other, engine] of [[0, 1, gpu], [1, 0, cpu]]) {
        const talk = await engine.conversation();
        const { recomputed, messages } = await talk.restore(engine.info.backend);
        const here = await go(talk, messages);
        const foreign = await code(talk.restore(kept[other].snapshot));
        const forgotten = await collect(talk.chat(ask("Hello!"), { ...greedy, maxTokens: 1 }));
        const moved = await talk.restore(kept[other].snapshot, { recompute: true });
        const there = await go(talk, moved.messages);
        const state = Uint8Array.from(kept[own].snapshot.state);
        state[state.length >> 1] ^= 1;
        const damaged = await code(talk.restore({ ...kept[own].snapshot, state }));
        await talk.dispose();
        out.push({ recomputed: [recomputed, moved.recomputed], codes: [foreign, damaged], texts: [here.text, there.text], cached: [here, forgotten, there].map(({ usage }) => usage.cachedTokens) });
      }
      return { texts: kept.map(({ text }) => text), messages: kept.map(({ message }) => message), out };
    });
    const { texts, messages, out } = seen;
    assert.equal(texts[0], texts[1]);
    assert.deepEqual(messages[0], messages[1]);
    assert.deepEqual(out[0], out[1]);
    const [{ recomputed, codes, cached }] = out;
    assert.deepEqual([recomputed, codes, out[0].texts], [[false, true], ["snapshot_foreign", "snapshot_damaged"], [texts[0], texts[0]]]);
    assert.ok(cached[0] > 10 && cached[1] === 0 && cached[2] > 8, `${cached}`);
  });

  test("a conversation continues beyond the context", async () => {
    const [gpu, cpu] = await both(async (engine) => {
      const talk = await engine.conversation({ context: 80 });
      const text = "Once upon a time there was a cat. ".repeat(7);
      const shifted = await collect(talk.generate(text, { preset: "greedy", maxTokens: 16, overflow: "shift" }));
      const full = await code(collect(talk.generate(text + text, { preset: "greedy" })));
      await talk.dispose();
      return { ...shifted, full };
    });
    assert.deepEqual([gpu.full, cpu.full], ["context_full", "context_full"]);
    assert.deepEqual([gpu.reason, gpu.usage], [cpu.reason, cpu.usage]);
    assert.ok(gpu.usage.forgottenTokens > 0);
    // Equal until tokens are dropped: the keys kept by the CPU have attended to them, those recomputed by the GPU have not.
    const room = 80 - gpu.usage.promptTokens;
    assert.ok(room > 0 && room < gpu.tokens.length, `${room}`);
    assert.deepEqual(gpu.tokens.slice(0, room), cpu.tokens.slice(0, room));
  });

  test("a text becomes the same vector", async () => {
    for (const pooling of ["mean", "last"]) {
      const [gpu, cpu] = await both(`async (engine) => [...(await engine.embed("A cat sat.", { pooling: "${pooling}" }))]`);
      const far = Math.max(...gpu.map((x, i) => Math.abs(x - cpu[i])));
      assert.ok(gpu.length === cpu.length && far < 1e-4, `${far}`);
    }
  });

  test("a reply can be aborted, and the conversation continues", async () => {
    const [gpu, cpu] = await both(async (engine) => {
      const talk = await engine.conversation();
      const abort = new AbortController();
      let early = "";
      const aborted = await code((async () => {
        for await (const chunk of talk.chat(ask("Tell me a story about a cat."), { ...greedy, maxTokens: 64, signal: abort.signal })) {
          early += chunk.text;
          abort.abort();
        }
      })());
      for await (const _chunk of talk.chat(ask("Tell me a story about a cat."), { ...greedy, maxTokens: 64 })) break;
      const whole = await collect(talk.chat(ask("Tell me a story about a cat."), greedy));
      // Disposed during a step.
      const pending = code(collect(talk.chat(ask("Tell me a story about a dog."), { ...greedy, maxTokens: 64 })));
      await talk.dispose();
      return { early, aborted, whole, pending: await pending };
    });
    assert.deepEqual([gpu.aborted, gpu.pending], ["aborted", "disposed"]);
    assert.deepEqual([cpu.aborted, cpu.pending], ["aborted", "disposed"]);
    assert.ok(gpu.early !== "" && gpu.whole.text.startsWith(gpu.early.trimEnd()), JSON.stringify([gpu.early, gpu.whole.text]));
    assert.equal(gpu.whole.text, cpu.whole.text);
    assert.equal(gpu.whole.usage.cachedTokens, gpu.whole.usage.promptTokens - 1);
  });

  test("integers find likely what they do on the CPU", async () => {
    // One batch of rows, and one and a half.
    const lengths = [1, 13];
    const [gpu, cpu] = await page.evaluate(async (lengths) => {
      const { Engine } = await import("/index.js");
      const first = async (options) => {
        const engine = await Engine.load("model.gguf", { context: 448, ...options });
        const found = [];
        for (const times of lengths) {
          const text = "Once upon a time there was a cat that had a red ball. ".repeat(times);
          const { logprobs } = await collect(engine.generate(text, { preset: "greedy", maxTokens: 1, logprobs: 40 }));
          found.push(logprobs[0].top);
        }
        await engine.dispose();
        return found;
      };
      return [await first({ backend: "webgpu" }), await first({})];
    }, lengths);
    for (const [i, times] of lengths.entries()) {
      // Only those that noise cannot push out.
      for (const { token, logprob } of gpu[i].slice(0, 2)) {
        const want = cpu[i].find((other) => other.token === token)?.logprob;
        assert.ok(Math.abs(logprob - want) < 0.5, `${times}: ${token} ${logprob} ${want}`);
      }
    }
  });

  /** What an engine asks for, or is refused, and what it uses, in a page of its own; nothing where there are no subgroups. */
  async function subgroups(refuses) {
    const seen = await page.evaluate(async () => {
      const supported = (await navigator.gpu.requestAdapter()).features.has("subgroups") && navigator.gpu.wgslLanguageFeatures.has("subgroup_id");
      return { supported, named: gpu.info.isa.endsWith(", subgroups") };
    });
    assert.equal(seen.named, seen.supported);
    if (!seen.supported) return undefined;
    const own = await browser.newPage();
    own.setDefaultTimeout(120_000);
    await own.goto(server.url);
    const found = await own.evaluate(async (refuses) => {
      const { Engine } = await import("/local.js");
      const shaders = [];
      const create = GPUDevice.prototype.createShaderModule;
      GPUDevice.prototype.createShaderModule = function (descriptor) {
        shaders.push(descriptor.code);
        return create.call(this, descriptor);
      };
      const requests = [];
      const request = GPUAdapter.prototype.requestDevice;
      const watched = async function (descriptor) {
        const asked = [...(descriptor?.requiredFeatures ?? [])].includes("subgroups");
        requests.push(asked);
        if (asked && refuses) throw new TypeError("refused by the test");
        return request.call(this, descriptor);
      };
      GPUAdapter.prototype.requestDevice = watched;
      const loading = Engine.load("model.gguf", { backend: "webgpu", context: 64 });
      const adapter = await navigator.gpu.requestAdapter();
      // Of the page, in the meantime.
      const untouched = !(await request.call(adapter)).features.has("subgroups") && GPUAdapter.prototype.requestDevice === watched;
      const engine = await loading;
      const { isa } = engine.info;
      await engine.dispose();
      const using = shaders.filter((code) => code.includes("subgroupAdd(")).length;
      const enabled = shaders.filter((code) => code.includes("enable subgroups;")).length;
      return { requests, untouched: untouched && GPUAdapter.prototype.requestDevice === watched, named: isa.endsWith(", subgroups"), some: using > 0, all: enabled === shaders.length };
    }, refuses);
    await own.close();
    return found;
  }

  test("subgroups are used, and asked for by the engine alone", async () => {
    const found = await subgroups(false);
    if (found) assert.deepEqual(found, { requests: [true], untouched: true, named: true, some: true, all: true });
  });

  test("subgroups that are refused are done without", thorough, async () => {
    const found = await subgroups(true);
    if (found) assert.deepEqual(found, { requests: [true, false], untouched: true, named: false, some: false, all: false });
  });

  test("a GPU without extensions says the same, and a lost one is named", async () => {
    const plain = await browser.newPage();
    plain.setDefaultTimeout(120_000);
    await plain.addInitScript(() => {
      globalThis.asked = 0;
      GPUSupportedFeatures.prototype.has = WGSLLanguageFeatures.prototype.has = () => {
        globalThis.asked += 1;
        return false;
      };
      const request = GPUAdapter.prototype.requestDevice;
      GPUAdapter.prototype.requestDevice = async function (...args) {
        return (globalThis.device = await request.apply(this, args));
      };
    });
    await plain.goto(server.url);
    const { text, lost, truncated, asked, features, isa } = await plain.evaluate(async () => {
      // On the calling thread, whose prototypes were changed.
      const { Engine } = await import("/local.js");
      const options = { backend: "webgpu", activations: "f32", kv: "f32", context: 64 };
      const code = (promise) => promise.then(() => "none", (error) => error.code);
      const engine = await Engine.load("model.gguf", options);
      const reply = async () => {
        let text = "";
        for await (const chunk of engine.chat([{ role: "user", content: "What does a cow say?" }], { preset: "greedy", maxTokens: 4, thinking: true })) text += chunk.text;
        return text;
      };
      const text = await reply();
      globalThis.device.destroy();
      const lost = await code(reply());
      const bytes = await (await fetch("model.gguf")).arrayBuffer();
      const truncated = await code(Engine.load(new Blob([bytes.slice(0, -1000)]), options));
      return { text, lost, truncated, asked: globalThis.asked, features: [...globalThis.device.features], isa: engine.info.isa };
    });
    const expected = await page.evaluate(async () => (await collect(cpu.chat(ask("What does a cow say?"), greedy))).text);
    assert.equal(text, expected);
    assert.ok(asked > 0);
    assert.ok(!features.includes("subgroups") && !isa.includes("subgroups"), `${features} ${isa}`);
    assert.deepEqual([lost, truncated], ["gpu_lost", "truncated"]);
    await plain.close();
  });
});
