// Cached keys and values, four numbers at once; scales lie behind the integers.
@group(0) @binding(0) var<storage, read> keys: array<u32>;
@group(0) @binding(1) var<storage, read> values: array<u32>;

const SCALES = KV_HEADS * CAPACITY * QUADS;

fn four(word: u32) -> vec4<f32> {
    return vec4<f32>(bitcast<vec4<i32>>(vec4(word) << vec4(24u, 16u, 8u, 0u)) >> vec4(24u));
}

fn key4(row: u32, quad: u32) -> vec4<f32> {
    let scale = bitcast<f32>(keys[SCALES + row * (QUADS / 8u) + quad / 8u]);
    return four(keys[row * QUADS + quad]) * scale;
}

fn value4(row: u32, quad: u32) -> vec4<f32> {
    let scale = bitcast<f32>(values[SCALES + row * (QUADS / 8u) + quad / 8u]);
    return four(values[row * QUADS + quad]) * scale;
}
