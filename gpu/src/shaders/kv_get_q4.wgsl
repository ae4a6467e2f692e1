// Cached keys and values, four numbers at once; scales lie after the integers.
@group(0) @binding(0) var<storage, read> keys: array<u32>;
@group(0) @binding(1) var<storage, read> values: array<u32>;

const SCALES = KV_HEADS * CAPACITY * QUADS / 2u;

fn four(word: u32, quad: u32) -> vec4<f32> {
    let nibbles = (vec4(word >> (16u * (quad & 1u))) >> vec4(0u, 4u, 8u, 12u)) & vec4(15u);
    return vec4<f32>(nibbles) - 8.0;
}

fn key4(row: u32, quad: u32) -> vec4<f32> {
    let scale = bitcast<f32>(keys[SCALES + row * (QUADS / 8u) + quad / 8u]);
    return four(keys[row * (QUADS / 2u) + quad / 2u], quad) * scale;
}

fn value4(row: u32, quad: u32) -> vec4<f32> {
    let scale = bitcast<f32>(values[SCALES + row * (QUADS / 8u) + quad / 8u]);
    return four(values[row * (QUADS / 2u) + quad / 2u], quad) * scale;
}
