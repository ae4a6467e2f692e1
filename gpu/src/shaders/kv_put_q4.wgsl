// Keys and values as 4-bit integers: (KV_HEADS, CAPACITY, HEAD_DIM / 8) words of each, and after them
// (KV_HEADS, CAPACITY, HEAD_DIM / 32) scales in 32-bit floats. Number i of eight is nibble i, offset by 8.
@group(0) @binding(2) var<storage, read_write> keys: array<u32>;
@group(0) @binding(3) var<storage, read_write> values: array<u32>;

const SCALES = KV_HEADS * CAPACITY * HEAD_DIM / 8u;

// The scale of 32 numbers.
fn scale_of(unit: u32) -> f32 {
    var top = 0.0;
    for (var i = 0u; i < 32u; i++) {
        top = max(top, abs(head[unit * 32u + i]));
    }
    return top / 7.0;
}

fn packed(unit: u32, s: u32, scale: f32) -> u32 {
    let inverse = select(0.0, 1.0 / scale, scale > 1e-30);
    var word = 0u;
    for (var i = 0u; i < 8u; i++) {
        let q = clamp(i32(round(head[unit * 32u + s * 8u + i] * inverse)), -7, 7) + 8;
        word |= u32(q) << (4u * i);
    }
    return word;
}

fn put_key(row: u32, lane: u32) {
    for (var unit = lane; unit < HEAD_DIM / 32u; unit += WORKGROUP) {
        let scale = scale_of(unit);
        for (var s = 0u; s < 4u; s++) {
            keys[row * HEAD_DIM / 8u + unit * 4u + s] = packed(unit, s, scale);
        }
        keys[SCALES + row * HEAD_DIM / 32u + unit] = bitcast<u32>(scale);
    }
}

fn put_value(row: u32, lane: u32) {
    for (var unit = lane; unit < HEAD_DIM / 32u; unit += WORKGROUP) {
        let scale = scale_of(unit);
        for (var s = 0u; s < 4u; s++) {
            values[row * HEAD_DIM / 8u + unit * 4u + s] = packed(unit, s, scale);
        }
        values[SCALES + row * HEAD_DIM / 32u + unit] = bitcast<u32>(scale);
    }
}
