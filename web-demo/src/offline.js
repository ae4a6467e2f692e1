// The service worker: keeps a copy of the page, so that it opens without a network after the first visit. The build
// fills in the constants and writes it beside the page as sw.js. A new version waits until no tab uses the one before,
// whose files are kept until then. It also adds the headers of cross-origin isolation, which threads need, where the
// server sends none.
const VERSION = "@version@";
/** Paths from here of the files whose names carry a hash of their content. */
const ASSETS = ["@assets@"];
/** The paths of the others, each with its SHA-256. */
const SUMS = { "@path@": "@sum@" };
/** A WebAssembly module of relaxed SIMD, to try. The engine's modules are there with and without it. */
const RELAXED = ["@relaxed@"];

/** Assets that not every reply needs: with the first of a group that is asked for, all of it is kept. */
const GROUPS = [/assets\/highlight-/, /assets\/(train-|shohin_wasm_train_)/, /assets\/(formula-|KaTeX_)/];

/** Milliseconds after which a silent server counts as absent. */
const PATIENCE = 3000;
/** Milliseconds for which only navigations ask such a server again. */
const SILENCE = 30_000;

const PREFIX = "shohin-";
const CACHE = `${PREFIX}${VERSION}`;
const at = (path) => new URL(path, new URL("./", self.location.href)).href;
const assets = new Set(ASSETS.map(at));
const others = new Set(Object.keys(SUMS).map(at));
/** Until then, by the clock, what a page loads is not asked of a server that was silent. */
let silentUntil = 0;

const ISOLATION = { "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp" };

/** The response with those headers; the server's own stay. */
function isolated(response) {
  const missing = Object.entries(ISOLATION).filter(([name]) => !response.headers.has(name));
  // A redirect has no status that a response could be made with.
  if (missing.length === 0 || !response.ok) return response;
  const headers = new Headers(response.headers);
  for (const [name, value] of missing) headers.set(name, value);
  return new Response(response.body, { status: response.status, statusText: response.statusText, headers });
}

/** The file as the build wrote it: what the visit has just downloaded, unless that is of another version. */
async function exactly(path, sum) {
  for (const cache of ["force-cache", "reload"]) {
    const response = await fetch(at(path), { cache });
    const digest = await crypto.subtle.digest("SHA-256", await response.clone().arrayBuffer());
    if ([...new Uint8Array(digest)].map((byte) => byte.toString(16).padStart(2, "0")).join("") === sum) return response;
  }
  throw new Error(`${path} is not the file of this version`);
}

/** Which of the assets are kept: of the modules the one an engine starts with at the first visit, and all that an earlier version used. */
async function needed({ headers }) {
  const isIsolated = /^same-origin(;|$)/.test(headers.get("Cross-Origin-Opener-Policy")) && headers.has("Cross-Origin-Embedder-Policy");
  const threads = isIsolated && navigator.hardwareConcurrency > 1;
  const relaxed = ASSETS.some((path) => path.includes("relaxed")) && WebAssembly.validate(Uint8Array.from(RELAXED));
  const kind = (url) => url.replace(/-.{8}(?=\.\w+$)/, "");
  const used = new Set();
  for (const name of await caches.keys()) {
    if (!name.startsWith(PREFIX)) continue;
    for (const { url } of await (await caches.open(name)).keys()) used.add(kind(url));
  }
  const first = (path) =>
    !path.includes("webgpu") && path.includes("threads") === threads && (!path.endsWith(".wasm") || path.includes("relaxed") === relaxed);
  return (path) => {
    const group = GROUPS.find((group) => group.test(path));
    if (group) return [...used].some((url) => group.test(url));
    return !/\.wasm$|threads|webgpu/.test(path) || first(path) || used.has(kind(at(path)));
  };
}

async function install() {
  const cache = await caches.open(CACHE);
  const put = (path, response) => cache.put(at(path), isolated(response));
  const files = await Promise.all(Object.entries(SUMS).map(async ([path, sum]) => [path, await exactly(path, sum)]));
  const isKept = await needed(new Map(files).get("./"));
  await Promise.all(files.map(([path, response]) => put(path, response)));
  await Promise.all(
    ASSETS.filter(isKept).map(async (path) => {
      const response = await fetch(at(path), { cache: "force-cache" });
      if (!response.ok) throw new Error(`${path}: ${response.status}`);
      await put(path, response);
    }),
  );
}

async function activate() {
  const names = await caches.keys();
  await Promise.all(names.filter((name) => name.startsWith(PREFIX) && name !== CACHE).map((name) => caches.delete(name)));
}

/** From a copy, of whichever version; what is used for the first time is kept from then on. */
async function asset(event, url) {
  const kept = await caches.match(url);
  if (kept) return kept;
  // The engine does without threads, then.
  if (Date.now() < silentUntil) return Response.error();
  const response = isolated(await fetch(event.request));
  if (response.ok && assets.has(url)) event.waitUntil(keep(url, response.clone()).catch(() => {}));
  return response;
}

async function keep(url, copy) {
  const cache = await caches.open(CACHE);
  await cache.put(url, copy);
  const group = GROUPS.find((group) => group.test(url));
  if (!group) return;
  // The others of the group fetch what they lack; one of them does so for all.
  const rest = [...assets].filter((other) => group.test(other) && other !== url);
  for (const other of rest) if (!(await cache.match(other))) await cache.add(new Request(other, { cache: "force-cache" }));
}

/** From the server, past the browser's cache: an old page would look for files that are gone. Else from the copy. */
async function newest(request, url) {
  const kept = await caches.match(url, { cacheName: CACHE });
  if (!kept) return isolated(await fetch(request));
  // What a page asks for next need not wait as long.
  if (request.mode !== "navigate" && Date.now() < silentUntil) return kept;
  const abort = new AbortController();
  const timer = setTimeout(() => {
    silentUntil = Date.now() + SILENCE;
    abort.abort();
  }, PATIENCE);
  try {
    const response = await fetch(request, { cache: "no-cache", signal: abort.signal });
    silentUntil = 0;
    return isolated(response);
  } catch {
    return kept;
  } finally {
    clearTimeout(timer);
  }
}

/** Whether the page opens from here with an engine like this one. */
async function isWhole({ webgpu, threads, relaxed }) {
  const cache = await caches.open(CACHE);
  const have = new Set((await cache.keys()).map(({ url }) => url));
  const runs = (path) =>
    webgpu ? path.includes("webgpu") : !path.includes("webgpu") && path.includes("threads") === threads && (!path.endsWith(".wasm") || path.includes("relaxed") === relaxed);
  // Without a group, formulas and code are plain text.
  const needed = ASSETS.filter((path) => !GROUPS.some((group) => group.test(path)) && (!/\.wasm$|threads|webgpu/.test(path) || runs(path)));
  return [...needed, ...Object.keys(SUMS)].every((path) => have.has(at(path)));
}

self.addEventListener("message", (event) => {
  if (event.data === "claim") {
    // Not waited for: in Firefox the promise stays pending if a page starts a worker just then.
    self.clients.claim().catch(() => {});
    return;
  }
  const [port] = event.ports;
  event.waitUntil(isWhole(event.data).then((whole) => port.postMessage(whole)));
});
self.addEventListener("install", (event) => event.waitUntil(install()));
self.addEventListener("activate", (event) => event.waitUntil(activate()));
self.addEventListener("fetch", (event) => {
  const { request } = event;
  const url = request.url.split(/[?#]/)[0];
  if (request.method !== "GET") return;
  if (url.startsWith(at("assets/"))) event.respondWith(asset(event, url));
  else if (others.has(url)) event.respondWith(newest(request, url));
});
