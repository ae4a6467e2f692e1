// The input of a matrix product as 8-bit integers: units of 32 with one scale.

// (tokens, UNITS, 2): activation 4 s + b is byte b of word s.
@group(0) @binding(2) var<storage, read> input_words: array<vec4<u32>>;
// (tokens, UNITS): the scale, and the sum of the integers.
@group(0) @binding(3) var<storage, read> input_scale: array<vec2<f32>>;

// The sum of 16 signed bytes.
fn words_sum(x: vec4<u32>) -> i32 {
    return dot4(x.x, 0x01010101u) + dot4(x.y, 0x01010101u) + dot4(x.z, 0x01010101u) + dot4(x.w, 0x01010101u);
}
