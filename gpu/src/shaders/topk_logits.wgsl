// First round: the logits themselves.

@group(0) @binding(0) var<storage, read> logits: array<f32>;

fn candidate(i: u32) -> vec2<u32> {
    if i >= COUNT {
        return vec2(0u, 0xffffffffu);
    }
    let bits = bitcast<u32>(logits[i]);
    // NaN and -inf are no choice.
    if (bits & 0x7fffffffu) > 0x7f800000u || bits == 0xff800000u {
        return vec2(0u, i);
    }
    return vec2(bits ^ select(0x80000000u, 0xffffffffu, (bits >> 31u) == 1u), i);
}
