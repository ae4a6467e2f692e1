// Codes of 2 bits: a unit of 32 is two words of 16, in which weight 4 s + b is at bit 8 b + 2 s.

alias Unit = vec2<u32>;

// (rows, UNITS)
@group(0) @binding(0) var<storage, read> codes: array<vec2<u32>>;

// The codes of weights 4 s .. 4 s + 4, one per byte.
fn code_word(unit: Unit, s: u32) -> u32 {
    return (select(unit.x, unit.y, s >= 4u) >> (2u * (s & 3u))) & 0x03030303u;
}
