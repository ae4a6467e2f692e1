// The input of a matrix product as 32-bit floats.

// (tokens, UNITS, 8)
@group(0) @binding(2) var<storage, read> input: array<vec4<f32>>;
