// Kills the browser at random instants of a reply, SHOHIN_CUTS times; `cargo xtask cut` does so more often.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { chromium } from "playwright-core";
import { serve } from "../../wasm/js/test/chromium.mjs";
import { keptTurns, send, within } from "./turns.mjs";

/** The page keeps a reply every second while it is written: the kill comes before, between and after. */
const LATEST = 3000;

async function addressOf(child) {
  for await (const line of createInterface(child.stderr)) {
    const address = /listening on (ws:\S+)/.exec(line)?.[1];
    if (address) return address;
  }
  throw new Error("Chromium ended without an address");
}

/** A browser with a profile; `kill` ends it and all its processes at once. */
async function open(profile, url) {
  const program = process.env.HEADLESS_SHELL ?? process.env.CHROME ?? "/usr/bin/chromium";
  const args = ["--headless", "--no-sandbox", "--disable-dev-shm-usage", "--remote-debugging-port=0", `--user-data-dir=${profile}`];
  // In a process group of its own.
  const child = spawn(program, args, { stdio: ["ignore", "ignore", "pipe"], detached: true });
  await once(child, "spawn");
  const exited = new Promise((resolve) => child.once("exit", resolve));
  const kill = async () => {
    try {
      process.kill(-child.pid, "SIGKILL");
    } catch (error) {
      if (error.code !== "ESRCH") throw error;
    }
    await within(exited, "killing Chromium");
  };
  try {
    const address = await within(addressOf(child), "starting Chromium");
    child.stderr.resume();
    const browser = await chromium.connectOverCDP(address, { timeout: 60_000 });
    const page = await within(browser.contexts()[0].newPage(), "opening a page");
    page.setDefaultTimeout(120_000);
    await within(page.setViewportSize({ width: 1024, height: 768 }), "sizing the page");
    await page.goto(url);
    await page.locator("#model[data-state=ready]").waitFor();
    return { page, kill };
  } catch (error) {
    await kill();
    throw error;
  }
}

/** Whether a turn has all that the page adds to a reply at its end. */
const isComplete = ({ figures, details }) => Boolean(figures && figures !== "Stopped" && details);

/** A turn must be a message, or a reply, complete or marked, that has its message. */
function check(turn, turns) {
  const text = JSON.stringify(turn);
  assert.equal(typeof turn.content, "string", text);
  if (turn.role === "user") return;
  assert.equal(turn.role, "assistant", text);
  assert.ok(turn.unfinished || isComplete(turn), `neither complete nor marked as unfinished: ${text}`);
  assert.ok(
    turns.some(({ role, conversation, at }) => role === "user" && conversation === turn.conversation && at === turn.at - 0.5),
    `a reply without its message: ${text}`,
  );
}

test("keeps whole turns when the browser is killed", async (t) => {
  const times = Number(process.env.SHOHIN_CUTS || 3);
  const server = await serve(new URL("../dist/", import.meta.url));
  const profile = await mkdtemp(join(tmpdir(), "shohin-cut-"));
  let browser;
  t.after(async () => {
    await browser?.kill();
    await server.close();
    await rm(profile, { recursive: true, force: true, maxRetries: 5 });
  });
  /** Turns that have been seen in the database, by their keys. */
  let sure = new Map();
  const found = { nothing: 0, message: 0, unfinished: 0, complete: 0 };
  // How much the model no longer sees is noted at an old reply, and grows.
  const read = async (page) => new Map((await keptTurns(page)).map(({ dropped: _, ...turn }) => [`${turn.conversation} ${turn.id}`, turn]));
  for (let i = 0; i <= times; i++) {
    browser = await open(profile, server.url);
    const { page } = browser;
    const now = await read(page);
    for (const [key, turn] of sure) assert.deepEqual(now.get(key), turn, `kill ${i} changed a turn`);
    const added = [...now].filter(([key]) => !sure.has(key)).map(([, turn]) => turn);
    for (const turn of added) check(turn, [...now.values()]);
    if (i > 0) {
      const reply = added.find(({ role }) => role === "assistant");
      found[reply ? (isComplete(reply) ? "complete" : "unfinished") : added.length > 0 ? "message" : "nothing"]++;
    }
    // The conversation opens, and goes on.
    if (now.size > 0) await page.locator("#chats button[id^=chat-]").first().click();
    const { done } = await send(page, "Hello!");
    await done.waitFor();
    // A moment after it is shown; a slow reply was kept in part before.
    const end = performance.now() + 60_000;
    do {
      assert.ok(performance.now() < end, "the page does not keep a reply");
      await sleep(50);
      sure = await read(page);
    } while (sure.size < now.size + 2 || ![...sure].every(([key, turn]) => now.has(key) || turn.role === "user" || isComplete(turn)));
    if (i === times) break;
    await send(page, "Tell me a story about a fox.");
    await sleep(Math.random() * LATEST);
    await browser.kill();
    browser = undefined;
  }
  t.diagnostic(`killed ${times} times; afterwards of the turn were kept: ${JSON.stringify(found)}; ${sure.size} turns, all whole`);
});
