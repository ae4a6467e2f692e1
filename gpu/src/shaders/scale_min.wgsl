// Scales and minima of weights: both f16 in one word, for 32 << GROUP_SHIFT weights of a row.
// w = code d + m

// (rows, SCALE_WORDS)
@group(0) @binding(1) var<storage, read> scales: array<u32>;

// d and m of a unit in four rows.
struct UnitScales {
    d: vec4<f32>,
    m: vec4<f32>,
}

fn scale_min(row: u32, unit: u32) -> vec2<f32> {
    return unpack2x16float(scales[row * SCALE_WORDS + (unit >> GROUP_SHIFT)]);
}

fn unit_scales(r: vec4<u32>, u: u32) -> UnitScales {
    let a = scale_min(r.x, u);
    let b = scale_min(r.y, u);
    let c = scale_min(r.z, u);
    let d = scale_min(r.w, u);
    return UnitScales(vec4(a.x, b.x, c.x, d.x), vec4(a.y, b.y, c.y, d.y));
}

fn scaled(values: vec4<f32>, row: u32, unit: u32) -> vec4<f32> {
    let s = scale_min(row, unit);
    return values * s.x + s.y;
}

// The product of a unit in four rows with integers, of which `n` is the product of the codes. `input` has the integers'
// scale and sum.
fn unit_product(n: vec4<i32>, input: vec2<f32>, w: UnitScales) -> vec4<f32> {
    return (vec4<f32>(n) * w.d + input.y * w.m) * input.x;
}

// The same with floats, of which `n` is the product with `weight_values`, and `sum` the sum.
fn unit_product_f32(n: vec4<f32>, sum: f32, w: UnitScales) -> vec4<f32> {
    return n * w.d + sum * w.m;
}
