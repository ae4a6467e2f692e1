// RMSNorm of heads of queries and keys.

// (HEAD_DIM)
@group(0) @binding(1) var<storage, read> q_norm: array<f32>;
@group(0) @binding(4) var<storage, read> k_norm: array<f32>;

fn head_scale(lane: Lane) -> f32 {
    // A lane's own elements only: no barrier needed before.
    var sum = 0.0;
    for (var i = lane.index; i < HEAD_DIM; i += WORKGROUP) {
        sum += head[i] * head[i];
    }
    return 1.0 / sqrt(group_sum(vec4(sum, 0.0, 0.0, 0.0), lane).x / f32(HEAD_DIM) + EPS);
}

fn normed(i: u32, scale: f32, is_key: bool) -> f32 {
    return head[i] * (scale * select(q_norm[i], k_norm[i], is_key));
}
