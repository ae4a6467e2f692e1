// Searching, renaming, exporting and importing conversations in the built page: `npm run build` first. CHROME is the
// browser's path.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, before, beforeEach, describe, test } from "node:test";
import { launch, serve } from "../../wasm/js/test/chromium.mjs";
import { faults } from "./axe.mjs";
import { soon } from "./soon.mjs";

describe("kept conversations", () => {
  let server, browser, context, page, problems;
  before(async () => {
    server = await serve(new URL("../dist/", import.meta.url), {
      // No model is needed for what is tested here.
      "/sprout.gguf": (_request, response) => response.writeHead(200, { "Content-Length": 1e6 }).flushHeaders(),
    });
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
    problems = [];
    page = await tab();
  });

  async function tab() {
    const page = await context.newPage();
    page.on("pageerror", (error) => problems.push(String(error)));
    await page.goto(server.url);
    await page.locator("#no-chats:not([hidden]), #chat-list .open").first().waitFor();
    return page;
  }

  const turn = (id, at, role, content, more = {}) => ({ id, at, role, content, ...more });
  const talk = (id, updated, question, answer, more = {}) => ({
    id,
    title: question,
    updated,
    turns: [turn("a", 1, "user", question), turn("b", 1.5, "assistant", answer, { figures: "7 tokens · 30 tokens/s", model: "sprout · Q2_0 · 1.5 MB" })],
    ...more,
  });
  const file = (conversations, more = {}) => ({ format: "shohin-conversations", version: 1, conversations, ...more });
  const FOX = talk("1", 1000, "Tell me a story.", "A fox found a Lantern in the café.");
  /** With all that a reply may have. */
  const SUM = talk("3", 3000, "What is 2 plus 2?", "[4, 5]");
  Object.assign(SUM.turns[1], {
    reasoning: "A sum.",
    unfinished: true,
    details: "seed 1",
    steps: [
      { role: "assistant", content: "", reasoning: "Count.", toolCalls: [{ name: "add", arguments: '{"a": 2, "b": 2}' }] },
      { role: "tool", content: "4" },
    ],
    json: true,
    unsure: [[4, 1, 20]],
    dropped: 2,
  });
  const ROBOT = talk("2", 2000, "What does a robot eat?", "Oil and **bolts**.");

  /** Imports a file through the button, and returns what the page says of it. */
  async function importFile(content, name = "kept.json") {
    await page.locator("#file-note").evaluate((note) => (note.textContent = ""));
    await page.locator("#alert").evaluate((alert) => (alert.hidden = true));
    const chooser = page.waitForEvent("filechooser");
    await page.click("#import-chats");
    await (await chooser).setFiles({ name, mimeType: "application/json", buffer: Buffer.from(typeof content === "string" ? content : JSON.stringify(content)) });
    const said = page.locator("#file-note:not(:empty), #alert:not([hidden]) #alert-text");
    await said.first().waitFor();
    return said.first().innerText();
  }
  const titles = (page) => page.locator("#chat-list .open").allTextContents();
  const shows = (page, expected) =>
    page.waitForFunction((expected) => JSON.stringify([...document.querySelectorAll("#chat-list .open")].map((open) => open.textContent)) === expected, JSON.stringify(expected));
  async function choose(button, command) {
    await page.click(button);
    const download = page.waitForEvent("download");
    await page.click(`#menu button:has-text("${command}")`);
    const saved = await download;
    return { name: saved.suggestedFilename(), text: await readFile(await saved.path(), "utf8") };
  }

  test("are imported, and come back from an export as they were", async () => {
    assert.equal(await importFile(file([FOX, ROBOT, SUM])), "Imported 3 conversations.");
    assert.deepEqual(await titles(page), [SUM.title, ROBOT.title, FOX.title]);
    const { name, text } = await choose("#export-chats", "JSON");
    assert.match(name, /^shohin-conversations-\d{4}-\d\d-\d\d\.json$/);
    const exported = JSON.parse(text);
    assert.deepEqual([exported.format, exported.version], ["shohin-conversations", 1]);
    // The page says of a reply from a file that it was not written here.
    const marked = ({ turns, ...rest }) => ({ ...rest, turns: turns.map((turn) => (turn.role === "assistant" ? { ...turn, imported: true } : turn)) });
    assert.deepEqual(exported.conversations, [marked(SUM), marked(ROBOT), marked(FOX)]);
    // The same again adds nothing.
    assert.equal(await importFile(text), "Imported 0 conversations; 3 were here already.");
    assert.deepEqual(await titles(page), [SUM.title, ROBOT.title, FOX.title]);
    await page.click(`#chat-list .open:has-text("${SUM.title}")`);
    const reply = page.locator("#conversation .assistant");
    assert.equal(await reply.locator(".calls li").textContent(), 'add{"a": 2, "b": 2} answered 4');
    assert.match(await reply.locator(".unsure").textContent(), /5 20 %/);
    assert.equal(await reply.locator(".continue").count(), 1);
    assert.deepEqual(problems, []);
  });

  test("are never overwritten by an import", async () => {
    await importFile(file([FOX]));
    const other = talk("1", 3000, "Hello!", "Hi.");
    // One id three times: that of a kept conversation.
    assert.equal(await importFile(file([other, talk("1", 4000, "Bye!", "See you.")])), "Imported 2 conversations.");
    assert.deepEqual(await titles(page), ["Bye!", "Hello!", FOX.title]);
    for (const { title, turns } of [FOX, other]) {
      await page.click(`#chat-list .open:has-text("${title}")`);
      await page.locator("#conversation .assistant").filter({ hasText: turns[1].content }).waitFor();
    }
    // One that was deleted comes back, and stays, though another tab knows of the deletion.
    const witness = await tab();
    await page.click("#chat-list li:has-text('story') .icon");
    for (const each of [page, witness]) await shows(each, ["Bye!", "Hello!"]);
    await importFile(file([FOX]));
    await shows(witness, ["Bye!", "Hello!", FOX.title]);
    await page.reload();
    await shows(page, ["Bye!", "Hello!", FOX.title]);
    assert.deepEqual(problems, []);
  });

  test("are refused with what is wrong and where, all of a file at once", async () => {
    const broken = (change) => {
      const content = structuredClone(file([FOX, ROBOT]));
      change(content);
      return content;
    };
    for (const [content, expected] of [
      ["{", /^“kept\.json” was not imported: it is not JSON: /],
      ["[]", /the file: expected an object, found \[\]\.$/],
      [{}, /format: expected "shohin-conversations", found nothing\.$/],
      [file([], { version: 2 }), /version: expected 1, found 2\.$/],
      [file("none"), /conversations: expected an array, found "none"\.$/],
      [broken(({ conversations }) => delete conversations[1].title), /conversations\[1\]\.title: expected a text, found nothing\.$/],
      [broken(({ conversations }) => (conversations[1].turns[1].role = "system")), /conversations\[1\]\.turns\[1\]\.role: expected "user" or "assistant", found "system"\.$/],
      [broken(({ conversations }) => (conversations[0].turns[0].content = ["<img>"])), /conversations\[0\]\.turns\[0\]\.content: expected a text, found \["<img>"\]\.$/],
      [broken(({ conversations }) => (conversations[0].turns[1].id = "a")), /conversations\[0\]\.turns\[1\]\.id: expected an id that no other message has, found "a"\.$/],
      [broken(({ conversations }) => (conversations[0].turns[1].steps = "none")), /turns\[1\]\.steps: expected an array, found "none"\.$/],
      [broken(({ conversations }) => (conversations[0].turns[1].steps = [{ role: "system", content: "" }])), /turns\[1\]\.steps\[0\]\.role: expected "assistant" or "tool", found "system"\.$/],
      [broken(({ conversations }) => (conversations[0].turns[1].steps = [{ role: "assistant", content: "", toolCalls: [{ name: "add" }] }])), /steps\[0\]\.toolCalls\[0\]\.arguments: expected a text, found nothing\.$/],
      [broken(({ conversations }) => (conversations[0].turns[1].unfinished = 1)), /turns\[1\]\.unfinished: expected true or false, found 1\.$/],
      [broken(({ conversations }) => (conversations[0].turns[1].json = "yes")), /turns\[1\]\.json: expected true or false, found "yes"\.$/],
      [broken(({ conversations }) => (conversations[0].turns[1].unsure = [[1, 2]])), /turns\[1\]\.unsure: expected an array of three whole numbers each, found \[\[1,2\]\]\.$/],
      [broken(({ conversations }) => (conversations[0].updated = 1e300)), /conversations\[0\]\.updated: expected milliseconds since 1970, found 1e\+300\.$/],
      [broken(({ conversations }) => (conversations[0].turns = [])), /conversations\[0\]\.turns: expected at least one message, found \[\]\.$/],
    ]) {
      assert.match(await importFile(content), expected);
      assert.deepEqual(await titles(page), []);
    }
    assert.deepEqual(problems, []);
  });

  test("are saved one by one, as Markdown or JSON", async () => {
    await importFile(file([FOX, ROBOT]));
    const markdown = await choose("#more-2", "Markdown");
    assert.equal(markdown.name, "shohin-what-does-a-robot-eat.md");
    assert.equal(
      markdown.text,
      "# What does a robot eat?\n\n1970-01-01\n\n## You\n\nWhat does a robot eat?\n\n## Reply\n\nOil and **bolts**.\n\n*sprout · Q2_0 · 1.5 MB · 7 tokens · 30 tokens/s*\n",
    );
    const json = await choose("#more-1", "JSON");
    assert.deepEqual(JSON.parse(json.text).conversations.map(({ id }) => id), ["1"]);
    const all = await choose("#export-chats", "Markdown");
    assert.match(all.text, /^# What does a robot eat\?[^]*\n---\n\n# Tell me a story\.\n/);
  });

  test("are found by title and text, whatever the case and the accents", async () => {
    await importFile(file([FOX, ROBOT]));
    for (const [query, expected] of [
      ["robot", [ROBOT.title]],
      ["lantern FOX", [FOX.title]],
      ["cafe", [FOX.title]],
      ["a", [ROBOT.title, FOX.title]],
      ["lantern robot", []],
    ]) {
      await page.fill("#search", query);
      await shows(page, expected);
      await soon(async () => assert.equal(await page.locator("#none-found").isVisible(), expected.length === 0));
    }
    await page.locator("#search").press("Escape");
    await shows(page, [ROBOT.title, FOX.title]);
    // What another tab adds is found, too.
    await page.fill("#search", "penguin");
    await shows(page, []);
    const other = page;
    page = await tab();
    await importFile(file([talk("3", 5000, "Who are you?", "A penguin.")]));
    await shows(other, ["Who are you?"]);
    await other.fill("#search", "walrus");
    await shows(other, []);
    await page.click("#chat-list .open:has-text('robot')");
    await page.fill("#prompt", "And a walrus?");
    await page.click("#send");
    await shows(other, [ROBOT.title]);
    assert.deepEqual(problems, []);
  });

  test("are found quickly among a thousand", async (t) => {
    const many = Array.from({ length: 1000 }, (_, i) => talk(`n${i}`, i, `Question ${i}`, `Answer ${i}. ${"The quick brown fox jumps over the lazy dog. ".repeat(40)}`));
    assert.equal(await importFile(file(many)), "Imported 1,000 conversations.");
    const [first, next] = await page.evaluate(async () => {
      const [field, list] = [document.querySelector("#search"), document.querySelector("#chat-list")];
      const times = [];
      for (const query of ["answer 77", "answer 777"]) {
        const begun = performance.now();
        await new Promise((resolve) => {
          new MutationObserver((_, observer) => (observer.disconnect(), resolve())).observe(list, { childList: true });
          field.value = query;
          field.dispatchEvent(new Event("input"));
        });
        times.push(performance.now() - begun);
      }
      return times;
    });
    assert.deepEqual(await titles(page), ["Question 777"]);
    t.diagnostic(`first search ${Math.round(first)} ms, next ${Math.round(next)} ms`);
    // Far from what a reader notices, even on a busy machine: the next reads no message again.
    assert.ok(next < 1000, `${next} ms`);
  });

  test("are renamed with the keyboard, for all tabs, and keep their titles", async () => {
    await importFile(file([FOX, ROBOT]));
    await page.click("#chat-list .open:has-text('story')");
    const other = await tab();
    await other.click("#chat-list .open:has-text('story')");
    await page.focus("#more-1");
    await page.keyboard.press("Enter");
    await page.locator("#menu").waitFor();
    assert.equal(await page.evaluate(() => document.activeElement.textContent), "Rename");
    await page.keyboard.press("ArrowDown");
    assert.equal(await page.evaluate(() => document.activeElement.textContent), "Save as Markdown");
    await page.keyboard.press("ArrowUp");
    await page.keyboard.press("Enter");
    await page.locator(".renaming input").waitFor();
    await page.keyboard.type("  The   fox ");
    await page.keyboard.press("Enter");
    await shows(page, [ROBOT.title, "The fox"]);
    assert.equal(await page.evaluate(() => document.activeElement.id), "chat-1");
    await shows(other, [ROBOT.title, "The fox"]);
    // A message in a tab that had the old title leaves the new one.
    await other.fill("#prompt", "And then?");
    await other.click("#send");
    await other.waitForFunction(() => document.querySelector("#chat-list .open").textContent === "The fox");
    await page.reload();
    await shows(page, ["The fox", ROBOT.title]);
    // Escape leaves it as it was.
    await page.click("#more-2");
    await page.click("#menu button:has-text('Rename')");
    await page.keyboard.type("Other");
    await page.keyboard.press("Escape");
    await shows(page, ["The fox", ROBOT.title]);
    assert.deepEqual(problems, []);
  });

  test("are imported all or not at all where there is little room", async () => {
    const devtools = await context.newCDPSession(page);
    const quota = (quotaSize) => devtools.send("Storage.overrideQuotaForOrigin", { origin: new URL(server.url).origin, ...(quotaSize && { quotaSize }) });
    await quota(1);
    assert.equal(await importFile(file([FOX, ROBOT])), "“kept.json” was not imported: there is no storage left for this page.");
    await page.reload();
    await page.locator("#no-chats:not([hidden])").waitFor();
    await quota();
    assert.equal(await importFile(file([FOX, ROBOT])), "Imported 2 conversations.");
    assert.deepEqual(problems, []);
  });

  test("are in reach on a phone, and axe finds no fault", async () => {
    await importFile(file([FOX, ROBOT]));
    const found = [];
    const check = async (where) => found.push(...(await faults(page, where)));
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
      await page.click("#more-1");
      await check(`menu, ${colorScheme}`);
      await page.keyboard.press("Escape");
    }
    await page.setViewportSize({ width: 390, height: 700 });
    await page.click("#open-chats");
    // Escape would stop a reply if it got that far.
    await page.evaluate(() => addEventListener("keydown", ({ key }) => (globalThis.keys = [...(globalThis.keys ?? []), key])));
    await page.fill("#search", "fox");
    await page.keyboard.press("Escape");
    assert.deepEqual([await page.inputValue("#search"), await page.locator("#drawer").isVisible()], ["", true]);
    await page.click("#more-2");
    const box = await page.locator("#menu").boundingBox();
    assert.ok(box.x >= 0 && box.x + box.width <= 390 && box.y + box.height <= 700, JSON.stringify(box));
    await check("menu in the drawer");
    // Escape closes the menu, and not the drawer.
    await page.keyboard.press("Escape");
    await soon(async () => assert.equal(await page.locator("#menu").isVisible(), false));
    await soon(async () => assert.equal(await page.locator("#drawer").isVisible(), true));
    await page.click("#more-2");
    await page.click("#menu button:has-text('Rename')");
    await check("renaming");
    await page.keyboard.press("Escape");
    await soon(async () => assert.equal(await page.locator("#drawer").isVisible(), true));
    assert.deepEqual(await page.evaluate(() => globalThis.keys ?? []), []);
    assert.deepEqual(found, []);
    assert.deepEqual(problems, []);
  });
});
