// Scales of weights as integers times a 32-bit float of the block: for each 256 weights of a row the float, or one for d
// and one for m, then as many signed bytes per group.

// (rows, SCALE_WORDS)
@group(0) @binding(1) var<storage, read> scales: array<u32>;

// d and m of a group.
fn group_scale(row: u32, at: u32) -> vec2<f32> {
    let block = row * SCALE_WORDS + at / BLOCK_GROUPS * BLOCK_WORDS;
    let d = bitcast<vec2<f32>>(vec2(scales[block], select(0u, scales[block + 1u], SCALE_PARTS == 2u)));
    let byte = at % BLOCK_GROUPS * SCALE_PARTS;
    let bytes = scales[block + SCALE_PARTS + byte / 4u] >> (8u * (byte % 4u));
    return d * vec2<f32>(bitcast<vec2<i32>>(vec2(bytes) << vec2(24u, 16u)) >> vec2(24u));
}
