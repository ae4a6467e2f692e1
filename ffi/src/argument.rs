//! What C passes: texts, arrays, and structs with a size.

use crate::code::{Failure, Result, shohin_code};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ffi::{CStr, c_char};
use core::mem::{MaybeUninit, align_of, size_of};
use core::slice;

/// The length of a text that ends with a NUL.
pub const SHOHIN_CSTR: usize = usize::MAX;

/// A text of an array.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct shohin_text {
    /// Its bytes.
    pub text: *const c_char,
    /// Their number, or `SHOHIN_CSTR`.
    pub len: usize,
}

/// Structs of a later version are at most this long.
const LONGEST: usize = 4096;

fn null(name: &str) -> Failure {
    Failure::new(shohin_code::SHOHIN_NULL, format!("the {name} is NULL"))
}

/// An array; `name` is for messages.
///
/// # Safety
/// `start` is NULL or points to `len` elements.
pub(crate) unsafe fn array<'a, T>(start: *const T, len: usize, name: &str) -> Result<&'a [T]> {
    if start.is_null() {
        return Err(null(name));
    }
    let most = isize::MAX as usize / size_of::<T>().max(1);
    if len > most || !start.is_aligned() {
        let message = format!("the {name} has {len} elements at {start:p}, expected at most {most}, aligned");
        return Err(Failure::new(shohin_code::SHOHIN_ARGUMENT, message));
    }
    // SAFETY: not NULL, aligned, not longer than an object can be, and the caller vouches for the rest.
    Ok(unsafe { slice::from_raw_parts(start, len) })
}

/// A text in UTF-8.
///
/// # Safety
/// `start` is NULL, or points to `len` bytes, or to a text that ends with a NUL if `len` is [`SHOHIN_CSTR`].
pub(crate) unsafe fn text<'a>(start: *const c_char, len: usize, name: &str) -> Result<&'a str> {
    let bytes = if len == SHOHIN_CSTR && !start.is_null() {
        // SAFETY: the caller vouches for the NUL.
        unsafe { CStr::from_ptr(start) }.to_bytes()
    } else {
        // SAFETY: the caller vouches for it.
        unsafe { array(start.cast::<u8>(), len, name) }?
    };
    core::str::from_utf8(bytes).map_err(|wrong| {
        let at = wrong.valid_up_to();
        Failure::new(shohin_code::SHOHIN_UTF8, format!("the {name} is not UTF-8 at byte {at}"))
    })
}

/// An array of texts, which may be NULL if there are none.
///
/// # Safety
/// As [`array`], and each element as [`text`].
pub(crate) unsafe fn texts(start: *const shohin_text, count: usize, name: &str) -> Result<Vec<String>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: the caller vouches for it.
    let texts = unsafe { array(start, count, name) }?;
    // SAFETY: the same.
    texts.iter().map(|each| Ok(unsafe { text(each.text, each.len, name) }?.into())).collect()
}

/// Writes to `len` that a buffer of `capacity` elements needs `needed`.
///
/// # Safety
/// `len` is NULL or can be written.
pub(crate) unsafe fn lacks_room<T>(capacity: usize, needed: usize, len: *mut usize) -> Result<T> {
    if len.is_null() {
        return Err(null("place for the length"));
    }
    // SAFETY: the caller vouches for it.
    unsafe { len.write_unaligned(needed) };
    let message = format!("the buffer has room for {capacity} elements, {needed} are needed");
    Err(Failure::new(shohin_code::SHOHIN_SHORT_BUFFER, message))
}

/// Copies `found` to a buffer of `capacity` elements, and its length to `len`. Without room, only the length is written.
///
/// # Safety
/// `buffer` is NULL or has room for `capacity` elements; `len` is NULL or can be written.
pub(crate) unsafe fn copy_out<T: Copy>(
    found: &[T],
    buffer: *mut T,
    capacity: usize,
    len: *mut usize,
) -> Result<shohin_code> {
    if found.len() > capacity {
        // SAFETY: the caller vouches for it.
        return unsafe { lacks_room(capacity, found.len(), len) };
    }
    if len.is_null() {
        return Err(null("place for the length"));
    }
    // SAFETY: the caller vouches for it.
    unsafe { len.write_unaligned(found.len()) };
    if buffer.is_null() && !found.is_empty() {
        return Err(null("buffer"));
    }
    if !found.is_empty() {
        // SAFETY: there is room, and the caller's buffer does not overlap memory of the library. Bytes, as the
        // buffer need not be aligned.
        unsafe {
            let bytes = size_of_val(found);
            found.as_ptr().cast::<u8>().copy_to_nonoverlapping(buffer.cast::<u8>(), bytes);
        }
    }
    Ok(shohin_code::SHOHIN_OK)
}

/// A struct of numbers and pointers whose first field is its size: versions of the library add fields at its end.
///
/// # Safety
/// `repr(C)`, the first field is `size: usize`, and every pattern of bytes is valid.
pub(crate) unsafe trait Versioned: Copy + Default {
    /// The name in messages.
    const NAME: &'static str;
    /// Bytes of the first version: once fields are added, the offset of the first of these.
    const FIRST: usize;
}

/// Refuses the size of a struct that is shorter than its first version, or ends inside a field.
fn check_size<T: Versioned>(size: usize) -> Result<()> {
    if (T::FIRST..=LONGEST).contains(&size) && size.is_multiple_of(align_of::<T>()) {
        return Ok(());
    }
    let expected = size_of::<T>();
    let message = format!("the size of the {} is {size}, expected {expected}: set its field `size`", T::NAME);
    Err(Failure::new(shohin_code::SHOHIN_SIZE, message))
}

/// The `size` of a struct.
///
/// # Safety
/// `from` is NULL or points to a struct that begins with its size.
unsafe fn size_at<T: Versioned>(from: *const T) -> Result<usize> {
    if from.is_null() {
        return Err(null(T::NAME));
    }
    // SAFETY: the caller vouches for it.
    let size = unsafe { from.cast::<usize>().read_unaligned() };
    check_size::<T>(size).map(|()| size)
}

/// Reads a struct of any version; fields that it does not have are the defaults.
///
/// # Safety
/// `from` is NULL or points to as many bytes as its `size`.
pub(crate) unsafe fn read<T: Versioned>(from: *const T) -> Result<T> {
    // SAFETY: the caller vouches for it.
    let size = unsafe { size_at(from) }?;
    let known = size.min(size_of::<T>());
    // SAFETY: the caller vouches for `size` bytes; all are set, as `shohin_*_options_default` sets them.
    let later = unsafe { slice::from_raw_parts(from.cast::<u8>().add(known), size - known) };
    if later.iter().any(|byte| *byte != 0) {
        let message = format!("the {} sets fields that this version of the library does not have", T::NAME);
        return Err(Failure::new(shohin_code::SHOHIN_SIZE, message));
    }
    let mut value = T::default();
    // SAFETY: `known` bytes are in both, and every pattern of bytes is valid.
    unsafe {
        from.cast::<MaybeUninit<u8>>().copy_to_nonoverlapping((&raw mut value).cast(), known);
    }
    Ok(value)
}

/// Writes a struct to one of any version: the fields that it has, and its size.
///
/// # Safety
/// `to` is NULL or points to as many bytes as its `size`.
pub(crate) unsafe fn write<T: Versioned>(to: *mut T, value: T) -> Result<()> {
    // SAFETY: the caller vouches for it.
    let size = unsafe { size_at(to) }?;
    // SAFETY: the same.
    unsafe { write_sized(to, size, value) };
    Ok(())
}

/// As [`write()`] to a struct whose size is not set.
///
/// # Safety
/// `to` has `size` bytes, at least those of a `usize`.
pub(crate) unsafe fn write_sized<T: Versioned>(to: *mut T, size: usize, value: T) {
    let known = size.min(size_of::<T>());
    // SAFETY: the caller vouches for `size` bytes.
    unsafe {
        to.cast::<u8>().write_bytes(0, size);
        (&raw const value).cast::<MaybeUninit<u8>>().copy_to_nonoverlapping(to.cast(), known);
        to.cast::<usize>().write_unaligned(size);
    }
}

/// Writes the default to a struct of `size` bytes.
///
/// # Safety
/// `to` is NULL or has `size` bytes.
pub(crate) unsafe fn write_default<T: Versioned>(to: *mut T, size: usize) -> Result<shohin_code> {
    if to.is_null() {
        return Err(null(T::NAME));
    }
    check_size::<T>(size)?;
    // SAFETY: the caller vouches for it.
    unsafe { write_sized(to, size, T::default()) };
    Ok(shohin_code::SHOHIN_OK)
}
