
// gelu(gate) * up, with the approximation of GELU by tanh: x / 2 (1 + tanh(u)) = x / (1 + exp(-2 u))
fn gated(gate: vec2<f32>, up: vec2<f32>) -> vec2<f32> {
    // 2 sqrt(2 / pi)
    let u = 1.5957692 * (gate + 0.044715 * gate * gate * gate);
    return gate / (1.0 + exp(min(-u, vec2(88.0)))) * up;
}
