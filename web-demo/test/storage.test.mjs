// The built page where the browser keeps less for it: `npm run build` first. CHROME is the browser's path.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, before, beforeEach, describe, test } from "node:test";
import { launch, launchWith, serve } from "../../wasm/js/test/chromium.mjs";
import { enlarged, origin } from "../../wasm/js/test/gguf.mjs";
import { soon } from "./soon.mjs";

describe("the page where little is kept", () => {
  let server;
  let big;
  before(async () => {
    big = origin(enlarged(await readFile(new URL("../../models/sprout-nano.gguf", import.meta.url)), 8));
    server = await serve(new URL("../dist/", import.meta.url), { "/big.gguf": big.answer });
  });
  after(() => server?.close());

  /** Opens the page and notes what goes wrong in it. */
  async function open(context, url) {
    const page = context.pages()[0] ?? (await context.newPage());
    page.setDefaultTimeout(120_000);
    const problems = [];
    page.on("pageerror", (error) => problems.push(String(error)));
    await page.goto(url);
    return { page, problems };
  }

  async function hear(page, message) {
    const replies = page.locator("#conversation [data-role=assistant]");
    const before = await replies.count();
    await page.fill("#prompt", message);
    await page.click("#send");
    await replies.nth(before).locator("xpath=self::*[@data-state='done']").waitFor();
    return replies.nth(before).locator("[data-part=text]").innerText();
  }

  const keptNote = async (page) => {
    await page.click("#model");
    await page.locator("#kept-note").filter({ hasText: /\w/ }).waitFor();
    const words = await page.locator("#kept-note").innerText();
    await page.click("#close-models");
    return words;
  };

  test("chats over plain HTTP, and says that no models are kept there", async () => {
    const browser = await launch(["--host-resolver-rules=MAP plain.test 127.0.0.1"]);
    try {
      const { page, problems } = await open(await browser.newContext({ viewport: { width: 1280, height: 768 } }), server.url.replace("127.0.0.1", "plain.test"));
      assert.deepEqual(await page.evaluate(() => [isSecureContext, "randomUUID" in crypto]), [false, false]);
      await page.locator("#unkept").filter({ hasText: /^This page came over plain HTTP: models are not kept, and it does not open offline\.$/ }).waitFor();
      assert.notEqual(await hear(page, "Hello!"), "");
      assert.match(await keptNote(page), /^Over plain HTTP no models are kept: /);
      // All else is kept.
      await page.click("#theme");
      await page.reload();
      await page.locator("#conversation [data-role=assistant]").waitFor();
      await soon(async () => assert.equal(await page.locator("html").getAttribute("data-theme"), "light"));
      await soon(async () => assert.match(await page.locator("#chats").innerText(), /Conversations stay in this browser\./));
      assert.notEqual(await hear(page, "Tell me a joke."), "");
      assert.deepEqual(problems, []);
    } finally {
      await browser.close();
    }
  });

  test("chats where cookies and storage are blocked, and says that nothing is kept", async () => {
    // Chromium's own setting.
    const context = await launchWith({ profile: { default_content_setting_values: { cookies: 2 } } });
    try {
      const { page, problems } = await open(context, server.url);
      await page.setViewportSize({ width: 1280, height: 768 });
      assert.equal(await page.evaluate(() => {
        try {
          return String(localStorage);
        } catch (error) {
          return error.name;
        }
      }), "SecurityError");
      await page.locator("#unkept").filter({ hasText: /^This browser keeps nothing for this page: conversations, settings and models are gone when it is closed\.$/ }).waitFor();
      assert.notEqual(await hear(page, "Hello!"), "");
      assert.match(await keptNote(page), /^This browser keeps no models for this page: /);
      // Choices and conversations last as long as the page.
      await page.click("#theme");
      await soon(async () => assert.equal(await page.locator("html").getAttribute("data-theme"), "light"));
      await page.click("#open-settings");
      await page.fill("#max-tokens", "4");
      await page.click("#close-settings");
      await page.click("#new-chat");
      await hear(page, "Tell me a story.");
      await soon(async () => assert.match(await page.locator("#conversation .figures").innerText(), /^4 tokens/));
      await page.click("#chat-list .open:has-text('Hello!')");
      await page.locator("#conversation").filter({ hasText: "Hello!" }).waitFor();
      await soon(async () => assert.match(await page.locator("#chats").innerText(), /keeps no conversations of this page: they are gone when it is closed\./));
      // A model from an address, which would be kept elsewhere.
      await page.click("#model");
      await page.fill("#url", `${server.url}sprout.gguf`);
      await page.click("#url-form button");
      await page.locator("#status").filter({ hasText: "sprout.gguf is ready" }).waitFor({ state: "attached" });
      assert.notEqual(await hear(page, "Hello!"), "");
      await page.click("#chat-list li:has-text('Hello!') .icon");
      await page.locator("#chat-list li").filter({ hasText: "Hello!" }).waitFor({ state: "detached" });
      assert.deepEqual(problems, []);
    } finally {
      await context.close();
    }
  });

  test("says for how much there is room on a disk", async () => {
    const context = await launchWith({});
    try {
      const { page, problems } = await open(context, server.url);
      await page.setViewportSize({ width: 1280, height: 768 });
      await page.locator("#model[data-state=ready]").waitFor();
      // A trial may take too long while others use the machine.
      await soon(async () => assert.match(await keptNote(page), /The browser has room for [\d.]+\s[MG]B more\.$/));
      assert.deepEqual(problems, []);
    } finally {
      await context.close();
    }
  });

  describe("with little room, or a bad connection", () => {
    let browser, page, problems;
    before(async () => (browser = await launch()));
    after(() => browser?.close());
    beforeEach(async () => {
      await page?.context().close();
      const context = await browser.newContext({ viewport: { width: 1280, height: 768 }, serviceWorkers: "block" });
      ({ page, problems } = await open(context, server.url));
      await page.locator("#model[data-state=ready]").waitFor();
    });

    const quota = async (quotaSize) => {
      const client = await page.context().newCDPSession(page);
      await client.send("Storage.overrideQuotaForOrigin", { origin: new URL(server.url).origin, ...(quotaSize && { quotaSize }) });
    };
    const pick = async (address) => {
      await page.click("#model");
      await page.fill("#url", address);
      await page.click("#url-form button");
    };
    const alert = async (words) => {
      await page.locator("#alert-text").filter({ hasText: words }).waitFor();
      return page.locator("#alert-text").innerText();
    };

    test("tells the room there is, and of models what they need and that they are not kept", async () => {
      await page.click("#model");
      // Files are memory in this window: whether there is room for more is not tried for long.
      await soon(async () => assert.match(await page.locator("#offers li").nth(1).innerText(), /248\.3\sMB · 718\.1\sMB of memory · 1-bit, the quickest$/m));
      await page.click("#close-models");
      await quota(6 << 20);
      await page.click("#model");
      await page.locator("#offers li").filter({ hasText: /no room to keep it, 248\.3\sMB are needed/ }).waitFor();
      // The browser itself says 10 GB.
      await soon(async () => assert.match(await page.locator("#kept-note").innerText(), /The browser has room for [56](\.\d)?\sMB more\.$/));
      await page.click("#close-models");
      await pick(`${server.url}big.gguf`);
      assert.match(await alert("is not kept"), /^big\.gguf works, but is not kept: this browser has no room for it\./);
      await soon(async () => assert.equal(await page.locator("#alert-retry").isVisible(), false));
      assert.notEqual(await hear(page, "Hello!"), "");
      assert.deepEqual(problems, []);
    });

    test("lists a conversation that cannot be saved, and saves it once it can", async () => {
      // The browser remembers for a while that there was room: not in a new context.
      const context = await page.context().browser().newContext({ viewport: { width: 1280, height: 768 }, serviceWorkers: "block" });
      await page.context().close();
      page = await context.newPage();
      await quota(1);
      ({ page, problems } = await open(context, server.url));
      await hear(page, "Hello!");
      assert.match(await alert("could not be saved"), /^“Hello!” could not be saved: there is no storage left/);
      await hear(page, "Tell me a joke.");
      await page.click("#new-chat");
      await hear(page, "Tell me a story.");
      const list = () => page.locator("#chat-list li").allInnerTexts();
      assert.deepEqual((await list()).map((item) => item.replace(/\s+/g, " ").trim()), ["Tell me a story. not saved", "Hello! not saved"]);
      await soon(async () => assert.match(await page.locator("#chats").innerText(), /marked “not saved” are lost when this page is closed/));
      // It is all there until then.
      await page.click("#chat-list .open:has-text('Hello!')");
      await page.locator("#conversation").filter({ hasText: "Tell me a joke." }).waitFor();
      await quota();
      // Room is also made by deleting.
      await page.click("#chat-list li:has-text('Tell me a story.') .icon");
      await page.waitForFunction(() => !document.querySelector("#chat-list .unsaved"));
      await page.reload();
      await page.locator("#conversation [data-role=assistant]").nth(1).waitFor();
      await soon(async () => assert.deepEqual(await page.locator("#conversation [data-role=user] [data-part=text]").allInnerTexts(), ["Hello!", "Tell me a joke."]));
      assert.deepEqual(await list(), ["Hello!"]);
      assert.deepEqual(problems, []);
    });

    test("says what of a download is kept when the connection is lost, and continues it", async () => {
      const { state } = big;
      let release;
      const released = new Promise((resolve) => (release = resolve));
      state.sent = 0;
      state.hold = () => (state.sent > 5 << 20 ? released : undefined);
      await pick(`${server.url}big.gguf`);
      await page.waitForFunction(() => document.querySelector("#loading-name").textContent === "big.gguf" && document.querySelector("#loading-bar").value > 0.3);
      await page.click("#loading-cancel");
      await page.locator("#loading").waitFor({ state: "hidden" });
      release();
      Object.assign(state, { hold: undefined, resets: () => true });
      await pick(`${server.url}big.gguf`);
      assert.match(await alert("big.gguf"), /^big\.gguf could not be downloaded: the connection was lost\. [2-8](\.\d)?\sMB of 9\sMB are kept; try again continues from there\.$/);
      Object.assign(state, { resets: undefined, asked: [] });
      await page.click("#alert-retry");
      await page.locator("#status").filter({ hasText: "big.gguf is ready" }).waitFor({ state: "attached" });
      assert.ok(state.asked.length > 0 && state.asked.every(([at]) => at >= 2 << 20), `${state.asked}`);
      await soon(async () => assert.equal(await page.locator("#alert").isVisible(), false));
      // Of a server that was never reached anything may be the cause.
      await pick("http://127.0.0.1:9/none.gguf");
      assert.match(await alert("none.gguf"), /\(CORS\)\.$/);
    });
  });
});
