//! A UART with a terminal at its other end: typed characters are echoed, and a backspace removes the last one.

use core::fmt;

#[cfg(feature = "cmsdk-uart")]
use super::cmsdk as driver;
#[cfg(feature = "ns16550-uart")]
use super::ns16550 as driver;

pub(crate) use driver::open;

const BACKSPACE: u8 = 0x08;
const DELETE: u8 = 0x7f;
/// What Ctrl-D sends.
const END_OF_TRANSMISSION: u8 = 0x04;

/// Prints `text`. Terminals need a carriage return at the end of a line.
pub(crate) fn print(text: &str) {
    for byte in text.bytes() {
        if byte == b'\n' {
            driver::write(b'\r');
        }
        driver::write(byte);
    }
}

/// Formats a line and prints it.
pub(crate) fn print_line(line: fmt::Arguments<'_>) {
    // It cannot fail: `Terminal` does not.
    let _ = fmt::write(&mut Terminal, line);
    print("\n");
}

struct Terminal;

impl fmt::Write for Terminal {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        print(text);
        Ok(())
    }
}

macro_rules! println {
    ($($line:tt)*) => { $crate::console::print_line(format_args!($($line)*)) };
}
pub(crate) use println;
pub(crate) use println as eprintln;

/// Shows a prompt and reads a line without its end; characters that find no room are not echoed. False after Ctrl-D at its
/// beginning.
pub(crate) fn read_line<const N: usize>(line: &mut heapless::Vec<u8, N>) -> bool {
    line.clear();
    print("> ");
    loop {
        match driver::read() {
            // Of CR and LF in a row, the second finds an empty line.
            b'\r' | b'\n' if line.is_empty() => {}
            b'\r' | b'\n' => {
                print("\n");
                return true;
            }
            BACKSPACE | DELETE => erase(line),
            END_OF_TRANSMISSION if line.is_empty() => {
                print("\n");
                return false;
            }
            // Other keys that send no text.
            0..b' ' => {}
            byte => {
                if line.push(byte).is_ok() {
                    driver::write(byte);
                }
            }
        }
    }
}

/// Removes the last character, which is several bytes of UTF-8 unless it is ASCII.
fn erase<const N: usize>(line: &mut heapless::Vec<u8, N>) {
    const CONTINUATION: u8 = 0b1000_0000;
    while let Some(byte) = line.pop() {
        if byte & 0b1100_0000 != CONTINUATION {
            print("\u{8} \u{8}");
            break;
        }
    }
}

/// Stops the processor until a reset. There is no host to report the status to.
pub(crate) fn end(_status: i32) -> ! {
    loop {
        #[cfg(target_arch = "arm")]
        cortex_m::asm::wfi();
        #[cfg(target_arch = "riscv32")]
        riscv::asm::wfi();
    }
}
