// A model that generates a given text: its layers add nothing, and its head maps each token to its successor.
const DIM = 320;

/** GPT-2's letters for bytes. */
const LETTERS = (() => {
  let next = 256;
  const shown = (byte) => (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
  return Array.from({ length: 256 }, (_, byte) => String.fromCodePoint(shown(byte) ? byte : next++));
})();
const spell = (text) => [...new TextEncoder().encode(text)].map((byte) => LETTERS[byte]).join("");

/**
 * A GGUF file in which `pieces` follow each other after a chat's prompt and the last one ends the reply. A piece
 * `{ control }` is a token of its own kind. All pieces differ.
 */
export function scripted(pieces) {
  const control = ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"];
  const texts = pieces.filter((piece) => !control.includes(piece));
  const tokens = [...LETTERS, ...control, ...texts.map(spell)];
  const types = tokens.map((_, id) => (id < 256 ? 1 : id < 258 ? 3 : id < 262 ? 4 : 1));
  const idOf = (piece) => tokens.indexOf(control.includes(piece) ? piece : spell(piece));
  // A prompt that lets the model think ends in a line break.
  const follows = new Map();
  const chain = [idOf("\n"), ...pieces.map(idOf), 257];
  chain.forEach((id, i) => i > 0 && follows.set(chain[i - 1], id));

  const parts = [];
  const push = (bytes) => parts.push(bytes);
  const u32 = (n) => push(new Uint8Array(Uint32Array.of(n).buffer));
  const u64 = (n) => push(new Uint8Array(BigUint64Array.of(BigInt(n)).buffer));
  const text = (s) => {
    const bytes = new TextEncoder().encode(s);
    u64(bytes.length);
    push(bytes);
  };
  const vocab = tokens.length;
  const template = "<|im_start|> <|im_end|> enable_thinking last_query_index <tool_response>";
  const keys = [
    ["general.architecture", "qwen3"],
    ["general.name", "scripted"],
    ["qwen3.embedding_length", DIM],
    ["qwen3.block_count", 1],
    ["qwen3.attention.head_count", 1],
    ["qwen3.attention.head_count_kv", 1],
    ["qwen3.attention.key_length", 32],
    ["qwen3.attention.value_length", 32],
    ["qwen3.feed_forward_length", 32],
    ["qwen3.context_length", 4096],
    ["qwen3.attention.layer_norm_rms_epsilon", { f32: 1e-6 }],
    ["qwen3.rope.freq_base", { f32: 10000 }],
    ["tokenizer.ggml.model", "gpt2"],
    ["tokenizer.ggml.pre", "qwen2"],
    ["tokenizer.ggml.tokens", { strings: tokens }],
    ["tokenizer.ggml.token_type", { i32s: types }],
    ["tokenizer.ggml.merges", { strings: [] }],
    ["tokenizer.ggml.eos_token_id", 257],
    ["tokenizer.chat_template", template],
  ];
  const ones = (n) => new Float32Array(n).fill(1);
  const zeros = (n) => new Float32Array(n);
  const embedding = zeros(vocab * DIM);
  const head = zeros(vocab * DIM);
  for (let id = 0; id < vocab; id++) embedding[id * DIM + id] = 1;
  for (const [id, next] of follows) head[next * DIM + id] = 1;
  const tensors = [
    ["token_embd.weight", [DIM, vocab], embedding],
    ["output.weight", [DIM, vocab], head],
    ["output_norm.weight", [DIM], ones(DIM)],
    ["blk.0.attn_norm.weight", [DIM], ones(DIM)],
    ["blk.0.ffn_norm.weight", [DIM], ones(DIM)],
    ["blk.0.attn_q_norm.weight", [32], ones(32)],
    ["blk.0.attn_k_norm.weight", [32], ones(32)],
    ["blk.0.attn_q.weight", [DIM, 32], zeros(DIM * 32)],
    ["blk.0.attn_k.weight", [DIM, 32], zeros(DIM * 32)],
    ["blk.0.attn_v.weight", [DIM, 32], zeros(DIM * 32)],
    ["blk.0.attn_output.weight", [32, DIM], zeros(32 * DIM)],
    ["blk.0.ffn_gate.weight", [DIM, 32], zeros(DIM * 32)],
    ["blk.0.ffn_up.weight", [DIM, 32], zeros(DIM * 32)],
    ["blk.0.ffn_down.weight", [32, DIM], zeros(32 * DIM)],
  ];
  push(new TextEncoder().encode("GGUF"));
  u32(3);
  u64(tensors.length);
  u64(keys.length);
  for (const [key, value] of keys) {
    text(key);
    if (typeof value === "string") (u32(8), text(value));
    else if (typeof value === "number") (u32(4), u32(value));
    else if ("f32" in value) (u32(6), push(new Uint8Array(Float32Array.of(value.f32).buffer)));
    else if ("strings" in value) (u32(9), u32(8), u64(value.strings.length), value.strings.forEach(text));
    else (u32(9), u32(5), u64(value.i32s.length), push(new Uint8Array(Int32Array.from(value.i32s).buffer)));
  }
  let offset = 0;
  for (const [name, shape, data] of tensors) {
    text(name);
    u32(shape.length);
    shape.forEach(u64);
    u32(0);
    u64(offset);
    offset += Math.ceil(data.byteLength / 32) * 32;
  }
  const pad = () => push(new Uint8Array((32 - (parts.reduce((sum, part) => sum + part.length, 0) % 32)) % 32));
  pad();
  for (const [, , data] of tensors) {
    push(new Uint8Array(data.buffer));
    pad();
  }
  return new Uint8Array(Buffer.concat(parts));
}
