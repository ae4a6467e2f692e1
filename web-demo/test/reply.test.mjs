// Replies on the built page in headless Chromium: `npm run build` first. CHROME is the browser's path.
import assert from "node:assert/strict";
import { createReadStream } from "node:fs";
import { readFile } from "node:fs/promises";
import { after, afterEach, before, describe, test } from "node:test";
import { launch, longestTask, serve } from "../../wasm/js/test/chromium.mjs";
import { faults } from "./axe.mjs";
import { soon } from "./soon.mjs";

const MODEL = new URL("../../models/sprout-nano.gguf", import.meta.url);
const WIDE_FORMULA = String.raw`\sum_{k=1}^{n} \frac{(-1)^k}{k^2 + 2k + 1} + \int_0^\infty e^{-x^2}\,dx + \prod_{i=1}^{m} \left(1 + \frac{1}{i}\right)`;
const RICH = [
  "## A heading\n\nWords with a [link](https://example.org/), `code` and $x^2$.",
  "> A quote with a [link](https://example.org/).",
  `| Name | What it is | Speed | Where it runs |\n|---|:-:|--:|---|\n| ${"[Bonsai](https://example.org/) | a model, `1-bit` | 1,234,567.5 | everywhere | \n| ".repeat(2)}$x$ | a | b | c |`,
  "| another |\n|---|\n| table |",
  "```js\n/** Adds. */\nfunction add(a, b) {\n  const text = `a ${1} string`; // a comment that is far longer than a phone is wide, certainly\n  return new Map([[/x/g, null]]).size + a + b + 42;\n}\n```",
  "```html\n<!-- a comment --><p class=\"x\">text &amp;</p>\n```\n\n```\nno language\n```",
  `$$\n${WIDE_FORMULA}\n$$`,
  "- [x] done\n- [ ] open\n- $\\alpha$",
].join("\n\n");

/** Lets the test be the model: `said(text)` is what comes next of a reply, `ended()` ends it. */
const script = () => {
  let reply = "";
  let current;
  const say = (chunk) => current.worker.onmessage({ data: { id: current.id, chunk } });
  globalThis.said = (text) => {
    reply += text;
    say({ text, tokens: [1] });
  };
  globalThis.isAsked = () => current !== undefined;
  globalThis.ended = () => {
    const usage = { promptTokens: 1, cachedTokens: 0, completionTokens: 2, reasoningTokens: 0, droppedMessages: 0, forgottenTokens: 0 };
    const timings = { prefillMs: 1, decodeMs: 1, prefillTokensPerSecond: 1, tokensPerSecond: 1 };
    say({ text: "", tokens: [], finish: { reason: "stop", text: reply, seed: 1, usage, timings, message: { role: "assistant", content: reply.trim() } } });
    current.worker.onmessage({ data: { id: current.id, done: undefined } });
    current = undefined;
  };
  globalThis.Worker = class extends Worker {
    postMessage(message, ...rest) {
      if (message.method !== "chat") return super.postMessage(message, ...rest);
      current = { worker: this, id: message.id };
      reply = "";
    }
  };
};

describe("a reply", () => {
  let browser, server, context;
  let [problems, requests] = [[], []];

  before(async () => {
    browser = await launch(["--host-resolver-rules=MAP plain.example 127.0.0.1"]);
    server = await serve(new URL("../dist/", import.meta.url), { "/sprout.gguf": (_request, response) => createReadStream(MODEL).pipe(response) });
  });
  after(async () => {
    await browser?.close();
    await server?.close();
  });
  afterEach(async () => {
    await context?.close();
    assert.deepEqual(problems, []);
  });

  /** Opens the page; `content` is a reply that it has kept. */
  async function open(content, { url = server.url, init, ...options } = {}) {
    context = await browser.newContext({ viewport: { width: 1024, height: 768 }, serviceWorkers: "block", ...options });
    if (init) await context.addInitScript(init);
    const page = await context.newPage();
    [problems, requests] = [[], []];
    page.on("pageerror", (error) => problems.push(String(error)));
    page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
    page.on("request", (request) => {
      requests.push(request.url());
      if (!request.url().startsWith(url)) problems.push(`asks for ${request.url()}`);
    });
    await page.goto(url);
    if (content !== undefined) await show(page, content);
    return { page, reply: page.locator("#conversation [data-role=assistant] [data-part=text]") };
  }

  /** Shows a reply as if the model had given it before the page was loaded. */
  async function show(page, content) {
    // The page makes the database.
    await page.waitForFunction(async () => (await indexedDB.databases()).some(({ name }) => name === "shohin"));
    await page.evaluate(async (content) => {
      const database = await new Promise((done) => (indexedDB.open("shohin").onsuccess = (event) => done(event.target.result)));
      const transaction = database.transaction(["conversations", "turns"], "readwrite");
      const turns = [{ role: "user", content: "Show me." }, { role: "assistant", content, figures: "Stopped" }];
      transaction.objectStore("conversations").put({ id: "x", title: "Show me.", updated: Date.now() });
      for (const [at, turn] of turns.entries()) transaction.objectStore("turns").put({ ...turn, conversation: "x", id: `${at}`, at });
      await new Promise((done) => (transaction.oncomplete = done));
      sessionStorage.setItem("shohin.conversation", "x");
    }, content);
    await page.reload();
    await page.locator("#conversation [data-role=assistant]").waitFor();
  }

  /** Asks for a reply, and waits until the model is asked. */
  async function ask(page) {
    await page.fill("#prompt", "Write.");
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => isAsked());
  }

  /** Opens the page with a reply that has begun. */
  async function begin() {
    const opened = await open(undefined, { init: script });
    await opened.page.locator("#model[data-state=ready]").waitFor();
    await ask(opened.page);
    const frame = () => opened.page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve))));
    const say = async (text) => {
      await opened.page.evaluate((text) => said(text), text);
      await frame();
    };
    const end = async () => {
      await opened.page.evaluate(() => ended());
      await opened.page.locator("#conversation [data-state=done]").waitFor();
    };
    return { ...opened, say, end };
  }

  test("has entities, line breaks in tables, and harmless markup", async () => {
    const { reply } = await open("AT&amp;T &lt;b&gt; &copy; `&amp;` H<sub>2</sub>O\nnext\n\n| a |\n|---|\n| one<br>two |");
    await soon(async () => assert.equal(await reply.locator("> p").innerText(), "AT&T <b> © &amp; H2O\nnext"));
    await soon(async () => assert.equal(await reply.locator("td").innerText(), "one\ntwo"));
    await soon(async () => assert.equal(await reply.locator("sub").innerText(), "2"));
  });

  test("runs, styles and fetches nothing, whatever is written in it", async () => {
    const { page, reply } = await open(
      [
        "<script>document.title = 'run'</script>",
        "<style>body { display: none }</style>",
        "<b onclick=alert(1) style='position:fixed'>x</b> <sub onmouseover=alert(1)>y</sub> <img src='https://evil.example/?q=1' onerror=alert(1)>",
        "![what was said](https://evil.example/?said=it) ![](https://evil.example/2) [![in](https://evil.example/3)](https://example.org/3)",
        "<svg><style><img src=https://evil.example/4></style></svg><math><mtext><iframe src=https://evil.example/5></iframe></mtext></math>",
        "[a](javascript:alert(1)) [b](data:text/html,x) [c](vbscript:x) [d](file:///etc/passwd) [e](/relative) [f](JavaScript&colon;alert(1))",
        "[g](https://example.org/?a=1&amp;b=2) [h](mailto:a@example.org) http://example.org/i",
        String.raw`$\href{javascript:alert(1)}{x}$ $\includegraphics{https://evil.example/6}$ $\htmlStyle{position:fixed}{x}$ $\url{https://evil.example/7}$`,
        "```\n</code></pre><img src=https://evil.example/8>\n```",
        "```js\"><img/src=https://evil.example/9>\n1\n```",
      ].join("\n\n"),
    );
    await page.waitForLoadState("networkidle");
    assert.equal(await reply.locator("script, style, img, iframe, math img, [onclick], [onmouseover], [onerror], b, sub[style]").count(), 0);
    await soon(async () => assert.match(await reply.innerText(), /<script>document\.title = 'run'<\/script>[^]*<style>[^]*<img src='https:\/\/evil\.example\/\?q=1' onerror=alert\(1\)>/));
    await soon(async () => assert.match(await reply.innerText(), /what was said \(https:\/\/evil\.example\/\?said=it\)/));
    const links = await reply.locator("a").evaluateAll((all) => all.map(({ href, target, rel }) => [href, target, rel.split(" ").includes("noopener")]));
    assert.deepEqual(links.map(([href]) => href), [
      "https://evil.example/?said=it",
      "https://evil.example/2",
      "https://example.org/3",
      "https://example.org/?a=1&b=2",
      "mailto:a@example.org",
      "http://example.org/i",
    ]);
    assert.ok(links.every(([, target, noopener]) => target === "_blank" && noopener));
    assert.notEqual(await page.title(), "run");
  });

  test("typesets formulas, and no prices", async () => {
    const { reply } = await open(
      [
        "$5 and $10, $5-$10, US$5 or US$10, $20 million or 30$, $HOME/$USER, a lone $ and \\$x\\$, `$y$`",
        String.raw`$E = mc^2$, \(a\), the $n$th, $3 - 2$, ($z$-axis) and $$w$$ within`,
        String.raw`Text before` + "\n$$\nx_1*y_2*z\n$$\n" + String.raw`\[ \frac{1}{2} \]`,
        "| a |\n|---|\n| $t$ |",
        "$\\frac{1$ is not valid",
        "$$\nnever ends",
      ].join("\n\n"),
    );
    await reply.locator(".katex").nth(8).waitFor();
    assert.deepEqual(await reply.locator("annotation").allTextContents(), ["E = mc^2", "a", "n", "3 - 2", "z", "w", "\nx_1*y_2*z\n", " \\frac{1}{2} ", "t"].map((tex) => tex));
    await soon(async () => assert.equal(await reply.locator(".katex-display").count(), 3));
    await soon(async () => assert.equal(await reply.locator("> p").first().innerText(), "$5 and $10, $5-$10, US$5 or US$10, $20 million or 30$, $HOME/$USER, a lone $ and $x$, $y$"));
    await soon(async () => assert.deepEqual(await reply.locator("code.formula").allTextContents(), ["$\\frac{1$", "$$\nnever ends"]));
    // In the fonts that it came with.
    assert.equal(await reply.evaluate(() => document.fonts.ready.then(() => document.fonts.check("16px KaTeX_Math"))), true);
  });

  test("fetches what formulas and code need only with the first of them, and shows them offline from then on", { timeout: 300_000 }, async (t) => {
    const own = await serve(new URL("../dist/", import.meta.url));
    t.after(() => own.close());
    const { page, reply } = await open("Plain **words**, `x` and $5.\n\n```\ncode\n```", { url: own.url, serviceWorkers: "allow" });
    const kept = () =>
      page.evaluate(async () => {
        await navigator.serviceWorker.ready;
        const all = await Promise.all((await caches.keys()).map(async (name) => (await caches.open(name)).keys()));
        return all.flat().map(({ url }) => /[^/]*$/.exec(url)[0]).filter((name) => /^(highlight|formula|KaTeX)/.test(name)).sort();
      });
    await page.waitForFunction(() => navigator.serviceWorker.controller !== null);
    assert.deepEqual([await kept(), requests.filter((url) => /highlight|formula|KaTeX/.test(url))], [[], []]);
    await show(page, "$x$\n\n```js\nlet a = 1;\n```");
    await reply.locator(".katex").waitFor();
    await reply.locator(".hljs-keyword").waitFor();
    for (let names = []; names.length < 23; names = await kept()) await new Promise((resolve) => setTimeout(resolve, 20));
    await own.close();
    await show(page, "$\\mathcal{F} = \\mathfrak{g}$\n\n```js\nlet b = 1;\n```");
    await reply.locator(".hljs-keyword").waitFor();
    await reply.locator(".katex").waitFor();
    await page.evaluate(() => document.fonts.ready);
    assert.equal(await page.evaluate(() => ["KaTeX_Caligraphic", "KaTeX_Fraktur"].every((font) => [...document.fonts].some(({ family, status }) => family === font && status === "loaded"))), true);
    problems = problems.filter((problem) => !/ERR_CONNECTION_REFUSED/.test(problem));
  });

  test("stays within the width of a phone: tables, code and formulas scroll within themselves", async () => {
    const { page, reply } = await open(RICH, { viewport: { width: 390, height: 844 } });
    await reply.locator(".katex-display").waitFor();
    await reply.locator(".hljs-keyword").first().waitFor();
    assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), 390);
    for (const wide of [".table >> nth=0", "pre >> nth=0", ".formula.display"]) {
      const box = reply.locator(wide);
      assert.deepEqual(await box.evaluate((box) => [box.scrollWidth > box.clientWidth, box.getBoundingClientRect().right <= 390]), [true, true], wide);
      await box.focus();
      await page.keyboard.press("ArrowRight");
      await page.waitForFunction((box) => box.scrollLeft > 0, await box.elementHandle());
    }
    // Words stay whole.
    const lines = await reply.locator("th").evaluateAll((cells) =>
      cells.map((cell) => {
        const range = document.createRange();
        range.selectNodeContents(cell);
        return range.getClientRects().length;
      }),
    );
    assert.ok(lines.every((lines, i) => lines <= ["Name", "What it is", "Speed", "Where it runs", "another"][i].split(" ").length), `${lines}`);
  });

  test("has nothing that axe finds fault with, and the contrast of AAA", async () => {
    const { page, reply } = await open(RICH, { reducedMotion: "reduce" });
    await reply.locator(".katex-display").waitFor();
    await reply.locator(".hljs-attr").first().waitFor();
    const found = [];
    for (const [colorScheme, width] of [["light", 1024], ["dark", 390]]) {
      await page.emulateMedia({ colorScheme });
      await page.setViewportSize({ width, height: 844 });
      found.push(...(await faults(page, colorScheme, "#conversation")));
    }
    assert.deepEqual(found, []);
  });

  test("keeps a selection in what is finished, and shows sensibly what is not", async () => {
    const { page, reply, say, end } = await begin();
    await say("First *paragraph*.\n\nSecond.\n\nThird");
    await reply.locator("> p").first().evaluate((p) => getSelection().selectAllChildren(p));
    await say(" paragraph.\n\n```js\nlet a");
    await soon(async () => assert.deepEqual(await reply.locator("pre > code").allTextContents(), ["let a"]));
    await say(" = 1;\n```\n\n| Name | Speed");
    await soon(async () => assert.deepEqual(await reply.locator("th").allTextContents(), ["Name", "Speed"]));
    await say(" |\n|--");
    await soon(async () => assert.deepEqual(await reply.locator("th").allTextContents(), ["Name", "Speed"]));
    await say("-|---|\n| a | 1");
    await soon(async () => assert.deepEqual(await reply.locator("th, td").allTextContents(), ["Name", "Speed", "a", "1"]));
    await say(" |\n\nThen\n\n$$\n\\frac{1}{2");
    await soon(async () => assert.equal(await reply.locator("code.formula.open").innerText(), "$$\n\\frac{1}{2"));
    await say("}\n$$\n\nEnd");
    await reply.locator(".katex-display").waitFor();
    await reply.locator(".hljs-keyword").waitFor();
    await soon(async () => assert.equal(await reply.locator("code.formula").count(), 0));
    assert.equal(await page.evaluate(() => String(getSelection())), "First paragraph.");
    await end();
    assert.equal(await page.evaluate(() => String(getSelection())), "First paragraph.");
    // What was shown bit by bit is what is shown at once.
    const html = await reply.innerHTML();
    await page.reload();
    await reply.locator(".katex-display").waitFor();
    await reply.locator(".hljs-keyword").waitFor();
    await soon(async () => assert.equal(await reply.innerHTML(), html));
  });

  test("parses little of 20,000 tokens again when a few come", async (t) => {
    const { page, say, end } = await begin();
    const shapes = {
      prose: ["A paragraph with **bold** words, `code`, $x^2$ and a [link](https://example.org/), long enough.\n\n- one\n- two\n\n"],
      "one list": ["- an item with **bold** words and `code`, as long as most are\n"],
      "one table": ["| a cell with **bold** words | another | `x` |\n", "| a | b | c |\n|---|---|---|\n"],
      "one code block": ["let value = compute(1, 'two'); // and a comment\n", "```js\n"],
      "one paragraph": ["Words that go on and on, with **bold** ones and `code` among them. "],
    };
    for (const [i, [shape, [unit, head = ""]]] of Object.entries(shapes).entries()) {
      if (i > 0) {
        await page.click("#new-chat");
        await ask(page);
      }
      // English has about four characters a token.
      await say(head + unit.repeat(Math.ceil(80_000 / unit.length)));
      const { script } = await longestTask(browser, page, () =>
        page.evaluate(async (pieces) => {
          for (const piece of pieces) {
            said(piece);
            await new Promise((resolve) => requestAnimationFrame(resolve));
          }
        }, (unit + unit).match(/[^]{1,12}/g)),
      );
      t.diagnostic(`${shape}: longest script ${script.toFixed(1)} ms`);
      // Processor time, which other programs lengthen: some 30 ms on two idle cores, seconds if all of it is parsed.
      assert.ok(script < 250, `${shape}: ${script} ms`);
      await end();
    }
  });

  test("names the licenses of the libraries that show it", async () => {
    const text = await readFile(new URL("../dist/licenses.md", import.meta.url), "utf8");
    for (const name of ["dompurify", "highlight.js", "katex", "marked"]) assert.match(text, new RegExp(`^## ${name} - `, "m"));
  });

  test("is copied over plain HTTP, too, and says when it cannot be", async () => {
    const url = server.url.replace("127.0.0.1", "plain.example");
    const { page, reply } = await open("Some **words**.\n\n```\ncode & more\n```", { url });
    assert.deepEqual(await page.evaluate(() => [isSecureContext, navigator.clipboard]), [false, undefined]);
    // Which is told, too.
    await page.locator("#model[data-state=ready]").waitFor();
    const paste = async () => {
      await page.fill("#prompt", "");
      await page.focus("#prompt");
      await page.keyboard.press("Control+V");
      return page.locator("#prompt").inputValue();
    };
    await reply.locator("p").evaluate((p) => getSelection().selectAllChildren(p));
    await reply.getByRole("button", { name: "Copy the code" }).click();
    await reply.locator("button[data-copied]").waitFor();
    assert.equal(await page.evaluate(() => String(getSelection())), "Some words.");
    assert.equal(await page.evaluate(() => document.activeElement.ariaLabel), "Copy the code");
    await soon(async () => assert.equal(await page.locator("#status").innerText(), "Copied"));
    assert.equal(await paste(), "code & more");
    await page.getByRole("button", { name: "Copy the reply" }).click();
    await page.locator(".tools button[data-copied]").waitFor();
    assert.equal(await paste(), "Some **words**.\n\n```\ncode & more\n```");
    await page.evaluate(() => (document.execCommand = () => false));
    await page.getByRole("button", { name: "Copy the reply" }).click();
    await page.locator("#alert").getByText("does not allow the page to copy").waitFor();
  });
});
