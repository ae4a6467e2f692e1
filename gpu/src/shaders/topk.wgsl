// The TOP most likely tokens, most likely first, the lower id first among equals: each workgroup sorts 1024 and keeps
// TOP of them; run again over the results until one workgroup is left.

// (groups, TOP): bits that order as the logits do, and the token.
@group(0) @binding(1) var<storage, read_write> kept: array<vec2<u32>>;

var<workgroup> sorted: array<vec2<u32>, 1024>;

fn before(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.x > b.x || (a.x == b.x && a.y < b.y);
}

@compute @workgroup_size(256)
fn topk(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) group: vec3<u32>) {
    for (var i = lane; i < 1024u; i += 256u) {
        sorted[i] = candidate(group.x * 1024u + i);
    }
    workgroupBarrier();
    // Bitonic: runs of `size`, alternately falling and rising, merged with steps of `stride`.
    for (var size = 2u; size <= 1024u; size *= 2u) {
        for (var stride = size / 2u; stride > 0u; stride /= 2u) {
            for (var i = lane; i < 512u; i += 256u) {
                let a = 2u * i - (i & (stride - 1u));
                let b = a + stride;
                let falling = (a & size) == 0u;
                if before(sorted[b], sorted[a]) == falling {
                    let held = sorted[a];
                    sorted[a] = sorted[b];
                    sorted[b] = held;
                }
            }
            workgroupBarrier();
        }
    }
    for (var i = lane; i < TOP; i += 256u) {
        kept[group.x * TOP + i] = sorted[i];
    }
}
