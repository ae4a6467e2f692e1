// A packed matrix times 8-bit integers: four rows a workgroup, whose lanes go along the row.

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
        let d = unit_scales(r, u);
        let n = vec4(unit_dot(w0, low, high), unit_dot(w1, low, high), unit_dot(w2, low, high), unit_dot(w3, low, high));
        sums += unit_product(n, scale, d);
    }
    let total = group_sum(sums, lane);
    if lane.index == 0u {
        put(token, first, total);
    }
}

// Codes times integers.
fn unit_dot(unit: Unit, low: vec4<u32>, high: vec4<u32>) -> i32 {
    return dot4(low.x, code_word(unit, 0u)) + dot4(low.y, code_word(unit, 1u))
        + dot4(low.z, code_word(unit, 2u)) + dot4(low.w, code_word(unit, 3u))
        + dot4(high.x, code_word(unit, 4u)) + dot4(high.y, code_word(unit, 5u))
        + dot4(high.z, code_word(unit, 6u)) + dot4(high.w, code_word(unit, 7u));
}
