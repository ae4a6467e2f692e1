// Makes core/tests/fixtures/openai.json with the TypeScript that the npm package had for OpenAI's form before core had any
// (completion.ts, arguments.ts and reply.ts of the commit below): node tests/oracle/openai.mjs > core/tests/fixtures/openai.json
import { execFileSync } from "node:child_process";
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { build } from "esbuild";

const COMMIT = "613d98f";
const folder = mkdtempSync(join(tmpdir(), "openai-"));
for (const name of ["completion", "arguments", "api", "error", "parts", "source", "reply", "simd", "download", "host", "cache"]) {
  writeFileSync(join(folder, `${name}.ts`), execFileSync("git", ["show", `${COMMIT}:wasm/js/src/${name}.ts`]));
}
const bundle = async (name) => {
  const outfile = join(folder, `${name}.mjs`);
  await build({ entryPoints: [join(folder, `${name}.ts`)], bundle: true, format: "esm", platform: "node", outfile, logLevel: "error" });
  return import(outfile);
};
const { complete } = await bundle("completion");
const { ReplyStream } = await bundle("reply");

const ask = (content) => [{ role: "user", content }];
const add = { type: "function", function: { name: "add", parameters: { type: "object" } } };
const base = { model: "mine", messages: ask("Hello!") };
const REQUESTS = [
  base,
  { messages: ask("a"), model: null, temperature: 0, top_p: 0.5, presence_penalty: -1, frequency_penalty: 1.5, seed: 7, stop: "x", max_tokens: 3 },
  { ...base, max_tokens: 3, max_completion_tokens: 5, stop: ["a", "b"], stream: true, stream_options: { include_usage: true } },
  { ...base, logprobs: true, top_logprobs: 2, stream: null },
  { ...base, logprobs: true },
  { ...base, tools: [add], tool_choice: "auto" },
  { ...base, tools: [add], tool_choice: "required" },
  { ...base, tools: [add], tool_choice: "none" },
  { ...base, tools: [add], tool_choice: { type: "function", function: { name: "add" } } },
  { ...base, tools: [], tool_choice: null },
  { ...base, response_format: { type: "text" } },
  { ...base, response_format: { type: "json_object" } },
  { ...base, response_format: { type: "json_schema", json_schema: { name: "x", strict: true, schema: { type: "integer" } } } },
  { ...base, response_format: { type: "json_schema", json_schema: { schema: true } } },
  { ...base, thinking: true, overflow: "shift" },
  { ...base, thinking: false, overflow: "trim" },
  { ...base, thinking: { budget: 12 }, overflow: "trim", max_tokens: 40 },
  { ...base, thinking: { budget: 0 }, overflow: "error" },
  { ...base, n: 1, user: "me", store: false, metadata: {}, parallel_tool_calls: true, logit_bias: null, safety_identifier: "s", prompt_cache_key: "k", service_tier: "auto" },
  {
    messages: [
      { role: "developer", content: [{ type: "text", text: "Be " }, { type: "text", text: "kind.\n" }], name: "x" },
      { role: "system", content: "é" },
      { role: "user", content: "2 + 3?" },
      { role: "assistant", content: null, reasoning: "Hm.", tool_calls: [{ id: "1", type: "function", function: { name: "add", arguments: '{"a": "\\u00e9"}' } }] },
      { role: "tool", tool_call_id: "1", content: "5" },
      { role: "assistant", content: "", reasoning: null, tool_calls: [] },
      { role: "assistant" },
      { role: "user", content: "" },
    ],
  },
];
const WRONG = [
  [], "x", {}, { n: 2 }, { n: 0 }, { messages: null }, { messages: [] }, { messages: "Hello" }, { messages: [null] }, { messages: [{ content: "Hello" }] },
  { messages: [{ role: "wizard", content: "x" }] }, { messages: ask(3) }, { messages: ask([null]) }, { messages: ask([{ type: "text" }]) }, { messages: ask([{}]) },
  { messages: ask([{ type: "image_url" }]) }, { messages: [{ role: "user", content: "x", reasoning: 3 }] },
  { messages: [{ role: "assistant", tool_calls: [{ type: "function" }] }] }, { messages: [{ role: "assistant", tool_calls: {} }] },
  { messages: [{ role: "assistant", tool_calls: [{ function: { name: "a", arguments: {} } }] }] },
  { response_format: { type: "xml" } }, { response_format: "json_object" }, { response_format: { type: "json_schema" } },
  { response_format: { type: "json_schema", json_schema: { schema: 3 } } }, { response_format: { type: "json_schema", json_schema: {} } },
  { tool_choice: "required" }, { tools: [add], tool_choice: "always" }, { tools: [add], tool_choice: { type: "function" } },
  { tools: [add], tool_choice: { type: "custom" } }, { tools: {} }, { tools: ["add"] }, { tool_choice: { type: "function", function: { name: "add" } } },
  { top_logprobs: 21 }, { top_logprobs: -1 }, { logit_bias: { 1: 100 } }, { functions: [] },
  { temperature: "hot" }, { top_p: true }, { seed: "1" }, { max_tokens: "3" }, { stop: 3 }, { stop: [3] }, { thinking: 5 }, { thinking: { budget: -1 } }, { thinking: {} },
  { overflow: "explode" },
];

const finish = (more) => ({
  reason: "stop", text: "", seed: 1, timings: {},
  usage: { promptTokens: 12, cachedTokens: 5, completionTokens: 7, reasoningTokens: 2, droppedMessages: 0, forgottenTokens: 0 },
  ...more,
});
// Ids of bpe2k.gguf; 137 is half of a character.
const BYTES = { 64: [97], 72: [105], 137: [0xcd], 1230: [...Buffer.from("and")] };
const scored = (token, logprob) => ({ token, logprob, bytes: BYTES[token], text: new TextDecoder().decode(Uint8Array.from(BYTES[token])) });
const top = (token, logprob, ...others) => ({ ...scored(token, logprob), top: others.map(([id, p]) => scored(id, p)) });
const call = (a) => ({ name: "add", arguments: `{"a": ${a}}` });
const REPLIES = [
  [{ text: "He said \"é\"\n", tokens: [1] }, { text: "", tokens: [2] }, { text: "bye", tokens: [], finish: finish({ message: { role: "assistant", content: "He said \"é\"\nbye" } }) }],
  [
    { text: "", reasoning: "Hm", tokens: [1] }, { text: "", reasoning: ".", tokens: [2] }, { text: "Now.", toolCalls: [call(1)], tokens: [3] },
    { text: "", toolCalls: [call(2), call(3)], tokens: [4], finish: finish({ reason: "length", message: { role: "assistant", content: "Now.", reasoning: "Hm.", toolCalls: [call(1), call(2), call(3)] } }) },
  ],
  [{ text: "", toolCalls: [call(1)], tokens: [3], finish: finish({ message: { role: "assistant", content: "", toolCalls: [call(1)] } }) }],
  [
    { text: "a", tokens: [64], logprobs: [top(64, -0.5, [64, -0.5], [72, -1.25])] },
    { text: "", tokens: [137], logprobs: [top(137, -2, [1230, -0.0078125], [64, -Infinity])] },
    { text: "", tokens: [], logprobs: [], finish: finish({ reason: "context_full", message: { role: "assistant", content: "a" } }) },
  ],
  [{ text: "", tokens: [], finish: finish({ reason: "stop_string", message: { role: "assistant", content: "" } }) }],
];
const plain = (answer) => JSON.parse(JSON.stringify(answer).replace(/chatcmpl-[\da-f]{24}/g, "chatcmpl-ID").replace(/call_[\da-f]{24}/g, "call_ID").replace(/"created":\d+/g, '"created":7'));
const info = { model: { name: "sprout" } };

const requests = [];
for (const request of REQUESTS) {
  let seen;
  const chatter = { chat: (messages, { signal, ...options }) => ((seen = { messages, options }), (async function* () { yield REPLIES[0][2]; })()) };
  const answer = await complete(chatter, info, { ...request, stream: false }, {});
  requests.push({ request, ...seen, model: answer.model });
}
const wrong = [];
for (const change of WRONG) {
  const request = typeof change === "string" || Array.isArray(change) || Object.keys(change).length === 0 ? change : { ...base, ...change };
  const code = await complete({ chat: () => [] }, info, request, {}).then(() => "none", (error) => error.code);
  wrong.push({ request, code });
}
const answers = [];
for (const chunks of REPLIES) {
  for (const more of [{}, { stream: true, stream_options: { include_usage: true } }, { logprobs: true, top_logprobs: 2 }]) {
    const chatter = { chat: async function* () { yield* chunks; } };
    const whole = plain(await complete(chatter, info, { ...base, ...more, stream: false }, {}));
    const streamed = [];
    for await (const chunk of await complete(chatter, info, { ...base, ...more, stream: true }, {})) streamed.push(plain(chunk));
    answers.push({ request: { ...base, ...more }, chunks, whole, streamed });
  }
}

// Replies cut at random, and what each piece made certain.
const PARTS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "\n", "\n\n", " ", "a", "é", '"', "<", '{"name": "f", "arguments": {}}', '{"name": "f", "arguments": "</tool_call>"}', "{no}"];
let state = 1;
const pick = (n) => (state = (state * 48271) % 2147483647) % n;
// Complete blocks whose JSON holds a name and arguments, their ends outside strings where there are such.
const blocks = (text) => {
  const calls = [];
  for (let rest = text; ; ) {
    const from = rest.indexOf("<tool_call>");
    if (from < 0) return calls;
    const call = rest.slice(from + 11);
    let [at, quoted, escaped] = [-1, false, false];
    for (let i = 0; i < call.length && at < 0; i++) {
      if (escaped) escaped = false;
      else if (call[i] === "\\" && quoted) escaped = true;
      else if (call[i] === '"') quoted = !quoted;
      else if (call[i] === "<" && !quoted && call.startsWith("</tool_call>", i)) at = i;
    }
    if (at < 0) at = call.indexOf("</tool_call>");
    if (at < 0) return calls;
    const block = call.slice(0, at).replace(/^\n+|\n+$/g, "");
    rest = call.slice(at + 12);
    try {
      const { name, arguments: given } = JSON.parse(block);
      if (typeof name === "string" && given !== undefined) calls.push({ name, arguments: block.slice(block.indexOf('"arguments": ') + 13, -1) });
    } catch {}
  }
};
const replies = [];
for (let i = 0; i < 160; i++) {
  const pieces = Array.from({ length: 1 + pick(10) }, () => PARTS[pick(PARTS.length)]);
  const calls = i % 4 > 0;
  const stream = new ReplyStream(calls ? blocks : undefined);
  const parts = pieces.map((piece, n) => stream.push(piece, n === pieces.length - 1)).map(({ text, reasoning, toolCalls }) => [text, reasoning, toolCalls.map((one) => one.arguments)]);
  replies.push({ calls, pieces, parts });
}
const rows = (name, list) => `"${name}": [\n${list.map((one) => JSON.stringify(one)).join(",\n")}\n]`;
console.log(`{\n${[rows("requests", requests), rows("wrong", wrong), rows("answers", answers), rows("replies", replies)].join(",\n")}\n}`);
