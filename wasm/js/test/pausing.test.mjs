// How far a worker computes ahead of a reader that pauses.
import assert from "node:assert/strict";
import { beforeEach, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const { outputFiles } = await build({
  stdin: {
    contents: 'export * from "./answering.js"; export * from "./worker-transport.js";',
    resolveDir: fileURLToPath(new URL("../src/engine/", import.meta.url)),
    loader: "ts",
  },
  bundle: true,
  format: "esm",
  write: false,
});
const { Answering, AHEAD, WorkerTransport } = await import(`data:text/javascript;base64,${Buffer.from(outputFiles[0].contents).toString("base64")}`);

/** Lets everything run that does not wait for a message. */
async function settle() {
  for (let i = 0; i < 3; i++) await new Promise((resolve) => setImmediate(resolve));
}

describe("a worker and a reader that pauses", () => {
  let answering, sent, computed, ended;

  /** Chunks without end, until the request is aborted. */
  async function* endless(_params, { signal }) {
    try {
      for (;;) {
        if (signal.aborted) throw new DOMException("aborted", "AbortError");
        yield ++computed;
      }
    } finally {
      ended++;
    }
  }

  beforeEach(async () => {
    [sent, computed, ended] = [[], 0, 0];
    answering = new Answering({ generate: endless }, (message) => sent.push(message));
    answering.receive({ id: 1, method: "generate", params: {} });
    await settle();
    assert.deepEqual([sent.length, computed, ended], [AHEAD, AHEAD, 0]);
  });

  test("go on with each chunk that is read", async () => {
    for (let read = 0; read < 10; read++) answering.receive({ id: 1, taken: true });
    await settle();
    assert.equal(sent.length, AHEAD + 10);
    answering.receive({ id: 2, taken: true });
    await settle();
    assert.equal(sent.length, AHEAD + 10);
    assert.deepEqual(sent.at(-1), { id: 1, chunk: AHEAD + 10 });
  });

  test("end when the request is aborted", async () => {
    answering.receive({ id: 1, abort: true });
    await settle();
    assert.equal(ended, 1);
    assert.deepEqual([sent.at(-1).id, "error" in sent.at(-1)], [1, true]);
  });

  test("end when the engine leaves", async () => {
    answering.end();
    await settle();
    assert.equal(ended, 1);
  });

  test("end when the conversation is disposed, and no other's", async () => {
    let open = true;
    async function* replies({ conversation }) {
      for (let chunk = 0; conversation !== 7 || open; chunk++) yield chunk;
      throw Object.assign(new Error("the conversation was disposed"), { code: "disposed" });
    }
    const answers = [];
    const worker = new Answering({ generate: replies, close: async () => void (open = false) }, (message) => answers.push(message));
    for (const conversation of [7, 8]) worker.receive({ id: conversation, method: "generate", params: { conversation } });
    await settle();
    assert.equal(answers.length, 2 * AHEAD);
    worker.receive({ id: 9, method: "close", params: { conversation: 7 } });
    await settle();
    assert.deepEqual(answers.slice(2 * AHEAD).map(({ id, error }) => [id, error?.code]), [[9, undefined], [7, "disposed"]]);
  });

  test("do not hold up other requests", async () => {
    answering.receive({ id: 2, method: "generate", params: {} });
    await settle();
    assert.equal(sent.filter(({ id }) => id === 2).length, AHEAD);
  });

  test("go on as the engine's loop reads, to the end", { timeout: 300_000 }, async () => {
    let made = 0;
    async function* long() {
      while (made < 3 * AHEAD) yield ++made;
      return "done";
    }
    const { port1, port2 } = new MessageChannel();
    const worker = new Answering({ generate: long }, (message) => port2.postMessage(message));
    port2.onmessage = ({ data }) => worker.receive(data);
    const transport = new WorkerTransport(port1, false, () => port1.close());
    try {
      const chunks = transport.stream("generate", {}, undefined);
      let read = 0;
      for (let next = await chunks.next(); ; next = await chunks.next()) {
        if (next.done) {
          assert.equal(next.value, "done");
          break;
        }
        assert.equal(next.value, ++read);
        assert.ok(made <= read + AHEAD, `${made} made, ${read} read`);
      }
      assert.equal(read, 3 * AHEAD);
    } finally {
      transport.close(new Error("the end"));
    }
  });
});
