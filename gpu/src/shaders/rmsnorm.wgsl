// y = FACTOR * weight * x / sqrt(mean(x^2) + eps) for each token, written as the input of a matrix product.

// (tokens, UNITS, 8)
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
// (UNITS, 8)
@group(0) @binding(1) var<storage, read> weight: array<vec4<f32>>;

@compute @workgroup_size(WORKGROUP)
fn rmsnorm(lane: Lane, @builtin(workgroup_id) group: vec3<u32>) {
    let token = source_row(group.x);
    var sum = vec4<f32>();
    for (var i = lane.index; i < UNITS * 8u; i += WORKGROUP) {
        let v = x[token * UNITS * 8u + i];
        sum += v * v;
    }
    let total = group_sum(sum, lane);
    let scale = FACTOR / sqrt((total.x + total.y + total.z + total.w) / f32(UNITS * 32u) + EPS);
    for (var u = lane.index; u < UNITS; u += WORKGROUP) {
        var y = array<vec4<f32>, 8>();
        for (var s = 0u; s < 8u; s++) {
            y[s] = x[(token * UNITS + u) * 8u + s] * scale * weight[u * 8u + s];
        }
        put_unit(group.x * UNITS + u, &y);
    }
}
