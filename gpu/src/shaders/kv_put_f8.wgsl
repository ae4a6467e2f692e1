// Keys and values as floats of 8 bits with MANTISSA bits of mantissa, four a word: (KV_HEADS, CAPACITY, HEAD_DIM / 4) of
// each. Rounded to nearest even; larger magnitudes are stored as the largest.
@group(0) @binding(2) var<storage, read_write> keys: array<u32>;
@group(0) @binding(3) var<storage, read_write> values: array<u32>;

const SHIFT = 23u - MANTISSA;
const BIAS = (1u << (6u - MANTISSA)) - 1u;
const LARGEST = select(57344.0, 448.0, MANTISSA == 3u);

fn byte_of(x: f32) -> u32 {
    let bits = bitcast<u32>(min(abs(x), LARGEST));
    let odd = (bits >> SHIFT) & 1u;
    let normal = (bits + (1u << (SHIFT - 1u)) - 1u + odd - ((127u - BIAS) << 23u)) >> SHIFT;
    // Not by adding a float, as a compiler may reorder sums: multiples of the smallest magnitude.
    let smallest = bitcast<f32>((128u - BIAS - MANTISSA) << 23u);
    let subnormal = u32(round(bitcast<f32>(bits) / smallest));
    let rounded = select(normal, subnormal, bits < ((128u - BIAS) << 23u));
    return rounded | ((bitcast<u32>(x) >> 24u) & 0x80u);
}

fn packed(i: u32) -> u32 {
    let at = 4u * i;
    return byte_of(head[at]) | (byte_of(head[at + 1u]) << 8u) | (byte_of(head[at + 2u]) << 16u)
        | (byte_of(head[at + 3u]) << 24u);
}

fn put_key(row: u32, lane: u32) {
    for (var i = lane; i < HEAD_DIM / 4u; i += WORKGROUP) {
        keys[row * HEAD_DIM / 4u + i] = packed(i);
    }
}

fn put_value(row: u32, lane: u32) {
    for (var i = lane; i < HEAD_DIM / 4u; i += WORKGROUP) {
        values[row * HEAD_DIM / 4u + i] = packed(i);
    }
}
