// Weights as 16-bit floats, two per word.

// (rows, UNITS, 8)
@group(0) @binding(0) var<storage, read> codes: array<vec2<u32>>;

// Weights 4 s .. 4 s + 4 of a unit.
fn weight4(row: u32, unit: u32, s: u32) -> vec4<f32> {
    let word = codes[(row * UNITS + unit) * 8u + s];
    return vec4(unpack2x16float(word.x), unpack2x16float(word.y));
}
