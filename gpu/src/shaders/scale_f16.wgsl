// Scales of weights as 16-bit floats: d, or d and m, for each group of a row.

// (rows, SCALE_WORDS)
@group(0) @binding(1) var<storage, read> scales: array<u32>;

// d and m of a group.
fn group_scale(row: u32, at: u32) -> vec2<f32> {
    let i = at * SCALE_PARTS;
    let pair = unpack2x16float(scales[row * SCALE_WORDS + i / 2u]);
    return vec2(select(pair.x, pair.y, (i & 1u) == 1u), select(0.0, pair.y, SCALE_PARTS == 2u));
}
