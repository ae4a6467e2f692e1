// Cached keys and values, four numbers at once, on devices with 16-bit floats.
@group(0) @binding(0) var<storage, read> keys: array<vec4<f16>>;
@group(0) @binding(1) var<storage, read> values: array<vec4<f16>>;

fn key4(row: u32, quad: u32) -> vec4<f32> {
    return vec4<f32>(keys[row * QUADS + quad]);
}

fn value4(row: u32, quad: u32) -> vec4<f32> {
    return vec4<f32>(values[row * QUADS + quad]);
}
