// Codes of 4 bits, stored as in weights_4bit.wgsl: indices of the 16 signed bytes of LEVELS.

alias Unit = vec4<u32>;

// (rows, UNITS)
@group(0) @binding(0) var<storage, read> codes: array<vec4<u32>>;

fn level(index: u32) -> u32 {
    return (LEVELS[index >> 2u] >> (8u * (index & 3u))) & 255u;
}

// The integers of weights 4 s .. 4 s + 4, one per byte.
fn code_word(unit: Unit, s: u32) -> u32 {
    let half = select(unit.xy, unit.zw, s >= 4u);
    let word = select(half.x, half.y, (s & 2u) != 0u) >> (4u * (s & 1u));
    let i = (vec4(word) >> vec4(0u, 8u, 16u, 24u)) & vec4(15u);
    return level(i.x) | (level(i.y) << 8u) | (level(i.z) << 16u) | (level(i.w) << 24u);
}
