// Downloads from servers with the usual weaknesses, copies of them, and models in parts: `npm run build -w wasm` first.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { existsSync } from "node:fs";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { Engine } from "shohin";
import { launch, serve } from "./chromium.mjs";
import { enlarged, origin, split } from "./gguf.mjs";
import { thorough } from "./thorough.mjs";

const DIST = new URL("../../dist/", import.meta.url);
const small = await readFile(new URL("../../../models/sprout.gguf", import.meta.url));
/** 25 MB, enough for several connections. */
const large = enlarged(small, 24);
/** 65 MB, more than is fetched ahead of the reader. */
const huge = enlarged(small, 64);
const other = enlarged(await readFile(new URL("../../../models/sprout-q1.gguf", import.meta.url)), 24);
const SLICE = 256 << 10;

async function say(engine) {
  let text = "";
  for await (const chunk of engine.generate("Once upon a time", { preset: "greedy", maxTokens: 12 })) text += chunk.text;
  await engine.dispose();
  return text;
}

const TEXT = await say(await Engine.load(small, { threads: 1 }));
const OTHER_TEXT = await say(await Engine.load(other, { threads: 1 }));
assert.notEqual(TEXT, OTHER_TEXT);

/** Serves one file as `state` says while `use` runs. */
async function serving(file, state, use) {
  const from = origin(file, state);
  const server = await serve(DIST, { "/model.gguf": from.answer });
  try {
    return await use(`${server.url}model.gguf`, from.state);
  } finally {
    await server.close();
  }
}

/** Waits until `done` returns true. */
async function until(done) {
  while (!done()) await new Promise((resolve) => setTimeout(resolve, 20));
}

const load = async (url, options) => say(await Engine.load(url, { threads: 1, ...options }));
const code = (promise) => promise.then(() => "none", (error) => error.code ?? `${error}`);

describe("a download", () => {
  test("lets responses end that it has read to the last byte: caches keep no others", async (t) => {
    // The length is known, and the end comes later, as over HTTP/2.
    let [ended, cancelled] = [0, 0];
    t.mock.method(globalThis, "fetch", async () => {
      const pull = (controller) => {
        ended++;
        controller.close();
      };
      const body = new ReadableStream({ start: (controller) => controller.enqueue(large), pull, cancel: () => void cancelled++ }, { highWaterMark: 0 });
      return new Response(body, { headers: { "Content-Length": `${large.length}`, "Accept-Ranges": "none" } });
    });
    assert.equal(await load("http://localhost/model.gguf"), TEXT);
    assert.deepEqual([ended, cancelled], [1, 0]);
  });

  test("uses several connections, and fetches every byte once", () =>
    serving(large, { pace: 1 }, async (url, state) => {
      let last = 0;
      let total;
      const onProgress = ({ stage, loaded, ...rest }) => {
        if (stage !== "download") return;
        assert.ok(loaded >= last);
        [last, total] = [loaded, rest.total];
      };
      assert.equal(await load(url, { onProgress }), TEXT);
      assert.deepEqual([last, total], [large.length, large.length]);
      assert.ok(state.mostOpen >= 3 && state.mostOpen <= 5, `${state.mostOpen} at once`);
      // The first connection requests the whole file and is closed when others are faster; what is in transit is wasted.
      const ranges = state.asked.slice(1).sort(([a], [b]) => a - b);
      ranges.forEach(([first, last], i) => {
        assert.ok(first === (i === 0 ? first : ranges[i - 1][1] + 1) && last - first < 9 << 20, `${state.asked}`);
      });
      assert.equal(ranges.at(-1)[1], large.length - 1);
    }));

  test("survives connections that break repeatedly", () =>
    serving(large, { breaks: 3 << 20 }, async (url, state) => {
      assert.equal(await load(url), TEXT);
      assert.ok(state.asked.length > 6, `${state.asked.length} requests`);
      assert.ok(state.sent < 2 * large.length, `${state.sent} bytes sent`);
    }));

  test("survives truncated ranges", () =>
    serving(large, { most: 1 << 20 }, async (url) => assert.equal(await load(url), TEXT)));

  test("works without ranges, and restarts when the connection breaks", async () => {
    await serving(large, { ranges: false }, async (url, state) => {
      assert.equal(await load(url), TEXT);
      assert.ok(state.asked.length <= 3, `${state.asked.length} requests`);
    });
    await serving(large, { ranges: false, breaks: 18 << 20 }, async (url, state) => {
      state.refuse = (n) => {
        if (n === 4) state.breaks = undefined;
      };
      assert.equal(await load(url), TEXT);
      assert.ok(state.asked.length >= 4 && state.asked.every(([first]) => first === 0), `${state.asked}`);
    });
  });

  test("fills the gap of an earlier connection without ranges", { timeout: 300_000 }, () =>
    serving(huge, { ranges: false, breaks: 1 << 20 }, async (url, state) => {
      // The second connection is answered once the first has broken.
      state.wait = async (n) => {
        if (n !== 2) return;
        await until(() => state.open === 1);
        await new Promise((resolve) => setTimeout(resolve, 100));
        state.breaks = undefined;
      };
      assert.equal(await load(url), TEXT);
      assert.ok(state.asked.length >= 3 && state.asked.length <= 4, `${state.asked}`);
    }));

  test("works without ranges if requests for them break, and asks for few", () =>
    serving(large, { hates: true, pace: 1 }, async (url, state) => {
      assert.equal(await load(url), TEXT);
      assert.ok(state.asked.length <= 4, `${state.asked}`);
    }));

  test("works without ranges if requests for them break, and so does the connection", () =>
    serving(large, { hates: true, breaks: 6 << 20 }, async (url, state) => {
      state.refuse = () => void (state.asked.filter(([first]) => first === 0).length > 2 && (state.breaks = undefined));
      assert.equal(await load(url), TEXT);
    }));

  test("continues with ranges although an early request for one broke", () =>
    serving(large, { resets: (n) => n === 2, breaks: 5 << 20 }, async (url, state) => {
      assert.equal(await load(url), TEXT);
      assert.equal(state.asked.filter(([first]) => first === 0).length, 1, `${state.asked}`);
      assert.ok(state.sent < 2 * large.length, `${state.sent} bytes sent`);
    }));

  test("asks no server for ranges that says it has none", () =>
    serving(large, { ranges: false, accepts: "none", pace: 1 }, async (url, state) => {
      assert.equal(await load(url), TEXT);
      assert.equal(state.asked.length, 1);
    }));

  test("works without the lengths of ranges", () =>
    serving(large, { exposed: false, etag: undefined }, async (url) => assert.equal(await load(url), TEXT)));

  test("restarts when the file changes", () =>
    serving(large, { pace: 1 }, async (url, state) => {
      state.refuse = (n) => {
        if (n === 4) Object.assign(state, { file: other, etag: '"two"' });
      };
      assert.equal(await load(url), OTHER_TEXT);
      assert.equal(state.asked.filter(([first]) => first === 0).length, 2);
    }));

  test("gives up on a file that keeps changing", () =>
    serving(large, { pace: 1 }, async (url, state) => {
      state.refuse = () => void (state.etag = `"${Math.random()}"`);
      assert.equal(await code(Engine.load(url)), "integrity");
    }));

  test("retries busy servers, and no others", async () => {
    await serving(large, { refuse: (n) => [429, 503, 0, 429, 0, 503, 500][n - 1] }, async (url, state) => {
      assert.equal(await load(url), TEXT);
      assert.ok(state.asked.length > 7);
    });
    await serving(small, { refuse: () => 404 }, async (url, state) => {
      assert.equal(await code(Engine.load(url)), "http");
      assert.equal(state.asked.length, 1);
    });
    await serving(small, { refuse: () => 503 }, async (url, state) => {
      assert.equal(await code(Engine.load(url)), "http");
      assert.ok(state.asked.length > 3);
    });
    assert.equal(await code(Engine.load("http://127.0.0.1:9/model.gguf")), "network");
  });

  test("starts although the first connections fail", async () => {
    for (const weakness of [{ refuse: (n) => [500, 502, 504][n - 1] }, { resets: (n) => n < 3 }]) {
      await serving(small, weakness, async (url, state) => {
        assert.equal(await load(url), TEXT);
        assert.ok(state.asked.length >= 3, `${state.asked.length} requests`);
      });
    }
  });

  test("continues after connections that become silent or never answer", async () => {
    await serving(large, { breaks: 3 << 20, hangs: true, mute: (n) => n === 2 }, async (url, state) => {
      assert.equal(await load(url, { stallTimeout: 300 }), TEXT);
      assert.ok(state.asked.length > 8, `${state.asked.length} requests`);
      assert.ok(state.sent < 2 * large.length, `${state.sent} bytes sent`);
    });
    await serving(small, { mute: (n) => n === 1 }, async (url, state) => {
      assert.equal(await load(url, { stallTimeout: 300 }), TEXT);
      assert.ok(state.asked.length > 1);
    });
    // The server serves one connection at a time.
    await serving(large, { mute: (n) => n > 1 && n < 5 }, async (url) => assert.equal(await load(url, { stallTimeout: 300 }), TEXT));
  });

  test("fails when nothing arrives any more, and names the byte", async () => {
    const failed = (state, file = large) =>
      serving(file, state, async (url, state) => {
        const { code, message } = await Engine.load(url, { stallTimeout: 200 }).catch((error) => error);
        await until(() => state.open === 0);
        return { code, at: message.startsWith(`${url} sent nothing for 0.2 s, at byte `) ? Number(message.split(" ").at(-1)) : message.slice(url.length + 1), asked: state.asked.length };
      });
    const [never, half, unmeasured, cut] = await Promise.all([
      failed({ mute: () => true }),
      failed({ breaks: 3 << 20, hangs: true, mute: (n) => n > 3 }),
      failed({ unmeasured: true, ranges: false, breaks: 1 << 20, hangs: true }),
      failed({ breaks: 3 << 20, resets: (n) => n > 3 }),
    ]);
    // The server has let the file be read before.
    assert.deepEqual([cut.code, cut.at], ["network", "could not be fetched: no connection"]);
    assert.deepEqual(never, { code: "timeout", at: 0, asked: 6 });
    assert.ok(half.code === "timeout" && half.at >= 3 << 20 && half.at < large.length && half.asked > 6, JSON.stringify(half));
    // A restart would end the same.
    assert.deepEqual(unmeasured, { code: "timeout", at: 1 << 20, asked: 1 });
  });

  test("may be slow", () =>
    serving(small, { ranges: false, pace: 400 }, async (url, state) => {
      assert.equal(await load(url, { stallTimeout: 3000 }), TEXT);
      assert.equal(state.asked.length, 1);
    }));

  test("does not start with invalid options", () =>
    serving(small, {}, async (url, state) => {
      const digits = "0".repeat(64);
      const wrong = {
        option: { context: [0, -1, 0.5, 2 ** 53, Infinity, NaN], stallTimeout: [0, -1, NaN] },
        argument: {
          context: ["5", [5]],
          stallTimeout: ["5", {}],
          threads: [0, -1, 1.5, NaN, "2"],
          cache: ["always", 1],
          onProgress: [1],
          signal: [new AbortController()],
          request: [{ headers: { "a b": "c" } }, "GET"],
          kv: ["f8", 8],
          activations: ["f16", {}],
          backend: ["gpu", ["cpu"]],
          sha256: ["", "0", digits + "0", digits.replace("0", "g"), 5],
          bytes: [0, -1, 1.5, NaN, "5"],
          wasmUrl: [5],
          workerUrl: [{}],
        },
      };
      for (const [expected, options] of Object.entries(wrong)) {
        for (const [name, values] of Object.entries(options)) {
          for (const value of values) {
            const { code, message } = await Engine.load(url, { [name]: value }).catch((error) => error);
            assert.ok(code === expected && message.startsWith(name), `${name}: ${value}: ${code}: ${message}`);
          }
        }
      }
      assert.equal(await code(Engine.load(url.replace("model.gguf", NAMES[0]), { sha256: digits })), "argument");
      assert.deepEqual(state.asked, []);
      assert.equal(await load(url, { threads: Infinity, stallTimeout: Infinity, context: 64, bytes: small.length, kv: undefined, cache: false }), TEXT);
    }));

  test("ends as soon as the header is invalid", async () => {
    const gemma = Buffer.from(large);
    gemma.write("gemma", gemma.indexOf("qwen3"));
    // The weights never arrive.
    const stuck = { ranges: false, breaks: large.length - 100_000, hangs: true };
    await serving(gemma, stuck, async (url) => assert.equal(await code(Engine.load(url)), "unsupported"));
  });

  test("of more than the maximum memory is closed", { timeout: 300_000 }, async () => {
    let closed;
    const server = await serve(DIST, {
      "/model.gguf": (_request, response) => {
        closed = new Promise((resolve) => response.once("close", resolve));
        response.writeHead(200, { "Content-Length": 2 ** 45 }).flushHeaders();
      },
    });
    try {
      assert.match(await code(Engine.load(`${server.url}model.gguf`, { threads: 1 })), /^(memory|limit)$/);
      await closed;
    } finally {
      await server.close();
    }
  });

  test("can be aborted at any time", () =>
    serving(large, { breaks: 2 << 20, hangs: true }, async (url) => {
      const abort = new AbortController();
      const loading = code(Engine.load(url, { signal: abort.signal }));
      setTimeout(() => abort.abort(), 300);
      assert.equal(await loading, "aborted");
    }));
});

const NAMES = [1, 2, 3].map((no) => `model-0000${no}-of-00003.gguf`);
const parts = split(small, 3);

describe("a model in parts", () => {
  test("is found by the name of its first part, as files and on a server", async () => {
    const folder = await mkdtemp(join(tmpdir(), "parts-"));
    try {
      await Promise.all(NAMES.map((name, i) => writeFile(join(folder, name), parts[i])));
      assert.equal(await load(join(folder, NAMES[0])), TEXT);
      await rm(join(folder, NAMES[1]));
      const error = await Engine.load(join(folder, NAMES[0])).catch((error) => error);
      assert.ok(error.code === "read" && error.message.includes(NAMES[1]), error.message);
    } finally {
      await rm(folder, { recursive: true });
    }
    const origins = split(large, 3).map((part) => origin(part));
    const server = await serve(DIST, Object.fromEntries(NAMES.map((name, i) => [`/${name}`, origins[i].answer])));
    try {
      assert.equal(await load(`${server.url}${NAMES[0]}?download=true`), TEXT);
      // In another order.
      [origins[1].state.file, origins[2].state.file] = [origins[2].state.file, origins[1].state.file];
      const error = await Engine.load(`${server.url}${NAMES[0]}`).catch((error) => error);
      assert.ok(error.code === "key_value" && error.message.includes(NAMES[1]), error.message);
      origins[2].state.refuse = () => 404;
      const missing = await Engine.load(`${server.url}${NAMES[0]}`).catch((error) => error);
      assert.ok(missing.code === "http" && missing.message.includes(NAMES[2]), missing.message);
    } finally {
      await server.close();
    }
  });

  const file = (i, name = NAMES[i]) => new File([parts[i]], name);

  test("can be passed as files in any order", async () => {
    const blobs = parts.map((part) => new Blob([part]));
    // Without part numbers in the names the order given counts.
    for (const files of [[2, 0, 1].map((i) => file(i)), blobs, [file(0, "a.gguf"), blobs[1], file(2, "c.gguf")]]) {
      assert.equal(await load(files), TEXT);
    }
    assert.equal(await load([file(1), file(0), file(2, "model-00003-of-00003 (1).gguf")].values()), TEXT);
    assert.equal(await load([new Blob([small])]), TEXT);
    const folder = await mkdtemp(join(tmpdir(), "parts-"));
    const [, second] = parts.map((part) => origin(part));
    const server = await serve(DIST, { "/second.gguf": second.answer, [`/${NAMES[1]}`]: second.answer });
    try {
      const paths = NAMES.map((name) => join(folder, name));
      await Promise.all(paths.map((path, i) => writeFile(path, parts[i])));
      assert.equal(await load([paths[2], paths[1], paths[0]]), TEXT);
      assert.equal(await load([file(2), `${server.url}${NAMES[1]}?download=true`, new URL(`file://${paths[0]}`)]), TEXT);
      assert.equal(await load([paths[0], `${server.url}second.gguf`, file(2)]), TEXT);
      await rm(paths[1]);
      const error = await Engine.load([paths[2], paths[1], paths[0]]).catch((error) => error);
      assert.ok(error.code === "read" && error.message.includes(paths[1]), error.message);
    } finally {
      await server.close();
      await rm(folder, { recursive: true });
    }
  });

  test("is refused with missing, duplicate or foreign parts", async () => {
    const wrong = async (files, options) => {
      const { code, message } = await Engine.load(files, options).catch((error) => error);
      return `${code}: ${message}`;
    };
    assert.match(await wrong([file(2), file(0)]), /^read: model-00002-of-00003\.gguf is missing/);
    assert.match(await wrong([file(1)]), /^read: model-00001-of-00003\.gguf is missing/);
    assert.match(await wrong([file(0), file(1), file(1, "model-00002-of-00003 (1).gguf"), file(2)]), /^argument: .* are the same part/);
    assert.match(await wrong([file(0), file(1), file(2, "other-00003-of-00003.gguf")]), /^argument: .* not parts of the same model/);
    assert.match(await wrong([file(0), new File([parts[1]], "b-00002-of-99999.gguf")]), /^argument: .* not parts of the same model/);
    assert.match(await wrong([new File([parts[1]], "b-00002-of-99999.gguf")]), /^limit: /);
    // The files decide, not their names.
    assert.match(await wrong([file(0), file(2, NAMES[1]), file(1, NAMES[2])]), /^key_value: model-00002-of-00003\.gguf: /);
    assert.match(await wrong([file(1, "a.gguf"), file(0, "b.gguf"), file(2, "c.gguf")]), /^key_value: a\.gguf: /);
    assert.match(await wrong([file(0, "a.gguf"), file(1, "b.gguf")]), /^key_value: a\.gguf: /);
    assert.match(await wrong([new Blob([small]), new Blob([other])]), /^missing_key: part 1: .* not a part of a model/);
    assert.match(await wrong([file(0), file(1), new File([parts[2].subarray(0, -9)], NAMES[2])]), /^(truncated|tensor_range): model-00003-of-00003\.gguf: /);
    assert.match(await wrong([]), /^argument: /);
    assert.match(await wrong([small, small]), /^argument: /);
    assert.match(await wrong([file(0), file(1), file(2)], { sha256: "0".repeat(64) }), /^argument: /);
  });

  test("is refused with too many parts", async () => {
    const found = (count) => code(Engine.load(join(tmpdir(), `none-00001-of-${count}.gguf`)));
    assert.deepEqual([await found("01000"), await found("01001"), await found("99999")], ["read", "limit", "limit"]);
  });

  test("is refused with an empty part, which is named", async () => {
    const origins = [parts[0], Buffer.alloc(0), parts[2]].map((part) => origin(part));
    const server = await serve(DIST, Object.fromEntries(NAMES.map((name, i) => [`/${name}`, origins[i].answer])));
    try {
      const { code, message } = await Engine.load(`${server.url}${NAMES[0]}`).catch((error) => error);
      assert.ok(code === "truncated" && message.includes(NAMES[1]), `${code} ${message}`);
      assert.deepEqual(origins.map(({ state }) => state.asked.length), [1, 2, 1]);
    } finally {
      await server.close();
    }
  });

  test("fails for a missing part while another stalls", { timeout: 300_000 }, async () => {
    let closed;
    const server = await serve(DIST, {
      [`/${NAMES[0]}`]: (_request, response) => {
        closed = new Promise((resolve) => response.once("close", resolve));
        response.writeHead(200, { "Content-Length": parts[0].length }).flushHeaders();
      },
    });
    try {
      assert.equal(await code(Engine.load(`${server.url}${NAMES[0]}`)), "http");
      await closed;
    } finally {
      await server.close();
    }
  });

  test("is fetched file by file from servers without ranges", async () => {
    const name = (no) => `/model-${String(no).padStart(5, "0")}-of-00009.gguf`;
    // Some break the connection instead.
    const origins = split(enlarged(small, 8), 9).map((part, i) => origin(part, i % 2 ? { ranges: false } : { hates: true }));
    const server = await serve(DIST, Object.fromEntries(origins.map(({ answer }, i) => [name(i + 1), answer])));
    try {
      assert.equal(await load(`${server.url}${name(1).slice(1)}`), TEXT);
    } finally {
      await server.close();
    }
  });
});

describe("files in a page", () => {
  let browser, server, page;
  const middle = origin(parts[1]);
  before(async () => {
    server = await serve(DIST, {
      "/": (_request, response) => response.writeHead(200, { "Content-Type": "text/html" }).end("<!doctype html><input type=file multiple>"),
      "/middle.gguf": middle.answer,
    });
    browser = await launch();
    page = await (await browser.newContext()).newPage();
    page.setDefaultTimeout(120_000);
    await page.goto(server.url);
  });
  after(async () => {
    await browser?.close();
    await server?.close();
  });

  /** Picks parts in the page and loads them; a string is an address, and the fourth part is the third one truncated. */
  const load = async (picked, options = {}) => {
    const files = picked.filter((i) => typeof i === "number").map((i) => ({ name: NAMES[i] ?? NAMES[2], mimeType: "", buffer: parts[i] ?? parts[2].subarray(0, -9) }));
    await page.setInputFiles("input", files);
    return page.evaluate(
      async ([picked, options]) => {
        const { Engine } = await import("/index.js");
        const { files } = document.querySelector("input");
        let next = 0;
        const mixed = picked.map((each) => (typeof each === "string" ? each : files[next++]));
        try {
          const stages = new Set();
          const engine = await Engine.load(picked.length === files.length ? files : mixed, { ...options, onProgress: ({ stage }) => stages.add(stage) });
          let text = "";
          for await (const chunk of engine.generate("Once upon a time", { preset: "greedy", maxTokens: options.backend ? 1 : 12 })) text += chunk.text;
          const { backend, model } = engine.info;
          await engine.dispose();
          return { text, stages: [...stages], backend, bytes: model.fileBytes };
        } catch (error) {
          return { code: error.code, message: error.message };
        }
      },
      [picked, options],
    );
  };

  test("are the parts of one model, in any order", async () => {
    const { text, stages, bytes } = await load([2, 0, 1]);
    assert.deepEqual([text, stages], [TEXT, ["read", "prepare"]]);
    assert.ok(bytes > 0.99 * small.length && bytes < 1.01 * small.length, `${bytes}`);
  });

  // webgpu.test.mjs loads the parts by their addresses.
  test("are the parts of one model on a GPU", { skip: !existsSync(new URL("webgpu.js", DIST)) || thorough.skip }, async () => {
    const gpu = await load([1, 2, 0], { backend: "webgpu", activations: "f32", context: 64 });
    assert.deepEqual([gpu.code, gpu.backend], [undefined, "webgpu"]);
  });

  test("are reported missing by name", async () => {
    for (const picked of [[2, 0], [2]]) {
      const { code, message } = await load(picked);
      const absent = picked.length === 2 ? NAMES[1] : NAMES[0];
      assert.ok(code === "read" && message.startsWith(`${absent} is missing`), `${code} ${message}`);
    }
  });

  test("can be combined with addresses, whose copies are kept and repaired", async () => {
    // Without part numbers in the names the order given counts.
    const picked = [0, "middle.gguf", 2];
    assert.equal((await load(picked, { cache: true })).text, TEXT);
    middle.state.asked = [];
    assert.equal((await load(picked, { cache: true })).text, TEXT);
    assert.deepEqual(middle.state.asked, []);
    const kept = () => page.evaluate(async () => (await import("/index.js")).listCache());
    const before = await kept();
    assert.deepEqual(before.map(({ bytes, complete }) => [bytes, complete]), [[parts[1].length, true]]);
    const { code, message } = await load([0, 2, "middle.gguf"], { cache: true });
    assert.ok(code === "key_value" && message.startsWith(NAMES[2]), `${code} ${message}`);
    // The copy is not blamed for another file.
    const wrong = await load([0, "middle.gguf", 3], { cache: true });
    assert.ok(wrong.code === "truncated" && wrong.message.startsWith(NAMES[2]), `${wrong.code} ${wrong.message}`);
    assert.deepEqual(await kept(), before);
    middle.state.asked = [];
    assert.equal((await load(picked, { cache: true })).text, TEXT);
    assert.deepEqual(middle.state.asked, []);
  });
});

describe("a kept copy", { timeout: 600_000 }, () => {
  let browser, server, page, from;
  const files = NAMES.map((_, i) => origin(parts[i]));
  before(async () => {
    from = origin(large);
    server = await serve(DIST, {
      "/": (_request, response) => response.writeHead(200, { "Content-Type": "text/html" }).end("<!doctype html><title>test</title>"),
      "/kept.gguf": from.answer,
      ...Object.fromEntries(NAMES.map((name, i) => [`/${name}`, files[i].answer])),
      ...Object.fromEntries(["first", "second", "third"].map((name, i) => [`/${name}.gguf`, files[i].answer])),
    });
    browser = await launch();
    page = await (await browser.newContext()).newPage();
    page.setDefaultTimeout(120_000);
    await page.goto(server.url);
  });
  after(async () => {
    await browser?.close();
    await server?.close();
  });

  /** Loads in the page; aborts after `most` bytes, if given. */
  const load = (name, most, options = {}) =>
    page.evaluate(
      async ([name, most, options]) => {
        const { Engine } = await import("/index.js");
        const abort = new AbortController();
        const stages = new Set();
        const onProgress = ({ stage, loaded }) => {
          stages.add(stage);
          if (most && loaded >= most) abort.abort();
        };
        try {
          const engine = await Engine.load(name, { cache: true, signal: abort.signal, onProgress, ...options });
          let text = "";
          for await (const chunk of engine.generate("Once upon a time", { preset: "greedy", maxTokens: options.backend ? 1 : 12 })) text += chunk.text;
          await engine.dispose();
          return { text, stages: [...stages] };
        } catch (error) {
          return { code: error.code, message: error.message };
        }
      },
      [name, most, options],
    );
  /** Waits until there are no requests and no open connections. */
  const settled = async (state) => {
    for (let before = -1; before !== state.asked.length || state.open > 0; ) {
      before = state.asked.length;
      await new Promise((resolve) => setTimeout(resolve, 250));
    }
  };
  const list = () => page.evaluate(async () => (await import("/index.js")).listCache());
  const clear = async () => {
    // A worker that has just ended may have its files open for a while.
    for (let tries = 0; ; tries++) {
      try {
        return await page.evaluate(async () => (await import("/index.js")).clearCache());
      } catch (error) {
        if (tries === 50) throw error;
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
    }
  };
  /** SHA-256 of the copies, by size. */
  const sums = () =>
    page.evaluate(async () => {
      const directory = await (await navigator.storage.getDirectory()).getDirectoryHandle("shohin");
      const sums = {};
      for await (const [name, handle] of directory) {
        if (name.endsWith(".json")) continue;
        const bytes = await (await handle.getFile()).arrayBuffer();
        const sum = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
        sums[bytes.byteLength] = [...sum].map((byte) => byte.toString(16).padStart(2, "0")).join("");
      }
      return sums;
    });
  /** SHA-256 of whole files in the indexes of the copies. */
  const kept = () =>
    page.evaluate(async () => {
      const directory = await (await navigator.storage.getDirectory()).getDirectoryHandle("shohin");
      const sums = [];
      for await (const [name, handle] of directory) {
        if (!name.endsWith(".json")) continue;
        for (const line of (await (await handle.getFile()).text()).trim().split("\n")) sums.push(...[JSON.parse(line).sha256 ?? []].flat());
      }
      return sums;
    });
  const sum = (bytes) => createHash("sha256").update(bytes).digest("hex");
  const damage = (at) =>
    page.evaluate(async (at) => {
      const directory = await (await navigator.storage.getDirectory()).getDirectoryHandle("shohin");
      for await (const [name, handle] of directory) {
        if (name.endsWith(".json")) continue;
        const bytes = new Uint8Array(await (await handle.getFile()).arrayBuffer());
        bytes[at] ^= 1;
        const file = await handle.createWritable();
        await file.write(bytes);
        await file.close();
      }
    }, at);

  test("resumes after a reload with the missing bytes, over several connections", async () => {
    const { state } = from;
    state.limit = 16 << 20;
    assert.equal((await load("kept.gguf", 2 << 20)).code, "aborted");
    await page.reload();
    await settled(state);
    const [entry] = await list();
    assert.ok(entry.bytes >= 2 << 20 && entry.bytes < large.length && !entry.complete, JSON.stringify(entry));
    Object.assign(state, { asked: [], limit: undefined });
    assert.equal((await load("kept.gguf")).text, TEXT);
    const fetched = state.asked.reduce((all, [first, last]) => all + last - first + 1, 0);
    assert.equal(fetched, large.length - entry.bytes, `${state.asked}`);
    assert.deepEqual(await list(), [{ ...entry, bytes: large.length, complete: true }]);
    assert.deepEqual(await sums(), { [large.length]: sum(large) });
    state.asked = [];
    assert.deepEqual(await load("kept.gguf"), { text: TEXT, stages: ["read", "prepare"] });
    assert.deepEqual(state.asked, []);
  });

  test("survives invalid options", async () => {
    const { state } = from;
    state.asked = [];
    assert.equal((await load("kept.gguf", undefined, { kv: "foo" })).code, "argument");
    assert.equal((await load("kept.gguf", undefined, { activations: "f16" })).code, "argument");
    assert.equal((await load("kept.gguf", undefined, { context: 0.5 })).code, "option");
    assert.equal((await load("kept.gguf", undefined, { threads: 0 })).code, "argument");
    assert.equal((await load("kept.gguf", undefined, { sha256: "none" })).code, "argument");
    assert.deepEqual(await load("kept.gguf"), { text: TEXT, stages: ["read", "prepare"] });
    assert.deepEqual(state.asked, []);
  });

  test("survives a wrong checksum option, unless the server has another file", async () => {
    const { state } = from;
    const [entry] = await list();
    for (const wrong of [{ sha256: "0".repeat(64) }, { bytes: large.length + 1 }]) {
      Object.assign(state, { asked: [], sent: 0 });
      assert.equal((await load("kept.gguf", undefined, wrong)).code, "integrity");
      await settled(state);
      // Only to compare the version.
      assert.ok(state.asked.length === 1 && state.sent < large.length / 2, `${state.asked}, ${state.sent} bytes sent`);
      assert.deepEqual(await list(), [entry]);
    }
    Object.assign(state, { file: other, etag: '"another"' });
    assert.equal((await load("kept.gguf", undefined, { sha256: sum(other) })).text, OTHER_TEXT);
    Object.assign(state, { file: large, etag: '"one"' });
    assert.equal((await load("kept.gguf", undefined, { sha256: sum(large) })).text, TEXT);
    assert.deepEqual(await list(), [entry]);
    // It is kept, so that later loads do not compute it again.
    assert.deepEqual(await kept(), [sum(large)]);
  });

  test("is repaired where it is damaged, and nowhere else", async () => {
    const { state } = from;
    await damage(9_000_000);
    state.asked = [];
    assert.equal((await load("kept.gguf")).text, TEXT);
    const slice = Math.floor(9_000_000 / SLICE);
    assert.deepEqual(state.asked, [[slice * SLICE, (slice + 1) * SLICE - 1]]);
    assert.deepEqual(await sums(), { [large.length]: sum(large) });
    // The server now has another file under the same name, without a version.
    await damage(9_000_000);
    Object.assign(state, { file: other, etag: undefined, asked: [] });
    const shorter = Buffer.concat([other, Buffer.alloc(large.length - other.length)]);
    state.file = shorter;
    shorter[9_000_001] ^= 1;
    assert.equal((await load("kept.gguf")).text, OTHER_TEXT);
    assert.deepEqual(await sums(), { [large.length]: sum(shorter) });
  });

  test("is completed with the missing bytes when the first answers are failures", async () => {
    const { state } = from;
    await clear();
    Object.assign(state, { file: large, etag: '"two"', sent: 0, limit: 16 << 20 });
    assert.equal((await load("kept.gguf", 2 << 20)).code, "aborted");
    await settled(state);
    const [{ bytes }] = await list();
    // The third request is for the whole file, in case the server refuses ranges.
    Object.assign(state, { refuse: (n) => (n < 3 ? 502 : 0), limit: undefined, asked: [] });
    assert.equal((await load("kept.gguf")).text, TEXT);
    const missing = state.asked.slice(3).reduce((all, [first, last]) => all + last - first + 1, 0);
    assert.equal(missing, large.length - bytes, `${state.asked}`);
    assert.deepEqual(await sums(), { [large.length]: sum(large) });
    state.refuse = undefined;
  });

  test("is completed when ranges are refused", async () => {
    const { state } = from;
    await clear();
    Object.assign(state, { file: large, etag: '"two"', sent: 0, limit: 16 << 20 });
    assert.equal((await load("kept.gguf", 2 << 20)).code, "aborted");
    await settled(state);
    Object.assign(state, { hates: true, limit: undefined, asked: [] });
    assert.equal((await load("kept.gguf")).text, TEXT);
    assert.ok(state.asked.some(([first, last]) => first === 0 && last === large.length - 1), `${state.asked}`);
    assert.deepEqual(await sums(), { [large.length]: sum(large) });
    state.hates = false;
  });

  test("is repaired before the position of a connection without ranges", { timeout: 300_000 }, async () => {
    const { state } = from;
    await clear();
    // Not a limit on both connections together: the system buffers megabytes of the one that is closed, and on a busy
    // machine the other would not reach the abort.
    Object.assign(state, { file: huge, etag: '"huge"', ranges: false, each: 28 << 20, asked: [] });
    assert.equal((await load("kept.gguf", 20 << 20)).code, "aborted");
    await settled(state);
    await damage(50 * SLICE + 5);
    Object.assign(state, { each: undefined, asked: [] });
    assert.equal((await load("kept.gguf")).text, TEXT);
    assert.deepEqual(await sums(), { [huge.length]: sum(huge) });
    state.ranges = true;
  });

  test("loses no acknowledged bytes, however often it is interrupted", async () => {
    const { state } = from;
    await clear();
    Object.assign(state, { file: large, etag: '"five"', sent: 0, limit: undefined, pace: 4 });
    let kept = 0;
    for (let round = 0; round < 5 && kept < large.length; round++) {
      Object.assign(state, { asked: [] });
      const enough = state.sent + (2 << 20) + round * 123_457;
      let over = false;
      const loading = load("kept.gguf")
        .catch(() => {})
        .then(() => (over = true));
      await until(() => over || state.sent > enough);
      // The worker is terminated at an arbitrary point.
      if (round % 2 === 0) await page.reload();
      else {
        const next = await page.context().newPage();
        await page.close();
        await next.goto(server.url);
        page = next;
      }
      await loading;
      await settled(state);
      // A worker that is being terminated may still write.
      await page.evaluate(async () => {
        while ((await navigator.locks.query()).held.length > 0) await new Promise((resolve) => setTimeout(resolve, 20));
      });
      const [entry] = await list();
      assert.ok(entry.bytes >= kept, `${entry.bytes} after ${kept}`);
      kept = entry.bytes;
    }
    assert.ok(kept > 2 << 20, `${kept}`);
    Object.assign(state, { asked: [], pace: undefined });
    assert.equal((await load("kept.gguf")).text, TEXT);
    const fetched = state.asked.reduce((all, [first, last]) => all + last - first + 1, 0);
    assert.equal(fetched, large.length - kept, `${state.asked}`);
    assert.deepEqual(await sums(), { [large.length]: sum(large) });
  });

  test("cannot be deleted while it is used", async () => {
    const { state } = from;
    // A complete copy would be read to its end while the calls wait.
    await clear();
    Object.assign(state, { file: large, etag: '"stuck"', sent: 0, limit: 3 << 20 });
    const codes = await page.evaluate(async () => {
      const { Engine, clearCache, deleteCache, listCache } = await import("/index.js");
      const abort = new AbortController();
      let loading;
      const begun = new Promise((resolve) => {
        const onProgress = ({ loaded }) => loaded > 1 << 20 && resolve();
        loading = Engine.load("kept.gguf", { cache: true, signal: abort.signal, onProgress }).catch(() => {});
      });
      await begun;
      const code = (promise) => promise.then((value) => value, (error) => `${error.name} ${error.code}`);
      const before = await listCache();
      const codes = [await code(clearCache()), await code(deleteCache("kept.gguf")), await code(deleteCache("http://:")), await code(deleteCache("other.gguf"))];
      const after = await listCache();
      abort.abort();
      await loading;
      // It lets go of the copy a moment later.
      const deleted = await code(deleteCache("kept.gguf"));
      return [...codes, before.length, after.length, deleted, (await listCache()).length];
    });
    assert.deepEqual(codes, ["ShohinError read", "ShohinError read", "ShohinError argument", false, 1, 1, true, 0]);
    await settled(state);
    Object.assign(state, { limit: undefined });
  });

  test("is started again when the file has changed", async () => {
    const { state } = from;
    await clear();
    Object.assign(state, { file: large, etag: '"three"', sent: 0, limit: 16 << 20 });
    assert.equal((await load("kept.gguf", 2 << 20)).code, "aborted");
    await settled(state);
    Object.assign(state, { file: other, etag: '"four"', limit: undefined, asked: [] });
    assert.equal((await load("kept.gguf")).text, OTHER_TEXT);
    assert.deepEqual(await sums(), { [other.length]: sum(other) });
  });

  test("survives damage to its index", async () => {
    const { state } = from;
    // An interrupted last line, and garbage.
    await page.evaluate(async () => {
      const directory = await (await navigator.storage.getDirectory()).getDirectoryHandle("shohin");
      for await (const [name, handle] of directory) {
        if (!name.endsWith(".json")) continue;
        const text = await (await handle.getFile()).text();
        const file = await handle.createWritable();
        await file.write(`${text.slice(0, -30)}\n[1,2]\nnull\n{"total":`);
        await file.close();
      }
    });
    state.asked = [];
    assert.equal((await load("kept.gguf")).text, OTHER_TEXT);
    assert.ok(state.asked.length <= 2, `${state.asked}`);
    assert.deepEqual(await sums(), { [other.length]: sum(other) });
  });

  test("of a model in parts has one copy for each part", async () => {
    await clear();
    assert.equal((await load(NAMES[0])).text, TEXT);
    const entries = (await list()).sort((a, b) => a.url.localeCompare(b.url));
    assert.deepEqual(entries, NAMES.map((name, i) => ({ url: server.url + name, bytes: parts[i].length, total: parts[i].length, complete: true })));
    files.forEach(({ state }) => (state.asked = []));
    assert.deepEqual(await load(NAMES[0]), { text: TEXT, stages: ["read", "prepare"] });
    if (existsSync(new URL("webgpu.js", DIST))) {
      assert.equal((await load(NAMES[0], undefined, { backend: "webgpu", activations: "f32", context: 64 })).code, undefined);
    }
    assert.deepEqual(files.flatMap(({ state }) => state.asked), []);
    const deleted = await page.evaluate(async (name) => (await import("/index.js")).deleteCache(name), NAMES[0]);
    assert.deepEqual([deleted, await list()], [true, []]);
    // Swapped parts are named, and replaced once the server has the right ones.
    Object.assign(files[1].state, { file: parts[2], etag: '"wrong"' });
    const { code, message } = await load(NAMES[0]);
    assert.ok(code === "key_value" && message.includes(NAMES[1]), `${code} ${message}`);
    Object.assign(files[1].state, { file: parts[1], etag: '"one"' });
    assert.equal((await load(NAMES[0])).text, TEXT);
    assert.deepEqual((await list()).sort((a, b) => a.url.localeCompare(b.url)), entries);
  });

  test("of a part is not blamed for an error in another", async () => {
    await clear();
    const names = ["first.gguf", "second.gguf", "third.gguf"];
    assert.equal((await load(names)).text, TEXT);
    const entries = await list();
    assert.ok(entries.length === 3 && entries.every(({ complete }) => complete), JSON.stringify(entries));
    const { code, message } = await load([names[1], names[0], names[2]]);
    assert.ok(code === "key_value" && message.includes(names[1]), `${code} ${message}`);
    assert.deepEqual(await list(), entries);
    files.forEach(({ state }) => (state.asked = []));
    assert.deepEqual(await load(names), { text: TEXT, stages: ["read", "prepare"] });
    assert.deepEqual(files.flatMap(({ state }) => state.asked), []);
    // Only an empty one is not kept.
    await clear();
    Object.assign(files[1].state, { file: Buffer.alloc(0), etag: '"empty"' });
    const empty = await load(names);
    assert.ok(empty.code === "truncated" && empty.message.includes(names[1]), `${empty.code} ${empty.message}`);
    const urls = (await list()).map(({ url }) => url.split("/").at(-1)).sort();
    assert.deepEqual(urls, [names[0], names[2]]);
    Object.assign(files[1].state, { file: parts[1], etag: '"one"' });
  });
});
