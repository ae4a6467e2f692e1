//! The console: semihosting, which a debug probe provides, or with the features `cmsdk-uart` and `ns16550-uart` a UART.

use shohin_core::Error;

#[cfg(feature = "cmsdk-uart")]
mod cmsdk;
#[cfg(feature = "ns16550-uart")]
mod ns16550;
#[cfg(not(feature = "uart"))]
mod semihosting;
#[cfg(feature = "uart")]
mod uart;

#[cfg(not(feature = "uart"))]
pub(crate) use self::semihosting::*;
#[cfg(feature = "uart")]
pub(crate) use self::uart::*;

/// Prints an error: as a sentence, or without the feature `messages`, which takes 56 kB, its code.
pub(crate) fn error(error: &Error) {
    #[cfg(feature = "messages")]
    eprintln!("error: {error}");
    #[cfg(not(feature = "messages"))]
    for text in ["error: ", error.code(), "\n"] {
        print(text);
    }
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    #[cfg(feature = "messages")]
    eprintln!("{info}");
    #[cfg(not(feature = "messages"))]
    {
        let _ = info;
        print("panic\n");
    }
    end(101)
}
