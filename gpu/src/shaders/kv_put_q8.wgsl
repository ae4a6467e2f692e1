// Keys and values as 8-bit integers: (KV_HEADS, CAPACITY, HEAD_DIM / 4) words of each, and behind them
// (KV_HEADS, CAPACITY, HEAD_DIM / 32) scales in 32-bit floats.
@group(0) @binding(2) var<storage, read_write> keys: array<u32>;
@group(0) @binding(3) var<storage, read_write> values: array<u32>;

const SCALES = KV_HEADS * CAPACITY * HEAD_DIM / 4u;

// The scale of 32 numbers.
fn scale_of(unit: u32) -> f32 {
    var top = 0.0;
    for (var i = 0u; i < 32u; i++) {
        top = max(top, abs(head[unit * 32u + i]));
    }
    return top / 127.0;
}

fn packed(unit: u32, s: u32, scale: f32) -> u32 {
    let at = unit * 32u + s * 4u;
    let x = vec4(head[at], head[at + 1u], head[at + 2u], head[at + 3u]);
    let q = clamp(vec4<i32>(round(x * select(0.0, 1.0 / scale, scale > 1e-30))), vec4(-127), vec4(127));
    let b = bitcast<vec4<u32>>(q) & vec4(255u);
    return b.x | (b.y << 8u) | (b.z << 16u) | (b.w << 24u);
}

fn put_key(row: u32, lane: u32) {
    for (var unit = lane; unit < HEAD_DIM / 32u; unit += WORKGROUP) {
        let scale = scale_of(unit);
        for (var s = 0u; s < 8u; s++) {
            keys[row * HEAD_DIM / 4u + unit * 8u + s] = packed(unit, s, scale);
        }
        keys[SCALES + row * HEAD_DIM / 32u + unit] = bitcast<u32>(scale);
    }
}

fn put_value(row: u32, lane: u32) {
    for (var unit = lane; unit < HEAD_DIM / 32u; unit += WORKGROUP) {
        let scale = scale_of(unit);
        for (var s = 0u; s < 8u; s++) {
            values[row * HEAD_DIM / 4u + unit * 8u + s] = packed(unit, s, scale);
        }
        values[SCALES + row * HEAD_DIM / 32u + unit] = bitcast<u32>(scale);
    }
}
