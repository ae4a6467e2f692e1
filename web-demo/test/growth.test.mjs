// The built page's offer of a larger model: `npm run build` first. CHROME is the browser's path.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, afterEach, before, beforeEach, describe, test } from "node:test";
import { launch, serve } from "../../wasm/js/test/chromium.mjs";
import { enlarged, origin } from "../../wasm/js/test/gguf.mjs";
import { publish } from "../../wasm/js/test/publish.mjs";
import { faults } from "./axe.mjs";
import { soon } from "./soon.mjs";

const BONSAI = /^https:\/\/huggingface\.co\/prism-ml\/Bonsai-1\.7B-gguf\//;

describe("the offer of a larger model", { timeout: 300_000 }, () => {
  let browser, server, page, problems, state, file;
  before(async () => {
    // 9 MB in the place of 248.
    file = enlarged(await readFile(new URL("../../models/sprout-nano.gguf", import.meta.url)), 8);
    const model = origin(file);
    state = model.state;
    server = await serve(new URL("../dist/", import.meta.url), { "/bonsai.gguf": model.answer });
    browser = await launch();
  });
  after(async () => {
    await browser?.close();
    await server?.close();
  });

  /** A visitor who has never been here, on a device with `init` run in its pages. */
  async function visit(init) {
    const context = await browser.newContext({ viewport: { width: 1024, height: 768 }, serviceWorkers: "block" });
    await context.addInitScript(() => (localStorage["shohin.settings"] ??= '{"threads":"1","preset":"greedy","temperature":0,"maxTokens":40}'));
    if (init) await context.addInitScript(init);
    // The hub answers with the address of the file elsewhere, too.
    await context.route(BONSAI, (route) => route.fulfill({ status: 302, headers: { location: `${server.url}bonsai.gguf`, "access-control-allow-origin": "*" } }));
    await publish(context, file);
    page = await context.newPage();
    page.setDefaultTimeout(120_000);
    page.on("pageerror", (error) => problems.push(String(error)));
    await page.goto(server.url);
    await page.locator("#model[data-state=ready]").waitFor();
  }
  beforeEach(() => {
    problems = [];
    Object.assign(state, { asked: [], sent: 0, hold: undefined, pace: 0, breaks: undefined, resets: undefined });
  });
  afterEach(async () => {
    await page?.context().close();
    assert.deepEqual(problems, []);
  });

  const hear = async (message) => {
    const replies = page.locator("#conversation [data-role=assistant]");
    const before = await replies.count();
    await page.fill("#prompt", message);
    await page.click("#send");
    await replies.nth(before).locator("xpath=self::*[@data-state='done']").waitFor();
    return replies.nth(before).locator("[data-part=text]").innerText();
  };
  const card = (state) => page.locator(`#growth[data-state=${state}]:not([hidden])`).waitFor();
  const text = () => page.locator("#growth-text").innerText();
  /** Lets so many bytes through; `release` the rest. */
  function gate(bytes) {
    let release;
    const released = new Promise((resolve) => (release = resolve));
    state.hold = () => (state.sent > bytes ? released : undefined);
    return release;
  }

  test("appears at a question beyond the embedded model, downloads while that chats on, and takes over", async () => {
    await visit();
    await hear("Tell me a joke.");
    await soon(async () => assert.equal(await page.locator("#growth").isVisible(), false));
    assert.match(await hear("What is the capital of France?"), /^I do not know that/);
    await card("offered");
    assert.match(await text(), /248\.3\sMB, about 40\ss at 50\sMbit\/s, then about [\d.,]+ tokens\/s on this device\. It fits this device\.$/);
    assert.deepEqual(await faults(page, "the offer", "#growth"), []);
    const release = gate(4 << 20);
    state.pace = 80;
    await page.click("#growth-go");
    await page.locator("#growth-text").filter({ hasText: /^[3-8](\.\d)?\sMB of 9\sMB · [\d.]+\s[kM]B\/s · about \d+\ss left$/ }).waitFor();
    assert.notEqual(await hear("Hello!"), "");
    await soon(async () => assert.equal(await page.locator("#model-name").innerText(), "sprout"));
    await page.locator("#growth-text").filter({ hasText: /MB of 9\sMB · no bytes arrive at the moment$/ }).waitFor();
    state.pace = 0;
    release();
    await page.locator("#model-name").filter({ hasText: "Bonsai 1.7B" }).waitFor();
    await page.locator("#conversation .note").filter({ hasText: /^Bonsai 1\.7B goes on from here\.$/ }).waitFor();
    await soon(async () => assert.equal(await page.locator("#growth").isVisible(), false));
    await soon(async () => assert.equal(await page.locator("#conversation [data-role=user]").count(), 3));
    assert.notEqual(await hear("Hello!"), "");
    await page.reload();
    await page.locator("#model-name").filter({ hasText: "Bonsai 1.7B" }).waitFor();
    await soon(async () => assert.equal(await page.locator("#growth").isVisible(), false));
  });

  /** Makes the page offer the model. */
  const provoke = async () => {
    await hear("What is the capital of France?");
    await card("offered");
  };
  /** Presses Download and waits for some of it. */
  const begin = async () => {
    await page.click("#growth-go");
    await page.locator("#growth-text").filter({ hasText: /^[3-8](\.\d)?\sMB of 9\sMB/ }).waitFor();
  };

  test("keeps what is there of a broken download, and continues it", async () => {
    await visit();
    await provoke();
    // Each connection breaks, and all after the first four do at once.
    Object.assign(state, { breaks: 2 << 20, resets: (n) => n > 4 });
    await page.click("#growth-go");
    await card("failed");
    assert.match(await text(), /^Bonsai 1\.7B could not be downloaded: the connection was lost\. [2-8](\.\d)?\sMB of 9\sMB are kept; try again continues from there\.$/);
    await soon(async () => assert.equal(await page.locator("#growth-go").innerText(), "Retry"));
    assert.notEqual(await hear("Hello!"), "");
    Object.assign(state, { breaks: undefined, resets: undefined, asked: [] });
    await page.click("#growth-go");
    await page.locator("#model-name").filter({ hasText: "Bonsai 1.7B" }).waitFor();
    assert.ok(state.asked.length > 0 && state.asked.every(([at]) => at >= 1 << 20), `${state.asked}`);
  });

  test("shows after a reload what is kept, continues from there, and waits for the end of a reply", async () => {
    await visit();
    await provoke();
    let release = gate(4 << 20);
    await begin();
    await page.reload();
    release();
    await card("offered");
    await soon(async () => assert.match(await page.locator("#growth-go").innerText(), /^Continue \([2-8](\.\d)?\sMB of 9\sMB kept\)$/));
    assert.match(await text(), /MB of 9\sMB of Bonsai 1\.7B are kept: the rest takes about \d+\ss/);
    // Cancelled, it is offered again.
    release = gate(state.sent);
    await page.click("#growth-go");
    await card("downloading");
    await page.click("#growth-no");
    await card("offered");
    release();
    // A reply that takes longer than the download.
    await page.evaluate(() => {
      const post = Worker.prototype.postMessage;
      const held = [];
      Worker.prototype.postMessage = function (message, ...rest) {
        if (message.method === "chat") held.push(() => post.call(this, message, ...rest));
        else post.call(this, message, ...rest);
      };
      globalThis.letGo = () => {
        Worker.prototype.postMessage = post;
        held.forEach((send) => send());
      };
    });
    await page.fill("#prompt", "Tell me a joke.");
    await page.click("#send");
    await page.locator("#conversation [aria-busy=true]").waitFor();
    await page.click("#growth-go");
    await card("waiting");
    assert.equal(await text(), "It goes on after this reply.");
    await soon(async () => assert.equal(await page.locator("#model-name").innerText(), "sprout"));
    await page.evaluate(() => globalThis.letGo());
    await page.locator("#model-name").filter({ hasText: "Bonsai 1.7B" }).waitFor();
    const replies = await page.locator("#conversation .figures").allInnerTexts();
    assert.ok(replies.length === 2 && replies.every((figures) => /^\d+ tokens/.test(figures)), `${replies}`);
  });

  test("appears at long questions and at the third message, and not again once it is dismissed", async () => {
    await visit();
    for (const _ of "12") {
      await hear("Tell me a joke.");
      await soon(async () => assert.equal(await page.locator("#growth").isVisible(), false));
    }
    await hear("Tell me a joke.");
    await card("offered");
    await page.reload();
    await page.locator("#model[data-state=ready]").waitFor();
    await soon(async () => assert.equal(await page.locator("#growth").isVisible(), false));
    await hear("I have a ball and you have a cup, and we are in the garden with a dog and a cat.");
    await card("offered");
    await page.click("#growth-no");
    await page.locator("#growth").waitFor({ state: "hidden" });
    await page.reload();
    await page.locator("#model[data-state=ready]").waitFor();
    await hear("What is the capital of France?");
    await soon(async () => assert.equal(await page.locator("#growth").isVisible(), false));
  });

  test("loads the model as it arrives where it cannot be kept", async () => {
    await visit();
    const client = await page.context().newCDPSession(page);
    await client.send("Storage.overrideQuotaForOrigin", { origin: new URL(server.url).origin, quotaSize: 6 << 20 });
    await provoke();
    await page.click("#growth-go");
    await page.locator("#model-name").filter({ hasText: "Bonsai 1.7B" }).waitFor();
    await page.locator("#alert-text").filter({ hasText: /^Bonsai 1\.7B works, but is not kept/ }).waitFor();
    assert.notEqual(await hear("Hello!"), "");
  });

  test("tells of each model whether it fits, and offers none that does not", async () => {
    // What the browser tells of the device is what the test has written down.
    await visit(() => {
      const { deviceMemory, userAgent = navigator.userAgent } = JSON.parse(sessionStorage["device"] ?? "{}");
      Object.defineProperty(navigator, "deviceMemory", { value: deviceMemory });
      Object.defineProperty(navigator, "userAgent", { value: userAgent });
    });
    const on = (device) => page.evaluate((device) => (sessionStorage["device"] = JSON.stringify(device)), device).then(() => page.reload());
    const verdicts = async () => {
      await page.click("#model");
      await page.locator("#offers li").nth(6).waitFor();
      return (await page.locator("#offers [data-verdict]").allInnerTexts()).map((words) => words.replaceAll("\u00a0", " "));
    };
    // Where the browser does not tell, the page does not guess.
    assert.deepEqual(await verdicts(), []);
    await on({ deviceMemory: 2 });
    const half = "tight: more than half of this device's memory";
    assert.deepEqual(await verdicts(), ["fits", "fits", half, half, half, "does not fit: more memory than this device has"]);
    await on({ userAgent: "Mozilla/5.0 (iPhone; CPU iPhone OS 27_2 like Mac OS X)" });
    const [tight, never] = ["tight", "does not fit"].map((verdict) => `${verdict}: iOS closes tabs of more than about 1.5 GB`);
    assert.deepEqual(await verdicts(), ["fits", tight, tight, never, never, never]);
    await on({ deviceMemory: 0.5 });
    for (const _ of "123") await hear("What is the capital of France?");
    await soon(async () => assert.equal(await page.locator("#growth").isVisible(), false));
    // On a small device the embedded model makes room first.
    await on({ deviceMemory: 1 });
    await hear("What is the capital of France?");
    await card("offered");
    assert.match(await text(), /It hardly fits this device: more than half of this device's memory\.$/);
    await page.evaluate(() => {
      globalThis.names = [];
      const name = document.querySelector("#model-name");
      new MutationObserver(() => globalThis.names.push(name.textContent)).observe(name, { childList: true });
    });
    await page.click("#growth-go");
    await page.locator("#model-name").filter({ hasText: "Bonsai 1.7B" }).waitFor();
    assert.ok(await page.evaluate(() => globalThis.names.includes("Loading")));
  });
});
