// The examples in README.md, as a reader would copy them, and the packed package: `npm run build -w wasm` first.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";
import { promisify } from "node:util";
import { transform } from "esbuild";
import { launch, serve } from "./chromium.mjs";
import { scripted } from "./scripted.mjs";

const execute = promisify(execFile);
const PACKAGE = fileURLToPath(new URL("../../", import.meta.url));
const README = await readFile(join(PACKAGE, "README.md"), "utf8");
const BLOCKS = [...README.matchAll(/^```(\w+)\n(.*?)^```$/gms)].map(([, kind, text]) => ({ kind, text }));
const blocks = (kind) => BLOCKS.filter((block) => block.kind === kind).map(({ text }) => text);
/** Prepended to examples that use the engine of the first one. */
const PRELUDE = 'import { Engine } from "shohin";\nconst engine = await Engine.load("bonsai-1.7b");\n';
const SPROUT = await readFile(new URL("../../../models/sprout.gguf", import.meta.url));
/** Calls a tool if it must. */
const TOOLS = Buffer.from(scripted(["It is", " noon."]));
const whole = (text) => (text.includes("import ") ? text : PRELUDE + text);

describe("README.md", { timeout: 120_000 }, () => {
  let project, server, browser;
  before(async () => {
    project = await mkdtemp(join(tmpdir(), "shohin-"));
    await mkdir(join(project, "node_modules"));
    await symlink(PACKAGE, join(project, "node_modules/shohin"));
    await symlink(fileURLToPath(new URL("../../../models", import.meta.url)), join(project, "models"));
    server = await serve(pathToFileURL(`${project}/`));
    browser = await launch();
  });
  after(async () => {
    await browser?.close();
    await server?.close();
    await rm(project, { recursive: true });
  });

  /** Opens a page of the project and waits until `done` accepts its text and console output. */
  async function shows(name, done) {
    const page = await browser.newPage();
    // In place of the hub, which would send the real model.
    const headers = { "Access-Control-Allow-Origin": "*" };
    await page.context().route("https://huggingface.co/**", (route) => route.fulfill({ status: 200, headers, body: name.startsWith("tools") ? TOOLS : SPROUT }));
    const said = [];
    page.on("console", (message) => said.push(message.text()));
    page.on("pageerror", (error) => said.push(`error: ${error}`));
    await page.goto(server.url + name);
    for (let tries = 0; ; tries++) {
      const text = await page.evaluate(() => document.querySelector("#out")?.textContent ?? "");
      if (done(text, said)) break;
      assert.ok(tries < 600 && !said.some((line) => line.startsWith("error")), `${name}: ${text}\n${said.join("\n")}`);
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    await page.close();
  }

  test("has examples of the languages tested here, and no others", () => {
    assert.deepEqual(BLOCKS.map(({ kind }) => kind), ["ts", "html", "js", "ts", "ts"]);
  });

  test("compiles in strict TypeScript", async () => {
    const names = await Promise.all(
      blocks("ts").map(async (text, i) => {
        await writeFile(join(project, `block-${i}.mts`), whole(text));
        return `block-${i}.mts`;
      }),
    );
    const bin = createRequire(import.meta.url).resolve("typescript/package.json").replace("package.json", "bin/tsc");
    const options = ["--noEmit", "--strict", "--noUncheckedIndexedAccess", "--exactOptionalPropertyTypes", "--target", "es2022", "--module", "nodenext", "--lib", "es2022,dom,dom.asynciterable", "--types", ""];
    await execute(process.execPath, [bin, ...options, ...names], { cwd: project }).catch(({ stdout, stderr }) => assert.fail(stdout + stderr));
  });

  test("runs in a page", async () => {
    const [plain] = blocks("html");
    await writeFile(join(project, "plain.html"), plain);
    await shows("plain.html", (text) => text.length > 5);
    const map = /<script type="importmap">.*?<\/script>/s.exec(plain)[0];
    const expected = {
      chat: (text, said) => text.length > 5 && said.some((line) => /^(stop|length) \d/.test(line)),
      tools: (text) => text === "It is noon.",
      form: (_, said) => said.some((line) => /^\d$/.test(line)),
    };
    for (const [i, [name, done]] of Object.entries(expected).entries()) {
      const { code } = await transform(whole(blocks("ts")[i]), { loader: "ts" });
      await writeFile(join(project, `${name}.html`), `<!doctype html><pre id="out"></pre>${map}<script type="module">${code}</script>`);
      await shows(`${name}.html`, done);
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
    for (const name of ["LoadOptions", "GenerateOptions", "ChatOptions", "SessionOptions", "Availability", "EmbedOptions", "RestoreOptions"]) {
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
  });
});

test("the packed package contains all files that it loads", async () => {
  const npm = process.platform === "win32" ? "npm.cmd" : "npm";
  const { stdout } = await execute(npm, ["pack", "--dry-run", "--json", "--ignore-scripts"], { cwd: PACKAGE });
  const files = new Set(JSON.parse(stdout)[0].files.map(({ path }) => path));
  const needed = ["README.md", "LICENSE-MIT", "LICENSE-APACHE", "dist/index.d.ts", "dist/index.js", "dist/local.js", "dist/node.js", "dist/worker.js", "dist/shohin_wasm_bg.wasm"];
  if (existsSync(join(PACKAGE, "pkg-relaxed"))) needed.push("dist/shohin_wasm_relaxed_bg.wasm");
  if (existsSync(join(PACKAGE, "pkg-threads"))) needed.push("dist/threads.js", "dist/shohin_wasm_threads_bg.wasm");
  if (existsSync(join(PACKAGE, "pkg-threads-relaxed"))) needed.push("dist/shohin_wasm_threads_relaxed_bg.wasm");
  if (existsSync(join(PACKAGE, "pkg-webgpu"))) needed.push("dist/webgpu.js", "dist/shohin_wasm_webgpu_bg.wasm");
  for (const name of needed) assert.ok(files.has(name), `${name} is not in the package`);
});
