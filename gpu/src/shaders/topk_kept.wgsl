// Later rounds: what the round before has kept.

@group(0) @binding(0) var<storage, read> before_kept: array<vec2<u32>>;

fn candidate(i: u32) -> vec2<u32> {
    if i >= COUNT {
        return vec2(0u, 0xffffffffu);
    }
    return before_kept[i];
}
