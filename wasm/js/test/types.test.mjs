// The types of the packed package in projects of strict users: `npm run build -w wasm` first.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, readdir, readFile, rename, rm, symlink, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { after, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

const execute = promisify(execFile);
const PACKAGE = fileURLToPath(new URL("../../", import.meta.url));
const { resolve } = createRequire(import.meta.url);
/** Optional: only their adapters import them. */
const PEERS = Object.keys(JSON.parse(await readFile(join(PACKAGE, "package.json"), "utf8")).peerDependencies);
const TSC = resolve("typescript/package.json").replace("package.json", "bin/tsc");

/** What users write, with the types that they expect. */
const CODE = `
  import { Engine, ShohinError, type ChatCompletion, type ChatCompletionChunk, type Tool } from "shohin";
  import { Engine as LocalEngine } from "shohin/local";
  import { createLanguageModel, type LanguageModel, type LanguageModelMessage } from "shohin/prompt-api";

  export const tools: Tool[] = [{ type: "function", function: { name: "add", description: "Adds", parameters: { type: "object" }, strict: true } }];

  export async function main(stream: boolean, signal: AbortSignal) {
    await using engine = await Engine.load("model.gguf", { signal, request: { headers: { Authorization: "x" }, credentials: "include", cache: "no-store" } });
    const request = { messages: [{ role: "user", content: "Hello!" }], tools } as const;
    const either: ChatCompletion | AsyncIterable<ChatCompletionChunk> = await engine.createChatCompletion({ ...request, stream }, { signal });
    const whole: ChatCompletion = await engine.createChatCompletion(request);
    const chunks: AsyncIterable<ChatCompletionChunk> = await engine.createChatCompletion({ ...request, stream: true });
    const added: { name: string; scale: number } = await engine.adapters.add(new Blob([]), { name: "poet", scale: 0.5, signal });
    engine.adapters.scale(added.name, 1);
    await using poet = await engine.conversation({ adapters: [{ name: "poet" }] });
    await engine.createChatCompletion(request, { adapters: [{ name: "poet", scale: 2 }] });
    await Engine.load("model.gguf", { adapters: [{ url: "poet.gguf" }, { data: new Uint8Array(), name: "judge" }] });
    // @ts-expect-error An adapter has one source.
    await Engine.load("model.gguf", { adapters: [{ url: "poet.gguf", data: new Blob([]) }] });
    console.log(await poet.reply("Hello!", { adapters: [] }), engine.adapters.list());
    for await (const { text, finish } of engine.chat(request.messages, { tools, signal })) console.log(text, finish?.message.toolCalls);
    for (const response_format of [{ type: "choice", choices: ["yes", "no"] }, { type: "regex", pattern: "a" }, { type: "grammar", grammar: "root ::= \\"a\\"" }, { type: "json_schema", json_schema: { description: "An object", schema: {} } }] as const) {
      await engine.createChatCompletion({ ...request, response_format });
    }
    // @ts-expect-error There is no such format.
    await engine.createChatCompletion({ ...request, response_format: { type: "xml" } });
    // @ts-expect-error A tool has a function.
    engine.chat(request.messages, { tools: [{ type: "function" }] });
    engine.chat(request.messages, { overflow: "trim" });
    // @ts-expect-error A plain text has no turns.
    engine.generate("x", { overflow: "trim" });
    // @ts-expect-error A model is not a number.
    await LocalEngine.load(5);
    const local = await LocalEngine.load(new Blob([]));
    const session = engine.session({
      system: "You add.",
      tools: { now: () => Date.now(), add: { parameters: { type: "object" }, run: ({ a, b }: { a: number; b: number }, { signal }) => (signal.aborted ? 0 : a + b) } },
    });
    for await (const { text, toolResults } of session.send("2 + 3?", { signal, temperature: 0 })) console.log(text, toolResults?.map(({ content }) => content));
    const { text, finish }: { text: string; finish: { reason: string } } = await session.reply("4 + 5?");
    console.log(String(await engine.reply("Hello!")), text, finish);
    const vectors: [Float32Array, Float32Array[]] = [await engine.embed("x"), await engine.embed(["x", "y"] as const)];
    await using other = await engine.conversation();
    await using inner = other.session();
    const { status, remaining, error } = await Engine.availability("bonsai-1.7b", { hub: "https://localhost" });
    if (status === "unavailable") console.log(error?.code, remaining, inner.messages.length, vectors);
    const sources = [new URL("https://localhost/model.gguf"), "part-00002-of-00002.gguf"];
    await Engine.load(sources).catch((error: unknown) => error instanceof ShohinError && error.code === "aborted");
    const Model = createLanguageModel({ model: "bonsai-1.7b", backend: "auto" });
    const initialPrompts: LanguageModelMessage[] = [{ role: "system", content: [{ type: "text", value: "Be kind." }] }];
    const talk: LanguageModel = await Model.create({
      initialPrompts,
      signal,
      monitor: (monitor) => {
        monitor.addEventListener("downloadprogress", ({ loaded, total }) => console.log(loaded / total));
        monitor.ondownloadprogress = ({ loaded }) => console.log(loaded);
      },
    });
    talk.oncontextoverflow = ({ type }) => console.log(type, talk instanceof Model);
    const pieces: ReadableStream<string> = talk.promptStreaming("Hello!", { responseConstraint: { type: "number" } });
    if ((await Model.availability()) === "unavailable") console.log(pieces, (await Model.params())?.maxTopK);
    // @ts-expect-error There is no such role.
    await talk.prompt([{ role: "cow", content: "Moo" }]);
    return [either, whole, chunks, local];
  }
`;

/** The same with the libraries that the package has adapters for. */
const ADAPTERS = `
  import type { EmbeddingModelV3, LanguageModelV3 } from "@ai-sdk/provider";
  import type { BaseChatModel } from "@langchain/core/language_models/chat_models";
  import type { Embeddings } from "@langchain/core/embeddings";
  import { Engine, type Message } from "shohin";
  import { Engine as LocalEngine } from "shohin/local";
  import { embeddingModel, languageModel } from "shohin/ai-sdk";
  import { ChatShohin, ShohinEmbeddings } from "shohin/langchain";
  import { useChat } from "shohin/react";

  export async function main() {
    const engine = await Engine.load("model.gguf");
    const models: LanguageModelV3[] = [languageModel(engine), languageModel(await engine.conversation(), { thinking: { budget: 9 } }), languageModel(await LocalEngine.load("model.gguf"))];
    // @ts-expect-error A call sets its tools.
    languageModel(engine, { tools: [] });
    const vectors: EmbeddingModelV3 = embeddingModel(engine, { pooling: "last" });
    const model: BaseChatModel = new ChatShohin({ engine, options: { topK: 20 }, verbose: false });
    const embeddings: Embeddings = new ShohinEmbeddings({ engine });
    await new ChatShohin({ engine }).bindTools([], { tool_choice: "any" }).invoke("Hello!", { options: { minP: 0.1 } });
    // @ts-expect-error There is no such option.
    await new ChatShohin({ engine }).invoke("Hello!", { options: { minp: 0.1 } });
    return [models, vectors, model, embeddings];
  }

  export function Chat() {
    const { status, messages, progress, error, send } = useChat("bonsai-1.7b", { system: "Be kind.", load: { backend: "auto" } });
    const all: readonly Message[] = messages;
    // @ts-expect-error There is no such status.
    if (status === "done") return;
    return [all, progress?.loaded, error, send("Hello!", { temperature: 0 })];
  }
`;

describe("the types of the packed package", { timeout: 300_000 }, () => {
  let project;
  before(async () => {
    project = await mkdtemp(join(tmpdir(), "shohin-"));
    await mkdir(join(project, "node_modules/@types"), { recursive: true });
    const npm = process.platform === "win32" ? "npm.cmd" : "npm";
    const { stdout } = await execute(npm, ["pack", "--json", "--ignore-scripts", "--pack-destination", project], { cwd: PACKAGE });
    await execute("tar", ["-xf", JSON.parse(stdout)[0].filename], { cwd: project });
    await rename(join(project, "package"), join(project, "node_modules/shohin"));
    await symlink(dirname(resolve("@types/node/package.json")), join(project, "node_modules/@types/node"), "junction");
    await writeFile(join(project, "package.json"), '{ "private": true, "type": "module" }');
    for (const name of PEERS) {
      const link = join(project, "node_modules", name);
      await mkdir(dirname(link), { recursive: true });
      await symlink(dirname(resolve(`${name}/package.json`)), link, "junction");
    }
    await writeFile(join(project, "main.ts"), CODE);
    await writeFile(join(project, "adapters.ts"), ADAPTERS);
  });
  after(() => rm(project, { recursive: true }));

  test("have no imports from outside the package", async () => {
    const dist = join(project, "node_modules/shohin/dist");
    const files = (await readdir(dist, { recursive: true })).filter((file) => file.endsWith(".d.ts"));
    assert.ok(files.length > 8, `${files}`);
    for (const file of files) {
      const text = await readFile(join(dist, file), "utf8");
      for (const [, from] of text.matchAll(/(?:from |import\()"([^"]*)"/g)) {
        const isPeer = /^(ai-sdk|langchain|react)\b/.test(file) && PEERS.some((name) => from === name || from.startsWith(`${name}/`));
        assert.ok(isPeer || existsSync(join(dist, dirname(file), from.replace(/\.js$/, ".d.ts"))), `${file} imports ${from}`);
      }
    }
  });

  async function compile(options, file) {
    const compilerOptions = { target: "es2022", strict: true, exactOptionalPropertyTypes: true, skipLibCheck: false, noEmit: true, ...options };
    const config = join(project, "tsconfig.json");
    await writeFile(config, JSON.stringify({ compilerOptions, files: [file] }));
    await execute(process.execPath, [TSC, "-p", config], { cwd: project }).catch(({ stdout, stderr }) => assert.fail(stdout + stderr));
  }

  for (const [name, options] of Object.entries({
    "a page, with a bundler": { module: "esnext", moduleResolution: "bundler", lib: ["es2022", "dom"], types: [] },
    "a page, with Node's resolution": { module: "node16", moduleResolution: "node16", lib: ["es2022", "dom"], types: [] },
    "Node, without the DOM library": { module: "node16", moduleResolution: "node16", lib: ["es2022"], types: ["node"] },
    "Node and a bundler, without the DOM library": { module: "esnext", moduleResolution: "bundler", lib: ["es2022"], types: ["node"] },
    "Node, with both": { module: "node16", moduleResolution: "node16", lib: ["es2022", "dom"], types: ["node"] },
  })) {
    test(`compile for ${name}`, () => compile(options, "main.ts"));
  }

  test("of the adapters compile with the libraries they are for", async () => {
    // The declarations of the libraries are not checked.
    const options = { lib: ["es2022", "dom"], types: [], skipLibCheck: true };
    await compile({ ...options, module: "esnext", moduleResolution: "bundler" }, "adapters.ts");
    await compile({ ...options, module: "node16", moduleResolution: "node16" }, "adapters.ts");
  });
});
