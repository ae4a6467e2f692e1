// Codes of 1 bit: a unit of 32 is one word, in which weight 4 s + b is bit 8 b + s.

alias Unit = u32;

// (rows, UNITS)
@group(0) @binding(0) var<storage, read> codes: array<u32>;

// The codes of weights 4 s .. 4 s + 4, one per byte.
fn code_word(unit: Unit, s: u32) -> u32 {
    return (unit >> s) & 0x01010101u;
}
