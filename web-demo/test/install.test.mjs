// The built page as an app, and beside links to it: `npm run build` first. CHROME is the browser's path.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, before, describe, test } from "node:test";
import { launch, serve } from "../../wasm/js/test/chromium.mjs";
import { soon } from "./soon.mjs";

describe("the page as an app", () => {
  let server, browser, page, problems;
  before(async () => {
    server = await serve(new URL("../dist/", import.meta.url));
    browser = await launch();
    page = await browser.newPage({ viewport: { width: 1280, height: 768 } });
    problems = [];
    page.on("pageerror", (error) => problems.push(String(error)));
    page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
    await page.goto(server.url);
    await page.locator("#model[data-state=ready]").waitFor();
  });
  after(async () => {
    await browser?.close();
    await server?.close();
  });

  /** Width and height of a PNG file of the build. */
  const sizeOf = async (name) => {
    const file = await readFile(new URL(`../dist/${name}`, import.meta.url));
    assert.equal(file.toString("latin1", 1, 4), "PNG");
    return `${file.readUInt32BE(16)}x${file.readUInt32BE(20)}`;
  };

  test("has a manifest that Chromium reads without a fault, with icons of the stated sizes", async () => {
    const devtools = await page.context().newCDPSession(page);
    const { url, errors, data } = await devtools.send("Page.getAppManifest");
    assert.equal(url, `${server.url}manifest.webmanifest`);
    assert.deepEqual(errors, []);
    const { icons, display, start_url } = JSON.parse(data);
    assert.deepEqual([display, start_url], ["standalone", "./"]);
    assert.deepEqual(
      icons.filter(({ type }) => type === "image/png").map(({ sizes, purpose }) => `${sizes} ${purpose ?? "any"}`),
      ["192x192 any", "512x512 any", "512x512 maskable"],
    );
    for (const { src, sizes, type } of icons) if (type === "image/png") assert.equal(await sizeOf(src), sizes);
    assert.equal(await sizeOf("apple-touch-icon.png"), "180x180");
    assert.deepEqual(problems, []);
  });

  test("can be installed as far as Chromium is concerned", async () => {
    const devtools = await page.context().newCDPSession(page);
    await page.waitForFunction(() => navigator.serviceWorker.ready);
    const { installabilityErrors } = await devtools.send("Page.getInstallabilityErrors");
    // A private window installs nothing, whatever the page.
    assert.deepEqual(installabilityErrors.filter(({ errorId }) => errorId !== "in-incognito"), []);
  });

  test("offers to be installed when the browser does, once", async () => {
    await soon(async () => assert.equal(await page.locator("#install").isVisible(), false));
    // Headless Chromium never sends it.
    const offer = () =>
      page.evaluate(() => {
        const event = new Event("beforeinstallprompt", { cancelable: true });
        event.prompt = async () => (globalThis.prompts = (globalThis.prompts ?? 0) + 1);
        dispatchEvent(event);
        return event.defaultPrevented;
      });
    assert.equal(await offer(), true);
    await page.focus("#install");
    await page.keyboard.press("Enter");
    assert.equal(await page.evaluate(() => globalThis.prompts), 1);
    assert.deepEqual([await page.locator("#install").isVisible(), await page.evaluate(() => document.activeElement.id)], [false, "new-chat"]);
    await offer();
    await page.locator("#install").waitFor();
    await page.evaluate(() => dispatchEvent(new Event("appinstalled")));
    await soon(async () => assert.equal(await page.locator("#install").isVisible(), false));
  });

  test("has a title, a description and a picture of the stated size for other sites", async () => {
    const meta = await page.evaluate(() => Object.fromEntries([...document.querySelectorAll("meta[property], meta[name]")].map((meta) => [meta.getAttribute("property") ?? meta.name, meta.content])));
    for (const key of ["og:title", "og:description", "og:image:alt", "description"]) assert.match(meta[key], /\w+ \w+/, key);
    assert.equal(meta["twitter:card"], "summary_large_image");
    assert.equal(`${meta["og:image:width"]}x${meta["og:image:height"]}`, "1200x630");
    assert.equal(await sizeOf(meta["og:image"]), "1200x630");
    // Visitors do not download it.
    assert.doesNotMatch(await readFile(new URL("../dist/sw.js", import.meta.url), "utf8"), /preview\.png/);
  });
});
