// Several tokens at once: a tile of 32 tokens by 64 rows a workgroup of 128 lanes, 32 columns a step.
// Weights are unpacked to bytes once for all tokens of the tile; a lane has 4 tokens and 4 rows.
// A unit has UNIT_GROUPS groups of weights with scales of their own: 1 or 2.

@group(0) @binding(5) var<storage, read> step: array<u32>;

const GROUP_WORDS = 8u / UNIT_GROUPS;
const SCALE_LANES = 16u * UNIT_GROUPS;
const SUM_LANES = 8u * UNIT_GROUPS;
const FIRST_SCALE_LANE = 128u - SCALE_LANES;

// (8 words, 16) by four rows, and (8 words, 8) by four tokens.
var<workgroup> weight_tile: array<vec4<u32>, 128>;
var<workgroup> input_tile: array<vec4<u32>, 64>;
// (groups, 16) by four rows.
var<workgroup> weight_scales: array<UnitScales, SCALE_LANES>;
// (8) and (groups, 8) by four tokens.
var<workgroup> input_scales: array<vec4<f32>, 8>;
var<workgroup> input_sums: array<vec4<f32>, SUM_LANES>;

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
        let units = t * UNITS + u;
        weight_tile[s * 16u + four_rows] = vec4(
            code_word(codes[r.x * UNITS + u], s),
            code_word(codes[r.y * UNITS + u], s),
            code_word(codes[r.z * UNITS + u], s),
            code_word(codes[r.w * UNITS + u], s),
        );
        if lane < 64u {
            let word = lane / 8u;
            let at = units * 2u + word / 4u;
            let i = word % 4u;
            input_tile[lane] =
                vec4(input_words[at.x][i], input_words[at.y][i], input_words[at.z][i], input_words[at.w][i]);
        } else if lane < 72u {
            input_scales[lane - 64u] =
                vec4(input_scale[units.x].x, input_scale[units.y].x, input_scale[units.z].x, input_scale[units.w].x);
        } else if lane >= 80u && lane < 80u + SUM_LANES {
            let g = (lane - 80u) / 8u;
            input_sums[lane - 80u] =
                vec4(input_sum(units.x, g), input_sum(units.y, g), input_sum(units.z, g), input_sum(units.w, g));
        } else if lane >= FIRST_SCALE_LANE {
            let at = lane - FIRST_SCALE_LANE;
            weight_scales[at] = unit_scales(r, UNIT_GROUPS * u + at / 16u);
        }
        workgroupBarrier();
        let scale = input_scales[four_tokens];
        for (var g = 0u; g < UNIT_GROUPS; g++) {
            var n = array<vec4<i32>, 4>();
            for (var word = g * GROUP_WORDS; word < (g + 1u) * GROUP_WORDS; word++) {
                let w = weight_tile[word * 16u + four_rows];
                let x = input_tile[word * 8u + four_tokens];
                n[0] += vec4(dot4(x.x, w.x), dot4(x.x, w.y), dot4(x.x, w.z), dot4(x.x, w.w));
                n[1] += vec4(dot4(x.y, w.x), dot4(x.y, w.y), dot4(x.y, w.z), dot4(x.y, w.w));
                n[2] += vec4(dot4(x.z, w.x), dot4(x.z, w.y), dot4(x.z, w.z), dot4(x.z, w.w));
                n[3] += vec4(dot4(x.w, w.x), dot4(x.w, w.y), dot4(x.w, w.z), dot4(x.w, w.w));
            }
            let d = weight_scales[g * 16u + four_rows];
            let sum = input_sums[g * 8u + four_tokens];
            sums[0] += unit_product(n[0], vec2(scale.x, sum.x), d);
            sums[1] += unit_product(n[1], vec2(scale.y, sum.y), d);
            sums[2] += unit_product(n[2], vec2(scale.z, sum.z), d);
            sums[3] += unit_product(n[3], vec2(scale.w, sum.w), d);
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

// The sum of the integers of a group.
fn input_sum(unit: u32, group: u32) -> f32 {
    if UNIT_GROUPS == 1u {
        return input_scale[unit].y;
    }
    return f32(words_sum(input_words[unit * 2u + group]));
}
