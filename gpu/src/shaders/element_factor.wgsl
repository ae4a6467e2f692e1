
fn changed(x: f32, row: u32, col: u32) -> f32 {
    return x * FACTOR;
}
