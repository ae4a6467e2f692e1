// Attention of one token over a part of the positions (flash decoding); attention_combine.wgsl joins the parts.

// (HEADS, MAX_PARTS, HEAD_DIM + 4): result, highest score, sum of weights.
@group(0) @binding(2) var<storage, read_write> parts: array<vec4<f32>>;

fn span(positions: u32) -> u32 {
    return sequence[3];
}

fn finish(
    lane: u32,
    group: vec3<u32>,
    first_row: u32,
    last_row: u32,
    highest: ptr<function, array<vec4<f32>, FOURS>>,
    sum: ptr<function, array<vec4<f32>, FOURS>>,
) {
    for (var i = lane; i < ROWS_TILE * QUADS; i += WORKGROUP) {
        let index = i / QUADS;
        let row = first_row + index;
        if row <= last_row {
            let at = ((group.x * SHARE + row) * MAX_PARTS + group.z) * (QUADS + 1u);
            parts[at + i % QUADS] = rows[i];
            if i % QUADS == 0u {
                parts[at + QUADS] = vec4((*highest)[index / 4u][index % 4u], (*sum)[index / 4u][index % 4u], 0.0, 0.0);
            }
        }
    }
}
