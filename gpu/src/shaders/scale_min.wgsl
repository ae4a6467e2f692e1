// Weights with the scales and minima that `group_scale` reads, for UNIT_GROUPS groups per unit, or one for
// 1 << GROUP_SHIFT units.
// w = (CODE_FACTOR code - CODE_OFFSET) d + m

// d and m of a group in four rows.
struct UnitScales {
    d: vec4<f32>,
    m: vec4<f32>,
}

// Those of group `i` if the groups of a unit are counted one by one.
fn unit_scales(r: vec4<u32>, i: u32) -> UnitScales {
    let at = i >> GROUP_SHIFT;
    let a = group_scale(r.x, at);
    let b = group_scale(r.y, at);
    let c = group_scale(r.z, at);
    let d = group_scale(r.w, at);
    return UnitScales(vec4(a.x, b.x, c.x, d.x), vec4(a.y, b.y, c.y, d.y));
}

fn scaled(values: vec4<f32>, row: u32, unit: u32, s: u32) -> vec4<f32> {
    let w = group_scale(row, (unit * UNIT_GROUPS + s * UNIT_GROUPS / 8u) >> GROUP_SHIFT);
    return values * w.x + w.y;
}

// The product of a group in four rows with integers, of which `n` is the product of the codes. `input` has the integers'
// scale and sum.
fn unit_product(n: vec4<i32>, input: vec2<f32>, w: UnitScales) -> vec4<f32> {
    let exact = vec4<f32>(n * CODE_FACTOR) - vec4(input.y * f32(CODE_OFFSET));
    return (exact * w.d + input.y * w.m) * input.x;
}

// The same with floats, of which `n` is the product with `weight_values`, and `sum` the sum.
fn unit_product_f32(n: vec4<f32>, sum: f32, w: UnitScales) -> vec4<f32> {
    return n * w.d + sum * w.m;
}
