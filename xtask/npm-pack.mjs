// Checks the contents and the size of the tarball that `npm pack` makes of wasm/.
import { execFileSync } from "node:child_process";
import { existsSync, readFileSync, utimesSync } from "node:fs";
import { gzipSync } from "node:zlib";

const MUST = ["package.json", "README.md", "LICENSE-MIT", "LICENSE-APACHE", "dist/index.js", "dist/index.d.ts", "dist/worker.js", "dist/shohin_wasm_bg.wasm"];
const MUST_NOT = [/\.rs$/, /^target\//, /^node_modules\//, /^test\//, /\.gguf$/, /\.log$/, /^src\//, /Cargo/];
/** Limit on the packed size; the package does not contain the model. */
const LIMIT = 2_890_000;

/** Limit on the gzipped size of a module. */
const MODULE_LIMIT = 530_000;

// Files of the other builds.
MUST.push("dist/train.js", "dist/shohin_wasm_train_bg.wasm", "dist/webgpu.js", "dist/shohin_wasm_webgpu_bg.wasm", "dist/shohin_wasm_relaxed_bg.wasm");
if (existsSync(new URL("../wasm/module-threads", import.meta.url))) {
  MUST.push("dist/threads.js", "dist/shohin_wasm_threads_bg.wasm", "dist/shohin_wasm_threads_relaxed_bg.wasm");
}

const npm = process.platform === "win32" ? "npm.cmd" : "npm";
const packed = () => JSON.parse(execFileSync(npm, ["pack", "--dry-run", "--json", "--workspace", "wasm"], { encoding: "utf8", stdio: ["ignore", "pipe", "inherit"] }))[0];
const pack = packed();
const files = pack.files.map((file) => file.path);
const wrong = [
  ...MUST.filter((path) => !files.includes(path)).map((path) => `missing: ${path}`),
  ...files.filter((path) => MUST_NOT.some((pattern) => pattern.test(path))).map((path) => `must not be in it: ${path}`),
];
const modules = files.filter((path) => path.endsWith(".wasm"));
for (const path of modules) {
  const { length } = gzipSync(readFileSync(new URL(`../wasm/${path}`, import.meta.url)), { level: 9 });
  if (length > MODULE_LIMIT) wrong.push(`${path}: ${length} bytes gzipped, the limit is ${MODULE_LIMIT}`);
}
if (pack.size > LIMIT) wrong.push(`${pack.size} bytes packed, the limit is ${LIMIT}`);
// The same files give the same bytes, whenever they were written.
utimesSync(new URL("../wasm/package.json", import.meta.url), new Date(), new Date(Date.now() - 86_400_000));
const again = packed();
if (again.integrity !== pack.integrity) wrong.push(`packed again: ${again.integrity}, before ${pack.integrity}`);
console.log(`${pack.name} ${pack.version}: ${files.length} files, ${pack.size} bytes packed, ${pack.unpackedSize} unpacked`);
if (wrong.length > 0) {
  console.error(wrong.join("\n"));
  process.exit(1);
}
