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
const TSC = resolve("typescript/package.json").replace("package.json", "bin/tsc");

/** What users write, with the types that they expect. */
const CODE = `
  import { Engine, ShohinError, type ChatCompletion, type ChatCompletionChunk, type Tool } from "shohin";
  import { Engine as LocalEngine } from "shohin/local";

  export const tools: Tool[] = [{ type: "function", function: { name: "add", description: "Adds", parameters: { type: "object" }, strict: true } }];

  export async function main(stream: boolean, signal: AbortSignal) {
    await using engine = await Engine.load("model.gguf", { signal, request: { headers: { Authorization: "x" }, credentials: "include", cache: "no-store" } });
    const request = { messages: [{ role: "user", content: "Hello!" }], tools } as const;
    const either: ChatCompletion | AsyncIterable<ChatCompletionChunk> = await engine.createChatCompletion({ ...request, stream }, { signal });
    const whole: ChatCompletion = await engine.createChatCompletion(request);
    const chunks: AsyncIterable<ChatCompletionChunk> = await engine.createChatCompletion({ ...request, stream: true });
    for await (const { text, finish } of engine.chat(request.messages, { tools, signal })) console.log(text, finish?.message.toolCalls);
    // @ts-expect-error A tool has a function.
    engine.chat(request.messages, { tools: [{ type: "function" }] });
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
    return [either, whole, chunks, local];
  }
`;

describe("the types of the packed package", { timeout: 120_000 }, () => {
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
    await writeFile(join(project, "main.ts"), CODE);
  });
  after(() => rm(project, { recursive: true }));

  test("have no imports from outside the package", async () => {
    const dist = join(project, "node_modules/shohin/dist");
    const files = (await readdir(dist, { recursive: true })).filter((file) => file.endsWith(".d.ts"));
    assert.ok(files.length > 8, `${files}`);
    for (const file of files) {
      const text = await readFile(join(dist, file), "utf8");
      for (const [, from] of text.matchAll(/(?:from |import\()"([^"]*)"/g)) {
        assert.ok(existsSync(join(dist, dirname(file), from.replace(/\.js$/, ".d.ts"))), `${file} imports ${from}`);
      }
    }
  });

  for (const [name, options] of Object.entries({
    "a page, with a bundler": { module: "esnext", moduleResolution: "bundler", lib: ["es2022", "dom"], types: [] },
    "a page, with Node's resolution": { module: "node16", moduleResolution: "node16", lib: ["es2022", "dom"], types: [] },
    "Node, without the DOM library": { module: "node16", moduleResolution: "node16", lib: ["es2022"], types: ["node"] },
    "Node and a bundler, without the DOM library": { module: "esnext", moduleResolution: "bundler", lib: ["es2022"], types: ["node"] },
    "Node, with both": { module: "node16", moduleResolution: "node16", lib: ["es2022", "dom"], types: ["node"] },
  })) {
    test(`compile for ${name}`, async () => {
      const compilerOptions = { ...options, target: "es2022", strict: true, exactOptionalPropertyTypes: true, skipLibCheck: false, noEmit: true };
      const file = join(project, "tsconfig.json");
      await writeFile(file, JSON.stringify({ compilerOptions, files: ["main.ts"] }));
      await execute(process.execPath, [TSC, "-p", file], { cwd: project }).catch(({ stdout, stderr }) => assert.fail(stdout + stderr));
    });
  }
});
