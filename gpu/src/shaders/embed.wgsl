// The embedding's rows of the tokens, as far as they are in this part of the matrix.

@group(0) @binding(5) var<storage, read> step: array<u32>;
// (tokens, UNITS, 8)
@group(0) @binding(4) var<storage, read_write> x: array<vec4<f32>>;

@compute @workgroup_size(64)
fn embed(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let token = group.x;
    let id = step[STEP_TOKENS + token];
    if id < FIRST_ROW || id >= FIRST_ROW + ROWS {
        return;
    }
    let row = id - FIRST_ROW;
    for (var u = lane; u < UNITS; u += 64u) {
        for (var s = 0u; s < 8u; s++) {
            x[(token * UNITS + u) * 8u + s] = weight4(row, u, s);
        }
    }
}
