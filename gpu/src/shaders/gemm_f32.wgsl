// Several tokens at once, with 32-bit floats: the tile of gemm_int8.wgsl.

@group(0) @binding(5) var<storage, read> step: array<u32>;

// (32 columns, 16) by four rows, and (32 columns, 8) by four tokens.
var<workgroup> weight_tile: array<vec4<f32>, 512>;
var<workgroup> input_tile: array<vec4<f32>, 256>;

@compute @workgroup_size(128)
fn gemm(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let last = step[0] - 1u;
    let rows = group.x * 64u;
    let tokens = group.y * 32u;
    let four_rows = lane % 16u;
    let four_tokens = lane / 16u;
    // What this lane brings in: word `lane / 16` of four rows, and of four tokens.
    let bring = rows + four_rows * 4u;
    let r = vec4(weight_row(bring), weight_row(bring + 1u), weight_row(bring + 2u), weight_row(bring + 3u));
    let s = lane / 16u;
    let base = tokens + lane % 8u * 4u;
    let t = min(vec4(base, base + 1u, base + 2u, base + 3u), vec4(last));
    var sums = array<vec4<f32>, 4>();
    for (var u = 0u; u < UNITS; u++) {
        let w = transpose(mat4x4<f32>(
            weight4(r.x, u, s),
            weight4(r.y, u, s),
            weight4(r.z, u, s),
            weight4(r.w, u, s),
        ));
        for (var k = 0u; k < 4u; k++) {
            weight_tile[(s * 4u + k) * 16u + four_rows] = w[k];
        }
        if lane < 64u {
            let word = lane / 8u;
            let at = (t * UNITS + u) * 8u + word;
            let x = transpose(mat4x4<f32>(input[at.x], input[at.y], input[at.z], input[at.w]));
            for (var k = 0u; k < 4u; k++) {
                input_tile[(word * 4u + k) * 8u + lane % 8u] = x[k];
            }
        }
        workgroupBarrier();
        for (var k = 0u; k < 32u; k++) {
            let w = weight_tile[k * 16u + four_rows];
            let x = input_tile[k * 8u + four_tokens];
            sums[0] += x.x * w;
            sums[1] += x.y * w;
            sums[2] += x.z * w;
            sums[3] += x.w * w;
        }
        workgroupBarrier();
    }
    for (var i = 0u; i < 4u; i++) {
        let token = tokens + four_tokens * 4u + i;
        if token <= last {
            put(token, bring, sums[i]);
        }
    }
}
