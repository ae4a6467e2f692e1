//! Arm MPS3 with the FPGA image AN547: a Cortex-M55.
#![no_std]
#![no_main]

use shohin_firmware::clock::SysTick;

/// The processor's clock.
const HERTZ: u64 = 32_000_000;

#[cortex_m_rt::entry]
fn main() -> ! {
    shohin_firmware::run(&mut SysTick::new(HERTZ))
}
