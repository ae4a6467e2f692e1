// Links to the built page, and sharing an answer: `npm run build` first. CHROME is the browser's path.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { after, before, beforeEach, describe, test } from "node:test";
import { deflateRawSync, inflateRawSync } from "node:zlib";
import { launch, serve } from "../../wasm/js/test/chromium.mjs";
import { soon } from "./soon.mjs";

const NANO = await readFile(new URL("../../models/sprout-nano.gguf", import.meta.url));

describe("links and sharing", () => {
  let server, browser, context, page, problems, asked;
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
    context = await browser.newContext({ viewport: { width: 1280, height: 768 }, serviceWorkers: "block", permissions: ["clipboard-read", "clipboard-write"] });
    context.setDefaultTimeout(120_000);
    await context.addInitScript(() => (localStorage["shohin.settings"] ??= '{"preset":"greedy","maxTokens":24,"threads":"1"}'));
    problems = [];
    asked = [];
    page = await context.newPage();
    page.on("pageerror", (error) => problems.push(String(error)));
    page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
    await context.route(/^https:/, (route) => {
      const request = route.request();
      asked.push(`${request.method()} ${request.url()}`);
      const headers = { "Access-Control-Allow-Origin": "*", "Content-Length": String(NANO.length) };
      return route.fulfill({ status: 200, headers, body: request.method() === "HEAD" ? "" : NANO });
    });
  });

  const open = (parameters) => page.goto(server.url + parameters);
  const notice = () => page.locator("#notice:not([hidden]) #notice-text").innerText();
  const ready = () => page.locator("#model[data-state=ready]").waitFor();
  const packed = (value) => deflateRawSync(typeof value === "string" ? value : JSON.stringify(value)).toString("base64url");
  const answer = { version: 1, question: "What is a <b>bonsai</b>?", answer: "A **small** tree. [Buy one](https://shop.test/)\n\n<img src=x onerror=alert(1)>", source: "sprout · Q2_0 · 1.5 MB" };
  async function ask(message) {
    await ready();
    await page.fill("#prompt", message);
    await page.click("#send");
    await page.locator("#conversation .assistant[data-state=done]").waitFor();
  }

  test("a link fills the message field, and sends nothing", async () => {
    for (const parameters of ["?prompt=Tell%20me%20a%20joke.&other=1", "?other=1#prompt=Tell+me+a+joke."]) {
      await open(parameters);
      assert.match(await notice(), /comes from the link you followed\. It is sent only when you press Send\.$/);
      await soon(async () => assert.equal(await page.inputValue("#prompt"), "Tell me a joke."));
      assert.equal(page.url(), `${server.url}?other=1`);
      await ready();
      await soon(async () => assert.equal(await page.locator("#conversation > *").count(), 0));
      await page.reload();
      await soon(async () => assert.equal(await page.inputValue("#prompt"), ""));
    }
    await open("?prompt=Hello!");
    await ready();
    await page.click("#send:enabled");
    await page.locator("#conversation .assistant[data-state=done]").waitFor();
    await soon(async () => assert.equal(await page.locator("#notice").isVisible(), false));
    await open(`?prompt=${"a".repeat(8001)}`);
    assert.match(await notice(), /too long: expected at most 8,000 characters, found 8,001 characters\.$/);
    await soon(async () => assert.equal(await page.inputValue("#prompt"), ""));
    // What is being written is not overwritten.
    await page.fill("#prompt", "Mine");
    await page.evaluate(() => (location.hash = "prompt=Theirs"));
    await page.locator("#notice-text").filter({ hasText: "It was left out" }).waitFor();
    await soon(async () => assert.equal(await page.inputValue("#prompt"), "Mine"));
    assert.deepEqual(problems, []);
  });

  test("a link names a model, which is downloaded only once that is agreed to", async () => {
    await open("?model=bonsai%201.7b");
    await page.locator("#ask[open]").waitFor();
    await soon(async () => assert.equal(await page.locator("#ask-text").innerText(), "The link you followed asks for the model Bonsai 1.7B."));
    assert.equal((await page.locator("#ask-detail").innerText()).replaceAll("\u00a0", " "), "A download of 248.3 MB from huggingface.co.");
    assert.equal(page.url(), server.url);
    assert.equal(await page.evaluate(() => document.activeElement.id), "ask-no");
    await page.keyboard.press("Enter");
    await page.locator("#ask").waitFor({ state: "hidden" });
    await ready();
    assert.deepEqual(asked, []);

    const url = "https://models.test/deep/nano.gguf";
    await open(`?model=${encodeURIComponent(url)}`);
    await page.locator("#ask-detail").filter({ hasText: "from models.test, which this page knows nothing about. models.test is not contacted before you agree." }).waitFor();
    await ready();
    assert.deepEqual(asked, []);
    await page.click("#ask-yes");
    await page.locator("#ask-detail").filter({ hasText: /^A download of 602.kB from models\.test\.$/ }).waitFor();
    assert.deepEqual(asked, [`HEAD ${url}`]);
    await page.click("#ask-yes");
    await page.locator("#status").filter({ hasText: "nano.gguf is ready" }).waitFor({ state: "attached" });
    assert.ok(asked.some((request) => request === `GET ${url}`), asked.join());
    // It is here by now.
    await open(`#model=${encodeURIComponent(url)}`);
    await page.reload();
    await open(`?model=${encodeURIComponent(url)}`);
    await page.locator("#ask-detail").filter({ hasText: "It is kept in this browser: nothing is downloaded." }).waitFor();
    assert.deepEqual(problems, []);
  });

  test("a link with an unknown model is answered with what is expected", async () => {
    for (const model of ["gpt-9", "http://models.test/a.gguf", "javascript:alert(1)", "data:,x"]) {
      await open(`?model=${encodeURIComponent(model)}`);
      const said = await notice();
      assert.ok(said.includes(`“${model}”`), said);
      assert.match(said, /Expected one of sprout, Bonsai 1\.7B, .*, or the https address of a GGUF file\.$/);
      await soon(async () => assert.equal(await page.locator("#ask").isVisible(), false));
    }
    assert.deepEqual([asked, problems], [[], []]);
  });

  test("an answer in a link is shown as somebody's text, without markup or links", async () => {
    await open(`#answer=${packed(answer)}`);
    await page.locator("#shared").waitFor();
    await soon(async () => assert.match(await page.locator("#shared").innerText(), /Shared by somebody\s+This text came with the link you followed\. It is not a reply of this page/));
    await soon(async () => assert.equal(await page.locator("#shared-question").innerText(), answer.question));
    await soon(async () => assert.equal(await page.locator("#shared-answer strong").innerText(), "small"));
    await soon(async () => assert.equal(await page.locator("#shared :is(a, img, b)").count(), 0));
    await soon(async () => assert.match(await page.locator("#shared-answer").innerText(), /Buy one\s+<img src=x/));
    await soon(async () => assert.equal(await page.locator("#shared-source").innerText(), `The link says: ${answer.source}`));
    // It is part of no conversation.
    await soon(async () => assert.equal(await page.locator("#conversation > *, #chat-list > *").count(), 0));
    await ready();
    await page.click("#shared-ask");
    assert.deepEqual([await page.inputValue("#prompt"), page.url(), await page.locator("#shared").isVisible()], [answer.question, server.url, false]);
    await soon(async () => assert.equal(await page.locator("#conversation > *").count(), 0));
    // In a page that is open already, too; with the keyboard.
    await page.evaluate((hash) => (location.hash = hash), `answer=${packed(answer)}`);
    await page.locator("#shared").waitFor();
    await page.waitForFunction(() => document.activeElement.id === "shared-title");
    await page.keyboard.press("Tab");
    await page.keyboard.press("Enter");
    await soon(async () => assert.equal(await page.locator("#shared").isVisible(), false));
    assert.equal(await page.evaluate(() => document.activeElement.id), "prompt");
    assert.deepEqual([asked, problems], [[], []]);
  });

  test("a hostile fragment is refused with the reason", async () => {
    await open("");
    await ready();
    for (const [fragment, expected] of [
      ["", /expected letters, digits, - and _ only/],
      ["<script>", /expected letters, digits, - and _ only/],
      ["abcde", /damaged, or was cut/],
      [packed(answer).slice(0, -9), /damaged, or was cut/],
      [packed("no JSON"), /damaged, or was cut/],
      [deflateRawSync(Buffer.from([0x22, 0xff, 0x22])).toString("base64url"), /damaged, or was cut/],
      // A few hundred characters that hold megabytes.
      [packed({ ...answer, answer: "a".repeat(10e6) }), /expected at most 65536 bytes of text, found more/],
      ["a".repeat(16_001), /expected at most 16000 characters, found 16001/],
      [packed({ ...answer, version: 2 }), /expected version 1, found 2/],
      [packed("null"), /expected version 1, found none/],
      [packed({ ...answer, answer: ["x"] }), /expected a question and an answer, found something else/],
      [packed({ ...answer, source: 5 }), /expected a text as the source/],
    ]) {
      await page.evaluate((hash) => (location.hash = hash), `answer=${encodeURIComponent(fragment)}`);
      await page.locator("#notice-text").filter({ hasText: expected }).waitFor();
      await soon(async () => assert.equal(await page.locator("#shared").isVisible(), false));
      assert.equal(page.url(), server.url);
      await page.click("#notice-close");
    }
    assert.deepEqual(problems, []);
  });

  test("an answer is shared as a link that holds all of it", async () => {
    await open("");
    await ask("Tell me a story about a fox and a lantern.");
    const text = (await page.locator("#conversation .assistant [data-part=text]").innerText()).trim();
    await page.click("#conversation .share");
    await page.click("#copy-link:enabled");
    await page.locator("#share-note").filter({ hasText: "The link is copied." }).waitFor();
    const link = await page.evaluate(() => navigator.clipboard.readText());
    const [address, fragment] = link.split("#answer=");
    assert.equal(address, server.url);
    const held = JSON.parse(inflateRawSync(Buffer.from(fragment, "base64url")));
    assert.deepEqual([held.version, held.question, held.answer], [1, "Tell me a story about a fox and a lantern.", text]);
    assert.match(held.source, /^sprout · .+ · 1\.5.MB · \d+ tokens · .+ tokens\/s.* · Ran entirely in a browser tab$/);
    const other = await context.newPage();
    await other.goto(link);
    await other.locator("#shared").waitFor();
    assert.equal(await other.locator("#shared-answer").innerText(), text);
    assert.deepEqual(problems, []);
  });

  test("an answer is shared as a picture: by the system, the clipboard or a file", async () => {
    // Chromium has no sheet for sharing on Linux.
    await context.addInitScript(() => {
      navigator.canShare = ({ files }) => files.every(({ type }) => type === "image/png");
      navigator.share = async ({ files }) => {
        globalThis.given = { active: navigator.userActivation.isActive, files: files.map(({ name, size }) => ({ name, size })) };
        if (globalThis.refusal) throw new DOMException("no", globalThis.refusal);
      };
    });
    await open("");
    await ready();
    await context.setOffline(true);
    await ask("Hello!");
    await context.setOffline(false);
    await page.click("#conversation .share");
    const label = () => page.locator("#share-picture").getAttribute("aria-label");
    await soon(async () => assert.match((await label()) ?? "", /sprout · .+; \d+ tokens · .+; Ran entirely in a browser tab, offline$/));
    await page.locator("#share-now").waitFor();
    const download = page.waitForEvent("download");
    await page.click("#save-picture");
    const saved = await download;
    assert.equal(saved.suggestedFilename(), "shohin-answer.png");
    const file = await readFile(await saved.path());
    assert.deepEqual([file.toString("latin1", 1, 4), file.readUInt32BE(16)], ["PNG", 1080]);
    await page.click("#share-now");
    assert.deepEqual(await page.evaluate(() => globalThis.given), { active: true, files: [{ name: "shohin-answer.png", size: file.length }] });
    const note = () => page.locator("#share-note").innerText();
    for (const [refusal, words] of [["AbortError", "Saved shohin-answer.png."], ["NotAllowedError", "The browser could not share the picture. Save or copy it instead."]]) {
      await page.evaluate((refusal) => (globalThis.refusal = refusal), refusal);
      await page.click("#share-now");
      assert.equal(await note(), words);
    }
    await page.click("#copy-picture");
    await page.locator("#share-note").filter({ hasText: "The picture is copied." }).waitFor();
    assert.deepEqual(await page.evaluate(async () => (await navigator.clipboard.read()).flatMap(({ types }) => types)), ["image/png"]);
    assert.deepEqual(problems, []);
  });

  test("an imported answer is not said to have run here, and a long one has no link", async () => {
    await open("");
    // Hardly compressed by anything.
    const long = Array.from({ length: 6000 }, (_, i) => (Math.imul(i + 1, 2654435761) >>> 0).toString(36)).join(" ");
    const turns = [
      { id: "a", at: 1, role: "user", content: "Digits?" },
      { id: "b", at: 2, role: "assistant", content: long, figures: "9 tokens", model: "sprout · Q2_0", offline: true },
    ];
    const chooser = page.waitForEvent("filechooser");
    await page.click("#import-chats");
    const file = { format: "shohin-conversations", version: 1, conversations: [{ id: "1", title: "Digits?", updated: 1, turns }] };
    await (await chooser).setFiles({ name: "a.json", mimeType: "application/json", buffer: Buffer.from(JSON.stringify(file)) });
    await page.click("#chat-list .open");
    await page.click("#conversation .share");
    await page.locator("#link-note").filter({ hasText: "This answer is too long for a link." }).waitFor();
    await soon(async () => assert.equal(await page.locator("#copy-link").isDisabled(), true));
    const imported = /and: sprout · Q2_0; 9 tokens; Imported from a file$/;
    await soon(async () => assert.match((await page.locator("#share-picture").getAttribute("aria-label")) ?? "", imported));
    assert.deepEqual(problems, []);
  });

  test("axe finds no fault, and nothing is wider than a phone", async () => {
    const axe = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
    const found = [];
    const check = async (where) => {
      await page.evaluate(axe);
      const { violations } = await page.evaluate(() => globalThis.axe.run(document));
      found.push(...violations.map(({ id, nodes }) => `${where}: ${id}: ${nodes.map(({ html }) => html).join(" ")}`));
      if (await page.evaluate(() => document.documentElement.scrollWidth > innerWidth)) found.push(`${where}: too wide`);
    };
    await page.setViewportSize({ width: 390, height: 700 });
    await page.emulateMedia({ reducedMotion: "reduce" });
    await open(`?prompt=Hello!#answer=${packed({ ...answer, question: "x".repeat(300) })}`);
    await page.locator("#shared").waitFor();
    await ready();
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      await check(`shared, ${colorScheme}`);
    }
    await page.click("#close-shared");
    await ask("Hello!");
    await page.evaluate(() => (location.hash = "model=Bonsai 4B"));
    await page.locator("#ask[open]").waitFor();
    await check("ask");
    await page.keyboard.press("Escape");
    await page.click("#conversation .share");
    await page.locator("#copy-link:enabled").waitFor();
    for (const colorScheme of ["dark", "light"]) {
      await page.emulateMedia({ colorScheme });
      await check(`share, ${colorScheme}`);
    }
    assert.deepEqual(found, []);
    assert.deepEqual(problems, []);
  });
});
