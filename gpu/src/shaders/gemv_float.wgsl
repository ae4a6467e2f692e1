// A matrix of floats times floats: four rows a workgroup, whose lanes go along the row.

@compute @workgroup_size(WORKGROUP)
fn gemv(lane: Lane, @builtin(workgroup_id) group: vec3<u32>) {
    let first = group.x * 4u;
    let token = group.y;
    let r = vec4(weight_row(first), weight_row(first + 1u), weight_row(first + 2u), weight_row(first + 3u));
    var sums = vec4<f32>();
    for (var i = lane.index; i < UNITS * 8u; i += WORKGROUP) {
        let x = input[token * UNITS * 8u + i];
        let u = i / 8u;
        let s = i % 8u;
        sums += vec4(
            dot(weight4(r.x, u, s), x),
            dot(weight4(r.y, u, s), x),
            dot(weight4(r.z, u, s), x),
            dot(weight4(r.w, u, s), x),
        );
    }
    let total = group_sum(sums, lane);
    if lane.index == 0u {
        put(token, first, total);
    }
}
