// Weights as 32-bit floats.

// (rows, UNITS, 8)
@group(0) @binding(0) var<storage, read> codes: array<vec4<f32>>;

// Weights 4 s .. 4 s + 4 of a unit.
fn weight4(row: u32, unit: u32, s: u32) -> vec4<f32> {
    return codes[(row * UNITS + unit) * 8u + s];
}
