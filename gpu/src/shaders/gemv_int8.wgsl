// A packed matrix times 8-bit integers: four rows a workgroup, whose lanes go along the row.
// A unit has UNIT_GROUPS groups of weights with scales of their own: 1 or 2.

@compute @workgroup_size(WORKGROUP)
fn gemv(lane: Lane, @builtin(workgroup_id) group: vec3<u32>) {
    let first = group.x * 4u;
    let token = group.y;
    let r = vec4(weight_row(first), weight_row(first + 1u), weight_row(first + 2u), weight_row(first + 3u));
    var sums = vec4<f32>();
    for (var u = lane.index; u < UNITS; u += WORKGROUP) {
        let at = token * UNITS + u;
        let low = input_words[2u * at];
        let high = input_words[2u * at + 1u];
        let scale = input_scale[at];
        // Four loads on their way at once.
        let w0 = codes[r.x * UNITS + u];
        let w1 = codes[r.y * UNITS + u];
        let w2 = codes[r.z * UNITS + u];
        let w3 = codes[r.w * UNITS + u];
        let d = unit_scales(r, UNIT_GROUPS * u);
        let n = vec4(half_dot(w0, low, 0u), half_dot(w1, low, 0u), half_dot(w2, low, 0u), half_dot(w3, low, 0u));
        let m = vec4(half_dot(w0, high, 4u), half_dot(w1, high, 4u), half_dot(w2, high, 4u), half_dot(w3, high, 4u));
        if UNIT_GROUPS == 1u {
            sums += unit_product(n + m, scale, d);
        } else {
            let sum = f32(words_sum(low));
            sums += unit_product(n, vec2(scale.x, sum), d);
            sums += unit_product(m, vec2(scale.x, scale.y - sum), unit_scales(r, UNIT_GROUPS * u + 1u));
        }
    }
    let total = group_sum(sums, lane);
    if lane.index == 0u {
        put(token, first, total);
    }
}

// Codes 4 s .. 4 s + 16 times integers.
fn half_dot(unit: Unit, x: vec4<u32>, s: u32) -> i32 {
    return dot4(x.x, code_word(unit, s)) + dot4(x.y, code_word(unit, s + 1u))
        + dot4(x.z, code_word(unit, s + 2u)) + dot4(x.w, code_word(unit, s + 3u));
}
