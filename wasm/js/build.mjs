// Bundles the TypeScript of js/src with the glue of pkg/ into dist/, one file for each place it runs in.
import { build } from "esbuild";
import { existsSync, statSync } from "node:fs";
import { copyFile, mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { gzipSync } from "node:zlib";

const here = new URL("./", import.meta.url);
const path = (relative) => new URL(relative, here).pathname;

for (const optional of ["threads.js", "webgpu.js", "shohin_wasm_relaxed_bg.wasm", "shohin_wasm_threads_relaxed_bg.wasm"]) await rm(path(`../dist/${optional}`), { force: true });
await mkdir(path("../dist"), { recursive: true });
const common = {
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
await build({ ...common, platform: "browser", entryPoints: ["js/src/index.ts", "js/src/worker.ts", "js/src/local.ts"] });
// Node shows the line an uncaught error comes from: it should be a short one.
await build({ ...common, platform: "node", minifySyntax: false, minifyWhitespace: false, entryPoints: ["js/src/node.ts"] });
const modules = [["pkg", "shohin_wasm_bg.wasm"]];
/** Takes in a build that differs in its instructions alone, and therefore needs no script of its own. */
const relaxed = async (package_, file) => {
  const glue = (directory) => readFile(path(`../${directory}/shohin_wasm.js`), "utf8");
  const written = (directory) => statSync(path(`../${directory}/shohin_wasm_bg.wasm`)).mtimeMs;
  if (!existsSync(path(`../${package_}-relaxed`))) console.log(`no ${package_}-relaxed/: the package will do without relaxed SIMD`);
  else if (written(package_) <= written(`${package_}-relaxed`) && (await glue(package_)) === (await glue(`${package_}-relaxed`))) modules.push([`${package_}-relaxed`, file]);
  else console.log(`${package_}-relaxed/ is older than ${package_}/: the package will do without relaxed SIMD`);
};
await relaxed("pkg", "shohin_wasm_relaxed_bg.wasm");
if (existsSync(path("../pkg-threads"))) {
  modules.push(["pkg-threads", "shohin_wasm_threads_bg.wasm"]);
  const alias = { "shohin-threads": path("../pkg-threads/shohin_wasm.js") };
  await build({ ...common, platform: "neutral", entryPoints: ["js/src/threads.ts"], alias, external: ["node:worker_threads"] });
  await relaxed("pkg-threads", "shohin_wasm_threads_relaxed_bg.wasm");
} else {
  console.log("no pkg-threads/: the package will do without threads");
}
if (existsSync(path("../pkg-webgpu"))) {
  modules.push(["pkg-webgpu", "shohin_wasm_webgpu_bg.wasm"]);
  const alias = { "shohin-webgpu": path("../pkg-webgpu/shohin_wasm.js") };
  await build({ ...common, platform: "browser", entryPoints: ["js/src/webgpu.ts"], alias });
} else {
  console.log("no pkg-webgpu/: the package will do without WebGPU");
}
for (const [from, to] of modules) {
  await writeFile(path(`../dist/${to}`), withoutCustomSections(await readFile(path(`../${from}/shohin_wasm_bg.wasm`))));
}
// Minified, an import has lost the words that tell bundlers to leave it alone.
for (const file of ["worker.js", "local.js"]) {
  const script = await readFile(path(`../dist/${file}`), "utf8");
  await writeFile(path(`../dist/${file}`), script.replaceAll("import(href)", "import(/* @vite-ignore *//* webpackIgnore: true */href)"));
}
for (const license of ["LICENSE-MIT", "LICENSE-APACHE"]) {
  await copyFile(path(`../../${license}`), path(`../${license}`)).catch(() => {});
}

for (const file of [...modules.map(([, to]) => to), "index.js", "worker.js", "node.js"]) {
  const bytes = await readFile(path(`../dist/${file}`));
  console.log(`dist/${file}: ${bytes.length} bytes, ${gzipSync(bytes, { level: 9 }).length} gzipped`);
}

/** Function names and the like, a fifth of the file, are of no use to a visitor. */
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
