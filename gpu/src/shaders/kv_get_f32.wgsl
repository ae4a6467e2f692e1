// Cached keys and values, four numbers at once.
@group(0) @binding(0) var<storage, read> keys: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> values: array<vec4<f32>>;

fn key4(row: u32, quad: u32) -> vec4<f32> {
    return keys[row * QUADS + quad];
}

fn value4(row: u32, quad: u32) -> vec4<f32> {
    return values[row * QUADS + quad];
}
