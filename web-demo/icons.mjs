// icons.mjs: makes the pictures in public/ with headless Chromium: the icons from public/favicon.svg, and preview.png,
// which other sites show beside a link to the page, from the built page (`npm run build` first). CHROME is the browser's
// path. Every first visit has the icons, so they have few colors: pngquant makes them a third as large.
import { execFileSync } from "node:child_process";
import { readFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { launch, serve } from "../wasm/js/test/chromium.mjs";

const QUESTION = "Tell me a story about a robot, a key and a boat.";
const PAPER = "#f6f4ed";

const place = (name) => fileURLToPath(new URL(`public/${name}`, import.meta.url));
const mark = await readFile(place("favicon.svg"), "utf8");
const browser = await launch();
const server = await serve(new URL("dist/", import.meta.url));
try {
  // A mask leaves of an icon at least the circle of four fifths of its width; the touch icon is rounded by the system.
  for (const [name, size, share, paper] of [
    ["icon-192.png", 192, 1, "transparent"],
    ["icon-512.png", 512, 1, "transparent"],
    ["icon-maskable-512.png", 512, 0.62, PAPER],
    ["apple-touch-icon.png", 180, 0.78, PAPER],
  ]) {
    const page = await browser.newPage({ viewport: { width: size, height: size } });
    await page.setContent(`<style>body { margin: 0; height: 100vh; display: grid; place-items: center; background: ${paper} } svg { width: ${share * 100}vw }</style>${mark}`);
    await page.screenshot({ path: place(name), omitBackground: true });
    execFileSync("pngquant", ["--force", "--ext", ".png", "--nofs", "--strip", "128", place(name)]);
    await page.close();
  }
  const page = await browser.newPage({ viewport: { width: 800, height: 420 }, deviceScaleFactor: 1.5, colorScheme: "light" });
  await page.addInitScript(() => (localStorage["shohin.settings"] = '{"preset":"greedy","temperature":0}'));
  await page.goto(server.url);
  await page.fill("#prompt", QUESTION);
  await page.click("#send:enabled");
  await page.locator("#conversation .assistant[data-state=done]").waitFor({ timeout: 120_000 });
  // The figures are those of the machine that makes the picture, and the question must fit.
  await page.evaluate(() => {
    for (const element of document.querySelectorAll(".tools, .gauge, .hint")) element.style.display = "none";
    document.activeElement?.blur();
  });
  await page.screenshot({ path: place("preview.png"), animations: "disabled" });
} finally {
  await browser.close();
  await server.close();
}
