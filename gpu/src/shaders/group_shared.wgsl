// Sums and maxima over a workgroup, through workgroup memory. WORKGROUP is a power of two.

struct Lane {
    @builtin(local_invocation_index) index: u32,
}

var<workgroup> group_partial: array<vec4<f32>, WORKGROUP>;

fn group_sum(value: vec4<f32>, lane: Lane) -> vec4<f32> {
    group_partial[lane.index] = value;
    workgroupBarrier();
    for (var half = WORKGROUP / 2u; half > 0u; half /= 2u) {
        if lane.index < half {
            group_partial[lane.index] += group_partial[lane.index + half];
        }
        workgroupBarrier();
    }
    let total = group_partial[0];
    workgroupBarrier();
    return total;
}

fn group_max(value: vec4<f32>, lane: Lane) -> vec4<f32> {
    group_partial[lane.index] = value;
    workgroupBarrier();
    for (var half = WORKGROUP / 2u; half > 0u; half /= 2u) {
        if lane.index < half {
            group_partial[lane.index] = max(group_partial[lane.index], group_partial[lane.index + half]);
        }
        workgroupBarrier();
    }
    let total = group_partial[0];
    workgroupBarrier();
    return total;
}
