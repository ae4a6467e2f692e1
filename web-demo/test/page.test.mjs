// The built page in headless Chromium, as a visitor uses it: `npm run build` first. CHROME is the browser's path.
import assert from "node:assert/strict";
import { createReadStream, existsSync, readdirSync } from "node:fs";
import { readFile, stat } from "node:fs/promises";
import { availableParallelism } from "node:os";
import { basename } from "node:path";
import { after, afterEach, before, beforeEach, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { createLogger, createServer } from "vite";
import { launch, longestTask, serve } from "../../wasm/js/test/chromium.mjs";
import { split } from "../../wasm/js/test/gguf.mjs";
import { faults } from "./axe.mjs";
import { forget } from "./forget.mjs";
import { soon } from "./soon.mjs";

const MODEL = fileURLToPath(new URL("../../models/sprout.gguf", import.meta.url));

/** SmolLM2-135M-Instruct, if `cargo xtask test` could fetch it. */
const SMOLLM2 = process.env.SHOHIN_SMOLLM2;

/** As `vite preview` sends them: the engine then uses threads. */
const ISOLATED = { "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp" };

/** Whether the page was built with modules of relaxed SIMD, which this browser has. */
const RELAXED = readdirSync(new URL("../dist/assets/", import.meta.url)).some((name) => name.includes("relaxed"));
const SIMD = RELAXED ? "relaxed(dot)?" : "simd128";

describe("the page", () => {
  let browser, server, visitors, page, problems;
  let downloads = 0;
  const long = { half: true, ranges: [] };
  // A download that never gets past its first half.
  const slow = async (_request, response) => {
    const { size } = await stat(MODEL);
    response.writeHead(200, { "Content-Length": size });
    createReadStream(MODEL, { end: size >> 1 }).pipe(response, { end: false });
  };

  before(async () => {
    browser = await launch();
    visitors = await browser.newContext({ viewport: { width: 1024, height: 768 }, serviceWorkers: "block" });
    server = await serve(new URL("../dist/", import.meta.url), {
      "/slow.gguf": slow,
      "/Ternary-Bonsai-1.7B-Q2_0.gguf": slow,
      // Only the first half until `half` is unset; ranges are known.
      "/long.gguf": async (request, response) => {
        const { size } = await stat(MODEL);
        const range = request.headers.range ?? "";
        long.ranges.push(range);
        const [start, end] = (/^bytes=(\d+)-(\d+)$/.exec(range)?.slice(1) ?? [0, size - 1]).map(Number);
        const head = { "Content-Length": end + 1 - start, ETag: '"1"', "Cache-Control": "no-store" };
        if (range) response.writeHead(206, { ...head, "Content-Range": `bytes ${start}-${end}/${size}` });
        else response.writeHead(200, head);
        createReadStream(MODEL, { start, end: long.half ? size >> 1 : end }).pipe(response, { end: !long.half });
      },
      "/none.gguf": (_request, response) => response.writeHead(404).end("nothing here"),
      "/page.gguf": (_request, response) => response.writeHead(200).end("<!doctype html><title>Sign in</title>"),
      // No length is told.
      "/other.gguf": (_request, response) => {
        downloads += 1;
        createReadStream(MODEL).pipe(response);
      },
    }, ISOLATED);
  });
  after(async () => {
    await browser?.close();
    await server?.close();
  });

  beforeEach(() => (problems = []));
  afterEach(() => assert.deepEqual(problems, []));

  /** Opens `page` for a new visitor, in a context that visitors share unless another is given. */
  async function open(context = visitors) {
    page = await context.newPage();
    page.setDefaultTimeout(120_000);
    await forget(page, server.url);
    // One thread, which is quick enough for the model: several wait for each other where other work keeps the cores busy.
    await page.addInitScript(() => {
      if (!localStorage.getItem("shohin.settings")) localStorage.setItem("shohin.settings", '{"threads":"1"}');
    });
    page.on("pageerror", (error) => problems.push(String(error)));
    // What the content security policy forbids, and every missing file, end up here.
    page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
    page.on("request", (request) => {
      if (!request.url().startsWith(server.url) && !/^(blob|data):/.test(request.url())) problems.push(`asks for ${request.url()}`);
    });
    await page.goto(server.url);
  }

  /** A test with a page that is open. */
  const visit = (name, options, run = options) =>
    test(name, run === options ? {} : options, async (t) => {
      await open();
      try {
        await run(t);
      } finally {
        for (const each of visitors.pages()) await each.close();
      }
    });

  const ready = () => page.locator("#model[data-state=ready]").waitFor();
  const replies = () => page.locator("#conversation [data-role=assistant]");
  const lastReply = () => replies().last();
  const idle = () => page.locator("#send:not([data-busy])").waitFor();
  const text = (turn) => turn.locator("[data-part=text]").innerText();
  const loadAddressIn = async (page, address) => {
    await page.click("#model");
    await page.fill("#url", address);
    await page.click("#url-form button");
  };
  const loadAddress = (address) => loadAddressIn(page, address);

  const loaded = (name) => page.locator("#status").filter({ hasText: `${name} is ready` }).waitFor({ state: "attached" });

  /** Types a message and waits for the whole reply. */
  async function ask(message) {
    const before = await replies().count();
    await page.locator("#prompt").pressSequentially(message);
    await page.keyboard.press("Enter");
    await replies().nth(before).locator("xpath=self::*[@data-state='done']").waitFor();
    return text(lastReply());
  }

  /** Sets values in the settings sheet, by the ids of its fields. */
  async function set(values) {
    await page.click("#open-settings");
    for (const [id, value] of Object.entries(values)) {
      if (id === "preset") await page.selectOption("#preset", value);
      else await page.fill(`#${id}`, value);
    }
    await page.click("#close-settings");
  }

  visit("answers what is typed, remembers the turns before, and starts anew", async () => {
    await ready();
    await set({ preset: "greedy" });
    const first = await ask("Hello!");
    assert.match(first, /\w+/);
    await soon(async () => assert.match(await lastReply().locator(".tools").innerText(), /\d+ tokens · [\d.,]+ tokens\/s/));
    // Read out once, as a whole.
    await soon(async () => assert.equal(await page.locator("#status").innerText(), first));

    assert.notEqual(await ask("What is my name?"), "");
    await soon(async () => assert.equal(await replies().count(), 2));
    await soon(async () => assert.equal(await page.locator("#conversation [data-role=user]").count(), 2));
    await soon(async () => assert.equal(await page.locator("#welcome").isVisible(), false));

    await page.click("#new-chat");
    await soon(async () => assert.equal(await page.locator("#conversation > *").count(), 0));
    await soon(async () => assert.equal(await page.locator("#welcome").isVisible(), true));
    // Nothing of the old conversation is left in the model.
    assert.equal(await ask("Hello!"), first);
  });

  visit("takes a message before the model is there", async () => {
    assert.notEqual(await ask("Hello!"), "");
  });

  test("gives a message back that was stopped before the model was there", async () => {
    const context = await browser.newContext();
    const page = await context.newPage();
    // The model never arrives.
    await page.route("**/sprout.gguf", () => {});
    await page.goto(server.url);
    await page.fill("#prompt", "Hello!");
    await page.click("#send");
    await page.locator("#send[data-busy]").waitFor();
    await page.locator("#loading").waitFor();
    await page.click("#send");
    await page.locator("#send:not([data-busy])").waitFor();
    await soon(async () => assert.equal(await page.locator("#prompt").inputValue(), "Hello!"));
    assert.equal(await page.evaluate(() => document.activeElement.id), "prompt");
    await soon(async () => assert.equal(await page.locator("#conversation > *").count(), 0));
    await context.close();
  });

  visit("starts from a suggestion", async () => {
    await ready();
    await page.click("#suggestions button");
    await lastReply().locator("xpath=self::*[@data-state='done']").waitFor();
    assert.notEqual(await text(lastReply()), "");
  });

  visit("streams, and stops when asked", async () => {
    await ready();
    await set({ preset: "creative", seed: "1" });
    /**
     * Sends a message and returns what the reply looked like from change to change. Stops at the first one in the given
     * way: from inside the page, for the model is quicker than a test outside.
     */
    const watch = (stop) =>
      page.evaluate(
        (stop) =>
          new Promise((resolve) => {
            const list = document.querySelector("#conversation");
            const seen = [];
            const observer = new MutationObserver(() => {
              const reply = [...list.querySelectorAll("[data-role=assistant]")].at(-1);
              const text = reply?.querySelector("[data-part=text]").textContent ?? "";
              if (text !== "" && text !== seen.at(-1)) {
                seen.push(text);
                const label = document.querySelector("#send").getAttribute("aria-label");
                if (seen.length === 1 && stop === "button" && label === "Stop") document.querySelector("#send").click();
                if (seen.length === 1 && stop === "key") dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
              }
              if (reply?.dataset.state === "done" && list.querySelectorAll("[data-state=busy]").length === 0) {
                observer.disconnect();
                resolve({ seen, tools: reply.querySelector(".tools").textContent });
              }
            });
            document.querySelector("#prompt").value = "Tell me a story about a cat.";
            document.querySelector("#composer").requestSubmit();
            observer.observe(list, { subtree: true, childList: true, characterData: true, attributes: true });
          }),
        stop,
      );
    const whole = await watch("");
    // A whole story takes a few frames of the screen.
    assert.ok(whole.seen.length > 1, "the reply came all at once");
    whole.seen.forEach((text, i) => assert.ok(text.startsWith(whole.seen[i - 1] ?? ""), text));
    assert.match(whole.tools, /\d+ tokens/);
    for (const stop of ["button", "key"]) {
      await page.click("#new-chat");
      const { seen, tools } = await watch(stop);
      assert.match(tools, /Stopped/, `${stop}: ${seen.length} changes`);
      assert.ok(seen.at(-1).length < whole.seen.at(-1).length);
      // Also after a reload it goes on from there.
      if (stop === "key") await page.reload();
      const begun = await text(lastReply());
      await page.click(".continue");
      await idle();
      await soon(async () => assert.equal(await replies().count(), 1));
      const ended = await text(lastReply());
      assert.ok(ended.startsWith(begun.trim()) && ended.length > begun.length, `${begun}|${ended}`);
      await soon(async () => assert.equal(await page.locator(".continue").count(), 0));
    }
    // And the next message works.
    assert.notEqual(await ask("Hello!"), "");
  });

  visit("repeats a reply with the same seed, cuts at the token limit, and remembers its settings", async () => {
    await ready();
    await set({ preset: "creative", seed: "7", "max-tokens": "12" });
    const first = await ask("Tell me a story.");
    await soon(async () => assert.match(await lastReply().locator(".tools").innerText(), /12 tokens .* cut at the token limit/));
    await page.click(".again");
    await idle();
    await soon(async () => assert.equal(await replies().count(), 1));
    assert.equal(await text(lastReply()), first);
    await page.reload();
    await soon(async () => assert.equal(await page.locator("#seed").inputValue(), "7"));
    await soon(async () => assert.equal(await page.locator("#preset").inputValue(), "creative"));
    await soon(async () => assert.equal(await page.locator("#temperature").inputValue(), "1"));
  });

  visit("takes no setting that cannot be right, and says what would be", async () => {
    await ready();
    const stored = () => page.evaluate(() => JSON.parse(localStorage.getItem("shohin.settings")));
    const border = (field) => field.evaluate((field) => getComputedStyle(field).borderTopColor);
    const before = await stored();
    for (const [id, wrong, words] of [
      ["max-tokens", "0", /^A whole number from 1 to 4,096\.$/],
      ["max-tokens", "", /^A whole number from 1 to 4,096\.$/],
      ["seed", "-4", /^A whole number from 0 to 4,294,967,295, or nothing: random\.$/],
      ["seed", "1.5", /^A whole number from 0 /],
      ["context", "5", /^A whole number from 64 to 131,072, or nothing: automatic\.$/],
      ["context", "999999999", /^A whole number from 64 /],
    ]) {
      const field = page.locator(`#${id}`);
      const said = page.locator(`#${id}-fault`);
      await page.click("#open-settings");
      const right = await field.inputValue();
      const calm = {};
      for (const colorScheme of ["light", "dark"]) {
        await page.emulateMedia({ colorScheme });
        calm[colorScheme] = await border(field);
      }
      await field.fill(wrong);
      await soon(async () => assert.equal(await said.textContent(), "", "while it is being typed"));
      await field.blur();
      await soon(async () => assert.match(await said.innerText(), words));
      await soon(async () => assert.ok((await field.getAttribute("aria-describedby")).split(" ").includes(`${id}-fault`)));
      await soon(async () => assert.equal(await field.getAttribute("aria-invalid"), "true"));
      const [box, words2] = [await field.boundingBox(), await said.boundingBox()];
      assert.ok(words2.y >= box.y + box.height && words2.x < box.x + box.width && words2.y < box.y + box.height + 16);
      for (const colorScheme of ["light", "dark"]) {
        await page.emulateMedia({ colorScheme });
        const clay = colorScheme === "light" ? "rgb(122, 52, 30)" : "rgb(240, 184, 161)";
        assert.deepEqual([calm[colorScheme] === clay, await border(field)], [false, clay]);
      }
      const now = await stored();
      assert.deepEqual([now.maxTokens ?? 400, now.seed ?? "", now.context ?? ""], [before.maxTokens ?? 400, before.seed ?? "", before.context ?? ""]);
      // What is shown again is what is in force.
      await page.keyboard.press("Escape");
      await page.click("#open-settings");
      assert.deepEqual([await field.inputValue(), await field.getAttribute("aria-invalid"), await said.textContent()], [right, null, ""]);
      await page.click("#close-settings");
    }
    await page.click("#open-settings");
    await page.fill("#max-tokens", "0");
    await page.locator("#max-tokens").blur();
    await page.locator("#max-tokens-fault").filter({ hasText: "whole number" }).waitFor();
    await page.fill("#max-tokens", "12");
    assert.deepEqual([await page.locator("#max-tokens-fault").textContent(), await page.locator("#max-tokens").getAttribute("aria-invalid")], ["", null]);
    assert.equal((await stored()).maxTokens, 12);
    // A wrong context keeps nothing beside it from being taken.
    await page.fill("#context", "5");
    await page.locator("#context").blur();
    if (availableParallelism() > 1) {
      await page.selectOption("#threads", "");
      await page.locator("#facts").filter({ hasText: `${availableParallelism()} threads` }).waitFor();
    }
    assert.equal((await stored()).context ?? "", "");
    await page.click("#close-settings");
    await ready();
    assert.notEqual(await ask("Hello!"), "");
  });

  visit("says once what the model no longer sees, where that began", async () => {
    await ready();
    await set({ preset: "greedy", "max-tokens": "16", context: "128" });
    await page.locator("#facts").filter({ hasText: "128 tokens" }).waitFor({ state: "attached" });
    await ready();
    const places = () =>
      page.evaluate(() => {
        const lines = [...document.querySelectorAll("#conversation > li")];
        return lines.flatMap((line, i) => (line.matches(".note") ? [[i, line.textContent]] : []));
      });
    const seen = [];
    for (const message of ["Hello!", "Tell me a joke.", "What is the opposite of hot?", "Tell me a joke.", "Hello!", "What can you do?", "Tell me a joke."]) {
      await ask(message);
      seen.push(await places());
    }
    assert.deepEqual(seen[0], []);
    const notes = seen.filter((notes) => notes.length > 0);
    assert.ok(notes.length > 1, JSON.stringify(seen));
    const counts = notes.map((all) => {
      assert.equal(all.length, 1);
      assert.equal(all[0][0], notes[0][0][0], "it stays where it was");
      return Number(/the first (\d+) message/.exec(all[0][1])[1]);
    });
    assert.ok(counts.at(-1) > counts[0], counts.join());
    const last = notes.at(-1);
    await lastReply().locator(".again").click();
    await idle();
    await replies().last().locator("xpath=self::*[@data-state='done']").waitFor();
    assert.deepEqual(await places(), last);
    await page.reload();
    await ready();
    await replies().first().waitFor();
    assert.deepEqual(await places(), last);
    // With more room it sees all again, and nothing says otherwise.
    await set({ context: "" });
    await page.locator("#facts").filter({ hasText: "512 tokens" }).waitFor({ state: "attached" });
    await ready();
    await ask("Hello!");
    assert.deepEqual(await places(), []);
  });

  visit("loads the visitor's own file, by picker and by drop", async () => {
    await ready();
    await ask("Hello!");
    await page.setInputFiles("#file", { name: "mine.gguf", mimeType: "", buffer: await readFile(MODEL) });
    // The conversation goes on with it.
    await page.locator("#conversation .note").filter({ hasText: "goes on from here" }).waitFor();
    await ready();
    assert.notEqual(await ask("Hello!"), "");
    await page.click("#model");
    await page.click("#offers li:has-text('sprout') button");
    await page.locator("#conversation .note").filter({ hasText: "sprout goes on from here" }).waitFor();
    await ready();
    await soon(async () => assert.equal(await page.locator("#model-name").innerText(), "sprout"));

    const dataTransfer = await page.evaluateHandle(async () => {
      const data = new DataTransfer();
      data.items.add(new File([await (await fetch("sprout.gguf")).blob()], "dropped.gguf"));
      return data;
    });
    await page.dispatchEvent("body", "dragenter", { dataTransfer });
    await soon(async () => assert.equal(await page.locator("#drop").isVisible(), true));
    await page.dispatchEvent("body", "drop", { dataTransfer });
    await soon(async () => assert.equal(await page.locator("#drop").isVisible(), false));
    await page.locator("#status").filter({ hasText: "dropped.gguf is ready" }).waitFor({ state: "attached" });
    assert.notEqual(await ask("Hello!"), "");
  });

  visit("chats with SmolLM2, a trained model of another architecture", { skip: SMOLLM2 ? false : "SHOHIN_SMOLLM2 names no file" }, async () => {
    await ready();
    await set({ preset: "greedy", "max-tokens": "20" });
    await page.setInputFiles("#file", SMOLLM2);
    await loaded(basename(SMOLLM2));
    assert.match(await ask("What is the opposite of hot?"), /^The opposite of hot is cold\./);
  });

  visit("loads a model in several files, and says which are wrong", async () => {
    await ready();
    const model = await readFile(MODEL);
    const files = split(model, 3).map((buffer, i) => ({ name: `mine-0000${i + 1}-of-00003.gguf`, mimeType: "", buffer }));
    await page.setInputFiles("#file", [files[2], files[0], files[1]]);
    await loaded("mine.gguf");
    await soon(async () => assert.equal(await page.locator("#alert").isVisible(), false));
    assert.notEqual(await ask("Hello!"), "");
    for (const [picked, message] of [
      [[files[2], files[0]], /^mine\.gguf could not be loaded: mine-00002-of-00003\.gguf is missing/],
      [[files[1]], /^mine-00002-of-00003\.gguf could not be loaded: mine-00001-of-00003\.gguf is missing/],
      [[files[0], { ...files[1], name: "other-00002-of-00003.gguf" }, files[2]], /mine-00001-of-00003\.gguf and other-00002-of-00003\.gguf are not parts of the same model/],
      [[files[0], { ...files[2], name: files[1].name }, { ...files[1], name: files[2].name }], /^mine\.gguf cannot be used: mine-00002-of-00003\.gguf: /],
    ]) {
      await page.setInputFiles("#file", picked);
      await page.locator("#alert-text").filter({ hasText: message }).waitFor();
      await ready();
    }
    const parts = files.map(({ name, buffer }) => [name, buffer.toString("base64")]);
    const dataTransfer = await page.evaluateHandle((parts) => {
      const data = new DataTransfer();
      const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
      for (const [name, text] of parts.reverse()) data.items.add(new File([bytes(text)], name.replace("mine", "dropped")));
      return data;
    }, parts);
    await page.dispatchEvent("body", "drop", { dataTransfer });
    await loaded("dropped.gguf");
    assert.notEqual(await ask("Hello!"), "");
  });

  visit("says what is wrong with a file, and keeps the model it had", async () => {
    await ready();
    for (const [name, buffer, message] of [
      ["broken.gguf", (await readFile(MODEL)).subarray(0, 5000), /^broken\.gguf is incomplete: /],
      ["notes.txt", Buffer.from("Dear diary, today I wrote no model."), /^notes\.txt is not a GGUF model/],
      ["empty.gguf", Buffer.alloc(0), /^empty\.gguf is incomplete: /],
    ]) {
      await page.setInputFiles("#file", { name, mimeType: "", buffer });
      await page.locator("#alert-text").filter({ hasText: message }).waitFor();
    }
    await page.click("#alert-close");
    await soon(async () => assert.equal(await page.locator("#alert").isVisible(), false));
    await ready();
    assert.notEqual(await ask("Hello!"), "");
  });

  visit("loads from an address, shows progress, and can be cancelled", async () => {
    await ready();
    await loadAddress(`${server.url}slow.gguf`);
    await page.locator("#loading-name").filter({ hasText: "slow.gguf" }).waitFor();
    await page.locator("#loading-size").filter({ hasText: /[\d.]+.[kM]B of [\d.]+.MB/ }).waitFor();
    await page.waitForFunction(() => document.querySelector("#loading-bar").value > 0.3);
    await page.click("#loading-cancel");
    await page.locator("#loading").waitFor({ state: "hidden" });
    await soon(async () => assert.equal(await page.locator("#alert").isVisible(), false));
    await ready();

    await loadAddress(`${server.url}none.gguf`);
    await page.locator("#alert-text").filter({ hasText: /^none\.gguf could not be loaded: .* answered 404/ }).waitFor();
    await loadAddress(`${server.url}page.gguf`);
    await page.locator("#alert-text").filter({ hasText: "page.gguf is not a GGUF model" }).waitFor();
    await loadAddress("not an address");
    assert.equal(await page.locator("#url").evaluate((input) => input.validity.valid), false);
    await page.click("#close-models");
    await loadAddress(`${server.url}other.gguf`);
    await loaded("other.gguf");
    await soon(async () => assert.equal(await page.locator("#alert").isVisible(), false));
    assert.notEqual(await ask("Hello!"), "");
    // It was kept and comes back by itself: no second download.
    await page.reload();
    await loaded("other.gguf");
    assert.equal(downloads, 1);
    await page.click("#model");
    await page.locator("#kept li").filter({ hasText: /other\.gguf.*1\.5.MB/ }).waitFor();
    // The part of the other one that came.
    await page.locator("#kept li").filter({ hasText: /slow\.gguf.*kB of 1\.5.MB/ }).waitFor();
    // As while another tab reads it.
    await page.evaluate(() => {
      const { prototype } = FileSystemDirectoryHandle;
      const { removeEntry } = prototype;
      prototype.removeEntry = async function (name) {
        // The page also deletes files with which it tries the room.
        if (!name.endsWith(".json")) return removeEntry.call(this, name);
        throw new DOMException("in use", "NoModificationAllowedError");
      };
      globalThis.endUse = () => Object.assign(prototype, { removeEntry });
    });
    const remove = "#kept li:has-text('other.gguf') button:has-text('Delete')";
    await page.click(remove);
    await page.locator("#status").filter({ hasText: "other.gguf is being read or downloaded, and cannot be deleted now." }).waitFor({ state: "attached" });
    await page.evaluate(() => globalThis.endUse());
    await page.click(remove);
    await page.locator("#kept li").filter({ hasText: "other.gguf" }).waitFor({ state: "detached" });
    await soon(async () => assert.equal(await page.locator("#kept li").count(), 1));
    assert.equal(await page.evaluate(() => document.querySelector("#models").contains(document.activeElement)), true);
    // The browser itself reports the missing file.
    problems = problems.filter((problem) => !/404/.test(problem));
  });

  test("lists what is kept only where it shows the list", async () => {
    // With a service worker, for what the page says of it.
    await open(await browser.newContext());
    // Chromium keeps a page that is left while it lists a directory.
    await page.addInitScript(() => {
      globalThis.lists = 0;
      for (const name of ["keys", "values", "entries", Symbol.asyncIterator]) {
        const list = FileSystemDirectoryHandle.prototype[name];
        FileSystemDirectoryHandle.prototype[name] = function () {
          globalThis.lists++;
          return list.call(this);
        };
      }
    });
    const lists = () => page.evaluate(() => globalThis.lists);
    await ready();
    await loadAddress(`${server.url}other.gguf`);
    await loaded("other.gguf");
    await page.reload();
    await loaded("other.gguf");
    await page.locator("#gauge-offline").filter({ hasText: "works offline" }).waitFor();
    assert.notEqual(await ask("Hello!"), "");
    assert.equal(await lists(), 0);
    await page.click("#model");
    await page.locator("#kept li").filter({ hasText: "other.gguf" }).waitFor();
    assert.equal(await lists(), 1);
    await page.click("#close-models");
    await loadAddress(`${server.url}none.gguf`);
    await page.locator("#alert-text").filter({ hasText: "404" }).waitFor();
    problems = problems.filter((problem) => !/404/.test(problem));
    // Each time the list is opened.
    await soon(async () => assert.equal(await lists(), 2));
    await page.context().close();
  });

  /** Another page, which notes what its engines load, and in which the last of them can be told of a failure. */
  async function watched() {
    const context = await browser.newContext({ serviceWorkers: "block" });
    await context.addInitScript(() => {
      localStorage["shohin.settings"] ??= '{"threads":"1","maxTokens":8}';
      const loads = (globalThis.loads = []);
      globalThis.Worker = class extends Worker {
        postMessage(message, ...rest) {
          if (message.method === "load") {
            loads.push(message.params.source.url.split("/").pop());
            globalThis.fail = (code) => this.onmessage({ data: { id: message.id, error: { code, message: "nothing came for 30 s" } } });
          }
          super.postMessage(message, ...rest);
        }
      };
    });
    const page = await context.newPage();
    page.setDefaultTimeout(120_000);
    page.on("pageerror", (error) => problems.push(String(error)));
    return page;
  }

  test("loads what was picked last, however quickly, and goes back to what worked", async () => {
    const page = await watched();
    await page.goto(server.url);
    const pick = (...names) =>
      page.evaluate((urls) => {
        for (const url of urls) {
          document.querySelector("#url").value = url;
          document.querySelector("#url-form").requestSubmit();
        }
      }, names.map((name) => `${server.url}${name}`));
    const ready = (name) => page.locator("#status").filter({ hasText: `${name} is ready` }).waitFor({ state: "attached" });
    const comes = (name) =>
      page.waitForFunction((name) => globalThis.loads.at(-1) === name && document.querySelector("#loading-bar").value > 0.3, name);
    const loads = () => page.evaluate(() => globalThis.loads);
    await ready("sprout");
    await pick("other.gguf");
    await ready("other.gguf");
    await pick("slow.gguf?1");
    await comes("slow.gguf?1");
    // The one in use is no more; what takes its place is what was picked.
    await pick("slow.gguf?2");
    await comes("slow.gguf?2");
    assert.deepEqual(await loads(), ["sprout.gguf", "other.gguf", "slow.gguf?1", "slow.gguf?2"]);
    await pick("slow.gguf?3", "slow.gguf?4");
    await comes("slow.gguf?4");
    assert.deepEqual((await loads()).slice(4), ["slow.gguf?4"]);
    await soon(async () => assert.equal(await page.locator("#loading").isVisible(), true));
    // A message waits for what there will be.
    await page.fill("#prompt", "Hello!");
    await page.keyboard.press("Enter");
    await page.locator("#send[data-busy]").waitFor();
    await page.evaluate(() => (document.querySelector("#status").textContent = ""));
    await page.click("#loading-cancel");
    await page.locator("#conversation [data-role=assistant][data-state=done]").waitFor();
    assert.deepEqual((await loads()).slice(5), ["other.gguf"]);
    await soon(async () => assert.equal(await page.locator("#loading").isVisible(), false));
    await soon(async () => assert.equal(await page.locator("#alert").isVisible(), false));
    await page.context().close();
  });

  test("says of a download that stalls what of it is kept, where anything is", async () => {
    const page = await watched();
    const said = async () => {
      const words = page.locator("#alert-text").filter({ hasText: "nothing came" });
      await words.waitFor();
      return words.innerText();
    };
    // Nothing is kept of the one that comes with the page.
    await page.route("**/sprout.gguf", () => {});
    await page.goto(server.url);
    await page.waitForFunction(() => globalThis.fail);
    await page.evaluate(() => globalThis.fail("timeout"));
    assert.equal(await said(), "The embedded model could not be downloaded: nothing came for 30 s. Try again later.");
    await page.unroute("**/sprout.gguf");
    await page.reload();
    await page.locator("#model[data-state=ready]").waitFor();
    const stall = async (file, isKept) => {
      await loadAddressIn(page, `${server.url}${file}`);
      await page.waitForFunction(() => document.querySelector("#loading-name").textContent === "slow.gguf" && document.querySelector("#loading-bar").value > 0.3);
      if (isKept) await page.waitForFunction(isKept);
      await page.evaluate(() => globalThis.fail("timeout"));
      return said();
    };
    const words = await stall("slow.gguf", async () => {
      const kept = await (await navigator.storage.getDirectory()).getDirectoryHandle("shohin");
      for await (const [name, handle] of kept) {
        if (name.endsWith(".json") && (await (await handle.getFile()).text()).includes('\n[0,"')) return true;
      }
      return false;
    });
    assert.match(words, /^slow\.gguf could not be downloaded: nothing came for 30 s\. [1-9]\d*\skB of 1\.5\sMB are kept; try again continues from there\.$/);
    const client = await page.context().newCDPSession(page);
    await client.send("Storage.overrideQuotaForOrigin", { origin: new URL(server.url).origin, quotaSize: 300_000 });
    assert.match(await stall("slow.gguf?again"), /^slow\.gguf could not be downloaded: nothing came for 30 s\. Try again later\.$/);
    await page.context().close();
  });

  visit("never shows what is written as markup", async () => {
    await ready();
    await ask("<img src=x onerror=alert(1)> **Hello**");
    await soon(async () => assert.equal(await page.locator("#conversation img").count(), 0));
    assert.equal(await text(page.locator("#conversation [data-role=user]")), "<img src=x onerror=alert(1)> **Hello**");
  });

  test("opens and answers without a network after the first visit", async () => {
    const alone = await serve(new URL("../dist/", import.meta.url));
    const port = new URL(alone.url).port;
    page = await browser.newPage();
    page.setDefaultTimeout(120_000);
    page.on("pageerror", (error) => problems.push(String(error)));
    // Refused connections are reported, and foreseen.
    page.on("console", (message) => message.type() === "error" && !message.text().includes("ERR_CONNECTION_REFUSED") && problems.push(message.text()));
    await page.goto(alone.url);
    await page.evaluate(() => navigator.serviceWorker.ready);
    await page.waitForFunction(() => navigator.serviceWorker.controller !== null);
    // Of the modules, those that this browser gets.
    const kept = await page.evaluate(async () => {
      const requests = await Promise.all((await caches.keys()).map(async (name) => (await caches.open(name)).keys()));
      return requests.flat().map(({ url }) => url);
    });
    const modules = kept.filter((url) => url.endsWith(".wasm"));
    assert.ok(modules.length > 0 && modules.every((url) => url.includes("relaxed") === RELAXED), `${kept}`);
    await alone.close();
    const asked = [];
    page.on("request", (request) => request.url().includes(`:${port}/`) || asked.push(request.url()));
    await page.reload();
    await ready();
    assert.notEqual(await ask("Hello!"), "");
    assert.deepEqual(asked.filter((url) => !/^(blob|data):/.test(url)), []);
    await page.context().close();
  });

  visit("goes on after a reload, and keeps conversations apart", async () => {
    await ready();
    await set({ preset: "greedy" });
    await ask("Hi! My name is Mira.");
    /** Waits until so many snapshots are kept, returns their names, and keeps one of some other page's. */
    const snapshots = async (most, name) => {
      for (;;) {
        const names = await page.evaluate(
          async ([most, name]) => {
            const kept = (await indexedDB.databases()).some(({ name }) => name === "shohin.snapshots");
            if (!kept) return [];
            const database = await new Promise((done) => (indexedDB.open("shohin.snapshots").onsuccess = (event) => done(event.target.result)));
            const store = database.transaction("snapshots", "readwrite").objectStore("snapshots");
            const names = store.getAllKeys();
            await new Promise((done) => (names.onsuccess = done));
            if (names.result.length === most && name) store.put({}, name);
            database.close();
            return names.result;
          },
          [most, name],
        );
        if (names.length === most) return names;
        await page.waitForTimeout(50);
      }
    };
    await snapshots(1, "theirs");
    await page.reload();
    await ready();
    await replies().first().waitFor();
    assert.match(await ask("What is my name?"), /Mira/);
    // The engine is a new one, and need not read the first turn again.
    const [, all, remembered] = /(\d+) tokens of conversation, (\d+) of them/.exec(await lastReply().locator(".figures").getAttribute("title"));
    assert.ok(Number(remembered) > 20 && Number(remembered) < Number(all), `${remembered} of ${all}`);
    await page.click("#new-chat");
    assert.doesNotMatch(await ask("What is my name?"), /Mira/);
    assert.ok((await snapshots(3)).includes("theirs"));
    await soon(async () => assert.equal(await page.locator("#chat-list li").count(), 2));
    await page.click("#chat-list .open:has-text('Mira')");
    await replies().nth(1).waitFor();
    await page.locator("#conversation").filter({ hasText: "My name is Mira" }).waitFor();
    await soon(async () => assert.equal(await replies().count(), 2));
    // A second tab sees the same list, and what is said and deleted here.
    const other = await page.context().newPage();
    await other.goto(server.url);
    await other.locator("#chat-list .open").nth(1).waitFor();
    await other.click("#chat-list .open:has-text('Mira')");
    await ask("Hello!");
    await other.locator("#conversation [data-role=assistant]").nth(2).waitFor();
    await other.fill("#prompt", "Tell me a joke.");
    await other.click("#send");
    await replies().nth(3).waitFor();
    await page.click("#chat-list li:has-text('Mira') .icon");
    await other.locator("#chat-list li").filter({ hasText: "Mira" }).waitFor({ state: "detached" });
    assert.equal(await other.locator("#chat-list li").count(), 1);
    await snapshots(2);
    await soon(async () => assert.equal(await page.locator("#welcome").isVisible(), true));
  });

  visit("lets a deletion be undone, with the keyboard too", async () => {
    await page.setViewportSize({ width: 1280, height: 768 });
    await ready();
    await ask("Hello!");
    await page.click("#new-chat");
    await ask("Tell me a joke.");
    const shows = (titles) => soon(async () => assert.deepEqual(await page.locator("#chat-list .open").allTextContents(), titles));
    const focused = () => page.evaluate(() => document.activeElement.id);
    const deleteWith = async (title) => {
      await page.locator(`#chat-list li:has-text('${title}') .icon`).focus();
      await page.keyboard.press("Enter");
      await page.locator("#undo").waitFor();
    };
    await deleteWith("Hello!");
    await shows(["Tell me a joke."]);
    await soon(async () => assert.match(await page.locator("#undo").innerText(), /Deleted “Hello!”/));
    await soon(async () => assert.equal(await focused(), "undo-button"));
    await page.keyboard.press("Enter");
    await page.locator("#undo").waitFor({ state: "hidden" });
    await shows(["Tell me a joke.", "Hello!"]);
    await soon(async () => assert.match(await focused(), /^chat-/));
    // The one on the page comes back there.
    const whole = await page.locator("#conversation").innerText();
    await deleteWith("Tell me a joke.");
    await soon(async () => assert.equal(await replies().count(), 0));
    await page.keyboard.press("Enter");
    await soon(async () => assert.equal(await page.locator("#conversation").innerText(), whole));
    // So do all of them.
    await page.click("#forget-chats");
    await page.click("#forget-chats");
    await page.locator("#undo").filter({ hasText: "Deleted 2 conversations" }).waitFor();
    await shows([]);
    await page.click("#undo-button");
    await page.locator("#chat-list .open").nth(1).waitFor();
    await page.reload();
    await shows(["Tell me a joke.", "Hello!"]);
    // In the drawer of a phone it is in reach, too, and not for ever.
    await page.clock.install();
    await page.setViewportSize({ width: 360, height: 640 });
    await page.click("#open-chats");
    await page.click("#chat-list li:has-text('Hello!') .icon");
    await page.locator("#undo").waitFor();
    await page.mouse.move(300, 300);
    await page.clock.fastForward(11_000);
    await page.locator("#undo").waitFor({ state: "hidden" });
    await shows(["Tell me a joke."]);
  });

  visit("keeps the KV cache of a deleted conversation for as long as the deletion can be undone", async () => {
    await page.setViewportSize({ width: 1280, height: 768 });
    await ready();
    await set({ preset: "greedy" });
    const snapshots = (count) =>
      page.waitForFunction(async (count) => {
        const database = await new Promise((done) => (indexedDB.open("shohin.snapshots").onsuccess = (event) => done(event.target.result)));
        const names = database.objectStoreNames.contains("snapshots") ? database.transaction("snapshots").objectStore("snapshots").getAllKeys() : undefined;
        if (names) await new Promise((done) => (names.onsuccess = done));
        database.close();
        return names?.result.length === count;
      }, count, { polling: 100 });
    await ask("Hi! My name is Mira.");
    await snapshots(1);
    await page.click("#chat-list .icon");
    await page.locator("#undo").waitFor();
    // The next reply tidies up, and spares it.
    await ask("Hello!");
    await snapshots(2);
    await page.click("#undo-button");
    await page.click("#chat-list .open:has-text('Mira')");
    await page.locator("#conversation").filter({ hasText: "My name is Mira" }).waitFor();
    await page.reload();
    await replies().first().waitFor();
    await ready();
    assert.match(await ask("What is my name?"), /Mira/);
    const [, remembered] = /(\d+) of them/.exec(await lastReply().locator(".figures").getAttribute("title"));
    assert.ok(Number(remembered) > 20, remembered);
    // Another deletion makes the first one final, and time the last.
    await page.clock.install();
    await page.click("#chat-list li:has-text('Hello!') .icon");
    await page.locator("#undo").waitFor();
    await page.click("#chat-list li:has-text('Mira') .icon");
    await snapshots(1);
    await page.focus("#prompt");
    await page.mouse.move(700, 300);
    await page.clock.fastForward(11_000);
    await snapshots(0);
  });

  visit("says once that there is no room for choices", async () => {
    await ready();
    await page.evaluate(() => {
      for (let size = 1 << 22; size >= 1; size >>= 1) {
        try {
          for (let i = 0; ; i++) localStorage.setItem(`filler ${size} ${i}`, "x".repeat(size));
        } catch {}
      }
    });
    await page.click("#theme");
    await page.locator("#alert").filter({ hasText: "no room left for the choices" }).waitFor();
    await page.click("#alert-close");
    await page.click("#theme");
    await soon(async () => assert.equal(await page.locator("html").getAttribute("data-theme"), "dark"));
    await soon(async () => assert.equal(await page.locator("#alert").isVisible(), false));
  });

  visit("keeps a conversation deleted that was still being answered", async () => {
    await page.setViewportSize({ width: 1280, height: 768 });
    await ready();
    await page.evaluate(
      () =>
        new Promise((resolve) => {
          const list = document.querySelector("#conversation");
          const observer = new MutationObserver(() => {
            const bin = document.querySelector("#chat-list .icon");
            if (!bin || !list.querySelector("[data-role=assistant] [data-part=text]")?.textContent) return;
            observer.disconnect();
            bin.click();
            resolve();
          });
          observer.observe(list, { subtree: true, childList: true, characterData: true });
          document.querySelector("#prompt").value = "Tell me a story about a cat.";
          document.querySelector("#composer").requestSubmit();
        }),
    );
    await page.locator("#undo").waitFor();
    await idle();
    await ask("Hello!");
    await page.reload();
    await replies().first().waitFor();
    await soon(async () => assert.deepEqual(await page.locator("#chat-list .open").allTextContents(), ["Hello!"]));
  });

  test("has the chosen theme and one icon for it before its script runs, and says when none can", async () => {
    const context = await browser.newContext({ colorScheme: "light", serviceWorkers: "block" });
    await context.addInitScript(() => localStorage.setItem("shohin.theme", "dark"));
    const early = await context.newPage();
    early.on("console", (message) => message.type() === "error" && problems.push(message.text()));
    const look = () =>
      early.evaluate(() => [
        getComputedStyle(document.documentElement).backgroundColor,
        [...document.querySelectorAll("#theme svg")].filter((icon) => getComputedStyle(icon).display !== "none").map((icon) => icon.dataset.themeIcon),
      ]);
    await early.route("**/assets/index-*.js", () => {});
    await early.goto(server.url, { waitUntil: "commit" });
    // Once there is a style sheet. No frame is painted, which Playwright would wait for, before the script has run.
    await early.waitForFunction(() => document.querySelector("#conversation") && getComputedStyle(document.body).margin === "0px", undefined, { polling: 50 });
    const dark = ["rgb(20, 23, 19)", ["dark"]];
    assert.deepEqual(await look(), dark);
    await early.unroute("**/assets/index-*.js");
    await early.goto(server.url);
    await early.locator("#model[data-state=ready]").waitFor();
    assert.deepEqual(await look(), dark);
    await context.close();

    const silent = await browser.newContext({ javaScriptEnabled: false });
    const page = await silent.newPage();
    await page.goto(server.url);
    await soon(async () => assert.equal(await page.locator("noscript p").isVisible(), true));
    await soon(async () => assert.equal(await page.locator("button:visible, textarea:visible").count(), 0));
    await silent.close();
  });

  visit("keeps what a reply had come to when the page is closed", async () => {
    await ready();
    await set({ preset: "greedy" });
    await page.evaluate(
      () =>
        new Promise((resolve) => {
          const list = document.querySelector("#conversation");
          new MutationObserver(() => {
            const text = list.querySelector("[data-role=assistant] [data-part=text]")?.textContent ?? "";
            if (text.length < 20) return;
            // As the browser says it before the page goes.
            dispatchEvent(new PageTransitionEvent("pagehide"));
            resolve();
            document.querySelector("#new-chat").disabled = true;
            location.reload();
          }).observe(list, { subtree: true, childList: true, characterData: true });
          document.querySelector("#prompt").value = "Tell me a story about a cat.";
          document.querySelector("#composer").requestSubmit();
        }),
    );
    await page.waitForLoadState();
    await ready();
    assert.ok((await text(lastReply())).length >= 20);
    assert.notEqual(await ask("Hello!"), "");
  });

  visit("lets a message be edited, and answers anew from there", async () => {
    await ready();
    await set({ preset: "greedy" });
    const first = await ask("What is the opposite of hot?");
    await ask("Hello!");
    const user = page.locator("#conversation [data-role=user]").first();
    await user.locator(".edit").click();
    await page.keyboard.press("Escape");
    await soon(async () => assert.equal(await page.locator("#conversation [data-role=user]").count(), 2));
    await user.locator(".edit").click();
    await page.fill(".editing textarea", "What is the opposite of big?");
    await page.keyboard.press("Enter");
    await replies().first().locator("xpath=self::*[@data-state='done']").waitFor();
    await idle();
    await soon(async () => assert.equal(await replies().count(), 1));
    assert.notEqual(await text(lastReply()), first);
    await page.reload();
    await ready();
    assert.equal(await text(page.locator("#conversation [data-role=user]")), "What is the opposite of big?");
  });

  visit("shows Markdown as elements, and nothing of it as markup", async () => {
    const content = [
      "## Heading",
      "**bold** *em* `<b>` [good](https://example.org/) [bad](javascript:alert(1)) ![picture](https://example.org/p.png)",
      "1. one\n2. two\n   - nested",
      "| a | b |\n|---|--:|\n| 1 | 2 |",
      "```js\n<script>alert(1)</script>\n```",
      "<img src=x onerror=alert(1)><a href='javascript:alert(1)'>x</a>",
    ].join("\n\n");
    // The page makes the database.
    await page.waitForFunction(async () => (await indexedDB.databases()).some(({ name }) => name === "shohin"));
    await page.evaluate(async (content) => {
      const database = await new Promise((done) => (indexedDB.open("shohin").onsuccess = (event) => done(event.target.result)));
      const transaction = database.transaction(["conversations", "turns"], "readwrite");
      const turns = [{ role: "user", content: "Show me." }, { role: "assistant", content, reasoning: "Hm, <i>what</i>?" }];
      transaction.objectStore("conversations").put({ id: "x", title: "Show me.", updated: Date.now() });
      for (const [at, turn] of turns.entries()) transaction.objectStore("turns").put({ ...turn, conversation: "x", id: `${at}`, at });
      await new Promise((done) => (transaction.oncomplete = done));
    }, content);
    await page.reload();
    await page.click("#chat-x");
    const reply = lastReply().locator("[data-part=text]");
    await reply.locator("h4").waitFor();
    await soon(async () => assert.equal(await reply.locator("img, script, b, i, [onerror]").count(), 0));
    const links = await reply.locator("a").evaluateAll((all) => all.map(({ href, rel }) => [href, rel.includes("noopener")]));
    assert.deepEqual(links, [["https://example.org/", true], ["https://example.org/p.png", true]]);
    assert.deepEqual(await reply.locator("h4, strong, em, p > code, ol > li > ul > li, td, pre").allTextContents(), [
      "Heading", "bold", "em", "<b>", "nested", "1", "2", "<script>alert(1)</script>",
    ]);
    await soon(async () => assert.match(await reply.innerText(), /<img src=x onerror=alert\(1\)>/));
    // Thoughts are folded away.
    await soon(async () => assert.equal(await reply.getByText("Hm, <i>what</i>?").isVisible(), false));
    await reply.locator("summary").click();
    await soon(async () => assert.equal(await reply.getByText("Hm, <i>what</i>?").isVisible(), true));
  });

  visit("goes on with a download that was cancelled, and gets a damaged one again", async () => {
    await ready();
    await loadAddress(`${server.url}long.gguf`);
    await page.waitForFunction(() => document.querySelector("#loading-bar").value > 0.3);
    await page.click("#loading-cancel");
    await page.locator("#loading").waitFor({ state: "hidden" });
    long.half = false;
    await page.click("#model");
    await page.click("#kept li:has-text('long.gguf') button:has-text('Resume')");
    await loaded("long.gguf");
    assert.match(long.ranges.at(-1), /^bytes=[1-9]\d+-\d+$/);
    assert.notEqual(await ask("Hello!"), "");

    // Another page of this site can write to the file only when no engine reads it.
    await page.click("#model");
    await page.click("#offers li:has-text('sprout') button");
    await loaded("sprout");
    await page.evaluate(async () => {
      const kept = await (await navigator.storage.getDirectory()).getDirectoryHandle("shohin");
      for await (const [name, handle] of kept) {
        if (name.endsWith(".json")) continue;
        const writer = await handle.createWritable({ keepExistingData: true });
        await writer.write({ type: "write", position: 0, data: new Uint8Array(64) });
        await writer.close();
      }
    });
    const before = long.ranges.length;
    await loadAddress(`${server.url}long.gguf`);
    await loaded("long.gguf");
    assert.deepEqual(long.ranges.slice(before), ["bytes=0-262143"]);
    assert.notEqual(await ask("Hello!"), "");
  });

  visit("works where the browser has no room to keep a model", async () => {
    const client = await page.context().newCDPSession(page);
    await ready();
    await client.send("Storage.overrideQuotaForOrigin", { origin: new URL(server.url).origin, quotaSize: 300_000 });
    await loadAddress(`${server.url}other.gguf`);
    await loaded("other.gguf");
    assert.notEqual(await ask("Hello!"), "");
    await page.click("#model");
    await page.locator("#kept-note").filter({ hasText: /room for/ }).waitFor();
    await soon(async () => assert.equal(await page.locator("#kept li").count(), 0));
  });

  visit("computes on as many threads, and holds as long a context, as is set", async () => {
    await ready();
    const facts = () => page.locator("#facts").textContent();
    assert.match(await facts(), new RegExp(`CPU, ${SIMD}, \\d+ threads?.*512 tokens`));
    await page.click("#open-settings");
    await page.fill("#context", "128");
    await page.locator("#context").blur();
    await page.locator("#facts").filter({ hasText: "128 tokens" }).waitFor();
    if (availableParallelism() > 1) {
      await page.locator("#facts").filter({ hasText: new RegExp(`${SIMD}, 1 thread`) }).waitFor();
      await page.selectOption("#threads", "");
      await page.locator("#facts").filter({ hasText: `${availableParallelism()} threads` }).waitFor();
    }
    await page.click("#close-settings");
    await ready();
    await ask("Hello!");
    await soon(async () => assert.match(await page.locator("#gauge").innerText(), /tokens\/s[^]*of 128[^]*MB of memory/));
  });

  const HAS_GPU = existsSync(fileURLToPath(new URL("../../wasm/dist/webgpu.js", import.meta.url)));

  /** Another page, in whose engine's worker `code` runs first. */
  async function patched(code) {
    // The service worker would answer in the server's place.
    const context = await browser.newContext({ viewport: { width: 1024, height: 768 }, serviceWorkers: "block" });
    await context.addInitScript(() => (localStorage["shohin.settings"] ??= '{"threads":"1","preset":"greedy","temperature":0,"maxTokens":24}'));
    const page = await context.newPage();
    page.setDefaultTimeout(120_000);
    page.on("pageerror", (error) => problems.push(String(error)));
    await page.route(/\/assets\/worker-[^/]*\.js$/, async (route) => {
      const response = await route.fetch();
      await route.fulfill({ response, body: `${code};\n${await response.text()}` });
    });
    await page.goto(server.url);
    await page.locator("#model[data-state=ready]").waitFor();
    return page;
  }

  const chooseBackend = async (page, value) => {
    await page.click("#open-settings");
    await page.selectOption("#backend", value);
    await page.click("#close-settings");
  };
  const computesOn = (page, words) => page.locator("#gauge-backend").filter({ hasText: words }).waitFor();
  const askIn = async (page, message) => {
    const replies = page.locator("#conversation [data-role=assistant]");
    const before = await replies.count();
    await page.fill("#prompt", message);
    await page.click("#send");
    return { done: () => replies.nth(before).locator("xpath=self::*[@data-state='done']").waitFor(), reply: replies.nth(before).locator("[data-part=text]") };
  };
  const hear = async (page, message) => {
    const { done, reply } = await askIn(page, message);
    await done();
    return reply.innerText();
  };

  test("goes on with the CPU where there is no GPU, and says so", async () => {
    const page = await patched("delete WorkerNavigator.prototype.gpu");
    const first = await hear(page, "Hello!");
    await chooseBackend(page, "webgpu");
    await page.locator("#alert-text").filter({ hasText: "There is no GPU that this page can use" }).waitFor();
    await page.locator("#model[data-state=ready]").waitFor();
    await computesOn(page, "on the CPU");
    await page.click("#new-chat");
    assert.equal(await hear(page, "Hello!"), first);
    // Left to the page, it is no trouble at all.
    await chooseBackend(page, "auto");
    await page.locator("#backend-note").filter({ hasText: "There is no GPU here" }).waitFor({ state: "attached" });
    await page.locator("#model[data-state=ready]").waitFor();
    await soon(async () => assert.equal(await page.locator("#alert").isVisible(), false));
    await page.context().close();
  });

  test("tells once that there is no GPU, and hides nothing behind that", async () => {
    const page = await patched("delete WorkerNavigator.prototype.gpu");
    await page.setViewportSize({ width: 375, height: 667 });
    for (let i = 0; i < 6; i++) await hear(page, "Tell me a joke.");
    // Playwright's own clicks scroll the page.
    const choose = async (value) => {
      await page.dispatchEvent("#open-settings", "click");
      await page.selectOption("#backend", value);
      await page.dispatchEvent("#close-settings", "click");
    };
    const ready = () => page.locator("#model[data-state=ready]").waitFor();
    const told = page.locator("#alert-text").filter({ hasText: "There is no GPU that this page can use" });
    const setTold = (told) => page.evaluate((told) => (localStorage["shohin.settings"] = JSON.stringify({ ...JSON.parse(localStorage["shohin.settings"]), told })), told);
    /** Whether the end of the last reply is above all that stands below it. */
    const inSight = () =>
      page.waitForFunction(() => {
        const end = [...document.querySelectorAll("#conversation .tools")].at(-1)?.getBoundingClientRect();
        return end && end.top > 0 && end.bottom <= document.querySelector("#foot").getBoundingClientRect().top;
      });
    await choose("webgpu");
    await told.waitFor();
    await ready();
    await inSight();
    // As in a browser that has not been told.
    await setTold("");
    await page.reload();
    await told.waitFor();
    await ready();
    await page.locator("#conversation [data-role=assistant]").nth(5).waitFor();
    await inSight();
    await page.reload();
    await ready();
    await page.locator("#backend-note").filter({ hasText: "There is no GPU that this page can use" }).waitFor({ state: "attached" });
    await computesOn(page, "on the CPU");
    await soon(async () => assert.equal(await page.locator("#alert").isVisible(), false));
    // Who chooses it again hears it again.
    await choose("cpu");
    await ready();
    await choose("webgpu");
    await told.waitFor();
    // Who reads further up stays there.
    await ready();
    await page.click("#alert-close");
    await page.evaluate(() => scrollTo({ top: 0 }));
    await choose("cpu");
    await ready();
    await choose("webgpu");
    await told.waitFor();
    assert.equal(await page.evaluate(() => scrollY), 0);
    await page.context().close();
  });

  test("computes on a GPU on request, and goes on with the CPU when that is taken away", { skip: !HAS_GPU }, async () => {
    const page = await patched(`
      const request = GPUAdapter.prototype.requestDevice;
      GPUAdapter.prototype.requestDevice = async function (...all) {
        const device = await request.apply(this, all);
        new BroadcastChannel("take away").onmessage = () => device.destroy();
        return device;
      }`);
    const hello = await hear(page, "Hello!");
    const joke = await hear(page, "Tell me a joke.");
    await page.click("#new-chat");
    await chooseBackend(page, "webgpu");
    await computesOn(page, "on the GPU");
    await soon(async () => assert.match(await page.locator("#facts").textContent(), /WEBGPU/));
    const { done, reply } = await askIn(page, "Hello!");
    await done();
    await soon(async () => assert.notEqual(await reply.innerText(), ""));
    const second = await askIn(page, "Tell me a joke.");
    await page.evaluate(() => new BroadcastChannel("take away").postMessage(""));
    await second.done();
    await computesOn(page, "on the CPU");
    await page.locator("#alert-text").filter({ hasText: "The GPU was taken away" }).waitFor();
    // The conversation is whole, and nothing of the broken reply is left in the new one.
    await soon(async () => assert.equal(await page.locator("#conversation [data-role=user]").count(), 2));
    await soon(async () => assert.equal(await page.locator("#conversation [data-role=assistant]").count(), 2));
    if ((await reply.innerText()) === hello) assert.equal(await second.reply.innerText(), joke);
    assert.notEqual(await hear(page, "What is my name?"), "");
    await page.context().close();
  });

  test("goes on with the CPU when the GPU has no room", { skip: !HAS_GPU }, async () => {
    // As a browser tells it: by the error scope around the buffer.
    const page = await patched("GPUDevice.prototype.popErrorScope = async () => new GPUOutOfMemoryError('no room')");
    await chooseBackend(page, "webgpu");
    await page.locator("#alert-text").filter({ hasText: "The GPU has no room for this model" }).waitFor();
    await page.locator("#model[data-state=ready]").waitFor();
    await computesOn(page, "on the CPU");
    assert.notEqual(await hear(page, "Hello!"), "");
    await page.context().close();
  });

  test("leaves all computing to a worker", async () => {
    const context = await browser.newContext();
    await context.addInitScript(() => {
      globalThis.computed = [];
      for (const name of ["compile", "compileStreaming", "instantiate", "instantiateStreaming", "Module", "Instance", "Memory"]) {
        const old = WebAssembly[name];
        WebAssembly[name] = new Proxy(old, {
          apply: (...all) => (globalThis.computed.push(name), Reflect.apply(...all)),
          construct: (...all) => (globalThis.computed.push(name), Reflect.construct(...all)),
        });
      }
    });
    const page = await context.newPage();
    const workers = [];
    page.on("worker", (worker) => workers.push(worker.url()));
    await page.goto(server.url);
    await page.locator("#model[data-state=ready]").waitFor();
    assert.notEqual(await hear(page, "Hello!"), "");
    assert.deepEqual(await page.evaluate(() => globalThis.computed), []);
    assert.ok(workers.some((url) => /worker-/.test(url)), workers.join());
    await context.close();
  });

  /** Opens a page whose worker is the real one, but for what it says: what `prepare` returns sends it. */
  const openScripted = async (prepare) => {
    const install = (say) => {
      const reply = async (worker, id) => {
        const send = (chunk) => worker.onmessage({ data: { id, chunk } });
        const text = await say(send);
        const usage = { promptTokens: 1, cachedTokens: 0, completionTokens: 2, reasoningTokens: 0, droppedMessages: 0, forgottenTokens: 0 };
        const timings = { prefillMs: 1, decodeMs: 1, prefillTokensPerSecond: 1, tokensPerSecond: 1 };
        send({ text: "", tokens: [], finish: { reason: "stop", text, seed: 1, usage, timings, message: { role: "assistant", content: text } } });
        worker.onmessage({ data: { id, done: undefined } });
      };
      globalThis.Worker = class extends Worker {
        postMessage(message, ...rest) {
          if (message.method === "chat") void reply(this, message.id);
          else super.postMessage(message, ...rest);
        }
      };
    };
    const context = await browser.newContext();
    await context.addInitScript(`(${install})((${prepare})())`);
    const page = await context.newPage();
    await page.goto(server.url);
    await page.locator("#model[data-state=ready]").waitFor();
    return { context, page, reply: page.locator("#conversation [data-role=assistant] [data-part=text]") };
  };

  test("shows a long reply with as much work at its end as at its beginning", async (t) => {
    const { context, page, reply } = await openScripted(() => {
      const section = [
        "## A heading\n",
        "[home]: https://example.org/\n",
        "> Not at [home].\n>\n> [away]: https://example.org/away\n",
        "A paragraph with **bold** words, *others*, `code` and a [link](https://example.org/) [home] and [away], long enough to be one.\n",
        "- one\n- two\n  - and a half\n- three\n",
        "```js\nlet a = 1;\nlet b = 2;\n```\n",
        "| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |\n\n",
      ].join("\n");
      const [pieces, sections] = [16, 24];
      const size = Math.ceil(section.length / pieces);
      /** For each piece: how often the page changed, how many nodes, and how many patterns it looked for. */
      const work = (globalThis.work = []);
      const now = () => work.at(-1) ?? {};
      const exec = RegExp.prototype.exec;
      RegExp.prototype.exec = function (text) {
        now().looked += 1;
        return exec.call(this, text);
      };
      const count = (nodes) => [...nodes].reduce((sum, node) => sum + 1 + count(node.childNodes), 0);
      const watch = new MutationObserver((records) => {
        now().changes += 1;
        for (const { addedNodes, removedNodes } of records) now().nodes += 1 + count(addedNodes) + count(removedNodes);
      });
      const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
      return async (send) => {
        watch.observe(document.querySelector("#conversation"), { subtree: true, childList: true, characterData: true });
        let text = "";
        for (let i = 0; i < pieces * sections; i++) {
          await frame();
          work.push({ changes: 0, nodes: 0, looked: 0 });
          const piece = section.slice((i % pieces) * size, (i % pieces) * size + size);
          text += piece;
          // More than one a frame.
          send({ text: piece.slice(0, 5), tokens: [1] });
          send({ text: piece.slice(5), tokens: [2] });
        }
        watch.disconnect();
        return text;
      };
    });
    const { task, script } = await longestTask(browser, page, async () => {
      await page.fill("#prompt", "Write.");
      await page.keyboard.press("Enter");
      await page.locator("#conversation [data-state=done]").waitFor();
    });
    t.diagnostic(`longest task ${task.toFixed(1)} ms, longest script ${script.toFixed(1)} ms of the main thread`);
    assert.deepEqual([await reply.locator("> h4").count(), await reply.locator("> ul > li").count(), await reply.locator("tbody > tr").count()], [24, 72, 48]);
    const work = await page.evaluate(() => globalThis.work);
    const sums = (from, to) => ["changes", "nodes", "looked"].map((what) => work.slice(from * 16, to * 16).reduce((sum, one) => sum + one[what], 0));
    const [[, nodes, looked], [, later, lookedLater]] = [sums(2, 6), sums(20, 24)];
    // Once more in the few frames in which parts of the page arrive, such as colours for code.
    const twice = work.filter(({ changes }) => changes > 1).length;
    assert.ok(twice <= 3, `the page is changed at most once a frame: more often in ${twice} of ${work.length}`);
    assert.ok(nodes > 100 && later <= 1.1 * nodes, `${nodes} nodes, then ${later}`);
    assert.ok(looked > 100 && lookedLater <= 1.1 * looked, `${looked} patterns, then ${lookedLater}`);
    // What was shown bit by bit is what is shown at once.
    const html = await reply.innerHTML();
    await page.reload();
    await reply.locator("pre > code .hljs-keyword").nth(47).waitFor();
    await soon(async () => assert.equal(await reply.innerHTML(), html));
    await context.close();
  });

  test("makes links of names that a reply explains later, in a quote or a list", async () => {
    const { context, page, reply } = await openScripted(() => {
      const text = [
        "No links in *this*.",
        "See [the docs][1], [the source][2] and [a third][3].",
        "| where |\n|---|\n| [the docs][1] |",
        "```js\na[1]\n```",
        "> Quoted.\n>\n> [1]: https://example.org/docs",
        "Once more [the docs][1].",
        "Between.",
        "Between again.",
        "And [the docs][1], still [the source][2].",
        "- a [source][2]\n- more\n\n  [2]: https://example.org/source\n- an end",
        "At [the source][2], [a third][3].",
        "[3]: https://example.org/third",
      ].join("\n\n");
      const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
      return async (send) => {
        for (let i = 0; i < text.length; i += 5) {
          await frame();
          send({ text: text.slice(i, i + 5), tokens: [1] });
          // Shown in this frame, and marked in the next.
          if (i === 25) {
            await frame();
            document.querySelector("#conversation [data-part=text] em").marked = true;
          }
        }
        return text;
      };
    });
    await page.fill("#prompt", "Write.");
    await page.keyboard.press("Enter");
    await page.locator("#conversation [data-role=assistant][data-state=done]").waitFor();
    const names = await reply.locator("a").evaluateAll((all) => all.map(({ href }) => new URL(href).pathname.slice(1)));
    assert.deepEqual(names, ["docs", "source", "third", "docs", "docs", "docs", "source", "source", "source", "third"]);
    // What has no links in it stays as it was.
    assert.equal(await reply.locator("em").evaluate((em) => em.marked), true);
    const html = await reply.innerHTML();
    await page.reload();
    await reply.waitFor();
    // Code is coloured a little later.
    await soon(async () => assert.equal(await reply.innerHTML(), html));
    await context.close();
  });

  visit("has nothing that axe finds fault with", async () => {
    await ready();
    const found = [];
    await page.emulateMedia({ colorScheme: "light", reducedMotion: "reduce" });
    found.push(...(await faults(page, "welcome")));
    await ask("Hello!");
    for (const [colorScheme, width, height] of [["light", 1280, 768], ["dark", 360, 640]]) {
      await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
      await page.setViewportSize({ width, height });
      await page.evaluate(() => (location.hash = "model=bonsai-9b"));
      await page.locator("#notice").waitFor();
      found.push(...(await faults(page, `page, ${colorScheme}`)));
      for (const [open, close] of [["#model", "#close-models"], ["#open-settings", "#close-settings"], ["#open-inside", "#close-inside"], ["#conversation .share", "#close-share"]]) {
        await page.click(open);
        await page.locator(close).waitFor();
        if (open === "#open-settings") {
          await page.fill("#max-tokens", "0");
          await page.locator("#max-tokens").blur();
          await page.locator("#max-tokens[aria-invalid]").waitFor();
        }
        found.push(...(await faults(page, `${open}, ${colorScheme}`)));
        await page.click(close);
      }
      await page.evaluate(() => (location.hash = "model=Bonsai 1.7B"));
      await page.locator("#ask").waitFor();
      found.push(...(await faults(page, `#ask, ${colorScheme}`)));
      await page.click("#ask-no");
    }
    await page.click("#open-chats");
    found.push(...(await faults(page, "#open-chats")));
    await page.click("#chat-list .icon");
    await page.locator("#undo").waitFor();
    found.push(...(await faults(page, "#undo")));
    assert.deepEqual(found, []);
  });

  visit("can be used with the keyboard alone, and has a name for every control", async () => {
    await ready();
    const nameless = await page.evaluate(() =>
      [...document.querySelectorAll("button, input:not([hidden]), select, textarea")]
        .filter((control) => {
          const name = control.getAttribute("aria-label") || control.labels?.[0]?.textContent || control.textContent;
          return !name?.trim();
        })
        .map((control) => control.outerHTML),
    );
    assert.deepEqual(nameless, []);
    await page.focus("#open-settings");
    await page.keyboard.press("Enter");
    assert.equal(await page.locator("#settings").evaluate((dialog) => dialog.open), true);
    await page.keyboard.press("Escape");
    assert.equal(await page.locator("#settings").evaluate((dialog) => dialog.open), false);
    assert.equal(await page.evaluate(() => document.activeElement.id), "open-settings");
  });

  visit("offers all it suggests on a phone, and says what an empty list of conversations is for", async () => {
    await ready();
    await page.setViewportSize({ width: 375, height: 667 });
    const [bar, field] = [await page.locator(".bar").boundingBox(), await page.locator("#composer").boundingBox()];
    const suggestions = await page.locator("#suggestions button").all();
    assert.equal(suggestions.length, 5);
    for (const suggestion of suggestions) {
      const { y, height } = await suggestion.boundingBox();
      assert.ok(y >= bar.y + bar.height && y + height <= field.y, `${y} and ${height}, above ${field.y}`);
    }
    await page.click("#open-chats");
    await soon(async () => assert.match(await page.locator("#drawer").innerText(), /No conversations yet/));
    await page.click("#close-drawer");
    await ask("Hello!");
    await page.click("#open-chats");
    await page.locator("#drawer .open").waitFor();
    await soon(async () => assert.doesNotMatch(await page.locator("#drawer").innerText(), /No conversations yet/));
  });

  visit("shows the whole name of a model on a phone, while it loads and later", async () => {
    await ready();
    await page.setViewportSize({ width: 360, height: 640 });
    const isWhole = (id) => page.locator(id).evaluate((name) => name.clientWidth > 0 && name.scrollWidth <= name.clientWidth);
    await page.locator("#model-name").evaluate((name) => (name.textContent = "Ternary Bonsai 1.7B"));
    assert.equal(await isWhole("#model-name"), true);
    await loadAddress(`${server.url}Ternary-Bonsai-1.7B-Q2_0.gguf`);
    await page.waitForFunction(() => document.querySelector("#loading-bar").value > 0.3);
    await soon(async () => assert.match(await page.locator("#loading-name").innerText(), /^Ternary-Bonsai-1\.7B-Q2_0\.gguf$/));
    assert.equal(await isWhole("#loading-name"), true);
    await page.click("#loading-cancel");
    await ready();
  });

  visit("fits a phone, and has a light and a dark face", async () => {
    await ready();
    await page.setViewportSize({ width: 360, height: 640 });
    await ask("Tell me a story about a lost kite.");
    await ask("Hello!");
    await ask("Tell me a joke.");
    // The page follows: the newest reply is not behind the message field.
    const [reply, field] = [await lastReply().boundingBox(), await page.locator("#composer").boundingBox()];
    assert.ok(reply.y > 0 && reply.y + reply.height <= field.y, JSON.stringify([reply, field]));
    const overflow = () => page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok((await overflow()) <= 0);
    await page.click("#open-settings");
    assert.ok((await overflow()) <= 0);
    await page.click("#close-settings");
    const paper = () => page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
    await page.emulateMedia({ colorScheme: "light" });
    const light = await paper();
    await page.emulateMedia({ colorScheme: "dark" });
    const dark = await paper();
    assert.notEqual(dark, light);
    await page.click("#theme");
    assert.equal(await paper(), light);
    await page.click("#theme");
    assert.equal(await paper(), dark);
  });
});

test("the development server has nothing to say against the package", async () => {
  const warnings = [];
  const logger = createLogger("silent");
  logger.warn = logger.warnOnce = (message) => warnings.push(message);
  const root = fileURLToPath(new URL("../", import.meta.url));
  const server = await createServer({ root, customLogger: logger, optimizeDeps: { noDiscovery: true }, server: { middlewareMode: true, hmr: false, ws: false } });
  try {
    for (const name of ["index", "worker", "local"]) {
      const { code } = await server.transformRequest(`/@fs${fileURLToPath(new URL(`../../wasm/dist/${name}.js`, import.meta.url))}`);
      assert.ok(code.length > 1000);
    }
  } finally {
    await server.close();
  }
  assert.deepEqual(warnings, []);
});
