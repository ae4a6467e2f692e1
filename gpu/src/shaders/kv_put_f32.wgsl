// Keys and values as 32-bit floats: (KV_HEADS, CAPACITY, HEAD_DIM) of each.
@group(0) @binding(2) var<storage, read_write> keys: array<f32>;
@group(0) @binding(3) var<storage, read_write> values: array<f32>;

fn put_key(row: u32, lane: u32) {
    for (var i = lane; i < HEAD_DIM; i += WORKGROUP) {
        keys[row * HEAD_DIM + i] = head[i];
    }
}

fn put_value(row: u32, lane: u32) {
    for (var i = lane; i < HEAD_DIM; i += WORKGROUP) {
        values[row * HEAD_DIM + i] = head[i];
    }
}
