//! Compares the kernels of this processor with the portable reference.
#![no_std]
#![no_main]

#[cortex_m_rt::entry]
fn main() -> ! {
    shohin_firmware::parity()
}
