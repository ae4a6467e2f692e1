// Keys and values as 16-bit floats, two a word: (KV_HEADS, CAPACITY, HEAD_DIM / 2) of each. Larger ones than 65504
// are stored as that.
@group(0) @binding(2) var<storage, read_write> keys: array<u32>;
@group(0) @binding(3) var<storage, read_write> values: array<u32>;

fn packed(i: u32) -> u32 {
    return pack2x16float(clamp(vec2(head[2u * i], head[2u * i + 1u]), vec2(-65504.0), vec2(65504.0)));
}

fn put_key(row: u32, lane: u32) {
    for (var i = lane; i < HEAD_DIM / 2u; i += WORKGROUP) {
        keys[row * HEAD_DIM / 2u + i] = packed(i);
    }
}

fn put_value(row: u32, lane: u32) {
    for (var i = lane; i < HEAD_DIM / 2u; i += WORKGROUP) {
        values[row * HEAD_DIM / 2u + i] = packed(i);
    }
}
