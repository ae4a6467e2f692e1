// Codes of 8 bits: a unit of 32 is eight words; weight 4 s + b is byte b of word s.

struct Unit {
    low: vec4<u32>,
    high: vec4<u32>,
}

// (rows, UNITS)
@group(0) @binding(0) var<storage, read> codes: array<Unit>;

// The codes of weights 4 s .. 4 s + 4, one per byte.
fn code_word(unit: Unit, s: u32) -> u32 {
    let four = select(unit.low, unit.high, s >= 4u);
    let two = select(four.xy, four.zw, (s & 2u) != 0u);
    return select(two.x, two.y, (s & 1u) != 0u);
}
