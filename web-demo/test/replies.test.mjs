// What a reply may be besides text, in headless Chromium: JSON, with calls of tools, with thoughts, with words underlined.
// `npm run build` first.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, afterEach, before, beforeEach, describe, test } from "node:test";
import { launch, serve } from "../../wasm/js/test/chromium.mjs";
import { scripted } from "../../wasm/js/test/scripted.mjs";
import { faults } from "./axe.mjs";
import { soon } from "./soon.mjs";

/** A model that writes these pieces, with room for the descriptions of tools: each of its tokens is a byte. */
function model(pieces) {
  const file = Buffer.from(scripted(pieces));
  const key = "qwen3.context_length";
  file.writeUInt32LE(8192, file.indexOf(key) + key.length + 4);
  return { name: "scripted.gguf", mimeType: "", buffer: file };
}

describe("a reply", () => {
  let browser, server, page, problems;

  before(async () => {
    browser = await launch();
    server = await serve(new URL("../dist/", import.meta.url));
  });
  after(async () => {
    await browser?.close();
    await server?.close();
  });
  beforeEach(async () => {
    const context = await browser.newContext({ viewport: { width: 1024, height: 768 }, serviceWorkers: "block" });
    page = await context.newPage();
    page.setDefaultTimeout(120_000);
    problems = [];
    page.on("pageerror", (error) => problems.push(String(error)));
    page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
    await page.addInitScript(() => {
      if (!localStorage.getItem("shohin.settings")) localStorage.setItem("shohin.settings", '{"preset":"greedy","temperature":0,"maxTokens":60,"context":"8192"}');
    });
    await page.goto(server.url);
  });
  afterEach(async () => {
    await page.context().close();
    assert.deepEqual(problems, []);
  });

  const ready = () => page.locator("#model[data-state=ready]").waitFor();
  const settings = async (change) => {
    await page.click("#open-settings");
    await change();
    await page.click("#close-settings");
  };
  const replies = () => page.locator("#conversation [data-role=assistant]");
  async function ask(message) {
    const before = await replies().count();
    await page.fill("#prompt", message);
    await page.press("#prompt", "Enter");
    const reply = replies().nth(before);
    await reply.locator("xpath=self::*[@data-state='done']").waitFor();
    return reply;
  }
  async function load(pieces) {
    await ready();
    await page.setInputFiles("#file", model(pieces));
    await page.locator("#status").filter({ hasText: "scripted.gguf is ready" }).waitFor({ state: "attached" });
  }
  async function faultsInBoth() {
    const all = [];
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
      all.push(...(await faults(page, colorScheme)));
    }
    return all;
  }
  async function shoot(name) {
    for (const [width, colorScheme] of process.env.SCREENSHOTS ? [[1024, "light"], [390, "dark"]] : []) {
      await page.emulateMedia({ colorScheme });
      await page.setViewportSize({ width, height: 900 });
      await page.screenshot({ path: `${process.env.SCREENSHOTS}/${name}-${width}-${colorScheme}.png` });
    }
    await page.setViewportSize({ width: 1024, height: 768 });
  }

  test("is JSON by a schema, set out, and says what is wrong with a schema", async () => {
    await ready();
    await page.click("#open-settings");
    await soon(async () => assert.equal(await page.locator("#schema").isVisible(), false));
    await page.selectOption("#format", "schema");
    const first = await page.locator("#schema").inputValue();
    for (const [text, words] of [
      ['{"type": "object",}', /^This is not JSON: /],
      ["[1]", /^A JSON Schema is an object, found an array\.$/],
    ]) {
      await page.fill("#schema", text);
      await page.locator("#schema").blur();
      await soon(async () => assert.match(await page.locator("#schema-fault").innerText(), words));
      await soon(async () => assert.equal(await page.locator("#schema").getAttribute("aria-invalid"), "true"));
    }
    assert.deepEqual(await faultsInBoth(), []);
    await page.locator("#schema").scrollIntoViewIfNeeded();
    await shoot("schema");
    // What is shown again is what is in force.
    await page.keyboard.press("Escape");
    await page.click("#open-settings");
    await soon(async () => assert.equal(await page.locator("#schema").inputValue(), first));
    await soon(async () => assert.equal(await page.locator("#schema-fault").textContent(), ""));
    const schema = { type: "object", properties: { animal: { enum: ["fox", "cat"] }, age: { type: "integer", minimum: 0, maximum: 9 } }, required: ["animal", "age"], additionalProperties: false };
    await page.fill("#schema", JSON.stringify(schema));
    await page.click("#close-settings");
    const reply = await ask("Which animal?");
    const shown = await reply.locator("pre code").textContent();
    const value = JSON.parse(shown);
    assert.ok(["fox", "cat"].includes(value.animal) && Number.isInteger(value.age), shown);
    assert.equal(shown, JSON.stringify(value, null, 2));
    await page.reload();
    await soon(async () => assert.equal(await replies().first().locator("pre code").textContent(), shown));
    await ready();
    // A keyword that the engine does not have is refused by name, and the message given back.
    await settings(() => page.fill("#schema", '{"not": {"type": "string"}}'));
    await page.fill("#prompt", "And now?");
    await page.press("#prompt", "Enter");
    await page.locator("#alert-text").filter({ hasText: /^The schema in the settings cannot be used: .*not/ }).waitFor();
    await soon(async () => assert.equal(await page.locator("#prompt").inputValue(), "And now?"));
    await settings(() => page.selectOption("#format", "json"));
    await page.press("#prompt", "Enter");
    await replies().nth(1).locator("xpath=self::*[@data-state='done']").waitFor();
    await soon(async () => assert.equal(typeof JSON.parse(await replies().nth(1).locator("pre code").textContent()), "object"));
  });

  test("may call tools, a few times, where the model has a template for them", async () => {
    await ready();
    await page.click("#open-settings");
    await soon(async () => assert.equal(await page.locator("#tools").isDisabled(), true));
    await soon(async () => assert.equal(await page.locator("#tools-note").innerText(), "This model has no template for tools."));
    await page.click("#close-settings");
    // Whatever it is told, it calls again.
    await load(["<tool_call>", '\n{"name": "calculator", "arguments": {"expression": "2+3*4"}}\n', "</tool_call>"]);
    await settings(async () => {
      await page.check("#tools");
      await soon(async () => assert.equal(await page.locator("#tools-note").isVisible(), false));
      await page.selectOption("#format", "json");
      await soon(async () => assert.equal(await page.locator("#tools-note").innerText(), "Not with replies in JSON."));
      await page.selectOption("#format", "text");
    });
    const reply = await ask("What is 2+3*4?");
    const calls = () => replies().first().locator(".calls li").evaluateAll((items) => items.map((item) => [...item.querySelectorAll(".name, code")].map(({ textContent }) => textContent)));
    const made = await calls();
    assert.equal(made.length, 4);
    await soon(async () => assert.match(await reply.locator(".figures").innerText(), /no more calls of tools after these$/));
    for (const [name, given, result] of made) assert.deepEqual([name, JSON.parse(given), JSON.parse(result)], ["calculator", { expression: "2+3*4" }, { result: 14 }]);
    assert.deepEqual(await faultsInBoth(), []);
    await shoot("tools");
    // They are kept, and told to the model with the next message.
    await page.reload();
    await replies().first().waitFor();
    assert.deepEqual(await calls(), made);
    await soon(async () => assert.equal(await reply.locator(".calls").getAttribute("aria-label"), "Calls of tools"));
  });

  test("may begin with thoughts, up to a budget", async () => {
    await ready();
    await page.click("#open-settings");
    await soon(async () => assert.equal(await page.locator("#thinking").isDisabled(), true));
    await soon(async () => assert.equal(await page.locator("#thinking-note").innerText(), "This model does not think before it answers."));
    await page.click("#close-settings");
    await load(["<think>", "a ", "b ", "c ", "d ", "e ", "f "]);
    await settings(async () => {
      await page.selectOption("#thinking", "budget");
      await page.fill("#budget", "0");
      await page.locator("#budget").blur();
      await soon(async () => assert.match(await page.locator("#budget-fault").innerText(), /^A whole number from 1 to 4,096\./));
      await page.fill("#budget", "3");
    });
    const thoughts = async (message) => (await (await ask(message)).locator(".thoughts p").textContent()).trim();
    assert.equal(await thoughts("?"), "a b");
    await settings(() => page.selectOption("#thinking", "on"));
    assert.equal(await thoughts("?"), "a b c d e f");
    await page.reload();
    await soon(async () => assert.equal(await page.locator("#thinking").inputValue(), "on"));
    await soon(async () => assert.equal(await page.locator("#budget").inputValue(), "3"));
  });

  test("has its words of low probability underlined on request, and stays as it is", async () => {
    await ready();
    const first = await ask("Tell me a story about a fox and a lantern.");
    assert.equal(await page.evaluate(() => CSS.highlights.get("unsure")?.size ?? 0), 0);
    await settings(async () => {
      await page.check("#confidence");
      await page.selectOption("#preset", "creative");
      await page.fill("#seed", "5");
    });
    const plain = await first.locator("[data-part=text]").innerHTML();
    const reply = await ask("Tell me a story about a fox and a lantern.");
    const words = () => page.evaluate(() => [...CSS.highlights.get("unsure")].map(String));
    const listed = async (n) => [...(await replies().nth(n).locator(".unsure").textContent()).replace(/^.*below 30 %/, "").matchAll(/(\S+) (\d+) %/g)].map(([, word, percent]) => [word, Number(percent)]);
    const found = await listed(1);
    assert.ok(found.length > 0 && found.every(([, percent]) => percent <= 30), JSON.stringify(found));
    assert.deepEqual(await words(), found.map(([word]) => word));
    await soon(async () => assert.equal(await first.locator("[data-part=text]").innerHTML(), plain));
    await soon(async () => assert.equal(await reply.locator("[data-part=text] :not(p, br)").count(), 0, "no element is added"));
    await reply.locator(".unsure summary").click();
    assert.deepEqual(await faultsInBoth(), []);
    await shoot("confidence");
    // A word is as probable as its tokens together.
    const story = await reply.locator("[data-part=text]").innerText();
    for (const [word] of found) assert.ok(story.includes(word), word);
    await page.reload();
    await replies().nth(1).waitFor();
    assert.deepEqual(await words(), found.map(([word]) => word));
    await settings(() => page.uncheck("#confidence"));
    await soon(async () => assert.equal(await replies().nth(1).locator(".unsure").isVisible(), false));
  });
});
