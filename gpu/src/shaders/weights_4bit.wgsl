// Codes of 4 bits: a unit of 32 is four words of 8, in which weight 4 s + b is at bit 8 b + 4 (s % 2).

alias Unit = vec4<u32>;

// (rows, UNITS)
@group(0) @binding(0) var<storage, read> codes: array<vec4<u32>>;

// The codes of weights 4 s .. 4 s + 4, one per byte.
fn code_word(unit: Unit, s: u32) -> u32 {
    let half = select(unit.xy, unit.zw, s >= 4u);
    return (select(half.x, half.y, (s & 2u) != 0u) >> (4u * (s & 1u))) & 0x0f0f0f0fu;
}
