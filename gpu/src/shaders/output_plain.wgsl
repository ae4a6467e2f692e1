// y = W x, or y += W x: a block's result joins the residual stream.

// (tokens, OUTPUT_STRIDE)
@group(0) @binding(4) var<storage, read_write> output: array<f32>;

fn weight_row(row: u32) -> u32 {
    return min(row, ROWS - 1u);
}

// Rows `row` .. `row + 4` of one token.
fn put(token: u32, row: u32, value: vec4<f32>) {
    let at = token * OUTPUT_STRIDE + FIRST_ROW + row;
    for (var i = 0u; i < 4u; i++) {
        if row + i < ROWS {
            if ADD {
                output[at + i] += value[i];
            } else {
                output[at + i] = value[i];
            }
        }
    }
}
