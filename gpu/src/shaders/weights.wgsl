// Scales of weights: f16, two a word, each for 32 << GROUP_SHIFT weights of a row.

// (rows, SCALE_WORDS)
@group(0) @binding(1) var<storage, read> scales: array<u32>;

fn weight_scale(row: u32, unit: u32) -> f32 {
    let at = unit >> GROUP_SHIFT;
    let pair = unpack2x16float(scales[row * SCALE_WORDS + at / 2u]);
    return select(pair.x, pair.y, (at & 1u) == 1u);
}

// The weights of four codes without their scale.
fn weight_values(word: u32) -> vec4<f32> {
    let code = (vec4(word) >> vec4(0u, 8u, 16u, 24u)) & vec4(255u);
    return vec4<f32>(vec4<i32>(code) * CODE_FACTOR - 1);
}
