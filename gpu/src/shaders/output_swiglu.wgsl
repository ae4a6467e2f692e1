// h = silu(gate) * up, with the rows of gate and those of up below one another in one matrix.

// (tokens, OUTPUT_STRIDE)
@group(0) @binding(4) var<storage, read_write> output: array<f32>;

// Rows are taken in turn from the upper and the lower half, so that a lane gets both parts of a result.
fn weight_row(row: u32) -> u32 {
    let at = min(row, ROWS - 1u);
    return at / 2u + (at & 1u) * (ROWS / 2u);
}

// Rows `row` .. `row + 4` of one token.
fn put(token: u32, row: u32, value: vec4<f32>) {
    let at = token * OUTPUT_STRIDE + FIRST_ROW + row / 2u;
    let y = gated(value.xz, value.yw);
    if row < ROWS {
        output[at] = y.x;
    }
    if row + 2u < ROWS {
        output[at + 1u] = y.y;
    }
}
