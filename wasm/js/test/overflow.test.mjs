// Conversations beyond the context: `npm run build` first.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { Engine, ShohinError } from "shohin";

const MODEL = fileURLToPath(new URL("../../../models/sprout.gguf", import.meta.url));
const user = (content) => ({ role: "user", content });

describe("a conversation beyond the context", () => {
  let engine;
  before(async () => {
    engine = await Engine.load(await readFile(MODEL), { context: 128 });
  });
  after(() => engine?.dispose());

  const reply = async (target, messages, options) => {
    let finish;
    for await (const chunk of target.chat(messages, { preset: "greedy", maxTokens: 40, ...options })) finish = chunk.finish;
    return finish;
  };

  test("continues with overflow: shift, and computes only new tokens", async () => {
    const talk = await engine.conversation();
    const messages = [{ role: "system", content: "You are a cow." }];
    let total = 0;
    for (let turn = 0; turn < 12; turn++) {
      messages.push(user(turn % 2 ? "Tell me a joke." : "What is the opposite of hot?"));
      const { message, usage } = await reply(talk, messages, { overflow: "shift" });
      messages.push(message);
      assert.notEqual(message.content, "");
      assert.equal(usage.droppedMessages, 0);
      // A turn adds its message and the markers around it.
      if (turn > 0) assert.ok(usage.promptTokens - usage.cachedTokens < 40, `turn ${turn}: ${JSON.stringify(usage)}`);
      assert.ok(usage.promptTokens + usage.completionTokens - usage.forgottenTokens <= 128 + 1);
      assert.ok(usage.forgottenTokens >= total);
      total = usage.forgottenTokens;
    }
    assert.ok(total > 128, `${total} tokens forgotten`);
    await assert.rejects(reply(talk, messages, {}), (error) => error instanceof ShohinError && error.code === "context_full");

    // Saved and restored: the same reply with the same cached tokens.
    await reply(talk, messages.slice(0, -1), { overflow: "shift" });
    const snapshot = await talk.snapshot();
    const next = [...snapshot.messages, user("Hello!")];
    const want = await reply(talk, next, { overflow: "shift" });
    const other = await engine.conversation();
    await other.restore(snapshot);
    const got = await reply(other, next, { overflow: "shift" });
    assert.deepEqual([got.text, got.usage], [want.text, want.usage]);
    assert.ok(got.usage.cachedTokens > 128);
    await talk.dispose();
    await other.dispose();
  });

  test("refuses to leave out turns of a plain text", () => {
    const isRight = (error) => error instanceof ShohinError && error.code === "argument" && /overflow is "trim", but must be error or shift/.test(error.message);
    return assert.rejects(engine.generate("Once", { overflow: "trim" }).next(), isRight);
  });

  test("reads a prompt and writes a reply longer than the context", async () => {
    const long = "Once upon a time there was a cat. ".repeat(40);
    let finish;
    for await (const chunk of engine.generate(long, { preset: "greedy", temperature: 2, seed: 5, maxTokens: 300, overflow: "shift" })) finish = chunk.finish;
    assert.ok(finish.usage.promptTokens > 128 && finish.usage.forgottenTokens > finish.usage.promptTokens - 128);
    assert.notEqual(finish.reason, "context_full");
    // None of it is reused for another conversation.
    const first = await reply(engine, [user("Hello!")]);
    const fresh = await engine.conversation();
    assert.equal((await reply(fresh, [user("Hello!")])).text, first.text);
    await fresh.dispose();
  });
});
