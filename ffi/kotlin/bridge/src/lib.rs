//! The native methods of the Kotlin object `rs.shohin.Native`: the C interface through JNI.
//!
//! Texts are arrays of bytes in UTF-8, as JNI's own strings are not UTF-8. Handles are addresses; the Kotlin side closes a
//! handle only when no call uses it, which is what every `SAFETY` comment below refers to.

mod failure;
mod native;

use failure::{Failure, Result};
use shohin_ffi::code::{shohin_code, shohin_error};

/// Calls a function of the C interface.
fn call(work: impl FnOnce(*mut shohin_error) -> shohin_code) -> Result<shohin_code> {
    let mut error = shohin_error { code: 0, message: [0; 508] };
    match work(&mut error) {
        code @ (shohin_code::SHOHIN_OK | shohin_code::SHOHIN_DONE) => Ok(code),
        _ => Err(Failure::Shohin(Box::new(error))),
    }
}

/// The array that a function fills, which gets the array, its capacity and the place for its length. `expected` is tried
/// first.
fn filled<T: Clone + Default>(
    expected: usize,
    mut fill: impl FnMut(*mut T, usize, *mut usize, *mut shohin_error) -> shohin_code,
) -> Result<Vec<T>> {
    let mut found = vec![T::default(); expected];
    loop {
        let mut len = 0;
        match call(|error| fill(found.as_mut_ptr(), found.len(), &mut len, error)) {
            Err(Failure::Shohin(error)) if error.code == shohin_code::SHOHIN_SHORT_BUFFER as i32 => {
                found.resize(len, T::default());
            }
            Err(failure) => return Err(failure),
            Ok(_) => {
                found.truncate(len);
                return Ok(found);
            }
        }
    }
}
