// An aborted download leaves no listener, open connection or further request, at every stage.
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import { serve } from "./chromium.mjs";
import { origin } from "./gguf.mjs";

const { outputFiles } = await build({
  entryPoints: [fileURLToPath(new URL("../src/load/download.ts", import.meta.url))],
  bundle: true,
  format: "esm",
  write: false,
});
const { downloadPieces, SLICE } = await import(`data:text/javascript;base64,${Buffer.from(outputFiles[0].contents).toString("base64")}`);

const file = randomBytes(24 << 20);

async function until(done) {
  while (!done()) await new Promise((resolve) => setTimeout(resolve, 10));
}

/** A copy in memory that awaits `gate` before it reads, starts or writes. */
class Kept {
  slices = new Map();
  closed = 0;
  gate = undefined;
  waiting = 0;

  async #pass() {
    this.waiting++;
    await this.gate;
  }
  get version() {
    return this.slices.size > 0 ? this.of : undefined;
  }
  has(slice) {
    return this.slices.has(slice);
  }
  async read(slice, most) {
    await this.#pass();
    let end = slice;
    while (end < slice + most && this.has(end)) end++;
    return Buffer.concat(Array.from({ length: end - slice }, (_, i) => this.slices.get(slice + i)));
  }
  async start(version) {
    await this.#pass();
    this.slices.clear();
    this.of = version;
  }
  async write(slice, bytes) {
    await this.#pass();
    this.slices.set(slice, Buffer.from(bytes));
    return true;
  }
  end() {}
  close() {
    this.closed++;
  }
}

/** A copy of the first `slices` slices. */
function partly(slices) {
  const kept = new Kept();
  kept.of = { total: file.length, etag: '"one"' };
  for (let k = 0; k < slices; k++) kept.slices.set(k, file.subarray(k * SLICE, (k + 1) * SLICE));
  return kept;
}

/** A signal that counts its listeners. */
function watched() {
  const abort = new AbortController();
  const { signal } = abort;
  const heard = new Set();
  for (const [name, note] of [["addEventListener", "add"], ["removeEventListener", "delete"]]) {
    const call = signal[name].bind(signal);
    signal[name] = (type, listener, ...rest) => {
      heard[note](listener);
      call(type, listener, ...rest);
    };
  }
  return { abort, signal, heard };
}

/** Serves the file as `state` says while `use` runs. */
async function serving(state, use) {
  const from = origin(file, state);
  const server = await serve(new URL("./", import.meta.url), { "/file": from.answer });
  try {
    await use(`${server.url}file`, from.state);
  } finally {
    await server.close();
  }
}

/**
 * Downloads and aborts as soon as `when` returns true for the state of the server, the bytes read and the copy. Afterwards
 * there must be no listener, open connection or further request.
 */
async function aborted(state, when, { kept = new Kept(), options = {}, brief = false, after = () => {} } = {}) {
  await serving(state, async (url, state) => {
    const { abort, signal, heard } = watched();
    let read = 0;
    const loading = (async () => {
      const { pieces } = await downloadPieces(url, { signal, ...options }, kept, brief);
      for await (const piece of pieces) read += piece.length;
    })().then(() => "done", (error) => error.code ?? error);
    let over = false;
    void loading.then(() => (over = true));
    await until(() => over || when({ ...state, read, kept }));
    abort.abort();
    after(kept);
    assert.equal(await loading, "aborted");
    assert.ok(read < file.length);
    await until(() => state.open === 0);
    const asked = state.asked.length;
    // Longer than the pause before a retry.
    await new Promise((resolve) => setTimeout(resolve, 500));
    assert.deepEqual([heard.size, kept.closed > 0, state.asked.length, state.open], [0, true, asked, 0]);
  });
}

/** A copy that blocks until `after` is called. */
function gated(kept) {
  let open;
  kept.gate = new Promise((resolve) => (open = resolve));
  return { kept, after: () => open() };
}

describe("an aborted download leaves nothing behind", { timeout: 300_000 }, () => {
  test("before it starts", () =>
    serving({}, async (url, state) => {
      const { abort, signal, heard } = watched();
      abort.abort();
      const kept = new Kept();
      await assert.rejects(downloadPieces(url, { signal }, kept), { code: "aborted" });
      assert.deepEqual([heard.size, kept.closed > 0, state.asked], [0, true, []]);
    }));

  test("before the first answer", () => aborted({ mute: () => true }, ({ asked }) => asked.length === 1));

  test("while it waits to retry a busy server", () => aborted({ refuse: () => 503, after: 60 }, ({ asked, open }) => asked.length === 1 && open === 0));

  test("while it waits to retry after a broken connection", () => aborted({ breaks: 100_000, hates: true }, ({ asked, open, read }) => asked.length > 2 && open === 0 && read > 0));

  test("while its copy is started", () => aborted({}, ({ kept }) => kept.waiting > 0, gated(new Kept())));

  test("while its copy is read", () => aborted({}, ({ kept }) => kept.waiting > 0, gated(partly(20))));

  test("while its copy is written", () => {
    const all = gated(new Kept());
    const { gate } = all.kept;
    all.kept.gate = undefined;
    const start = all.kept.start.bind(all.kept);
    all.kept.start = async (version) => {
      await start(version);
      all.kept.gate = gate;
    };
    return aborted({ limit: 3 << 20 }, ({ kept }) => kept.waiting > 3, all);
  });

  test("while it receives bytes over several connections", () => aborted({ pace: 5 }, ({ read, open }) => read > 1 << 20 && open > 2));

  test("while the connections are silent", () => aborted({ limit: 5 << 20 }, ({ sent, read }) => sent >= 5 << 20 && read > 1 << 20));

  test("while it resumes after silence", () => aborted({ breaks: 300_000, hangs: true }, ({ asked }) => asked.length > 6, { options: { stallTimeout: 250 } }));

  test("while a server without ranges sends the whole file", () => aborted({ ranges: false, pace: 5 }, ({ read }) => read > 1 << 20));

  test("while it receives a file of unknown length", () => aborted({ ranges: false, unmeasured: true, pace: 5 }, ({ read }) => read > 1 << 20));

  test("while only the beginning is needed", () => aborted({ pace: 50 }, ({ read }) => read > 100_000, { brief: true }));
});

describe("no connection is held", { timeout: 300_000 }, () => {
  test("by a download that is closed without reading", () =>
    serving({}, async (url, state) => {
      for (const options of [{}, { stallTimeout: Infinity }]) {
        const { signal, heard } = watched();
        const kept = new Kept();
        const { close } = await downloadPieces(url, { signal, ...options }, kept);
        close();
        close();
        await until(() => state.open === 0);
        assert.deepEqual([heard.size, kept.closed > 0], [0, true]);
      }
    }));

  test("by a download whose reader stops", () =>
    serving({ pace: 5 }, async (url, state) => {
      const { signal, heard } = watched();
      const kept = new Kept();
      const { pieces } = await downloadPieces(url, { signal }, kept);
      for await (const _ of pieces) break;
      await until(() => state.open === 0);
      assert.deepEqual([heard.size, kept.closed > 0], [0, true]);
    }));

  test("while the copy has enough of the file", () =>
    serving({}, async (url, state) => {
      const { close, pieces } = await downloadPieces(url, {}, partly(20), true);
      await until(() => state.asked.length === 1 && state.open === 0);
      const all = [];
      for await (const piece of pieces) all.push(piece);
      assert.ok(Buffer.concat(all).equals(file));
      close();
    }));
});

test("a download does not wait for a browser to end responses that it does not read", { timeout: 300_000 }, async (t) => {
  for (const { prototype } of [ReadableStream, ReadableStreamDefaultReader]) {
    const { cancel } = prototype;
    t.mock.method(prototype, "cancel", function () {
      void cancel.call(this).catch(() => {});
      return new Promise(() => {});
    });
  }
  // The third request is for the whole file, in case the server refuses ranges.
  await serving({ refuse: (n) => (n < 3 ? 502 : 0) }, async (url, state) => {
    const { pieces } = await downloadPieces(url, {}, partly(20));
    const all = [];
    for await (const piece of pieces) all.push(piece);
    assert.ok(Buffer.concat(all).equals(file));
    await until(() => state.open === 0);
  });
});
