// Writes the input of a matrix product as 8-bit integers: units of 32 with the scale max / 127.

// (tokens, units, 2): activation 4 s + b is byte b of word s.
@group(0) @binding(2) var<storage, read_write> act_words: array<vec4<u32>>;
// (tokens, units): the scale, and the sum of the integers.
@group(0) @binding(3) var<storage, read_write> act_scale: array<vec2<f32>>;

fn put_unit(unit: u32, x: ptr<function, array<vec4<f32>, 8>>) {
    var largest = vec4<f32>();
    for (var s = 0u; s < 8u; s++) {
        largest = max(largest, abs((*x)[s]));
    }
    let top = max(max(largest.x, largest.y), max(largest.z, largest.w));
    // So small that its reciprocal may overflow: counts as zero.
    let inverse = select(0.0, 127.0 / top, top > 1e-30);
    var sum = vec4<i32>();
    var words = array<u32, 8>();
    for (var s = 0u; s < 8u; s++) {
        let q = clamp(vec4<i32>(round((*x)[s] * inverse)), vec4(-127), vec4(127));
        sum += q;
        let b = bitcast<vec4<u32>>(q) & vec4(255u);
        words[s] = b.x | (b.y << 8u) | (b.z << 16u) | (b.w << 24u);
    }
    act_words[2u * unit] = vec4(words[0], words[1], words[2], words[3]);
    act_words[2u * unit + 1u] = vec4(words[4], words[5], words[6], words[7]);
    act_scale[unit] = vec2(top / 127.0, f32(sum.x + sum.y + sum.z + sum.w));
}
