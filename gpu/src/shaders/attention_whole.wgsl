// Attention in one go: the results are the input of the next matrix product.

fn span(positions: u32) -> u32 {
    return positions;
}

fn finish(
    lane: u32,
    group: vec3<u32>,
    first_row: u32,
    last_row: u32,
    highest: ptr<function, array<vec4<f32>, FOURS>>,
    sum: ptr<function, array<vec4<f32>, FOURS>>,
) {
    const UNITS_HEAD = HEAD_DIM / 32u;
    for (var i = lane; i < ROWS_TILE * UNITS_HEAD; i += WORKGROUP) {
        let index = i / UNITS_HEAD;
        let row = first_row + index;
        if row <= last_row {
            let s = (*sum)[index / 4u][index % 4u];
            let norm = select(1.0, 1.0 / s, s > 0.0);
            var y = array<vec4<f32>, 8>();
            for (var k = 0u; k < 8u; k++) {
                y[k] = rows[i * 8u + k] * norm;
            }
            let out_head = (sequence[2] + row / SHARE) * HEADS + group.x * SHARE + row % SHARE;
            put_unit(out_head * UNITS_HEAD + i % UNITS_HEAD, &y);
        }
    }
}
