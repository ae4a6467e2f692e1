// Four products of signed bytes and their sum, for devices without the instruction.
fn dot4(a: u32, b: u32) -> i32 {
    let at = vec4<u32>(24u, 16u, 8u, 0u);
    let x = bitcast<vec4<i32>>(vec4(a) << at) >> vec4(24u);
    let y = bitcast<vec4<i32>>(vec4(b) << at) >> vec4(24u);
    return dot(x, y);
}
