//! Names of tensors in files.
#![forbid(unsafe_code)]

use alloc::string::String;

/// The tensor `name` of a block, or of none, in the file, with `suffix`. Formatted by hand: firmware has no other use for `format!`.
pub(super) fn tensor_name(layer: Option<usize>, name: &str, suffix: &str) -> String {
    let Some(layer) = layer else { return [name, suffix].concat() };
    let mut digits = String::new();
    let mut unit = 1;
    while layer / unit >= 10 {
        unit *= 10;
    }
    while unit > 0 {
        digits.push(char::from(b'0' + (layer / unit % 10) as u8));
        unit /= 10;
    }
    ["blk.", &digits, ".", name, suffix].concat()
}
