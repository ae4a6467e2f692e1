// The layout of js/src.
import assert from "node:assert/strict";
import { readdir, readFile } from "node:fs/promises";
import { posix } from "node:path";
import { test } from "node:test";

const SRC = new URL("../src/", import.meta.url);

test("no file of js/src imports itself by way of others, type imports included", async () => {
  const files = (await readdir(SRC, { recursive: true })).map((file) => file.replaceAll("\\", "/")).filter((file) => file.endsWith(".ts"));
  const imports = new Map();
  for (const file of files) {
    const text = await readFile(new URL(file, SRC), "utf8");
    const found = [...text.matchAll(/(?:from|import\() ?"(\.[^"]*)\.js"/g)].map(([, path]) => `${posix.join(posix.dirname(file), path)}.ts`);
    imports.set(file, found.filter((path) => files.includes(path)));
  }
  assert.ok([...imports.values()].flat().length > 40);
  const done = new Set();
  const visit = (file, path) => {
    assert.ok(!path.includes(file), [...path.slice(path.indexOf(file)), file].join(" -> "));
    if (done.has(file)) return;
    for (const next of imports.get(file)) visit(next, [...path, file]);
    done.add(file);
  };
  for (const file of files) visit(file, []);
});
