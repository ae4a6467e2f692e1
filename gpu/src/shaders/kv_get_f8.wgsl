// Cached keys and values, four numbers at once, from floats of 8 bits with MANTISSA bits of mantissa.
@group(0) @binding(0) var<storage, read> keys: array<u32>;
@group(0) @binding(1) var<storage, read> values: array<u32>;

// The bits of f16 for these numbers: of E5M2 the same ones, of E4M3 those divided by 256.
fn four(word: u32) -> vec4<f32> {
    let low = (word & 0xff00ffu) << 8u;
    let high = word & 0xff00ff00u;
    if MANTISSA == 3u {
        let a = unpack2x16float((low & 0x80008000u) | ((low & 0x7f007f00u) >> 1u));
        let b = unpack2x16float((high & 0x80008000u) | ((high & 0x7f007f00u) >> 1u));
        return vec4(a.x, b.x, a.y, b.y) * 256.0;
    }
    let a = unpack2x16float(low);
    let b = unpack2x16float(high);
    return vec4(a.x, b.x, a.y, b.y);
}

fn key4(row: u32, quad: u32) -> vec4<f32> {
    return four(keys[row * QUADS + quad]);
}

fn value4(row: u32, quad: u32) -> vec4<f32> {
    return four(values[row * QUADS + quad]);
}
