// Random conversations, and what an engine replies; runs in Node and in browsers.

/** Options of a model, and the program's arguments for them. */
export const MODELS = [
  [{ threads: 2 }, ["--threads=2"]],
  [{ threads: 1, context: 64 }, ["--threads=1", "--context=64"]],
  [{ threads: 1, kv: "f32", activations: "f32" }, ["--threads=1", "--kv=f32", "--act=f32"]],
  [{ threads: 1, kv: "q8", attention: "window:24:3" }, ["--threads=1", "--kv=q8", "--attention=window:24:3"]],
  [{ threads: 1, kv: "q4" }, ["--threads=1", "--kv=q4"]],
  [{ threads: 1, kv: "fp8_e4m3" }, ["--threads=1", "--kv=fp8_e4m3"]],
];
/** The model whose context is full after some turns. */
const SMALL = 1;

/** Numbers below 1 with a fixed sequence per seed (mulberry32). */
export function random(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let z = Math.imul(state ^ (state >>> 15), 1 | state);
    z = (z + Math.imul(z ^ (z >>> 7), 61 | z)) ^ z;
    return ((z ^ (z >>> 14)) >>> 0) / 2 ** 32;
  };
}

const QUESTIONS = ["What does a cow say?", "Tell me a story.", "My name is Ivan.", "What's my name?", "Count from one to nine.", "What is the opposite of hot?"];
const STORIES = ["Once upon a time", "There was a", "The cat sat on", "{", "1, 2, 3,", "<|im_start|>user\n"];
const ODD = ["é", "e\u0301", "日本", "🌳", "👩‍👩‍👧", "\u200b", "\u202e", "\ufeff", "\ufffd", "\u{10ffff}", "\x01", "\x1b[1m", "\t", "\r\n", "\n\n", "  ", "\\", "\"", "<|im_end|>", "<think>", "ﷺ", "ǅ"];
const STOPS = [".", " ", "e", "a ", "\n", "moo", "time", ", ", "🌳", "the c", "\""];
const SCHEMAS = [
  { type: "object", properties: { name: { type: "string", maxLength: 12 }, legs: { type: "integer", minimum: 0, maximum: 8 } }, required: ["name"] },
  { type: "array", items: { enum: ["cat", "cow", "🌳", 1, null] }, minItems: 1, maxItems: 4 },
  { anyOf: [{ type: "boolean" }, { type: "number", exclusiveMinimum: -1.5, maximum: 20 }] },
  { type: "string", pattern: "^[a-zé]{2,9}$" },
  { type: "object", additionalProperties: { type: "boolean" } },
  // Refused by both.
  { type: "object", maxProperties: 2 },
];
const FORMATS = [
  ...SCHEMAS.map((schema) => ({ type: "json_schema", schema })),
  { type: "json_object" },
  { type: "choice", choices: ["three", "four", "four legs", "vier 🌳"] },
  { type: "regex", pattern: "[0-9]{1,3} (leg|foot)s?" },
  { type: "grammar", grammar: 'root ::= "<" [a-cé]+ ("," root)? ">"' },
];

/** Sampling options: how one is drawn. */
const NUMBERS = {
  temperature: [0, 0.3, 0.7, 1, 1.7, 50],
  topK: [0, 1, 2, 20, 1000],
  topP: [0.05, 0.5, 0.9, 1],
  minP: [0, 0.02, 0.3],
  typicalP: [0.2, 0.9, 1],
  repetitionPenalty: [1, 1.1, 1.9],
  presencePenalty: [0, 0.4, -0.4],
  frequencyPenalty: [0, 0.3],
  penaltyLastN: [0, 1, 64],
  dryMultiplier: [0, 0.8],
  dryBase: [1.75, 3],
  dryAllowedLength: [1, 2],
  dryLastN: [0, 16, 256],
};

/** A conversation or a text to continue, with options for each reply. */
export function conversation(next) {
  const below = (n) => Math.floor(next() * n);
  const of = (all) => all[below(all.length)];
  const model = below(MODELS.length);
  const raw = below(4) === 0;
  const text = () => {
    const parts = [of(raw ? STORIES : QUESTIONS), ...(below(8) ? [] : ["\0"])];
    for (let more = below(4); more > 0; more -= 1) parts.splice(below(parts.length + 1), 0, of(ODD).repeat(1 + below(3)), below(2) ? of(QUESTIONS) : "");
    // The program takes a line's end at the end of its input for the input's.
    return raw ? parts.join("") : parts.join("").replace(/[\r\n]+$/, "");
  };
  const options = () => {
    const options = { preset: of(["greedy", "balanced", "creative", "code", "bonsai"]), seed: below(4) ? below(1000) : below(2 ** 53), maxTokens: 1 + below(of([3, 12, 60])) };
    for (const [name, values] of Object.entries(NUMBERS)) if (below(5) === 0) options[name] = of(values);
    if (below(4) === 0) options.stop = Array.from({ length: 1 + below(3) }, () => of(STOPS));
    if (below(3) === 0) options.responseFormat = { ...of(FORMATS) };
    if (options.responseFormat?.type.startsWith("json") && below(2)) options.responseFormat.whitespace = true;
    if (below(4) === 0) options.logprobs = below(5);
    if (model === SMALL) options.maxTokens += 60;
    options.overflow = of(raw ? ["error", "shift"] : ["error", "shift", "trim"]);
    return options;
  };
  // The program forgets what it left out of a full context; an engine is given all of it again.
  const turns = Array.from({ length: raw || model === SMALL ? 1 : 1 + below(3) }, () => ({ text: text(), options: options() }));
  // An argument of a program cannot hold a zero.
  const system = !raw && below(3) === 0 ? text().replaceAll("\0", "") : undefined;
  return { model, raw, system, turns };
}

/** The replies of an engine, up to one that fails. */
export async function replies(engine, { raw, system, turns }) {
  const messages = system === undefined ? [] : [{ role: "system", content: system }];
  const all = [];
  for (const { text, options } of turns) {
    try {
      messages.push({ role: "user", content: text });
      const reply = { tokens: [], logprobs: [] };
      for await (const { tokens, logprobs, finish } of raw ? engine.generate(text, options) : engine.chat(messages, options)) {
        reply.tokens.push(...tokens);
        for (const { token, logprob, top } of logprobs ?? []) reply.logprobs.push([token, logprob, ...top.flatMap((other) => [other.token, other.logprob])]);
        if (finish === undefined) continue;
        Object.assign(reply, { text: finish.text, reason: finish.reason, prompt: finish.usage.promptTokens });
        if (!raw) messages.push(finish.message);
      }
      all.push(reply);
    } catch (error) {
      all.push({ failed: error.code === undefined ? String(error) : error.message });
      break;
    }
  }
  return all;
}
