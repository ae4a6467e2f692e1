// Writes the input of a matrix product as it is.

// (tokens, units, 8)
@group(0) @binding(2) var<storage, read_write> act: array<vec4<f32>>;

fn put_unit(unit: u32, x: ptr<function, array<vec4<f32>, 8>>) {
    for (var s = 0u; s < 8u; s++) {
        act[8u * unit + s] = (*x)[s];
    }
}
