// Bundles the TypeScript of js/src with the glue of pkg/ into dist/, one file for each place it runs in.
import { build } from "esbuild";
import { copyFile, mkdir, readFile } from "node:fs/promises";
import { gzipSync } from "node:zlib";

const here = new URL("./", import.meta.url);
const path = (relative) => new URL(relative, here).pathname;

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
await build({ ...common, platform: "node", entryPoints: ["js/src/node.ts"] });
await copyFile(path("../pkg/shohin_wasm_bg.wasm"), path("../dist/shohin_wasm_bg.wasm"));
for (const license of ["LICENSE-MIT", "LICENSE-APACHE"]) {
  await copyFile(path(`../../${license}`), path(`../${license}`)).catch(() => {});
}

for (const file of ["shohin_wasm_bg.wasm", "index.js", "worker.js", "node.js"]) {
  const bytes = await readFile(path(`../dist/${file}`));
  console.log(`dist/${file}: ${bytes.length} bytes, ${gzipSync(bytes, { level: 9 }).length} gzipped`);
}
