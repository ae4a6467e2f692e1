// Scales of weights as 32-bit floats: d, or d and m, for each group of a row.

// (rows, SCALE_WORDS)
@group(0) @binding(1) var<storage, read> scales: array<f32>;

// d and m of a group.
fn group_scale(row: u32, at: u32) -> vec2<f32> {
    let i = row * SCALE_WORDS + at * SCALE_PARTS;
    return vec2(scales[i], select(0.0, scales[i + SCALE_PARTS - 1u], SCALE_PARTS == 2u));
}
