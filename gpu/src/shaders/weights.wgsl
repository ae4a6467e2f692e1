// Weights as integers: codes that a scale, and in some formats a minimum, turn into numbers.

// The integers of four codes.
fn weight_values(word: u32) -> vec4<f32> {
    let code = bitcast<vec4<i32>>(vec4(word) << vec4(24u, 16u, 8u, 0u)) >> vec4(24u);
    return vec4<f32>(code * CODE_FACTOR - CODE_OFFSET);
}

// Weights 4 s .. 4 s + 4 of a unit.
fn weight4(row: u32, unit: u32, s: u32) -> vec4<f32> {
    return scaled(weight_values(code_word(codes[row * UNITS + unit], s)), row, unit, s);
}
