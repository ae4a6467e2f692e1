// Cached keys and values, four numbers at once; scales lie after the integers of KV_BITS.
@group(0) @binding(0) var<storage, read> keys: array<u32>;
@group(0) @binding(1) var<storage, read> values: array<u32>;

// Fours of numbers in a word.
const QUADS_PER_WORD = 8u / KV_BITS;
const SCALES = KV_HEADS * CAPACITY * QUADS / QUADS_PER_WORD;

fn four(word: u32, quad: u32) -> vec4<f32> {
    let first = quad % QUADS_PER_WORD * 4u;
    let left = vec4(32u - KV_BITS) - KV_BITS * (vec4(first) + vec4(0u, 1u, 2u, 3u));
    return vec4<f32>(bitcast<vec4<i32>>(vec4(word) << left) >> vec4(32u - KV_BITS));
}

fn key4(row: u32, quad: u32) -> vec4<f32> {
    let scale = bitcast<f32>(keys[SCALES + row * (QUADS / 8u) + quad / 8u]);
    return four(keys[row * (QUADS / QUADS_PER_WORD) + quad / QUADS_PER_WORD], quad) * scale;
}

fn value4(row: u32, quad: u32) -> vec4<f32> {
    let scale = bitcast<f32>(values[SCALES + row * (QUADS / 8u) + quad / 8u]);
    return four(values[row * (QUADS / QUADS_PER_WORD) + quad / QUADS_PER_WORD], quad) * scale;
}
