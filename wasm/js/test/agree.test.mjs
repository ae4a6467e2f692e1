// Random conversations: the package in Node and in Chromium replies as the program `shohin` does, which SHOHIN_PROGRAM names.
// SHOHIN_FUZZ_TIMES=20 makes twenty times as many, SHOHIN_FUZZ_SECONDS=60 goes on for a minute, SHOHIN_FUZZ_SEED=N takes others.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createReadStream } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { Engine } from "shohin";
import { launch, serve } from "./chromium.mjs";
import { MODELS, conversation, random, replies } from "./conversations.mjs";

const MODEL = fileURLToPath(new URL("../../../models/sprout.gguf", import.meta.url));
const { SHOHIN_PROGRAM: PROGRAM } = process.env;
/** Milliseconds for the replies of a conversation. */
const LIMIT = 120_000;

const number = (name, otherwise) => {
  const value = Number(process.env[name] ?? otherwise);
  assert.ok(value >= 0, `${name} is ${process.env[name]}, expected a number`);
  return value;
};

/** Runs the program; what it printed, and its errors. */
async function run(args, input) {
  const child = spawn(PROGRAM, args, { env: { ...process.env, SHOHIN_DEVICE: "cpu", SHOHIN_WEIGHT_CACHE: "none" } });
  const [output, problems] = [[], []];
  child.stdout.on("data", (data) => output.push(data));
  child.stderr.on("data", (data) => problems.push(data));
  // It may end without reading all.
  child.stdin.on("error", () => {});
  child.stdin.end(input);
  const timer = setTimeout(() => child.kill("SIGKILL"), LIMIT);
  const status = await new Promise((resolve, reject) => child.on("error", reject).on("close", (code, signal) => resolve(code ?? signal)));
  clearTimeout(timer);
  assert.ok(typeof status === "number", `${PROGRAM} ${args.join(" ")} ended with ${status}`);
  return [output, problems].map((all) => Buffer.concat(all).toString());
}

const kebab = (name) => name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);

/** The options of a reply as arguments. */
function argumentsOf({ stop = [], responseFormat: format, ...numbers }) {
  const args = Object.entries(numbers).flatMap(([name, value]) => [`--${kebab(name)}=${value}`]);
  args.push(...stop.map((text) => `--stop=${text}`));
  if (format?.type === "json_schema") args.push(`--json-schema=${JSON.stringify(format.schema)}`);
  if (format?.type === "json_object") args.push("--json-object");
  if (format?.type === "choice") args.push(...format.choices.map((text) => `--choice=${text}`));
  if (format?.type === "regex") args.push(`--regex=${format.pattern}`);
  if (format?.type === "grammar") args.push(`--grammar=${format.grammar}`);
  if (format?.whitespace) args.push("--json-whitespace");
  return args;
}

/** The replies of the program, which keeps the conversation in a file between two. */
async function printed({ model, raw, system, turns }, folder) {
  const all = [];
  const session = join(folder, "session");
  await rm(session, { force: true });
  for (const { text, options } of turns) {
    const args = ["run", "--json", ...MODELS[model][1], ...argumentsOf(options)];
    if (raw) args.push("--raw");
    if (turns.length > 1) args.push("--session", session);
    if (system !== undefined) args.push(`--system=${system}`);
    const [output, problem] = await run(args, text);
    if (output === "") return [...all, { failed: problem }];
    const { text: reply, tokens, finish_reason: reason, prompt_tokens: prompt, logprobs = [] } = JSON.parse(output);
    const numbers = logprobs.map(({ token, logprob, top }) => [token, logprob, ...top.flatMap((other) => [other.token, other.logprob])]);
    // The program prints that of the token which ended the reply, too.
    all.push({ tokens, logprobs: numbers.slice(0, tokens.length), text: reply, reason, prompt });
  }
  return all;
}

/** What the program says about this error of an engine. */
function said(failed) {
  const [, long, most] = /(\d+) tokens do not fit into a context of (\d+)/.exec(failed) ?? [];
  return long === undefined ? failed : `${long} tokens long, but the context holds ${most}`;
}

/** Fails unless the engine's replies are those of the program, to the last bit. */
function same(replies, program, where, plan) {
  const { failed } = replies.at(-1);
  const why = `${where}: ${JSON.stringify(plan)}`;
  if (failed === undefined) return assert.deepEqual(replies, program, why);
  assert.deepEqual(replies.slice(0, -1), program.slice(0, -1), why);
  assert.ok(program.at(-1).failed?.includes(said(failed)), `${failed}, where the program says ${program.at(-1).failed}; ${why}`);
}

const skip = PROGRAM === undefined && "SHOHIN_PROGRAM names no program; `cargo xtask test --only npm` builds it";

/** Fails if `promise` takes too long. */
async function within(promise, where, plan) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${where} does not end: ${JSON.stringify(plan)}`)), LIMIT);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

test("replies are those of the program, in Node and in a browser", { skip, timeout: 2 ** 31 - 1 }, async (t) => {
  let server, browser;
  const here = [];
  t.after(async () => {
    await Promise.allSettled(here.map((engine) => engine.dispose()));
    await browser?.close();
    await server?.close();
  });
  const folder = await mkdtemp(join(tmpdir(), "shohin-agree-"));
  t.after(() => rm(folder, { recursive: true }));
  server = await serve(new URL("../../dist/", import.meta.url), {
    "/": (_request, response) => response.writeHead(200, { "Content-Type": "text/html" }).end("<!doctype html><title>test</title>"),
    "/model.gguf": (_request, response) => createReadStream(MODEL).pipe(response),
    "/conversations.mjs": (_request, response) => createReadStream(new URL("conversations.mjs", import.meta.url)).pipe(response.writeHead(200, { "Content-Type": "text/javascript" })),
  });
  browser = await launch();
  for (const [options] of MODELS) here.push(await Engine.load(MODEL, options));
  const page = await browser.newPage();
  await page.goto(server.url);
  await page.evaluate(async () => {
    const [{ Engine }, { MODELS, replies }] = [await import("/index.js"), await import("/conversations.mjs")];
    const engines = await Promise.all(MODELS.map(([options]) => Engine.load("model.gguf", options)));
    globalThis.repliesTo = (conversation) => replies(engines[conversation.model], conversation);
  });

  const next = random(number("SHOHIN_FUZZ_SEED", 17));
  const most = Math.round(30 * number("SHOHIN_FUZZ_TIMES", 1));
  const [seconds, start] = [process.env.SHOHIN_FUZZ_SECONDS && number("SHOHIN_FUZZ_SECONDS"), performance.now()];
  const ends = new Set();
  let count = 0;
  for (; count === 0 || (seconds === undefined ? count < most : performance.now() - start < seconds * 1000); count += 1) {
    const plan = conversation(next);
    const program = await printed(plan, folder);
    same(await within(replies(here[plan.model], plan), "Node", plan), program, "Node", plan);
    same(await within(page.evaluate((plan) => repliesTo(plan), plan), "Chromium", plan), program, "Chromium", plan);
    for (const { reason = "failed" } of program) ends.add(reason);
  }
  if (count >= 30 && process.env.SHOHIN_FUZZ_SEED === undefined) assert.deepEqual([...ends].sort(), ["context_full", "failed", "length", "stop", "stop_string"]);
  t.diagnostic(`npm: ${count} conversations in ${((performance.now() - start) / 1000).toFixed(1)} s`);
});
