// Scales of weights: f16, two per word, each for 32 << GROUP_SHIFT weights of a row.
// w = (CODE_FACTOR code - CODE_OFFSET) d

// (rows, SCALE_WORDS)
@group(0) @binding(1) var<storage, read> scales: array<u32>;

// d of a unit in four rows.
alias UnitScales = vec4<f32>;

fn weight_scale(row: u32, unit: u32) -> f32 {
    let at = unit >> GROUP_SHIFT;
    let pair = unpack2x16float(scales[row * SCALE_WORDS + at / 2u]);
    return select(pair.x, pair.y, (at & 1u) == 1u);
}

fn unit_scales(r: vec4<u32>, u: u32) -> UnitScales {
    return vec4(weight_scale(r.x, u), weight_scale(r.y, u), weight_scale(r.z, u), weight_scale(r.w, u));
}

fn scaled(values: vec4<f32>, row: u32, unit: u32, s: u32) -> vec4<f32> {
    return values * weight_scale(row, unit);
}

// The product of a unit in four rows with integers, of which `n` is the product of the codes. `input` has the integers'
// scale and sum. Exact before the scale: at most 32 * 127 * 128.
fn unit_product(n: vec4<i32>, input: vec2<f32>, w: UnitScales) -> vec4<f32> {
    return (vec4<f32>(n * CODE_FACTOR) - vec4(input.y * f32(CODE_OFFSET))) * (input.x * w);
}

// The same with floats, of which `n` is the product with `weight_values`, and `sum` the sum.
fn unit_product_f32(n: vec4<f32>, sum: f32, w: UnitScales) -> vec4<f32> {
    return n * w;
}
