
// sigmoid(gate) * up
fn gated(gate: vec2<f32>, up: vec2<f32>) -> vec2<f32> {
    return up / (1.0 + exp(min(-gate, vec2(88.0))));
}
