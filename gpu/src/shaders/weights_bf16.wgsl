// Weights as the upper halves of 32-bit floats, two per word.

// (rows, UNITS, 8)
@group(0) @binding(0) var<storage, read> codes: array<vec2<u32>>;

// Weights 4 s .. 4 s + 4 of a unit.
fn weight4(row: u32, unit: u32, s: u32) -> vec4<f32> {
    let word = codes[(row * UNITS + unit) * 8u + s].xxyy;
    return bitcast<vec4<f32>>(vec4(word.x << 16u, word.y & 0xffff0000u, word.z << 16u, word.w & 0xffff0000u));
}
