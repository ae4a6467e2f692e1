// The built page in two tabs: `npm run build` first. CHROME is the browser's path.
import assert from "node:assert/strict";
import { after, before, beforeEach, describe, test } from "node:test";
import { launch, serve } from "../../wasm/js/test/chromium.mjs";

describe("conversations in two tabs", () => {
  let server, browser, context, first, second, problems;
  before(async () => {
    server = await serve(new URL("../dist/", import.meta.url));
    browser = await launch();
  });
  after(async () => {
    await browser?.close();
    await server?.close();
  });
  beforeEach(async () => {
    await context?.close();
    context = await browser.newContext({ viewport: { width: 1280, height: 768 }, serviceWorkers: "block" });
    context.setDefaultTimeout(120_000);
    await context.addInitScript(() => (localStorage["shohin.settings"] ??= '{"preset":"greedy","maxTokens":16}'));
    problems = [];
    first = await tab();
    await hear(first, "Hello!");
  });

  /** A tab; with `held` its model comes when that resolves. */
  async function tab(held) {
    const page = await context.newPage();
    page.on("pageerror", (error) => problems.push(String(error)));
    if (held) await page.route("**/sprout.gguf", (route) => held.then(() => route.continue()));
    await page.goto(server.url);
    return page;
  }

  const send = async (page, message) => {
    await page.fill("#prompt", message);
    await page.click("#send");
  };
  const idle = (page) => page.waitForFunction(() => document.querySelector("#conversation .assistant") && !document.querySelector("#send[data-busy], #conversation [data-state=busy]"));
  async function hear(page, message) {
    await send(page, message);
    await page.locator("#conversation .user").filter({ hasText: message }).waitFor();
    await idle(page);
  }
  const list = (page) => page.locator("#chat-list .open").allInnerTexts();
  /** Waits until a tab shows these messages, each with its reply. */
  const shows = (page, messages) =>
    page.waitForFunction(
      (messages) => {
        const turns = [...document.querySelectorAll("#conversation .turn")].map((turn) => (turn.matches(".user") ? turn.querySelector("[data-part=text]").textContent : ""));
        return JSON.stringify(turns) === JSON.stringify(messages.flatMap((message) => [message, ""]));
      },
      messages,
    );
  /** Opens the conversation in a second tab, whose model is not there yet, and sends a message. */
  async function waitingTab(message) {
    let release;
    second = await tab(new Promise((resolve) => (release = resolve)));
    await second.click("#chat-list .open");
    await shows(second, ["Hello!"]);
    await send(second, message);
    await second.locator("#send[data-busy]").waitFor();
    return release;
  }

  test("lose nothing that both say at once", async () => {
    const release = await waitingTab("Tell me a joke.");
    await hear(first, "Tell me a story.");
    release();
    await idle(second);
    const all = ["Hello!", "Tell me a joke.", "Tell me a story."];
    await shows(first, all);
    await shows(second, all);
    await first.reload();
    await shows(first, all);
    assert.deepEqual(await list(first), ["Hello!"]);
    assert.deepEqual(problems, []);
  });

  test("lose nothing that is being answered to an edit in the other tab", async () => {
    const release = await waitingTab("Tell me a joke.");
    await first.locator("#conversation .user").nth(1).waitFor();
    await first.locator("#conversation .user .edit").first().click();
    await first.fill(".editing textarea", "Good evening!");
    await first.keyboard.press("Enter");
    await idle(first);
    release();
    await idle(second);
    await shows(first, ["Tell me a joke.", "Good evening!"]);
    await shows(second, ["Tell me a joke.", "Good evening!"]);
    assert.deepEqual(problems, []);
  });

  test("follow each other around an edit, which replaces what the other tab has added", async () => {
    second = await tab();
    await second.click("#chat-list .open");
    await shows(second, ["Hello!"]);
    await first.locator("#conversation .user .edit").click();
    await first.fill(".editing textarea", "Good evening!");
    await hear(second, "Tell me a joke.");
    // Not while it is being written.
    assert.equal(await first.locator("#conversation .turn").count(), 1);
    await first.focus("#prompt");
    await first.locator("#conversation .assistant").nth(1).waitFor();
    await first.reload();
    await first.locator("#conversation .assistant").nth(1).waitFor();
    await first.focus("#prompt");
    await hear(second, "Tell me a story.");
    await first.locator("#conversation .assistant").nth(2).waitFor();
    assert.equal(await first.inputValue(".editing textarea"), "Good evening!");
    await first.focus(".editing textarea");
    await hear(second, "Good night!");
    assert.equal(await first.locator("#conversation .assistant").count(), 3);
    await first.keyboard.press("Enter");
    await shows(first, ["Good evening!"]);
    await idle(first);
    await shows(second, ["Good evening!"]);
    await first.reload();
    await shows(first, ["Good evening!"]);
    assert.deepEqual(problems, []);
  });

  test("stay deleted, and come back whole", async () => {
    const release = await waitingTab("Tell me a joke.");
    await first.locator("#conversation .user").nth(1).waitFor();
    await first.click("#chat-list .icon");
    await first.locator("#undo").waitFor();
    release();
    await second.locator("#welcome").waitFor();
    assert.deepEqual([await list(first), await list(second)], [[], []]);
    await first.click("#undo-button");
    await first.locator("#chat-list .open").waitFor();
    await first.reload();
    await first.click("#chat-list .open");
    await shows(first, ["Hello!", "Tell me a joke."]);
    assert.deepEqual(problems, []);
  });

  test("of an earlier version of the page are kept", async () => {
    const page = await (await browser.newContext({ viewport: { width: 1280, height: 768 }, serviceWorkers: "block" })).newPage();
    page.setDefaultTimeout(120_000);
    await page.goto(`${server.url}favicon.svg`);
    await page.evaluate(async () => {
      const database = await new Promise((resolve) => {
        const request = indexedDB.open("shohin", 1);
        request.onupgradeneeded = () => request.result.createObjectStore("conversations", { keyPath: "id" });
        request.onsuccess = () => resolve(request.result);
      });
      const turns = ["A", "a", "B", "b"].map((content, i) => ({ role: i % 2 ? "assistant" : "user", content }));
      const transaction = database.transaction("conversations", "readwrite");
      transaction.objectStore("conversations").put({ id: "1-2", title: "A", updated: 5, turns });
      await new Promise((resolve) => (transaction.oncomplete = resolve));
      database.close();
    });
    await page.goto(server.url);
    await page.click("#chat-list .open");
    await shows(page, ["A", "B"]);
    await hear(page, "Hello!");
    await page.reload();
    await shows(page, ["A", "B", "Hello!"]);
    await page.context().close();
  });
});
