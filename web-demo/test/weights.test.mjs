// The decoder of low-bit weights, against blocks packed by the definitions of their formats.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { transformWithOxc } from "vite";

const source = await readFile(new URL("../src/weights.ts", import.meta.url), "utf8");
const { code } = await transformWithOxc(source, "weights.ts");
const { readPatch } = await import(`data:text/javascript,${encodeURIComponent(code)}`);

const u32 = (n) => Buffer.from(Uint32Array.of(n).buffer);
const u64 = (n) => Buffer.from(BigUint64Array.of(BigInt(n)).buffer);
const text = (s) => Buffer.concat([u64(Buffer.byteLength(s)), Buffer.from(s)]);
const padded = (bytes) => Buffer.concat([bytes, Buffer.alloc(-bytes.length & 31)]);

/** A GGUF file of matrices `[name, type, rows, columns, bytes]`, with these entries of metadata. */
function gguf(tensors, metadata = []) {
  let offset = 0;
  const table = tensors.map(([name, type, rows, columns, bytes]) => {
    const entry = [text(name), u32(2), u64(columns), u64(rows), u32(type), u64(offset)];
    offset += padded(bytes).length;
    return Buffer.concat(entry);
  });
  const head = Buffer.concat([Buffer.from("GGUF"), u32(3), u64(tensors.length), u64(metadata.length), ...metadata, ...table]);
  return Buffer.concat([padded(head), ...tensors.map((tensor) => padded(tensor[4]))]);
}

/** The file in small pieces; `read` counts the bytes that were taken. */
function stream(file) {
  const state = { read: 0, cancelled: false };
  const body = new ReadableStream(
    {
      pull(controller) {
        if (state.read >= file.length) return controller.close();
        controller.enqueue(new Uint8Array(file.subarray(state.read, state.read + 100)));
        state.read += 100;
      },
      cancel: () => void (state.cancelled = true),
    },
    { highWaterMark: 0 },
  );
  return { body, state };
}

/** Bytes of 2-bit codes, the first in the lowest bits. */
const codes = (w) => Buffer.from(Array.from({ length: w.length / 4 }, (_, i) => w.slice(4 * i, 4 * i + 4).reduce((byte, weight, j) => byte | ((weight + 1) << (2 * j)), 0)));
const scale = Buffer.from([0, 0x3c]);

/** A block of base-3 digits in runs of `[bytes, digits]`. */
function trits(w, runs) {
  let at = 0;
  const all = runs.flatMap(([bytes, digits]) => {
    const run = Array.from({ length: bytes }, (_, m) => {
      let value = 0;
      for (let n = 0; n < 5; n++) value = 3 * value + (n < digits ? w[at + n * bytes + m] + 1 : 0);
      return Math.ceil((value * 256) / 243);
    });
    at += bytes * digits;
    return run;
  });
  return Buffer.concat([Buffer.from(all), scale]);
}

/** Name, type, weights to a group, values and packing of each format. */
const FORMATS = [
  ["Q1_0", 41, 128, (w) => Buffer.concat([scale, Buffer.from(Array.from({ length: 16 }, (_, i) => w.slice(8 * i, 8 * i + 8).reduce((byte, weight, j) => byte | (Number(weight > 0) << j), 0)))])],
  ["Q2_0", 42, 64, (w) => Buffer.concat([scale, codes(w)])],
  ["PQ2_0", 42, 128, (w) => Buffer.concat([scale, codes(w)])],
  ["PQ2_0", 142, 128, (w) => Buffer.concat([scale, codes(w)])],
  ["TQ2_0", 35, 256, (w) => Buffer.concat([...[0, 128].map((half) => codes(Array.from({ length: 128 }, (_, i) => w[half + (i >> 2) + 32 * (i & 3)]))), scale])],
  ["TQ1_0", 34, 256, (w) => trits(w, [[32, 5], [16, 5], [4, 4]])],
  ["PTQ1_0", 143, 128, (w) => trits(w, [[16, 5], [8, 5], [2, 4]])],
];

for (const [format, type, group, pack] of FORMATS) {
  test(`decodes ${format}, of type ${type}`, async () => {
    const [rows, columns] = [5, 512];
    let x = 7;
    const weights = Array.from({ length: rows * columns }, () => ((x = (x * 1103515245 + 12345) & 0x7fffffff) >> 16) % 3 - 1).map((w) => (format === "Q1_0" && w === 0 ? 1 : w));
    const blocks = Array.from({ length: weights.length / group }, (_, i) => pack(weights.slice(i * group, (i + 1) * group)));
    // Behind a matrix of another format, and before another of the same.
    const low = [type, rows, columns, Buffer.concat(blocks)];
    const file = gguf([["float", 0, 1, 8, Buffer.alloc(32)], ["low", ...low], ["later", ...low]]);
    const found = await readPatch(stream(file).body, 3, 300);
    assert.deepEqual({ ...found, weights: 0 }, { tensor: "low", format, shape: [rows, columns], rows: 3, columns: 300, weights: 0, group });
    assert.deepEqual([...found.weights], [0, 1, 2].flatMap((r) => weights.slice(r * columns, r * columns + 300)));
    const all = await readPatch(stream(file).body, 100, 10_000);
    assert.deepEqual([...all.weights], weights);
  });
}

test("reads no further than the rows it shows, past metadata of all kinds", async () => {
  const entry = (key, type, ...value) => Buffer.concat([text(key), u32(type), ...value]);
  const metadata = [
    entry("general.name", 8, text("model")),
    entry("words", 9, u32(8), u64(3), text("a"), text("b"), text("")),
    entry("numbers", 9, u32(5), u64(4), Buffer.alloc(16)),
    entry("flag", 7, Buffer.of(1)),
    entry("general.alignment", 4, u32(32)),
  ];
  const low = ["low", 142, 1000, 128, Buffer.alloc(34_000, 0x55)];
  const { body, state } = stream(gguf([low], metadata));
  const found = await readPatch(body, 2, 128);
  assert.ok(found.weights.every((weight) => weight === 0));
  assert.ok(state.cancelled && state.read < 1000, `${state.read}`);
});

test("finds nothing where there is nothing to decode", async () => {
  const some = Buffer.alloc(4096, 0x55);
  const codesFirst = Buffer.concat([text("general.quantization_version"), u32(8), text("TQ2_0_G128")]);
  for (const file of [
    Buffer.from("<!doctype html>"),
    Buffer.alloc(0),
    gguf([["float", 1, 8, 8, Buffer.alloc(128)]]),
    gguf([["low", 142, 100, 128, Buffer.alloc(3400)]]).subarray(0, 200),
    gguf([["low", 42, 4, 128, some.subarray(0, 136)], ["later", 0, 1, 8, Buffer.alloc(32)]], [codesFirst]),
    // A text of 2^60 bytes.
    Buffer.concat([Buffer.from("GGUF"), u32(3), u64(0), u64(1), u64(2 ** 60)]),
  ]) {
    assert.equal(await readPatch(stream(file).body, 8, 8), undefined);
  }
});
