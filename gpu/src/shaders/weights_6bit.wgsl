// Codes of 6 bits: a unit of 32 is four words of low halves as in weights_4bit.wgsl, then two of high pairs as in
// weights_2bit.wgsl.

struct Unit {
    first: vec2<u32>,
    second: vec2<u32>,
    high: vec2<u32>,
}

// (rows, UNITS)
@group(0) @binding(0) var<storage, read> codes: array<Unit>;

// The codes of weights 4 s .. 4 s + 4, one per byte.
fn code_word(unit: Unit, s: u32) -> u32 {
    let half = select(unit.first, unit.second, s >= 4u);
    let low = (select(half.x, half.y, (s & 2u) != 0u) >> (4u * (s & 1u))) & 0x0f0f0f0fu;
    let high = (select(unit.high.x, unit.high.y, s >= 4u) >> (2u * (s & 3u))) & 0x03030303u;
    return low | (high << 4u);
}
