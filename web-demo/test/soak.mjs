// Chats with the built page until standard input ends, as `cargo xtask soak` has it: ask, stop, start anew, reload, load an address
// without a model. Fails if a reply does not come, a kept turn is lost, or memory grows.
import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";
import { launch, serve } from "../../wasm/js/test/chromium.mjs";
import { soon } from "./soon.mjs";
import { keptTurns, repliesOf, send, within } from "./turns.mjs";

const ISOLATED = { "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp" };

/** Turns in one conversation. */
const TURNS = 5;

/** The first and the last so many rounds are compared by their least memory: the browser's compiled code comes and goes. */
const ROUNDS = 5;

let over = false;
process.stdin.on("end", () => (over = true)).resume();

const server = await serve(new URL("../dist/", import.meta.url), {
  "/none.gguf": (_request, response) => response.writeHead(404).end("nothing here"),
}, ISOLATED);
const browser = await launch();
const page = await browser.newPage();
page.setDefaultTimeout(120_000);
const problems = [];
page.on("pageerror", (error) => problems.push(String(error)));
const client = await page.context().newCDPSession(page);

const replies = repliesOf(page);
const ready = () => page.locator("#model[data-state=ready]").waitFor();

async function heap() {
  await within(client.send("HeapProfiler.collectGarbage"), "collecting garbage");
  return (await within(client.send("Runtime.getHeapUsage"), "reading the heap's size")).usedSize;
}

let turns = 0;
let stopped = 0;
const heaps = [];
await page.goto(server.url);
while (!over) {
  await ready();
  await page.click("#new-chat");
  for (let turn = 0; turn < TURNS; turn++, turns++) {
    const { done } = await send(page, ["Hello!", "What is my name?", "3 plus 4?"][turn % 3]);
    await done.waitFor();
  }
  // The page keeps the last turn a moment after it is shown.
  await sleep(1000);
  await page.reload();
  await ready();
  await soon(async () => assert.equal(await replies.count(), TURNS, "a reload lost a turn"));

  const { n } = await send(page, "Tell me a long story about a fox.");
  await page.keyboard.press("Escape");
  await soon(async () => assert.equal(await page.locator("#send[data-busy]").count(), 0));
  assert.ok((await replies.count()) <= n + 1);
  stopped++;

  await page.click("#model");
  await page.fill("#url", `${server.url}none.gguf`);
  await page.click("#url-form button");
  await page.locator("#alert-text").filter({ hasText: "404" }).waitFor();
  await page.reload();
  await ready();

  heaps.push(await heap());
}
const kept = (await keptTurns(page)).filter(({ role }) => role === "assistant").length;
await browser.close();
await server.close();
console.log(`page: ${turns} replies in ${heaps.length} conversations, ${stopped} stopped, ${1 + 2 * heaps.length} loads`);
assert.deepEqual(problems, []);
assert.ok(kept >= turns, `${kept} of ${turns} replies are kept`);
if (heaps.length < 2 * ROUNDS) {
  console.log(`page: memory was not checked, which takes ${2 * ROUNDS} rounds`);
} else {
  const [early, last] = [heaps.slice(0, ROUNDS), heaps.slice(-ROUNDS)].map((some) => Math.min(...some));
  console.log(`page: JavaScript heap ${early >> 10} kB in the first ${ROUNDS} rounds, ${last >> 10} kB in the last`);
  assert.ok(last < early * 1.25 + (2 << 20), "the page's memory grows");
}
