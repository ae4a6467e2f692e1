// What the built page keeps when no reply comes, or none yet: `npm run build` first. CHROME is the browser's path.
import assert from "node:assert/strict";
import { after, afterEach, before, beforeEach, describe, test } from "node:test";
import { launch, serve } from "../../wasm/js/test/chromium.mjs";
import { soon } from "./soon.mjs";
import { keptTurns } from "./turns.mjs";

describe("without a reply", () => {
  let server, browser, context, page, problems, hold;
  before(async () => {
    server = await serve(new URL("../dist/", import.meta.url));
    browser = await launch();
  });
  after(async () => {
    await browser?.close();
    await server?.close();
  });
  beforeEach(async () => {
    context = await browser.newContext({ viewport: { width: 1280, height: 768 }, serviceWorkers: "block" });
    context.setDefaultTimeout(120_000);
    await context.addInitScript(() => {
      localStorage["shohin.settings"] ??= '{"preset":"greedy","maxTokens":16,"threads":"1"}';
      globalThis.Worker = class extends Worker {
        constructor(...all) {
          super(...all);
          globalThis.lastWorker = this;
        }
      };
    });
    problems = [];
    hold = false;
    page = await context.newPage();
    page.on("pageerror", (error) => problems.push(String(error)));
    // While it is held, no model comes, and so no reply.
    await page.route("**/sprout.gguf", (route) => (hold ? undefined : route.continue()));
    await page.goto(server.url);
    await ready();
    for (const message of ["Hello!", "Tell me a joke."]) await ask(message);
  });
  afterEach(async () => {
    await context.close();
    assert.deepEqual(problems, []);
  });

  const ready = () => page.locator("#model[data-state=ready]").waitFor();
  const idle = () => page.waitForFunction(() => !document.querySelector("#send[data-busy], #conversation [data-state=busy]"));
  async function ask(message) {
    const before = await page.locator("#conversation .assistant").count();
    await page.fill("#prompt", message);
    await page.press("#prompt", "Enter");
    await page.locator("#conversation .assistant").nth(before).locator("xpath=self::*[@data-state='done']").waitFor();
  }
  /** What is said on the page; a message that is being edited has its new text. */
  const shown = () => page.evaluate(() => [...document.querySelectorAll("#conversation > .turn, #conversation > .editing")].map((turn) => turn.querySelector("textarea")?.value ?? turn.querySelector("[data-part=text]").innerText));
  const kept = async () => (await keptTurns(page)).sort((a, b) => a.at - b.at).map(({ id, content }) => `${id} ${content}`);
  const refuse = async () => {
    await page.click("#open-settings");
    await page.selectOption("#format", "schema");
    await page.fill("#schema", '{"not": {"type": "string"}}');
    await page.click("#close-settings");
  };
  const refused = () => page.locator("#alert-text").filter({ hasText: "cannot be used" }).waitFor();
  async function edit(text) {
    await page.locator("#conversation .user .edit").first().click();
    await page.fill(".editing textarea", text);
    await page.press(".editing textarea", "Enter");
  }
  /** Loads the page again, without a model. */
  async function reloadHeld() {
    hold = true;
    await page.reload();
    await page.locator("#conversation .assistant").nth(1).waitFor();
  }
  const busy = () => page.locator("#send[data-busy]").waitFor();

  test("an error leaves the messages that were to be replaced, and the edit", async () => {
    const [said, stored] = [await shown(), await kept()];
    await refuse();
    await page.click(".again:visible");
    await refused();
    await idle();
    assert.deepEqual([await shown(), await kept()], [said, stored]);
    // A message is being written meanwhile.
    await page.fill("#prompt", "Another thing");
    await edit("Good evening!");
    await refused();
    await idle();
    const edited = ["Good evening!", ...said.slice(1)];
    await soon(async () => assert.deepEqual(await shown(), edited));
    assert.deepEqual([await kept(), await page.inputValue("#prompt")], [stored, "Another thing"]);
    await page.reload();
    await soon(async () => assert.deepEqual(await shown(), edited));
    assert.deepEqual([await kept(), await page.inputValue("#prompt")], [stored, "Another thing"]);
    // Cancelled, it is as it was; sent, it takes the place of all.
    await page.press(".editing textarea", "Escape");
    assert.deepEqual(await shown(), said);
    await ready();
    await page.click("#open-settings");
    await page.selectOption("#format", "text");
    await page.click("#close-settings");
    await edit("Good evening!");
    await soon(async () => assert.equal((await kept()).length, 2));
    await idle();
    assert.equal((await shown()).length, 2);
    await page.reload();
    await soon(async () => assert.deepEqual((await shown())[0], "Good evening!"));
    assert.equal((await shown()).length, 2);
  });

  test("a stop before it leaves the messages that were to be replaced, and the edit", async () => {
    const [said, stored] = [await shown(), await kept()];
    await reloadHeld();
    for (const stop of [() => page.keyboard.press("Escape"), () => page.click("#send")]) {
      await page.click(".again:visible");
      await busy();
      assert.deepEqual(await kept(), stored);
      await stop();
      await idle();
      assert.deepEqual([await shown(), await kept()], [said, stored]);
    }
    await edit("Good evening!");
    await busy();
    await page.keyboard.press("Escape");
    await idle();
    assert.deepEqual([await shown(), await kept()], [["Good evening!", ...said.slice(1)], stored]);
    // As does another conversation, and a page that is left.
    await page.press(".editing textarea", "Enter");
    await busy();
    await page.click("#new-chat");
    await idle();
    await page.click("#chat-list .open");
    await soon(async () => assert.deepEqual(await shown(), ["Good evening!", ...said.slice(1)]));
    await page.press(".editing textarea", "Enter");
    await busy();
    await page.reload();
    await soon(async () => assert.deepEqual(await shown(), ["Good evening!", ...said.slice(1)]));
    assert.deepEqual(await kept(), stored);
  });

  test("a lost engine leaves the messages that were to be replaced", async () => {
    const [said, stored] = [await shown(), await kept()];
    await page.evaluate(() => {
      [...document.querySelectorAll(".again")].at(-1).click();
      globalThis.lastWorker.dispatchEvent(new ErrorEvent("error", { message: "lost" }));
    });
    await page.locator("#alert:not([hidden])").waitFor();
    await idle();
    assert.deepEqual([await shown(), await kept()], [said, stored]);
  });

  test("no message is lost to what was typed after it", async () => {
    await reloadHeld();
    await page.fill("#prompt", "First");
    await page.press("#prompt", "Enter");
    await busy();
    await page.fill("#prompt", "Second");
    await page.keyboard.press("Escape");
    await idle();
    assert.equal(await page.inputValue("#prompt"), "First\n\nSecond");
    await page.reload();
    await soon(async () => assert.equal(await page.inputValue("#prompt"), "First\n\nSecond"));
  });

  test("a question of the page does not get into what was typed", async () => {
    await page.click("#new-chat");
    hold = true;
    await page.reload();
    await page.fill("#prompt", "My own words");
    const suggestion = page.locator("#suggestions button").first();
    const words = await suggestion.innerText();
    const draft = () => page.evaluate(() => sessionStorage["shohin.draft"]);
    for (const [typed, after] of [["My own words", "My own words"], ["", words]]) {
      await page.fill("#prompt", typed);
      await suggestion.click();
      await busy();
      await page.keyboard.press("Escape");
      await idle();
      await soon(async () => assert.equal(await page.inputValue("#prompt"), after));
      assert.equal(await draft(), typed || undefined);
    }
  });

  test("a text that there is no room for is not kept in part, and no alarm is raised", async () => {
    const long = "Not sent ".repeat(10_000);
    await page.evaluate(() => (sessionStorage["ballast"] = "x".repeat(5_200_000)));
    const kept = (key) => page.evaluate((key) => sessionStorage[key]?.length, key);
    await page.fill("#prompt", "Not sent");
    assert.equal(await kept("shohin.draft"), 8);
    await page.fill("#prompt", long);
    assert.equal(await kept("shohin.draft"), undefined);
    await page.fill("#prompt", "Short again");
    assert.equal(await kept("shohin.draft"), 11);
    await page.locator("#conversation .user .edit").first().click();
    await page.fill(".editing textarea", "Good evening!");
    await page.fill(".editing textarea", long);
    assert.equal(await kept("shohin.edits"), undefined);
    assert.equal(await page.isVisible("#alert"), false);
  });

  test("an edit is forgotten with its message and with its conversation", async () => {
    const edits = () => page.evaluate(() => sessionStorage["shohin.edits"]);
    await page.locator("#conversation .user .edit").first().click();
    await page.fill(".editing textarea", "A secret");
    assert.match(await edits(), /A secret/);
    // Until the deletion is final.
    await page.click("#chat-list .icon");
    await page.click("#undo-button");
    await soon(async () => assert.equal((await shown())[0], "A secret"));
    await page.evaluate(() => (sessionStorage["shohin.edits"] = sessionStorage["shohin.edits"].replace("{", '{"another/1":"Kept",').replace(/"([^"]*)[/][^"]*":"A secret"/, '$&,"$1/gone":"Of no message"')));
    await page.reload();
    await soon(async () => assert.equal((await shown())[0], "A secret"));
    assert.doesNotMatch(await edits(), /Of no message/);
    await page.click("#chat-list .icon");
    await page.locator("#undo").waitFor();
    assert.match(await edits(), /A secret/);
    await page.reload();
    await ready();
    assert.equal(await edits(), '{"another/1":"Kept"}');
    // By another tab.
    await ask("Hello!");
    await page.locator("#conversation .user .edit").click();
    await page.fill(".editing textarea", "A secret");
    const other = await context.newPage();
    await other.goto(server.url);
    await other.click("#chat-list .icon");
    await other.locator("#undo").waitFor();
    await other.close({ runBeforeUnload: true });
    await soon(async () => assert.equal(await edits(), '{"another/1":"Kept"}'));
  });

  test("a message that is being written is there after a reload and on the way back", async () => {
    await page.fill("#prompt", "Not sent\nyet");
    await page.reload();
    await soon(async () => assert.equal(await page.inputValue("#prompt"), "Not sent\nyet"));
    await page.goto(`${server.url}favicon.svg`);
    await page.goBack();
    await soon(async () => assert.equal(await page.inputValue("#prompt"), "Not sent\nyet"));
    await ready();
    await page.press("#prompt", "Enter");
    await idle();
    await page.reload();
    await ready();
    assert.equal(await page.inputValue("#prompt"), "");
  });
});
