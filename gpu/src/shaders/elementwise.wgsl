// x = changed(x), element by element, of COLS columns from FIRST on.

// (rows, STRIDE)
@group(0) @binding(0) var<storage, read_write> x: array<f32>;

@compute @workgroup_size(64)
fn elementwise(@builtin(global_invocation_id) at: vec3<u32>) {
    if at.x < COLS {
        let i = at.y * STRIDE + FIRST + at.x;
        x[i] = changed(x[i], at.y, at.x);
    }
}
