//! The model file, in flash: beside the program, so that either can be replaced alone.

unsafe extern "C" {
    /// The first byte of the region that the board's linker script sets aside, and the byte after it.
    static _model_start: u8;
    static _model_end: u8;
}

/// The region of flash that begins with a GGUF file.
pub(crate) fn flash() -> &'static [u8] {
    let (start, end) = (&raw const _model_start, &raw const _model_end);
    // SAFETY: the linker script promises readable memory between the two, which nobody writes.
    unsafe { core::slice::from_raw_parts(start, end as usize - start as usize) }
}
