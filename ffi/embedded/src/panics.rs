//! Panics, which end in a function of the program.

use crate::code::Result;

/// Runs a call. Nothing catches a panic here.
pub(crate) fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    work()
}

#[cfg(target_os = "none")]
mod handler {
    use core::ffi::c_char;
    use core::fmt::{self, Write};
    use core::panic::PanicInfo;

    unsafe extern "C" {
        /// Defined by the program; it does not return.
        fn shohin_panicked(message: *const c_char, len: usize);
    }

    /// A message, cut off where the room ends, and a NUL.
    struct Message {
        bytes: [u8; 256],
        len: usize,
    }

    impl Write for Message {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let room = self.bytes.len() - 1 - self.len;
            let fits = &text.as_bytes()[..text.floor_char_boundary(room)];
            self.bytes[self.len..][..fits.len()].copy_from_slice(fits);
            self.len += fits.len();
            Ok(())
        }
    }

    #[panic_handler]
    fn panic(info: &PanicInfo<'_>) -> ! {
        let mut message = Message { bytes: [0; 256], len: 0 };
        let _ = write!(message, "{info}");
        // SAFETY: a text of this length.
        unsafe { shohin_panicked(message.bytes.as_ptr().cast(), message.len) };
        loop {
            core::hint::spin_loop();
        }
    }
}
