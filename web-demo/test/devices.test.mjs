// The built page's choice between CPU and GPU: `npm run build` first. CHROME is the browser's path.
import assert from "node:assert/strict";
import { createReadStream, existsSync, statSync } from "node:fs";
import { test } from "node:test";
import { launch, serve } from "../../wasm/js/test/chromium.mjs";
import { soon } from "./soon.mjs";

const HAS_GPU = existsSync(new URL("../../wasm/dist/webgpu.js", import.meta.url));

const SIZE = statSync(new URL("../../models/sprout-nano.gguf", import.meta.url)).size;

/** The software adapter passes for hardware. */
const DISGUISE = "Object.defineProperty(GPUAdapterInfo.prototype, 'isFallbackAdapter', { get: () => false });";

test("measures CPU and GPU once per model, and takes the faster", { skip: !HAS_GPU, timeout: 300_000 }, async (t) => {
  // The smaller model, as the software adapter takes its time.
  const server = await serve(new URL("../dist/", import.meta.url), {
    "/sprout.gguf": (_request, response) => createReadStream(new URL("../../models/sprout-nano.gguf", import.meta.url)).pipe(response.writeHead(200, { "Content-Length": SIZE })),
  });
  const browser = await launch();
  t.after(async () => {
    await browser.close();
    await server.close();
  });
  const context = await browser.newContext({ viewport: { width: 1024, height: 768 }, serviceWorkers: "block" });
  await context.addInitScript(DISGUISE);
  await context.addInitScript(() => (localStorage["shohin.settings"] ??= '{"threads":"1","maxTokens":4,"backend":"auto"}'));
  const page = await context.newPage();
  page.setDefaultTimeout(120_000);
  const problems = [];
  let loads = 0;
  page.on("pageerror", (error) => problems.push(String(error)));
  page.on("request", (request) => (loads += request.url().endsWith("/sprout.gguf") ? 1 : 0));
  await page.route(/\/assets\/worker-[^/]*\.js$/, async (route) => {
    const response = await route.fetch();
    await route.fulfill({ response, body: `${DISGUISE}\n${await response.text()}` });
  });
  const computesOn = (words) => page.locator("#gauge-backend").filter({ hasText: words }).waitFor();
  const ready = () => page.locator("#model[data-state=ready]").waitFor();
  const speeds = async () => {
    await page.locator("#measured-text").filter({ hasText: /^GPU: \S.*\. Measured with this model: GPU [\d.,]+, CPU [\d.,]+ tokens\/s\.$/ }).waitFor({ state: "attached" });
    return Object.values(JSON.parse(await page.evaluate(() => localStorage["shohin.measured"])));
  };
  const remember = (speeds) =>
    page.evaluate((speeds) => {
      const [key] = Object.keys(JSON.parse(localStorage["shohin.measured"]));
      localStorage["shohin.measured"] = JSON.stringify({ [key]: speeds });
    }, speeds);

  await page.goto(server.url);
  await ready();
  const [first] = await speeds();
  assert.ok(first.cpu > first.gpu && first.gpu > 0, JSON.stringify(first));
  await computesOn("on the CPU");
  await soon(async () => assert.match(await page.locator("#backend-note").textContent(), /^Now: the CPU\. The CPU is faster with this model\.$/));
  assert.equal(loads, 2);
  // What is known is not measured again.
  await page.reload();
  await ready();
  assert.deepEqual([await speeds(), loads], [[first], 3]);
  // The faster one is the GPU on other machines.
  await remember({ cpu: 1, gpu: 2 });
  await page.reload();
  await computesOn("on the GPU");
  assert.equal(loads, 4);
  await page.click("#open-settings");
  await page.click("#measure");
  await computesOn("on the CPU");
  const [again] = await speeds();
  assert.ok(again.cpu > again.gpu && again.cpu > 2, JSON.stringify(again));
  // Without a choice left to the page there is nothing to measure.
  await page.selectOption("#backend", "cpu");
  await page.locator("#measure").waitFor({ state: "hidden" });
  assert.deepEqual(problems, []);
});
