
// max(gate, 0)^2 * up
fn gated(gate: vec2<f32>, up: vec2<f32>) -> vec2<f32> {
    let x = select(gate, vec2(0.0), gate < vec2(0.0));
    return x * x * up;
}
