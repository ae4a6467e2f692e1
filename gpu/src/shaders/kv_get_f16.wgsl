// Cached keys and values, four numbers at once, on devices without 16-bit arithmetic.
@group(0) @binding(0) var<storage, read> keys: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read> values: array<vec2<u32>>;

fn key4(row: u32, quad: u32) -> vec4<f32> {
    let w = keys[row * QUADS + quad];
    return vec4(unpack2x16float(w.x), unpack2x16float(w.y));
}

fn value4(row: u32, quad: u32) -> vec4<f32> {
    let w = values[row * QUADS + quad];
    return vec4(unpack2x16float(w.x), unpack2x16float(w.y));
}
