// "Teach it", in headless Chromium: `npm run build` first.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, before, describe, test } from "node:test";
import { launch, serve } from "../../wasm/js/test/chromium.mjs";
import { faults } from "./axe.mjs";

const { SHOHIN_PICTURES: PICTURES } = process.env;

describe("a page that is taught", () => {
  let browser, server, page, context;
  const problems = [];

  before(async () => {
    browser = await launch();
    server = await serve(new URL("../dist/", import.meta.url));
    context = await browser.newContext({ viewport: { width: 1400, height: 900 }, acceptDownloads: true });
    page = await context.newPage();
    page.setDefaultTimeout(240_000);
    page.on("pageerror", (error) => problems.push(String(error)));
    await page.goto(server.url);
    await ready();
  });
  after(async () => {
    await browser?.close();
    await server?.close();
    assert.deepEqual(problems, []);
  });

  const ready = () => page.locator("#model[data-state=ready]").waitFor();
  const note = (text) => page.locator("#teach-note").filter({ hasText: text }).waitFor();
  /** The first step of a training, which may be stopped there. */
  const step = (stop) =>
    page.evaluate(
      (stop) =>
        new Promise((resolve) => {
          const note = document.querySelector("#teach-note");
          const observer = new MutationObserver(() => {
            if (!note.textContent.startsWith("Step")) return;
            observer.disconnect();
            if (stop) document.querySelector("#teach-stop").click();
            resolve();
          });
          observer.observe(note, { childList: true, characterData: true, subtree: true });
        }),
      stop,
    );
  const ask = async (question) => {
    const replies = page.locator("#conversation [data-role=assistant]");
    const before = await replies.count();
    await page.fill("#prompt", question);
    await page.press("#prompt", "Enter");
    const reply = replies.nth(before);
    await reply.locator("xpath=self::*[@data-state='done']").waitFor();
    return (await reply.locator(".text").innerText()).trim();
  };
  const picture = async (name) => PICTURES && (await page.screenshot({ path: `${PICTURES}/teach-${name}.png` }));

  test("learns while it goes on chatting, and answers", async () => {
    await page.click("#open-teach");
    await page.click("#teach-go");
    await note("Write a question");
    await page.locator("#teach-facts input[name=question]").fill("What is my dog called?");
    await page.click("#teach-go");
    await note("Each question needs its answer.");
    await page.locator("#teach-facts input[name=answer]").fill("Your dog is called Biscuit.");
    assert.deepEqual(await faults(page, "before"), []);
    const learning = step(false);
    await page.click("#teach-go");
    await learning;
    assert.notEqual(await ask("What does a cow say?"), "");
    await note("Learned.");
    assert.match(await page.locator("#teach-chart").getAttribute("aria-label"), /^Loss over \d+ steps: from [\d.]+ to [\d.]+$/);
    assert.deepEqual(await page.locator("#teach-known li").allInnerTexts(), ["What is my dog called? Your dog is called Biscuit."]);
    assert.deepEqual(await faults(page, "after"), []);
    await picture("light");
    await page.emulateMedia({ colorScheme: "dark" });
    assert.deepEqual(await faults(page, "dark"), []);
    await picture("dark");
    await page.emulateMedia({ colorScheme: "light" });
    await page.click("#new-chat");
    assert.equal(await ask("What is my dog called?"), "Your dog is called Biscuit.");
  });

  test("knows it after a reload without a network, and not when it is switched off", async () => {
    await page.waitForFunction(() => document.querySelector("#gauge-offline").textContent === "works offline");
    await context.setOffline(true);
    await page.reload();
    await ready();
    await page.click("#open-teach");
    await page.locator("#teach-known li").waitFor();
    await page.click("#close-teach");
    await page.click("#new-chat");
    assert.equal(await ask("What is my dog called?"), "Your dog is called Biscuit.");
    await context.setOffline(false);
    await page.click("#open-teach");
    await page.uncheck("#teach-use");
    await page.click("#new-chat");
    assert.notEqual(await ask("What is my dog called?"), "Your dog is called Biscuit.");
    await page.check("#teach-use");
  });

  test("writes a file, forgets, and reads it again", async () => {
    const [saved] = await Promise.all([page.waitForEvent("download"), page.click("#teach-export")]);
    assert.equal(saved.suggestedFilename(), "taught.gguf");
    const file = await readFile(await saved.path());
    assert.equal(file.subarray(0, 4).toString(), "GGUF");
    await page.click("#teach-forget");
    await note("Forgotten.");
    await page.locator("#teach-learned").waitFor({ state: "hidden" });
    await page.setInputFiles("#teach-file", { name: "bad.gguf", mimeType: "application/octet-stream", buffer: file.subarray(0, 5000) });
    await note("bad.gguf cannot be used");
    await page.setInputFiles("#teach-file", { name: "dog.gguf", mimeType: "application/octet-stream", buffer: file });
    await note("dog.gguf is in use");
    assert.deepEqual(await page.locator("#teach-known li").allInnerTexts(), ["What is my dog called? Your dog is called Biscuit."]);
    await page.click("#new-chat");
    assert.equal(await ask("What is my dog called?"), "Your dog is called Biscuit.");
  });

  test("can be stopped, also on a phone", async () => {
    await page.click("#close-teach");
    await page.setViewportSize({ width: 360, height: 640 });
    await page.click("#open-teach");
    await page.click("#teach-more");
    await page.locator("#teach-facts input[name=question]").nth(1).fill("What is the door code?");
    await page.locator("#teach-facts input[name=answer]").nth(1).fill("It is 4711.");
    await picture("phone");
    assert.deepEqual(await faults(page, "phone"), []);
    const stopped = step(true);
    await page.click("#teach-go");
    await stopped;
    await note("Stopped: nothing has changed.");
    assert.equal(await page.locator("#teach-known li").count(), 1);
  });
});
