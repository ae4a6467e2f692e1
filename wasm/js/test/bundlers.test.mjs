// The package as bundlers build it without configuration, compared with the unbundled files: `npm run build -w wasm` first.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, readdir, readFile, realpath, rm, symlink, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { after, before, describe, test } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";
import { promisify } from "node:util";
import webpack from "webpack";
import { launch, serve } from "./chromium.mjs";
import { guides } from "./examples.mjs";

const execute = promisify(execFile);
const PACKAGE = fileURLToPath(new URL("../../", import.meta.url));
const MODEL = await readFile(new URL("../../../models/sprout.gguf", import.meta.url));
// A dependency of the chat page.
const VITE = createRequire(new URL("../../../web-demo/package.json", import.meta.url));
const { build, createServer } = await import(pathToFileURL(VITE.resolve("vite")));

const ISOLATION = { "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp" };
const MAIN = `
  import { Engine } from "shohin";
  import { Engine as LocalEngine } from "shohin/local";
  import { createLanguageModel } from "shohin/prompt-api";

  const out = document.querySelector("#out");
  try {
    const engine = await (location.search === "?local" ? LocalEngine : Engine).load("models/sprout.gguf");
    const chunks = engine.generate("Once upon a time", { preset: "greedy", maxTokens: 40 });
    for await (const { text } of chunks) out.textContent += text;
    const session = await createLanguageModel({ model: engine }).create();
    if (session.contextWindow !== engine.context) throw new Error("not the same engine");
    out.dataset.info = JSON.stringify(engine.info);
    await engine.dispose();
  } catch (error) {
    out.dataset.error = String(error);
  }`;
const html = (scripts) => `<!doctype html><title>test</title><link rel="icon" href="data:," /><pre id="out"></pre>${scripts}`;

describe("bundlers", { timeout: 600_000 }, () => {
  let project, browser, plain, isolated, local;

  before(async () => {
    project = await realpath(await mkdtemp(join(tmpdir(), "shohin-")));
    await writeFile(join(project, "package.json"), '{ "private": true, "type": "module" }');
    await writeFile(join(project, "main.js"), MAIN);
    const npm = (...words) => execute(process.platform === "win32" ? "npm.cmd" : "npm", words, { cwd: project });
    const { stdout } = await npm("pack", "--json", "--ignore-scripts", PACKAGE);
    await npm("install", "--offline", "--no-audit", "--no-fund", `./${JSON.parse(stdout)[0].filename}`);
    browser = await launch();
    const map = { imports: { shohin: "./node_modules/shohin/dist/index.js", "shohin/local": "./node_modules/shohin/dist/local.js", "shohin/prompt-api": "./node_modules/shohin/dist/prompt-api.js" } };
    await writeFile(join(project, "plain.html"), html(`<script type="importmap">${JSON.stringify(map)}</script><script type="module" src="main.js"></script>`));
    await writeFile(join(project, "index.html"), html('<script type="module" src="main.js"></script>'));
    plain = await says(".", {}, "plain.html");
    isolated = await says(".", ISOLATION, "plain.html");
    local = await says(".", {}, "plain.html?local");
  });
  after(async () => {
    await browser?.close();
    await rm(project, { recursive: true });
  });

  /** The text of the page of a directory and the info of its engine; fails on any error or warning. */
  async function says(directory, headers = {}, name = "") {
    const model = (_request, response) => response.writeHead(200, { "Content-Length": MODEL.length }).end(MODEL);
    const server = await serve(pathToFileURL(`${join(project, directory)}/`), { "/models/sprout.gguf": model }, headers);
    try {
      const said = await shows(server.url + name);
      assert.deepEqual(server.missing, []);
      return said;
    } finally {
      await server.close();
    }
  }

  /** The same of the page at an address. */
  async function shows(url) {
    const page = await browser.newPage();
    const complaints = [];
    let workers = 0;
    page.on("worker", () => workers++);
    page.on("console", (message) => ["error", "warning"].includes(message.type()) && complaints.push(message.text()));
    page.on("pageerror", (error) => complaints.push(`${error}`));
    try {
      await page.goto(url);
      const done = page.waitForSelector("#out[data-info], #out[data-error]", { state: "attached", timeout: 120_000 });
      const out = await done.catch((error) => assert.fail(`${error}\n${complaints.join("\n")}`));
      const { text, info, error, cores, crossOriginIsolated } = await out.evaluate(({ textContent, dataset }) => ({
        ...dataset,
        text: textContent,
        cores: navigator.hardwareConcurrency,
        crossOriginIsolated,
      }));
      assert.equal(error, undefined);
      assert.deepEqual(complaints, []);
      return { text, info: JSON.parse(info), workers, cores, crossOriginIsolated };
    } finally {
      await page.close();
    }
  }

  /** Checksums of the modules in a directory. */
  async function modules(directory) {
    const files = (await readdir(join(project, directory), { recursive: true })).filter((file) => file.endsWith(".wasm"));
    const sum = async (file) => createHash("sha256").update(await readFile(join(project, directory, file))).digest("hex");
    return (await Promise.all(files.map(sum))).sort();
  }

  /** Checks that a build behaves like the unbundled page. */
  async function agrees(directory) {
    assert.deepEqual(await says(directory), plain);
    assert.deepEqual(await says(directory, ISOLATION), isolated);
    assert.deepEqual(await says(directory, {}, "?local"), local);
    // Including those for the GPU, which is not tested here, as the software adapter is too slow.
    assert.deepEqual(await modules(directory), await modules("node_modules/shohin/dist"));
  }

  /** Writes the configuration in a page of docs/web into the project; returns its path. */
  async function documented(guide) {
    const [{ text }] = (await guides())[guide].blocks;
    const file = join(project, `documented.${guide}.config.js`);
    await writeFile(file, text);
    return file;
  }

  /** Whether the package has an optional file. */
  const has = (file) => existsSync(join(project, "node_modules/shohin/dist", file));

  test("are compared with a package that uses all of its modules", () => {
    assert.ok(plain.text.length > 20, plain.text);
    assert.deepEqual([isolated.text, local.text], [plain.text, plain.text]);
    assert.deepEqual([plain.crossOriginIsolated, isolated.crossOriginIsolated], [false, true]);
    if (has("shohin_wasm_relaxed_bg.wasm")) assert.match(plain.info.isa, /^relaxed/);
    if (has("shohin_wasm_threads_relaxed_bg.wasm")) assert.match(isolated.info.isa, /^relaxed/);
    assert.deepEqual([plain.info.threads, plain.workers, isolated.workers, local.workers], [1, 1, isolated.info.threads, 0]);
    if (has("threads.js")) assert.equal(isolated.info.threads, Math.min(isolated.cores, 16));
  });

  test("webpack", async () => {
    const output = { path: join(project, "webpack") };
    const { default: settings } = await import(pathToFileURL(await documented("webpack")));
    assert.deepEqual(settings.devServer.headers, ISOLATION);
    const stats = await new Promise((resolve, reject) => webpack({ ...settings, context: project, output }, (error, stats) => (error ? reject(error) : resolve(stats))));
    const { errors, warnings } = stats.toJson({ all: false, errors: true, warnings: true });
    assert.deepEqual([...errors, ...warnings].map(({ message }) => message), []);
    await writeFile(join(output.path, "index.html"), html('<script defer src="main.js"></script>'));
    await agrees("webpack");
  });

  test("Vite", async () => {
    await build({ root: project, logLevel: "warn" });
    await agrees("dist");
  });

  test("Vite's development server", async () => {
    await mkdir(join(project, "public/models"), { recursive: true });
    await writeFile(join(project, "public/models/sprout.gguf"), MODEL);
    await symlink(dirname(VITE.resolve("vite/package.json")), join(project, "node_modules/vite"), "junction");
    const config = await documented("vite");
    for (const [configFile, name, expected] of [[false, "", plain], [config, "", isolated], [false, "?local", local]]) {
      const server = await createServer({ root: project, configFile, logLevel: "warn", server: { host: "127.0.0.1", port: 0 } });
      try {
        await server.listen();
        assert.deepEqual(await shows(server.resolvedUrls.local[0] + name), expected);
      } finally {
        await server.close();
      }
    }
  });
});
