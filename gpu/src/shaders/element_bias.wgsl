
// (COLS)
@group(0) @binding(1) var<storage, read> bias: array<f32>;

fn changed(x: f32, row: u32, col: u32) -> f32 {
    return x + bias[col];
}
