// Per head: norm and rotation of queries and keys; keys and values go into the cache.
// One workgroup per head (queries, then keys, then values) and row of the sequence.

// (rows of the batch, STRIDE): (HEADS, HEAD_DIM) queries from Q_FIRST on, which are replaced, (KV_HEADS, HEAD_DIM) keys
// from K_FIRST and values from V_FIRST on.
@group(0) @binding(0) var<storage, read_write> qkv: array<f32>;
@group(0) @binding(5) var<storage, read> step: array<u32>;

var<workgroup> head: array<f32, HEAD_DIM>;

@compute @workgroup_size(WORKGROUP)
fn rope(lane: Lane, @builtin(workgroup_id) group: vec3<u32>) {
    let index = group.x;
    let row = sequence[2] + group.y;
    let position = sequence[1] + group.y;
    let is_key = index >= HEADS;
    let is_value = index >= HEADS + KV_HEADS;
    let in_kind = index - select(select(0u, HEADS, is_key), HEADS + KV_HEADS, is_value);
    let at = row * STRIDE + select(select(Q_FIRST, K_FIRST, is_key), V_FIRST, is_value) + in_kind * HEAD_DIM;
    for (var i = lane.index; i < HEAD_DIM; i += WORKGROUP) {
        head[i] = qkv[at + i];
    }
    if is_value {
        workgroupBarrier();
        put_value(in_kind * CAPACITY + position, lane.index);
        return;
    }
    let scale = head_scale(lane);
    let angle = STEP_ANGLES + row * HEAD_DIM;
    for (var i = lane.index; i < PAIRS; i += WORKGROUP) {
        let first = pair_first(i);
        let second = pair_second(i);
        let a = normed(first, scale, is_key);
        let b = normed(second, scale, is_key);
        let c = bitcast<f32>(step[angle + i]);
        let s = bitcast<f32>(step[angle + HEAD_DIM / 2u + i]);
        head[first] = a * c - b * s;
        head[second] = a * s + b * c;
    }
    // Elements that are not rotated.
    for (var i = 2u * PAIRS + lane.index; i < HEAD_DIM; i += WORKGROUP) {
        head[i] = normed(i, scale, is_key);
    }
    workgroupBarrier();
    if is_key {
        put_key(in_kind * CAPACITY + position, lane.index);
    } else {
        for (var i = lane.index; i < HEAD_DIM; i += WORKGROUP) {
            qkv[at + i] = head[i];
        }
    }
}
