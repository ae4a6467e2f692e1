// Serves a directory and drives a headless Chromium against it.
import { createReadStream } from "node:fs";
import { mkdir, mkdtemp, rm, stat, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { extname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

export const TYPES = {
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript",
  ".mjs": "text/javascript",
  ".css": "text/css",
  ".svg": "image/svg+xml",
  ".wasm": "application/wasm",
};

/**
 * A static server on a free port, without special headers unless given. `routes` take precedence over files, and a copy
 * compressed with brotli (`.br`) over its file. `missing` are the requested paths without a file, `sent` those of the
 * files that were sent, each with the bytes of its response.
 */
export async function serve(directory, routes = {}, headers = {}) {
  const root = fileURLToPath(directory);
  const missing = [];
  const sent = [];
  const server = createServer(async (request, response) => {
    const { pathname } = new URL(request.url, "http://localhost");
    if (routes[pathname]) return routes[pathname](request, response);
    const path = join(root, normalize(pathname.endsWith("/") ? `${pathname}index.html` : pathname));
    const info = path.startsWith(root) ? await stat(path).catch(() => undefined) : undefined;
    if (!info?.isFile()) {
      missing.push(pathname);
      return response.writeHead(404).end("not found");
    }
    const accepts = /\bbr\b/.test(request.headers["accept-encoding"] ?? "");
    const copy = accepts ? await stat(`${path}.br`).catch(() => undefined) : undefined;
    const { socket } = request;
    const before = socket.bytesWritten;
    response.once("finish", () => sent.push({ path: pathname, bytes: socket.bytesWritten - before }));
    response.writeHead(200, {
      ...headers,
      ...(copy && { "Content-Encoding": "br" }),
      "Content-Type": TYPES[extname(path)] ?? "application/octet-stream",
      "Content-Length": (copy ?? info).size,
    });
    createReadStream(copy ? `${path}.br` : path).pipe(response);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${server.address().port}/`,
    missing,
    sent,
    close: () => new Promise((resolve) => (server.closeAllConnections(), server.close(resolve))),
  };
}

const CHROME = process.env.CHROME ?? "/usr/bin/chromium";

const options = (executablePath, args) => ({
  executablePath,
  // Playwright would disable WebGPU; the software adapter must be enabled.
  ignoreDefaultArgs: ["--disable-gpu"],
  args: [
    "--enable-unsafe-webgpu",
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--disable-domain-reliability",
    "--disable-client-side-phishing-detection",
    "--no-first-run",
    "--no-default-browser-check",
    "--no-pings",
    "--metrics-recording-only",
    "--disable-features=OptimizationHints,MediaRouter,Translate,AutofillServerCommunication,CertificateTransparencyComponentUpdater",
    ...args,
  ],
});

/** Chromium without network access of its own. `HEADLESS_SHELL`, or else `CHROME`, names the program. */
export function launch(args = []) {
  return chromium.launch(options(process.env.HEADLESS_SHELL ?? CHROME, args));
}

/** The whole browser, which `CHROME` names, with these preferences of a user; returns its only context. */
export async function launchWith(preferences) {
  const profile = await mkdtemp(join(tmpdir(), "shohin-chromium-"));
  await mkdir(join(profile, "Default"));
  await writeFile(join(profile, "Default", "Preferences"), JSON.stringify(preferences));
  const context = await chromium.launchPersistentContext(profile, options(CHROME, []));
  const close = context.close.bind(context);
  context.close = async () => {
    await close();
    await rm(profile, { recursive: true, force: true, maxRetries: 5 });
  };
  return context;
}

/**
 * Does `work` and says for how many milliseconds the page's main thread computed without a break at most (`task`, all that the
 * browser does there, too) and how long a script (`script`): processor time, which other work on the machine does not add to.
 */
export async function longestTask(browser, page, work) {
  const devtools = await browser.newBrowserCDPSession();
  const events = [];
  devtools.on("Tracing.dataCollected", ({ value }) => events.push(...value));
  const complete = new Promise((resolve) => devtools.once("Tracing.tracingComplete", resolve));
  const includedCategories = ["devtools.timeline", "disabled-by-default-devtools.timeline"];
  await devtools.send("Tracing.start", { traceConfig: { includedCategories }, transferMode: "ReportEvents" });
  // Which thread it is.
  await page.evaluate(() => console.timeStamp("the page"));
  await work();
  await devtools.send("Tracing.end");
  await complete;
  await devtools.detach();
  const { pid, tid, ts: begin } = events.find(({ name, args }) => name === "TimeStamp" && args.data?.message === "the page");
  const longest = (...names) =>
    events
      .filter((event) => event.pid === pid && event.tid === tid && event.ph === "X" && event.ts > begin && names.includes(event.name))
      .reduce((most, { tdur, dur }) => Math.max(most, (tdur ?? dur) / 1e3), 0);
  return { task: longest("RunTask"), script: longest("v8.evaluateModule", "FunctionCall", "FireAnimationFrame", "RunMicrotasks") };
}
