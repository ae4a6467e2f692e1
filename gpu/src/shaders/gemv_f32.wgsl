// A packed matrix times 32-bit floats: four rows a workgroup, whose lanes go along the row.

@compute @workgroup_size(WORKGROUP)
fn gemv(lane: Lane, @builtin(workgroup_id) group: vec3<u32>) {
    let first = group.x * 4u;
    let token = group.y;
    let r = vec4(weight_row(first), weight_row(first + 1u), weight_row(first + 2u), weight_row(first + 3u));
    var sums = vec4<f32>();
    for (var u = lane.index; u < UNITS; u += WORKGROUP) {
        let at = token * UNITS + u;
        let w0 = codes[r.x * UNITS + u];
        let w1 = codes[r.y * UNITS + u];
        let w2 = codes[r.z * UNITS + u];
        let w3 = codes[r.w * UNITS + u];
        let d = unit_scales(r, u);
        var part = vec4<f32>();
        var sum = vec4<f32>();
        for (var s = 0u; s < 8u; s++) {
            let x = input[8u * at + s];
            sum += x;
            part += vec4(
                dot(weight_values(code_word(w0, s)), x),
                dot(weight_values(code_word(w1, s)), x),
                dot(weight_values(code_word(w2, s)), x),
                dot(weight_values(code_word(w3, s)), x),
            );
        }
        sums += unit_product_f32(part, sum.x + sum.y + sum.z + sum.w, d);
    }
    let total = group_sum(sums, lane);
    if lane.index == 0u {
        put(token, first, total);
    }
}
