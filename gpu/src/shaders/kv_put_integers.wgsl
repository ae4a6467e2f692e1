// Keys and values as integers of KV_BITS: (KV_HEADS, CAPACITY, HEAD_DIM / NUMBERS) words of each, and after
// them (KV_HEADS, CAPACITY, HEAD_DIM / 32) scales in 32-bit floats.
@group(0) @binding(2) var<storage, read_write> keys: array<u32>;
@group(0) @binding(3) var<storage, read_write> values: array<u32>;

// Numbers in a word.
const NUMBERS = 32u / KV_BITS;
const WORDS = HEAD_DIM / NUMBERS;
const SCALES = KV_HEADS * CAPACITY * WORDS;
const LARGEST = (1 << (KV_BITS - 1u)) - 1;

// The scale of 32 numbers.
fn scale_of(unit: u32) -> f32 {
    var top = 0.0;
    for (var i = 0u; i < 32u; i++) {
        top = max(top, abs(head[unit * 32u + i]));
    }
    return top / f32(LARGEST);
}

fn packed(word: u32, scale: f32) -> u32 {
    let inverse = select(0.0, 1.0 / scale, scale > 1e-30);
    var codes = 0u;
    for (var i = 0u; i < NUMBERS; i++) {
        let q = clamp(i32(round(head[word * NUMBERS + i] * inverse)), -LARGEST, LARGEST);
        codes |= (u32(q) & ((1u << KV_BITS) - 1u)) << (KV_BITS * i);
    }
    return codes;
}

fn put_key(row: u32, lane: u32) {
    for (var unit = lane; unit < HEAD_DIM / 32u; unit += WORKGROUP) {
        let scale = scale_of(unit);
        for (var word = unit * KV_BITS; word < (unit + 1u) * KV_BITS; word++) {
            keys[row * WORDS + word] = packed(word, scale);
        }
        keys[SCALES + row * HEAD_DIM / 32u + unit] = bitcast<u32>(scale);
    }
}

fn put_value(row: u32, lane: u32) {
    for (var unit = lane; unit < HEAD_DIM / 32u; unit += WORKGROUP) {
        let scale = scale_of(unit);
        for (var word = unit * KV_BITS; word < (unit + 1u) * KV_BITS; word++) {
            values[row * WORDS + word] = packed(word, scale);
        }
        values[SCALES + row * HEAD_DIM / 32u + unit] = bitcast<u32>(scale);
    }
}
