// Joins the parts of flash decoding: one workgroup a head.

// (HEADS, MAX_PARTS, HEAD_DIM + 4): result, highest score, sum of weights.
@group(0) @binding(0) var<storage, read> parts: array<vec4<f32>>;

@compute @workgroup_size(32)
fn attention_combine(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let at = group.x * MAX_PARTS * (QUADS + 1u);
    let count = (sequence[1] + sequence[3]) / sequence[3];
    var highest = LOWEST;
    for (var p = 0u; p < count; p++) {
        highest = max(highest, parts[at + p * (QUADS + 1u) + QUADS].x);
    }
    var sum = 0.0;
    for (var p = 0u; p < count; p++) {
        let found = parts[at + p * (QUADS + 1u) + QUADS];
        sum += found.y * exp(found.x - highest);
    }
    let norm = select(1.0, 1.0 / sum, sum > 0.0);
    for (var unit = lane; unit < HEAD_DIM / 32u; unit += 32u) {
        var y = array<vec4<f32>, 8>();
        for (var p = 0u; p < count; p++) {
            let base = at + p * (QUADS + 1u);
            let weight = exp(parts[base + QUADS].x - highest) * norm;
            for (var k = 0u; k < 8u; k++) {
                y[k] += parts[base + unit * 8u + k] * weight;
            }
        }
        put_unit((sequence[2] * HEADS + group.x) * (HEAD_DIM / 32u) + unit, &y);
    }
}
