// Floats to the input of a matrix product.

// (tokens, UNITS, 8)
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;

@compute @workgroup_size(64)
fn quantize(@builtin(global_invocation_id) at: vec3<u32>) {
    if at.x >= UNITS {
        return;
    }
    let unit = at.y * UNITS + at.x;
    var y = array<vec4<f32>, 8>();
    for (var s = 0u; s < 8u; s++) {
        y[s] = x[unit * 8u + s];
    }
    put_unit(unit, &y);
}
