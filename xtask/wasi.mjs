// Cargo's runner for wasm32-wasip1: runs an ordinary Rust test binary in Node's WebAssembly engine. It sees all files, or
// only those of the directory that SHOHIN_WASI_DIR names.
import { readFile } from "node:fs/promises";
import { setFlagsFromString } from "node:v8";
import { WASI } from "node:wasi";

// Node 20 sometimes crashes ("unreachable code" in the garbage collector) if memory.grow finishes an incremental marking.
setFlagsFromString("--no-incremental-marking");
// A gigabyte, as browsers of phones may have no more.
setFlagsFromString("--wasm-max-mem-pages=16384");

const [file, ...args] = process.argv.slice(2);
const directory = process.env.SHOHIN_WASI_DIR;
const wasi = new WASI({
  version: "preview1",
  args: [file, ...args],
  env: process.env,
  preopens: directory ? { ".": directory } : { ".": process.cwd(), "/": "/" },
  returnOnExit: true,
});
const module = await WebAssembly.compile(await readFile(file));
const instance = await WebAssembly.instantiate(module, wasi.getImportObject());
process.exitCode = wasi.start(instance);
