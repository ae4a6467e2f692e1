// Four products of bytes and their sum in one instruction.
fn dot4(a: u32, b: u32) -> i32 {
    return dot4I8Packed(a, b);
}
