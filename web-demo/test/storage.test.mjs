// The built page where the browser keeps less for it: `npm run build` first. CHROME is the browser's path.
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { launch, launchWith, serve } from "../../wasm/js/test/chromium.mjs";

describe("the page where little is kept", () => {
  let server;
  before(async () => (server = await serve(new URL("../dist/", import.meta.url))));
  after(() => server?.close());

  /** Opens the page and notes what goes wrong in it. */
  async function open(context, url) {
    const page = context.pages()[0] ?? (await context.newPage());
    page.setDefaultTimeout(30_000);
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
      assert.equal(await page.locator("html").getAttribute("data-theme"), "light");
      assert.match(await page.locator("#chats").innerText(), /Conversations stay in this browser\./);
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
      assert.equal(await page.locator("html").getAttribute("data-theme"), "light");
      await page.click("#open-settings");
      await page.fill("#max-tokens", "4");
      await page.click("#close-settings");
      await page.click("#new-chat");
      await hear(page, "Tell me a story.");
      assert.match(await page.locator("#conversation .figures").innerText(), /^4 tokens/);
      await page.click("#chat-list .open:has-text('Hello!')");
      await page.locator("#conversation").filter({ hasText: "Hello!" }).waitFor();
      assert.match(await page.locator("#chats").innerText(), /keeps no conversations of this page: they are gone when it is closed\./);
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
});
