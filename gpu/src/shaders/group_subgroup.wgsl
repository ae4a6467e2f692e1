// Sums and maxima over a workgroup: within subgroups by the hardware, between them through memory.

struct Lane {
    @builtin(local_invocation_index) index: u32,
    @builtin(subgroup_invocation_id) in_subgroup: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
}

// A subgroup has at least four lanes.
var<workgroup> group_partial: array<vec4<f32>, WORKGROUP / 4u>;

fn group_sum(value: vec4<f32>, lane: Lane) -> vec4<f32> {
    let part = subgroupAdd(value);
    if lane.in_subgroup == 0u {
        group_partial[lane.subgroup] = part;
    }
    workgroupBarrier();
    var total = group_partial[0];
    for (var i = 1u; i < lane.subgroups; i++) {
        total += group_partial[i];
    }
    workgroupBarrier();
    return total;
}

fn group_max(value: vec4<f32>, lane: Lane) -> vec4<f32> {
    let part = subgroupMax(value);
    if lane.in_subgroup == 0u {
        group_partial[lane.subgroup] = part;
    }
    workgroupBarrier();
    var total = group_partial[0];
    for (var i = 1u; i < lane.subgroups; i++) {
        total = max(total, group_partial[i]);
    }
    workgroupBarrier();
    return total;
}
