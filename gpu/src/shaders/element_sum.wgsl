
// (rows, OTHER_STRIDE), of which COLS columns from OTHER_FIRST on are added.
@group(0) @binding(1) var<storage, read> other: array<f32>;

fn changed(x: f32, row: u32, col: u32) -> f32 {
    return x + other[row * OTHER_STRIDE + OTHER_FIRST + col];
}
