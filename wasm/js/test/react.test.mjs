// `shohin/react` in a page: `npm run build -w wasm` first.
import assert from "node:assert/strict";
import { mkdtemp, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";
import { build } from "esbuild";
import { launch, serve } from "./chromium.mjs";
import { scripted } from "./scripted.mjs";

const PACKAGE = fileURLToPath(new URL("../../", import.meta.url));
const MODEL = await readFile(new URL("../../../models/sprout-nano.gguf", import.meta.url));
const LIBRARIES = `
  import React from "react";
  export { createRoot } from "react-dom/client";
  export const { StrictMode, createElement, useCallback, useEffect, useRef, useState } = React;
`;
/** Renders the hook and shows all that it has returned. */
const PAGE = `<!doctype html><link rel="icon" href="data:," /><div id="root"></div>
  <script type="importmap">{ "imports": { "react": "./libraries.js", "shohin": "./shohin/dist/index.js", "shohin/react": "./shohin/dist/react.js" } }</script>
  <script type="module">
    import { createElement, createRoot, StrictMode } from "react";
    import { Engine } from "shohin";
    import { useChat } from "shohin/react";

    const root = createRoot(document.querySelector("#root"));
    globalThis.Engine = Engine;
    const Chat = ({ model, options }) => {
      globalThis.chat = useChat(model, options);
      seen.push(chat);
      for (const check of checks) check();
      return null;
    };
    let key = 0;
    /** Renders the mounted chat with another model. */
    globalThis.change = (model, options) => root.render(createElement(StrictMode, null, createElement(Chat, { key, model, options })));
    globalThis.mount = (model, options) => {
      globalThis.seen = [];
      globalThis.chat = { status: "mounting", messages: [] };
      key++;
      change(model, options);
    };
    globalThis.unmount = () => root.render(null);
    const checks = new Set();
    const told = (chat) => ({ ...chat, engine: undefined, error: chat.error && { name: chat.error.name, code: chat.error.code } });
    /**
     * Waits for a state that satisfies a condition: at every rendering, as some states end within milliseconds. The last one rendered may
     * be older than what has just been awaited, so a condition names what is new.
     */
    globalThis.until = (condition) =>
      new Promise((resolve, reject) => {
        const late = setTimeout(() => reject(new Error(\`\${condition}: \${JSON.stringify({ ...told(chat), error: String(chat.error) })}\`)), 120_000);
        const check = () => {
          if (!condition(chat)) return;
          clearTimeout(late);
          checks.delete(check);
          resolve(told(chat));
        };
        checks.add(check);
        check();
      });
    globalThis.ready = true;
  </script>`;

describe("useChat", () => {
  let project, server, browser, page, failures;
  before(async () => {
    project = await mkdtemp(join(tmpdir(), "shohin-"));
    await symlink(PACKAGE, join(project, "shohin"));
    const define = { "process.env.NODE_ENV": '"development"' };
    await build({ stdin: { contents: LIBRARIES, resolveDir: PACKAGE }, bundle: true, format: "esm", define, outfile: join(project, "libraries.js"), logLevel: "error" });
    await writeFile(join(project, "index.html"), PAGE);
    const body = (bytes) => (_request, response) => response.writeHead(200, { "Content-Length": bytes.length }).end(bytes);
    server = await serve(pathToFileURL(`${project}/`), { "/model.gguf": body(MODEL), "/tools.gguf": body(Buffer.from(scripted(["It is", " five."]))) });
    browser = await launch();
    page = await browser.newPage();
    failures = [];
    page.on("pageerror", (error) => failures.push(`${error}`));
    page.on("console", (message) => message.type() === "error" && !message.text().includes("404") && failures.push(message.text()));
    await page.goto(server.url);
    await page.waitForFunction("globalThis.ready");
  });
  after(async () => {
    await browser?.close();
    await server?.close();
    await rm(project, { recursive: true });
  });

  test("loads a model, streams a reply and disposes the model", async () => {
    const { seen, chat, expected, inUse } = await page.evaluate(async () => {
      const settings = { preset: "greedy", maxTokens: 12 };
      mount("model.gguf", { system: "Be kind.", ...settings });
      await until(({ status }) => status === "ready");
      void chat.send("Hello!");
      await until(({ status }) => status === "streaming");
      // One at a time.
      await chat.send("Ignored.");
      const first = await until(({ status }) => status === "ready");
      const { engine } = chat;
      const ask = [{ role: "system", content: "Be kind." }, { role: "user", content: "Hello!" }];
      const expected = (await engine.reply(ask, settings)).finish.message;
      unmount();
      // React cleans up when it has time.
      let inUse = true;
      for (const end = performance.now() + 120_000; inUse === true && performance.now() < end; ) {
        inUse = await engine.tokenize("x").then(() => true, ({ code }) => code);
      }
      return { seen: seen.map(({ status, progress, messages }) => ({ status, loaded: progress?.loaded, messages })), chat: first, expected, inUse };
    });
    assert.deepEqual(chat.messages, [{ role: "user", content: "Hello!" }, expected]);
    assert.deepEqual([...new Set(seen.map(({ status }) => status))], ["loading", "ready", "streaming"]);
    assert.ok(seen.some(({ loaded }) => loaded === MODEL.length));
    const texts = seen.flatMap(({ messages }) => messages.slice(1).map(({ content }) => content));
    assert.ok(texts.includes("") && texts.every((text) => expected.content.startsWith(text)), texts.join("|"));
    assert.equal(inUse, "disposed");
    assert.deepEqual(failures, []);
  });

  test("keeps what was written before a stop, and continues from it", async () => {
    const { stopped, after, cleared, inUse } = await page.evaluate(async () => {
      const engine = await Engine.load("model.gguf", { context: 512 });
      // Without an end, within the context.
      mount(engine, { preset: "greedy", responseFormat: { type: "json_schema", schema: { type: "string", minLength: 300 } } });
      await until(({ status }) => status === "ready");
      void chat.send("Hello!");
      await until(({ messages }) => messages[1]?.content.length > 2);
      chat.stop();
      const stopped = await until(({ status }) => status === "ready");
      await chat.send("And then?", { maxTokens: 4, responseFormat: { type: "text" } });
      const after = await until(({ status, messages }) => status === "ready" && messages.length === 4);
      void chat.send("More.");
      await until(({ messages }) => messages.length === 6);
      chat.setMessages([]);
      const cleared = await until(({ status, messages }) => status === "ready" && messages.length === 0);
      await chat.send("Hello!", { maxTokens: 2, responseFormat: { type: "text" } });
      await until(({ status, messages }) => status === "ready" && messages.length === 2);
      unmount();
      // The caller's.
      const inUse = await engine.tokenize("x").then(() => true, ({ code }) => code);
      await engine.dispose();
      return { stopped, after, cleared, inUse };
    });
    assert.deepEqual(stopped.messages.map(({ role }) => role), ["user", "assistant"]);
    assert.ok(stopped.messages[1].content.length > 2 && stopped.error === undefined);
    assert.deepEqual(after.messages.slice(0, 3), [...stopped.messages, { role: "user", content: "And then?" }]);
    assert.equal(after.messages.length, 4);
    assert.deepEqual([cleared.messages, cleared.error, inUse], [[], undefined, true]);
    assert.deepEqual(failures, []);
  });

  test("shows calls of tools and their results", async () => {
    const { messages } = await page.evaluate(async () => {
      const engine = await Engine.load("tools.gguf", { activations: "f32" });
      const parameters = { type: "object", properties: { a: { const: 2 } }, required: ["a"] };
      mount(engine, { preset: "greedy", maxTokens: 60, thinking: true, toolChoice: "required", tools: { add: { parameters, run: ({ a }) => a + 3 } } });
      await until(({ status }) => status === "ready");
      await chat.send("2 + 3?");
      const shown = await until(({ status, messages }) => status === "ready" && messages.length === 4);
      unmount();
      await engine.dispose();
      return shown;
    });
    const [question, call, ...rest] = messages;
    assert.deepEqual([question.role, call.toolCalls], ["user", [{ name: "add", arguments: '{"a":2}' }]]);
    assert.deepEqual(rest, [{ role: "tool", content: "5" }, { role: "assistant", content: "It is five." }]);
  });

  test("ends a reply as a stop does when the model changes", async () => {
    const { kept, after, unanswered, progress } = await page.evaluate(async () => {
      const options = { preset: "greedy", responseFormat: { type: "json_schema", schema: { type: "string", minLength: 300 } } };
      const plain = { preset: "greedy", maxTokens: 2 };
      const [first, second] = await Promise.all([1, 2].map(() => Engine.load("model.gguf", { context: 512 })));
      const tools = await Engine.load("tools.gguf", { activations: "f32" });
      mount(first, options);
      await until(({ status }) => status === "ready");
      void chat.send("Hello!");
      await until(({ messages }) => messages[1]?.content.length >= 2);
      change(second, plain);
      const kept = (await until(({ engine, status }) => engine === second && status === "ready")).messages;
      await chat.send("And then?");
      const after = await until(({ status, messages }) => status === "ready" && messages.length === 4);
      // Of a call whose function has not returned.
      const parameters = { type: "object", properties: { a: { const: 2 } }, required: ["a"] };
      let called;
      const call = new Promise((resolve) => (called = resolve));
      const run = () => new Promise(called);
      mount(tools, { preset: "greedy", maxTokens: 60, thinking: true, toolChoice: "required", tools: { add: { parameters, run } } });
      await until(({ status }) => status === "ready");
      void chat.send("2 + 3?");
      const end = await call;
      seen.length = 0;
      change("model.gguf", plain);
      await until(({ status, engine }) => status === "ready" && engine !== tools);
      end(5);
      const unanswered = [chat.messages];
      const loaded = seen.length;
      change("missing.gguf", plain);
      await until(({ status }) => status === "failed");
      const progress = seen.slice(loaded).findLast(({ status }) => status === "loading").progress;
      unanswered.push(chat.messages);
      unmount();
      for (const engine of [first, second, tools]) await engine.dispose();
      return { kept, after, unanswered, progress };
    });
    assert.ok(kept.length === 2 && kept[1].content.length >= 2);
    assert.deepEqual([after.messages.slice(0, 3), after.messages.length, after.error], [[...kept, { role: "user", content: "And then?" }], 4, undefined]);
    assert.deepEqual(unanswered, [[{ role: "user", content: "2 + 3?" }], [{ role: "user", content: "2 + 3?" }]]);
    assert.equal(progress, undefined);
    assert.deepEqual(failures, []);
  });

  test("has failed once the engine is lost", async () => {
    const { lost, after, other } = await page.evaluate(async () => {
      const { Worker } = globalThis;
      const workers = [];
      globalThis.Worker = class extends Worker {
        constructor(...all) {
          super(...all);
          workers.push(this);
        }
      };
      mount("model.gguf");
      await until(({ status }) => status === "ready");
      globalThis.Worker = Worker;
      void chat.send("Hello!");
      await until(({ status }) => status === "streaming");
      for (const worker of workers) worker.dispatchEvent(new ErrorEvent("error", { message: "lost" }));
      const lost = await until(({ error, status }) => error && status !== "streaming");
      const isGone = chat.engine === undefined;
      await chat.send("Ignored.");
      const after = { status: chat.status, isGone };
      const engine = await Engine.load("model.gguf");
      mount(engine);
      await until(({ status }) => status === "ready");
      await engine.dispose();
      await chat.send("Hello!");
      const other = await until(({ error }) => error);
      unmount();
      return { lost, after, other };
    });
    assert.deepEqual([lost.status, lost.error.code, lost.messages], ["failed", "worker", []]);
    assert.deepEqual(after, { status: "failed", isGone: true });
    assert.deepEqual([other.status, other.error.code], ["failed", "disposed"]);
    assert.deepEqual(failures, []);
  });

  test("reports a model that cannot be loaded, and takes back a message that fails", async () => {
    const { failed, missing, taken } = await page.evaluate(async () => {
      mount("missing.gguf");
      const failed = await until(({ status }) => status === "failed");
      await chat.send("Ignored.");
      mount(undefined);
      const missing = await until(({ status }) => status === "failed");
      mount("model.gguf", { initialMessages: [{ role: "user", content: "Hello!" }, { role: "assistant", content: "Hi!" }] });
      await until(({ status }) => status === "ready");
      await chat.send("Why?", { temperature: -1 });
      const taken = await until(({ error }) => error);
      unmount();
      return { failed, missing, taken };
    });
    assert.deepEqual(missing.error, { name: "ShohinError", code: "argument" });
    assert.deepEqual([failed.error, failed.messages], [{ name: "ShohinError", code: "http" }, []]);
    assert.deepEqual([taken.error.code, taken.messages.map(({ content }) => content), taken.status], ["option", ["Hello!", "Hi!"], "ready"]);
    assert.deepEqual(failures, []);
  });
});
