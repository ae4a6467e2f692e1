// The tools that a model may call.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { transformWithOxc } from "vite";

const source = await readFile(new URL("../src/tools.ts", import.meta.url), "utf8");
const { code } = await transformWithOxc(source, "tools.ts");
const { answer, calculate } = await import(`data:text/javascript,${encodeURIComponent(code)}`);

test("computes with the precedence of mathematics", () => {
  for (const [expression, value] of [
    ["1 + 2 * 3", 7],
    ["(1+2)*3", 9],
    ["7 - 2 - 1", 4],
    ["12 / 3 / 2", 2],
    ["17 % 5 * 2", 4],
    ["2 ^ 3 ^ 2", 512],
    ["-2^2", -4],
    ["2**-2", 0.25],
    ["--3", 3],
    ["3 × 4 ÷ 2 − 1", 5],
    ["0.1 + 0.2", 0.3],
    [".5e1 + 1.", 6],
    ["sqrt(16) + max(1, 2, 3) - min(4, 2)", 5],
    ["round(2 * PI)", 6],
    ["ln(e) + log(1000) + abs(-1)", 5],
    ["2 * (3 + (4 - 1)) ", 12],
  ]) {
    assert.equal(calculate(expression), value, expression);
  }
});

test("says what is wrong with an expression, and where", () => {
  for (const [expression, message] of [
    ["", "expected a number, found the end"],
    ["2 +", "expected a number, found the end"],
    ["2 3", 'expected an operator, found "3" at character 3'],
    ["(1 + 2", 'expected ")", found the end'],
    ["1 + $", 'expected a number, found "$" at character 5'],
    ["constructor(1)", 'expected a number, found "constructor" at character 1'],
    ["fetch('x')", 'expected a number, found "fetch" at character 1'],
    ["sqrt 4", 'expected "(", found "4" at character 6'],
    ["sqrt(4, 5)", "sqrt takes one number, found 2"],
    ["1 / 0", "division by zero"],
    ["10 ^ 400", "the result is not a finite number"],
    ["sqrt(-1)", "the result is not a finite number"],
    ["(".repeat(100_000), "the expression is nested too deeply"],
    [`2${"^2".repeat(100_000)}`, "the expression is nested too deeply"],
  ]) {
    assert.throws(() => calculate(expression), { name: "Error", message }, expression.slice(0, 30));
  }
});

test("answers calls in JSON, wrong ones too", () => {
  const call = (name, given) => JSON.parse(answer({ name, arguments: given }));
  assert.deepEqual(call("calculator", '{"expression":"6*7"}'), { result: 42 });
  assert.deepEqual(call("calculator", '{"expression":"6*"}'), { error: "expected a number, found the end" });
  assert.match(call("calculator", "{").error, /JSON/);
  assert.deepEqual(call("toString", "{}"), { error: "there is no function toString" });
  const { time, timezone } = call("clock", '{"timezone":"Asia/Tokyo"}');
  assert.equal(timezone, "Asia/Tokyo");
  const there = new Intl.DateTimeFormat("en-GB", { dateStyle: "full", timeZone: "Asia/Tokyo" }).format(new Date());
  assert.ok(time.startsWith(there), time);
  assert.equal(call("clock", "{}").timezone, Intl.DateTimeFormat().resolvedOptions().timeZone);
  assert.deepEqual(call("clock", '{"timezone":"Atlantis"}'), { error: "there is no time zone Atlantis" });
});
