// The sum of 16 signed bytes.
fn words_sum(x: vec4<u32>) -> i32 {
    return dot4(x.x, 0x01010101u) + dot4(x.y, 0x01010101u) + dot4(x.z, 0x01010101u) + dot4(x.w, 0x01010101u);
}
