//! The console: semihosting, in place of a UART.

use semihosting::io::{self, Write};
use semihosting::process;
use shohin_core::Error;

/// Prints `text`. If that fails, nobody reads it.
pub(crate) fn print(text: &str) {
    let _ = io::stdout().and_then(|mut out| out.write_all(text.as_bytes()));
}

/// Prints an error: as a sentence, or without the feature `messages`, which takes 12 kB, its code.
pub(crate) fn error(error: &Error) {
    #[cfg(feature = "messages")]
    semihosting::eprintln!("error: {error}");
    #[cfg(not(feature = "messages"))]
    for text in ["error: ", error.code(), "\n"] {
        print(text);
    }
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    #[cfg(feature = "messages")]
    semihosting::eprintln!("{info}");
    #[cfg(not(feature = "messages"))]
    {
        let _ = info;
        print("panic\n");
    }
    process::exit(101)
}
