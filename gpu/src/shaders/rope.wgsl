// Per head: RMSNorm and rotation of queries and keys; keys and values go into the cache.
// One workgroup a head (queries, then keys, then values) and token.

// (tokens, HEADS + 2 KV_HEADS, HEAD_DIM); queries are replaced.
@group(0) @binding(0) var<storage, read_write> qkv: array<f32>;
// (2, HEAD_DIM): weights of the queries' norm and of the keys'.
@group(0) @binding(1) var<storage, read> norms: array<f32>;
@group(0) @binding(5) var<storage, read> step: array<u32>;

var<workgroup> head: array<f32, HEAD_DIM>;

@compute @workgroup_size(WORKGROUP)
fn rope(lane: Lane, @builtin(workgroup_id) group: vec3<u32>) {
    let index = group.x;
    let token = group.y;
    let at = (token * (HEADS + 2u * KV_HEADS) + index) * HEAD_DIM;
    for (var i = lane.index; i < HEAD_DIM; i += WORKGROUP) {
        head[i] = qkv[at + i];
    }
    let position = step[1] + token;
    if index >= HEADS + KV_HEADS {
        workgroupBarrier();
        put_value((index - HEADS - KV_HEADS) * CAPACITY + position, lane.index);
        return;
    }
    // A lane's own elements only: no barrier needed before.
    var sum = 0.0;
    for (var i = lane.index; i < HEAD_DIM; i += WORKGROUP) {
        sum += head[i] * head[i];
    }
    let scale = 1.0 / sqrt(group_sum(vec4(sum, 0.0, 0.0, 0.0), lane).x / f32(HEAD_DIM) + EPS);
    let norm = select(0u, HEAD_DIM, index >= HEADS);
    let half = HEAD_DIM / 2u;
    let angle = STEP_ANGLES + token * HEAD_DIM;
    for (var i = lane.index; i < half; i += WORKGROUP) {
        let a = head[i] * (scale * norms[norm + i]);
        let b = head[i + half] * (scale * norms[norm + i + half]);
        let c = bitcast<f32>(step[angle + i]);
        let s = bitcast<f32>(step[angle + half + i]);
        head[i] = a * c - b * s;
        head[i + half] = a * s + b * c;
    }
    workgroupBarrier();
    if index < HEADS {
        for (var i = lane.index; i < HEAD_DIM; i += WORKGROUP) {
            qkv[at + i] = head[i];
        }
    } else {
        put_key((index - HEADS) * CAPACITY + position, lane.index);
    }
}
