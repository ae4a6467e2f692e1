//! The chat with the model on a card, not in flash.
#![no_std]
#![no_main]

use shohin_firmware::clock::SysTick;

/// The processor's clock.
const HERTZ: u64 = 25_000_000;

#[cortex_m_rt::entry]
fn main() -> ! {
    shohin_firmware::run_from_card(&mut SysTick::new(HERTZ))
}
