//! Arm MPS2 with the FPGA image AN500: a Cortex-M7.
#![no_std]
#![no_main]

use shohin_firmware::clock::SysTick;

/// The processor's clock.
const HERTZ: u64 = 25_000_000;

#[cortex_m_rt::entry]
fn main() -> ! {
    shohin_firmware::run(&mut SysTick::new(HERTZ))
}
