// Several tokens at once: a tile of 32 tokens by 64 rows a workgroup of 128 lanes, 32 columns a step.
// Weights are unpacked to bytes once for all tokens of the tile; a lane has 4 tokens and 4 rows.

@group(0) @binding(5) var<storage, read> step: array<u32>;

// (8 words, 16) by four rows, and (8 words, 8) by four tokens.
var<workgroup> weight_tile: array<vec4<u32>, 128>;
var<workgroup> input_tile: array<vec4<u32>, 64>;
var<workgroup> weight_scales: array<UnitScales, 16>;
var<workgroup> input_scales: array<vec4<f32>, 8>;
var<workgroup> input_sums: array<vec4<f32>, 8>;

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
        weight_tile[s * 16u + four_rows] = vec4(
            code_word(codes[r.x * UNITS + u], s),
            code_word(codes[r.y * UNITS + u], s),
            code_word(codes[r.z * UNITS + u], s),
            code_word(codes[r.w * UNITS + u], s),
        );
        if lane < 64u {
            let word = lane / 8u;
            let at = (t * UNITS + u) * 2u + word / 4u;
            let i = word % 4u;
            input_tile[lane] =
                vec4(input_words[at.x][i], input_words[at.y][i], input_words[at.z][i], input_words[at.w][i]);
        } else if lane < 72u {
            let at = t * UNITS + u;
            let a = input_scale[at.x];
            let b = input_scale[at.y];
            let c = input_scale[at.z];
            let d = input_scale[at.w];
            input_scales[lane - 64u] = vec4(a.x, b.x, c.x, d.x);
            input_sums[lane - 64u] = vec4(a.y, b.y, c.y, d.y);
        } else if lane >= 112u {
            weight_scales[lane - 112u] = unit_scales(r, u);
        }
        workgroupBarrier();
        var n = array<vec4<i32>, 4>();
        for (var word = 0u; word < 8u; word++) {
            let w = weight_tile[word * 16u + four_rows];
            let x = input_tile[word * 8u + four_tokens];
            n[0] += vec4(dot4(x.x, w.x), dot4(x.x, w.y), dot4(x.x, w.z), dot4(x.x, w.w));
            n[1] += vec4(dot4(x.y, w.x), dot4(x.y, w.y), dot4(x.y, w.z), dot4(x.y, w.w));
            n[2] += vec4(dot4(x.z, w.x), dot4(x.z, w.y), dot4(x.z, w.z), dot4(x.z, w.w));
            n[3] += vec4(dot4(x.w, w.x), dot4(x.w, w.y), dot4(x.w, w.z), dot4(x.w, w.w));
        }
        let d = weight_scales[four_rows];
        let scale = input_scales[four_tokens];
        let sum = input_sums[four_tokens];
        sums[0] += unit_product(n[0], vec2(scale.x, sum.x), d);
        sums[1] += unit_product(n[1], vec2(scale.y, sum.y), d);
        sums[2] += unit_product(n[2], vec2(scale.z, sum.z), d);
        sums[3] += unit_product(n[3], vec2(scale.w, sum.w), d);
        workgroupBarrier();
    }
    for (var i = 0u; i < 4u; i++) {
        let token = tokens + four_tokens * 4u + i;
        if token <= last {
            put(token, bring, sums[i]);
        }
    }
}
