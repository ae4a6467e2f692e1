
// gate = f(gate) * up, of halves that were computed apart.

// (tokens, PAIRS)
@group(0) @binding(0) var<storage, read_write> gates: array<vec2<f32>>;
// (tokens, PAIRS)
@group(0) @binding(1) var<storage, read> ups: array<vec2<f32>>;

@compute @workgroup_size(64)
fn gate(@builtin(global_invocation_id) at: vec3<u32>) {
    if at.x >= PAIRS {
        return;
    }
    let pair = at.y * PAIRS + at.x;
    gates[pair] = gated(gates[pair], ups[pair]);
}
