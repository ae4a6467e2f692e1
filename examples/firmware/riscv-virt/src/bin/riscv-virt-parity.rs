//! Compares the kernels of this processor with the portable reference.
#![no_std]
#![no_main]

#[riscv_rt::entry]
fn main() -> ! {
    shohin_firmware::parity()
}
