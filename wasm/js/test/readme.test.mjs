// The examples in README.md and docs/web, as a reader would copy them, and the packed package: `npm run build -w wasm` first.
import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { copyFile, lstat, mkdir, mkdtemp, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { after, before, describe, test } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";
import { promisify } from "node:util";
import { brotliCompressSync } from "node:zlib";
import { build, transform } from "esbuild";
import { launch, serve } from "./chromium.mjs";
import { publish } from "./publish.mjs";
import { blocksOf, guides } from "./examples.mjs";
import { scripted } from "./scripted.mjs";

const execute = promisify(execFile);
const require = createRequire(import.meta.url);
const PACKAGE = fileURLToPath(new URL("../../", import.meta.url));
const README = await readFile(join(PACKAGE, "README.md"), "utf8");
const BLOCKS = blocksOf(README);
const GUIDES = await guides();
const blocks = (kind) => BLOCKS.filter((block) => block.kind === kind).map(({ text }) => text);
/** Prepended to examples that use the engine of the first one. */
const PRELUDE = 'import { Engine } from "shohin";\nconst engine = await Engine.load("bonsai-1.7b");\n';
const SPROUT = await readFile(new URL("../../../models/sprout.gguf", import.meta.url));
/** Calls a tool if it must. */
const TOOLS = Buffer.from(scripted(["It is", " noon."]));
const whole = (text) => (text.includes("import ") ? text : PRELUDE + text);

describe("README.md and docs/web", { timeout: 300_000 }, () => {
  let project, server, browser;
  before(async () => {
    project = await mkdtemp(join(tmpdir(), "shohin-"));
    for (const directory of ["node_modules/@langchain", "node_modules/@types"]) await mkdir(join(project, directory), { recursive: true });
    // What the guides say to install.
    for (const name of ["@langchain/core", "@types/react", "ai", "react", "react-dom", "sirv", "zod"]) {
      await symlink(dirname(require.resolve(`${name}/package.json`)), join(project, "node_modules", name), "junction");
    }
    await symlink(PACKAGE, join(project, "node_modules/shohin"));
    await symlink(fileURLToPath(new URL("../../../models", import.meta.url)), join(project, "models"));
    await copyFile(fileURLToPath(new URL("../../../tests/fixtures/lora/sprout.gguf", import.meta.url)), join(project, "pirate.gguf"));
    server = await serve(pathToFileURL(`${project}/`));
    browser = await launch();
  });
  after(async () => {
    await browser?.close();
    await server?.close();
    await rm(project, { recursive: true });
  });

  /** Opens a page of the project, in which every model is `model`, and waits until `done` accepts its text and console output. */
  async function shows(name, done, { at = server, model = SPROUT, act = async () => {} } = {}) {
    const page = await browser.newPage();
    // In place of the hub, which would send the real model.
    const headers = { "Access-Control-Allow-Origin": "*" };
    await page.context().route("https://huggingface.co/**", (route) => route.fulfill({ status: 200, headers, body: model }));
    await publish(page.context(), model);
    const said = [];
    page.on("console", (message) => said.push(message.text()));
    page.on("pageerror", (error) => said.push(`error: ${error}`));
    await page.goto(at.url + name);
    await act(page);
    for (let tries = 0; ; tries++) {
      const text = await page.evaluate(() => document.querySelector("#out")?.textContent ?? "");
      if (done(text, said)) break;
      assert.ok(tries < 6000 && !said.some((line) => line.startsWith("error")), `${name}: ${text}\n${said.join("\n")}`);
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    await page.close();
  }

  test("has examples of the languages tested here, and no others", () => {
    assert.deepEqual(BLOCKS.map(({ kind }) => kind), ["sh", "ts", "html", "js", "ts", "ts", "ts", "ts", "ts", "sh"]);
  });

  test("says how to install the package, and not by a link", async () => {
    const folder = await mkdtemp(join(tmpdir(), "shohin-"));
    try {
      await writeFile(join(folder, "package.json"), "{}");
      const [commands] = blocks("sh");
      const script = commands.replace("PATH/TO/REPOSITORY/wasm", PACKAGE);
      assert.notEqual(script, commands);
      await execute("sh", ["-ec", script], { cwd: folder, env: { ...process.env, npm_config_offline: "true" } });
      assert.ok((await lstat(join(folder, "node_modules/shohin"))).isDirectory());
      const program = 'import { Engine } from "shohin"; console.log(typeof Engine.load)';
      assert.equal((await execute(process.execPath, ["--input-type=module", "--eval", program], { cwd: folder })).stdout, "function\n");
    } finally {
      await rm(folder, { recursive: true });
    }
  });

  async function compile(files, ...more) {
    for (const [name, text] of Object.entries(files)) await writeFile(join(project, name), text);
    const bin = require.resolve("typescript/package.json").replace("package.json", "bin/tsc");
    const options = ["--noEmit", "--strict", "--noUncheckedIndexedAccess", "--exactOptionalPropertyTypes", "--target", "es2022", "--module", "nodenext", "--lib", "es2022,dom,dom.asynciterable", "--types", "", ...more];
    await execute(process.execPath, [bin, ...options, ...Object.keys(files)], { cwd: project }).catch(({ stdout, stderr }) => assert.fail(stdout + stderr));
  }

  test("compiles in strict TypeScript", async () => {
    await compile(Object.fromEntries(blocks("ts").map((text, i) => [`block-${i}.mts`, whole(text)])));
    const files = Object.entries(GUIDES).flatMap(([name, { blocks }]) => blocks.filter(({ kind }) => kind.startsWith("ts")).map(({ kind, text }) => [`guide-${name}.m${kind}`.replace(".mtsx", ".tsx"), text]));
    // Declarations of other packages are not checked.
    await compile({ ...Object.fromEntries(files), "package.json": '{ "type": "module" }' }, "--skipLibCheck", "--jsx", "react-jsx");
  });

  test("runs in a page", async () => {
    const [plain] = blocks("html");
    await writeFile(join(project, "plain.html"), plain);
    await shows("plain.html", (text) => text.length > 5);
    const dist = "./node_modules/shohin/dist";
    const map = /<script type="importmap">.*?<\/script>/s.exec(plain)[0].replace('" }', `", "shohin/prompt-api": "${dist}/prompt-api.js" }`);
    const expected = {
      chat: (text, said) => text.length > 5 && said.some((line) => /^(stop|length) \d/.test(line)),
      tools: (text) => text === "It is noon.",
      form: (_, said) => said.some((line) => /^\d$/.test(line)),
      adapters: (_, said) => said.includes("Ahoy! I am a pirate.") && said.includes("Hi! How are you today?"),
      teach: (_, said) => said.includes("true Your dog is called Biscuit."),
      session: (text, said) => text.length > 5 && said.includes("0") && said.includes("1"),
    };
    for (const [i, [name, done]] of Object.entries(expected).entries()) {
      const { code } = await transform(whole(blocks("ts")[i]), { loader: "ts" });
      await writeFile(join(project, `${name}.html`), `<!doctype html><pre id="out"></pre>${map}<script type="module">${code}</script>`);
      await shows(`${name}.html`, done, name === "tools" ? { model: TOOLS } : {});
    }
  });

  test("has guides whose examples are all tested", () => {
    const kinds = Object.entries(GUIDES).map(([name, { blocks }]) => [name, blocks.map(({ kind }) => kind).join()]);
    // Those of Vite and webpack by bundlers.test.mjs.
    assert.deepEqual(Object.fromEntries(kinds), { "ai-sdk": "ts", browsers: "", csp: "html,js", hosting: "js", html: "html", langchain: "ts", rag: "ts", react: "tsx", tools: "ts", vite: "js", webpack: "js" });
  });

  test("has guides whose examples run in a page", async () => {
    const map = '<script type="importmap">{ "imports": { "shohin": "./node_modules/shohin/dist/index.js" } }</script>';
    const shohin = { name: "shohin", setup: ({ onResolve }) => onResolve({ filter: /^shohin$/ }, ({ path }) => ({ path, external: true })) };
    const page = async (name, then = "") => {
      const [{ kind, text }] = GUIDES[name].blocks;
      const { outputFiles: [{ text: code }] } = await build({
        stdin: { contents: text + then, loader: kind, resolveDir: project },
        bundle: true,
        format: "esm",
        write: false,
        jsx: "automatic",
        define: { "process.env.NODE_ENV": '"production"' },
        plugins: [shohin],
        logLevel: "error",
      });
      await writeFile(join(project, `guide-${name}.js`), code);
      await writeFile(join(project, `guide-${name}.html`), `<!doctype html><link rel="icon" href="data:,"><div id="out"></div>${map}<script type="module" src="guide-${name}.js"></script>`);
      return `guide-${name}.html`;
    };
    await shows(await page("tools"), (text) => text === "It is noon.", { model: TOOLS });
    await shows(await page("rag"), (text) => text.length > 5);
    await shows(await page("ai-sdk"), (text, said) => text === "It is noon." && said.some((line) => /^legs: \d$/.test(line)) && said.some((line) => /^result: It is noon in .*\.$/.test(line)), { model: TOOLS });
    await shows(await page("langchain"), (text, said) => text.length > 5 && said.some((line) => /^legs: \d$/.test(line)) && said.includes("dimensions: 256"));
    const render = 'import { createRoot } from "react-dom/client"; createRoot(document.querySelector("#out")).render(<Chat />);';
    const send = async (page) => {
      await page.fill("input", "Hello!");
      await page.click("button:text('Send')");
    };
    await shows(await page("react", render), (text) => /^Hello!.{5,}SendStop$/.test(text), { act: send });
  });

  test("has guides to pages without a bundler", async () => {
    await symlink(join(PACKAGE, "dist"), join(project, "shohin"), "junction");
    await writeFile(join(project, "guide.html"), GUIDES.html.blocks[0].text);
    await shows("guide.html", (text) => text.length > 5, { act: (page) => page.click("button:enabled") });
    const [page, script] = GUIDES.csp.blocks;
    await writeFile(join(project, "guide-csp.html"), page.text);
    await writeFile(join(project, "main.js"), script.text);
    await shows("guide-csp.html", (text) => text.length > 5);
    const [, policy] = /content="([^"]*)"/.exec(page.text);
    const header = (policy) => ({ "Content-Security-Policy": policy.replaceAll("\n", " ") });
    const strict = await serve(pathToFileURL(`${project}/`), {}, header(policy));
    await shows("guide-csp.html", (text) => text.length > 5, { at: strict }).finally(strict.close);
    // It takes effect.
    const stricter = await serve(pathToFileURL(`${project}/`), {}, header(policy.replace("'wasm-unsafe-eval'", "")));
    await assert.rejects(shows("guide-csp.html", (text) => text.length > 5, { at: stricter }).finally(stricter.close), /WebAssembly/);
  });

  test("has a guide to a server that sends what it says", async () => {
    await mkdir(join(project, "dist/assets"), { recursive: true });
    await writeFile(join(project, "dist/assets/main.js"), "export {};");
    await writeFile(join(project, "dist/assets/main.js.br"), brotliCompressSync("export {};"));
    await writeFile(join(project, "dist/model.gguf"), SPROUT);
    await writeFile(join(project, "dist/shohin_wasm_bg.wasm"), "");
    await writeFile(join(project, "server.mjs"), GUIDES.hosting.blocks[0].text);
    const port = await new Promise((resolve) => {
      const probe = createServer().listen(0, "127.0.0.1", () => {
        const { port } = probe.address();
        probe.close(() => resolve(port));
      });
    });
    const child = spawn(process.execPath, ["server.mjs"], { cwd: project, env: { ...process.env, PORT: port }, stdio: ["ignore", "ignore", "inherit"] });
    try {
      const get = async (path, headers) => {
        for (let tries = 0; ; tries++) {
          try {
            return await fetch(`http://127.0.0.1:${port}/${path}`, { headers });
          } catch (error) {
            if (tries > 4000) throw error;
            await new Promise((resolve) => setTimeout(resolve, 25));
          }
        }
      };
      const script = await get("assets/main.js", { "Accept-Encoding": "br" });
      assert.deepEqual([await script.text(), script.headers.get("content-encoding")], ["export {};", "br"]);
      assert.match(script.headers.get("cache-control"), /immutable/);
      for (const [name, value] of [["opener", "same-origin"], ["embedder", "require-corp"]]) assert.equal(script.headers.get(`cross-origin-${name}-policy`), value);
      assert.equal((await get("shohin_wasm_bg.wasm")).headers.get("content-type"), "application/wasm");
      const part = await get("model.gguf", { Range: "bytes=4-7" });
      assert.deepEqual([part.status, part.headers.get("content-range")], [206, `bytes 4-7/${SPROUT.length}`]);
      assert.deepEqual(Buffer.from(await part.arrayBuffer()), SPROUT.subarray(4, 8));
      const whole = await get("model.gguf");
      assert.deepEqual([whole.headers.get("content-length"), whole.headers.get("content-encoding")], [String(SPROUT.length), null]);
      assert.ok(whole.headers.get("etag"));
    } finally {
      child.kill();
      await once(child, "exit");
    }
  });

  test("runs in Node", async () => {
    for (const [i, text] of blocks("js").entries()) {
      await writeFile(join(project, `block-${i}.mjs`), text);
      const { stdout } = await execute(process.execPath, [`block-${i}.mjs`], { cwd: project });
      assert.ok(stdout.length > 5, stdout);
    }
  });

  test("names every option, and has no broken links", async () => {
    const types = await readFile(join(PACKAGE, "dist/api/options.d.ts"), "utf8");
    for (const name of ["LoadOptions", "GenerateOptions", "ChatOptions", "SessionOptions", "Availability", "EmbedOptions", "RestoreOptions", "AdapterOptions"]) {
      const body = new RegExp(`export interface ${name} [^]*?\n}`).exec(types)[0];
      for (const [, option] of body.matchAll(/^ {4}(\w+)\??:/gm)) assert.ok(README.includes(`\`${option}`) || new RegExp(`\\b${option}\\b`).test(README), `${name}.${option}`);
    }
    const headings = [...README.matchAll(/^#+ (.*)$/gm)].map(([, text]) => `#${text.toLowerCase().replaceAll(" ", "-")}`);
    const { repository } = JSON.parse(await readFile(join(PACKAGE, "package.json"), "utf8"));
    const home = repository.url.replace(/^git\+|\.git$/g, "");
    for (const [, link] of README.matchAll(/\]\(([^)]*)\)/g)) {
      if (link.startsWith("#")) assert.ok(headings.includes(link), link);
      else if (link.startsWith(home)) assert.ok(existsSync(new URL(`../../../${link.slice(`${home}/blob/main/`.length).split("#")[0]}`, import.meta.url)), link);
      else assert.ok(link.startsWith("https://"), `${link} leads nowhere from within the package`);
    }
    for (const [name, { path, text }] of Object.entries(GUIDES)) {
      assert.ok(README.includes(`docs/web/${name}.md`), `no link to docs/web/${name}.md`);
      for (const [, link] of text.matchAll(/\]\(([^)]*)\)/g)) {
        const [file, anchor] = link.split("#");
        assert.ok(link.startsWith("https://") || existsSync(join(dirname(path), file)), `${name}: ${link}`);
        if (anchor && file.endsWith("wasm/README.md")) assert.ok(headings.includes(`#${anchor}`), `${name}: ${link}`);
      }
    }
  });
});

test("the packed package contains all files that it loads", async () => {
  const npm = process.platform === "win32" ? "npm.cmd" : "npm";
  const { stdout } = await execute(npm, ["pack", "--dry-run", "--json", "--ignore-scripts"], { cwd: PACKAGE });
  const files = new Set(JSON.parse(stdout)[0].files.map(({ path }) => path));
  const needed = ["README.md", "LICENSE-MIT", "LICENSE-APACHE", "dist/index.d.ts", "dist/index.js", "dist/local.js", "dist/node.js", "dist/worker.js", "dist/shohin_wasm_bg.wasm", ...["prompt-api", "ai-sdk", "langchain", "react"].flatMap((name) => [`dist/${name}.js`, `dist/${name}.d.ts`])];
  if (existsSync(join(PACKAGE, "module-relaxed"))) needed.push("dist/shohin_wasm_relaxed_bg.wasm");
  if (existsSync(join(PACKAGE, "module-threads"))) needed.push("dist/threads.js", "dist/shohin_wasm_threads_bg.wasm");
  if (existsSync(join(PACKAGE, "module-threads-relaxed"))) needed.push("dist/shohin_wasm_threads_relaxed_bg.wasm");
  if (existsSync(join(PACKAGE, "module-webgpu"))) needed.push("dist/webgpu.js", "dist/shohin_wasm_webgpu_bg.wasm");
  for (const name of needed) assert.ok(files.has(name), `${name} is not in the package`);
});
