// The most likely token of each row: the largest of each workgroup's share, the first of equals; NaN never wins. Then
// the largest of those.

// (rows, VOCAB)
@group(0) @binding(0) var<storage, read> logits: array<f32>;
// (rows, ARGMAX_GROUPS): bits that order as the logits do, and the token.
@group(0) @binding(1) var<storage, read_write> candidates: array<vec2<u32>>;
// (rows)
@group(0) @binding(2) var<storage, read_write> best: array<vec2<u32>>;

var<workgroup> found: array<vec2<u32>, 256>;

// Bits that order as the floats do; 0 for NaN and -inf, which are no choice.
fn ordered(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let magnitude = bits & 0x7fffffffu;
    if magnitude > 0x7f800000u || bits == 0xff800000u {
        return 0u;
    }
    return bits ^ select(0x80000000u, 0xffffffffu, (bits >> 31u) == 1u);
}

fn better(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let second = b.x > a.x || (b.x == a.x && b.y < a.y);
    return select(a, b, second);
}

fn reduce(lane: u32, mine: vec2<u32>) -> vec2<u32> {
    found[lane] = mine;
    workgroupBarrier();
    for (var half = 128u; half > 0u; half /= 2u) {
        if lane < half {
            found[lane] = better(found[lane], found[lane + half]);
        }
        workgroupBarrier();
    }
    return found[0];
}

@compute @workgroup_size(256)
fn argmax(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) group: vec3<u32>) {
    var mine = vec2(0u, 0xffffffffu);
    for (var i = group.x * 256u + lane; i < VOCAB; i += 256u * ARGMAX_GROUPS) {
        mine = better(mine, vec2(ordered(logits[group.y * VOCAB + i]), i));
    }
    let all = reduce(lane, mine);
    if lane == 0u {
        candidates[group.y * ARGMAX_GROUPS + group.x] = all;
    }
}

@compute @workgroup_size(256)
fn argmax_last(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) group: vec3<u32>) {
    var mine = vec2(0u, 0xffffffffu);
    for (var i = lane; i < ARGMAX_GROUPS; i += 256u) {
        mine = better(mine, candidates[group.x * ARGMAX_GROUPS + i]);
    }
    let all = reduce(lane, mine);
    if lane == 0u {
        best[group.x] = all;
    }
}
