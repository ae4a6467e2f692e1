// Bundles the TypeScript of js/src with the glue of module/ into dist/, one file for each environment.
import { build } from "esbuild";
import { existsSync, statSync } from "node:fs";
import { copyFile, mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { posix } from "node:path";
import { gzipSync } from "node:zlib";

const here = new URL("./", import.meta.url);
const path = (relative) => new URL(relative, here).pathname;

for (const optional of ["threads.js", "train.js", "webgpu.js", "shohin_wasm_relaxed_bg.wasm", "shohin_wasm_threads_relaxed_bg.wasm"]) await rm(path(`../dist/${optional}`), { force: true });
await mkdir(path("../dist"), { recursive: true });
const { version } = JSON.parse(await readFile(path("../package.json"), "utf8"));
const published = JSON.parse(await readFile(path("../../models/published.json"), "utf8")).map(({ layers: _, note: __, ...model }) => model);
const questions = (await readFile(path("../../train/src/rehearsal.txt"), "utf8")).trim().split("\n").slice(0, 70);
const common = {
  define: { QUESTIONS: JSON.stringify(questions), PACKAGE_VERSION: JSON.stringify(version), PUBLISHED_MODELS: JSON.stringify(published) },
  absWorkingDir: path("../"),
  bundle: true,
  format: "esm",
  target: ["es2022"],
  minifySyntax: true,
  minifyWhitespace: true,
  legalComments: "none",
  logLevel: "warning",
  outdir: "dist",
};
await build({ ...common, platform: "browser", entryPoints: { index: "js/src/index.ts", worker: "js/src/engine/worker.ts", local: "js/src/local.ts" } });
// One file each for pages and Node: they import the engine as its users do, so that there is only one.
const own = { name: "own", setup: ({ onResolve }) => onResolve({ filter: /^\.\.\/index\.js$/ }, () => ({ path: "shohin", external: true })) };
await build({ ...common, platform: "neutral", entryPoints: ["prompt-api", "ai-sdk", "langchain", "react"].map((name) => `js/src/${name}.ts`), plugins: [own], external: ["@langchain/core", "react"] });
// Node prints the line of an uncaught error: keep it short.
await build({ ...common, platform: "node", minifySyntax: false, minifyWhitespace: false, entryPoints: ["js/src/node.ts"] });
const modules = [["module", "shohin_wasm_bg.wasm"]];
/** Adds a build that differs only in its instructions, and therefore needs no script of its own. */
const relaxed = async (package_, file) => {
  const glue = (directory) => readFile(path(`../${directory}/shohin_wasm.js`), "utf8");
  const written = (directory) => statSync(path(`../${directory}/shohin_wasm_bg.wasm`)).mtimeMs;
  if (!existsSync(path(`../${package_}-relaxed`))) console.log(`no ${package_}-relaxed/: the package will be built without relaxed SIMD`);
  else if (written(package_) <= written(`${package_}-relaxed`) && (await glue(package_)) === (await glue(`${package_}-relaxed`))) modules.push([`${package_}-relaxed`, file]);
  else console.log(`${package_}-relaxed/ is older than ${package_}/: the package will be built without relaxed SIMD`);
};
await relaxed("module", "shohin_wasm_relaxed_bg.wasm");
if (existsSync(path("../module-threads"))) {
  modules.push(["module-threads", "shohin_wasm_threads_bg.wasm"]);
  const alias = { "shohin-threads": path("../module-threads/shohin_wasm.js") };
  await build({ ...common, platform: "neutral", entryPoints: { threads: "js/src/wasm/threads.ts" }, alias, external: ["node:worker_threads"] });
  await relaxed("module-threads", "shohin_wasm_threads_relaxed_bg.wasm");
} else {
  console.log("no module-threads/: the package will be built without threads");
}
if (existsSync(path("../module-webgpu"))) {
  modules.push(["module-webgpu", "shohin_wasm_webgpu_bg.wasm"]);
  const alias = { "shohin-webgpu": path("../module-webgpu/shohin_wasm.js") };
  await build({ ...common, platform: "browser", entryPoints: { webgpu: "js/src/wasm/webgpu.ts" }, alias });
} else {
  console.log("no module-webgpu/: the package will be built without WebGPU");
}
if (existsSync(path("../module-train"))) {
  modules.push(["module-train", "shohin_wasm_train_bg.wasm", "shohin_wasm_train_bg.wasm"]);
  await build({ ...common, platform: "neutral", entryPoints: { train: "js/src/wasm/train.ts" }, alias: { "shohin-train": path("../module-train/shohin_wasm_train.js") } });
} else {
  console.log("no module-train/: the package will be built without the module that teaches");
}
for (const [from, to, built = "shohin_wasm_bg.wasm"] of modules) {
  await writeFile(path(`../dist/${to}`), withoutCustomSections(await readFile(path(`../${from}/${built}`))));
}
// The minifier removes the comments that tell bundlers to ignore an import.
for (const file of ["worker.js", "local.js"]) {
  const script = await readFile(path(`../dist/${file}`), "utf8");
  await writeFile(path(`../dist/${file}`), script.replaceAll("import(href)", "import(/* @vite-ignore *//* webpackIgnore: true */href)"));
}
// Declarations of internals, which tsc writes for every file, have imports from outside the package.
const declared = new Set();
const declare = async (file) => {
  if (declared.has(file)) return;
  declared.add(file);
  const text = await readFile(path(`../dist/${file}`), "utf8");
  for (const [, from] of text.matchAll(/(?:from |import\()"(\.[^"]*)\.js"/g)) await declare(posix.join(posix.dirname(file), `${from}.d.ts`));
};
for (const file of ["index.d.ts", "local.d.ts", "node.d.ts", "prompt-api.d.ts", "ai-sdk.d.ts", "langchain.d.ts", "react.d.ts"]) await declare(file);
const written = (await readdir(path("../dist"), { recursive: true })).map((file) => file.replaceAll("\\", "/")).filter((file) => file.endsWith(".d.ts"));
for (const file of written) if (!declared.has(file)) await rm(path(`../dist/${file}`));
for (const license of ["LICENSE-MIT", "LICENSE-APACHE"]) {
  await copyFile(path(`../../${license}`), path(`../${license}`)).catch(() => {});
}

for (const file of [...modules.map(([, to]) => to), "index.js", "worker.js", "node.js"]) {
  const bytes = await readFile(path(`../dist/${file}`));
  console.log(`dist/${file}: ${bytes.length} bytes, ${gzipSync(bytes, { level: 9 }).length} gzipped`);
}

/** Removes function names and other custom sections, a fifth of the file. */
function withoutCustomSections(wasm) {
  const kept = [wasm.subarray(0, 8)];
  for (let at = 8; at < wasm.length; ) {
    // A section is its id, its length as LEB128, its content.
    let [length, body, shift] = [0, at + 1, 0];
    do length += (wasm[body] & 127) * 2 ** shift;
    while (((shift += 7), wasm[body++] & 128));
    if (wasm[at] !== 0) kept.push(wasm.subarray(at, body + length));
    at = body + length;
  }
  return Buffer.concat(kept);
}
