// Heads as they are.

fn head_scale(lane: Lane) -> f32 {
    workgroupBarrier();
    return 1.0;
}

fn normed(i: u32, scale: f32, is_key: bool) -> f32 {
    return head[i];
}
