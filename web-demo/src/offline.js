// The service worker: keeps a copy of the page, so that it opens without a network after the first visit. The build
// fills in the constants and writes it beside the page as sw.js.
const VERSION = "@version@";
/** Paths from here. Those in assets/ carry a hash of their content in their name; the others may change. */
const FILES = ["@files@"];
/** A WebAssembly module of relaxed SIMD, to try. The engine's modules are there with and without it. */
const RELAXED = ["@relaxed@"];

const CACHE = `shohin-${VERSION}`;
const here = new URL("./", self.location.href);
const known = new Set(FILES.map((file) => new URL(file, here).href));
const isRelaxed = (file) => file.includes("relaxed");
const takesRelaxed = FILES.some(isRelaxed) && WebAssembly.validate(Uint8Array.from(RELAXED));
const wanted = FILES.filter((file) => !file.endsWith(".wasm") || isRelaxed(file) === takesRelaxed);

self.addEventListener("install", (event) => {
  self.skipWaiting();
  event.waitUntil(
    caches.open(CACHE).then((cache) =>
      // What the visit itself has just downloaded need not be downloaded again.
      cache.addAll(wanted.map((file) => new Request(new URL(file, here), { cache: "force-cache" }))),
    ),
  );
});

self.addEventListener("activate", (event) => {
  event.waitUntil(
    caches
      .keys()
      .then((names) => Promise.all(names.filter((name) => name.startsWith("shohin-") && name !== CACHE).map((name) => caches.delete(name))))
      .then(() => self.clients.claim()),
  );
});

self.addEventListener("fetch", (event) => {
  const { request } = event;
  const url = request.url.split(/[?#]/)[0];
  if (request.method !== "GET" || !known.has(url)) return;
  const kept = () => caches.match(url, { cacheName: CACHE });
  if (url.startsWith(new URL("assets/", here).href)) {
    event.respondWith(kept().then((response) => response ?? fetch(request)));
  } else {
    event.respondWith(fetch(request).catch(async (error) => (await kept()) ?? Promise.reject(error)));
  }
});
