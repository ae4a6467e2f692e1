// Kills the browser at random instants of a reply, SHOHIN_CUTS times; `cargo xtask cut` does so more often.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { chromium } from "playwright-core";
import { serve } from "../../wasm/js/test/chromium.mjs";

/** A browser with a profile; `kill` ends it and all its processes at once. */
async function open(profile, url) {
  const program = process.env.HEADLESS_SHELL ?? process.env.CHROME ?? "/usr/bin/chromium";
  const args = ["--headless", "--no-sandbox", "--disable-dev-shm-usage", "--remote-debugging-port=0", `--user-data-dir=${profile}`];
  // In a process group of its own.
  const child = spawn(program, args, { stdio: ["ignore", "ignore", "pipe"], detached: true });
  const exited = new Promise((resolve) => child.once("exit", resolve));
  let address;
  const lines = createInterface(child.stderr);
  for await (const line of lines) if ((address = /listening on (ws:\S+)/.exec(line)?.[1])) break;
  child.stderr.resume();
  const browser = await chromium.connectOverCDP(address);
  const page = await browser.contexts()[0].newPage();
  page.setDefaultTimeout(120_000);
  await page.setViewportSize({ width: 1024, height: 768 });
  await page.goto(url);
  await page.locator("#model[data-state=ready]").waitFor();
  const kill = async () => {
    process.kill(-child.pid, "SIGKILL");
    await exited;
  };
  return { page, kill };
}

/** Every turn that the page has kept. */
const kept = (page) =>
  page.evaluate(async () => {
    const database = await new Promise((done) => (indexedDB.open("shohin").onsuccess = (event) => done(event.target.result)));
    const request = database.transaction("turns").objectStore("turns").getAll();
    const turns = await new Promise((done) => (request.onsuccess = () => done(request.result)));
    database.close();
    return turns;
  });

async function send(page, message) {
  const replies = page.locator("#conversation [data-role=assistant]");
  const n = await replies.count();
  await page.fill("#prompt", message);
  await page.click("#send");
  return replies.nth(n).locator("xpath=self::*[@data-state='done']");
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
  let during = 0;
  const read = async (page) => new Map((await kept(page)).map((turn) => [`${turn.conversation} ${turn.id}`, turn]));
  for (let i = 0; i <= times; i++) {
    browser = await open(profile, server.url);
    const { page } = browser;
    const found = await read(page);
    for (const [key, turn] of sure) assert.deepEqual(found.get(key), turn, `kill ${i} changed a turn`);
    for (const turn of found.values()) {
      assert.ok(["user", "assistant"].includes(turn.role) && typeof turn.content === "string", JSON.stringify(turn));
    }
    during += Number(found.size > sure.size);
    // The conversation opens, and goes on.
    if (found.size > 0) await page.locator("#chats button[id^=chat-]").first().click();
    await (await send(page, "Hello!")).waitFor();
    while ((await kept(page)).length < found.size + 2) await sleep(50);
    sure = await read(page);
    if (i === times) break;
    await send(page, "Tell me a story about a fox.");
    await sleep(Math.random() * 600);
    await browser.kill();
    browser = undefined;
  }
  t.diagnostic(`killed ${times} times, ${during} after something of the turn had been kept; ${sure.size} turns, all whole`);
});
