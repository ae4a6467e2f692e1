//! QEMU's `virt` board with an RV32IMAC processor: integers only.
#![no_std]
#![no_main]

use shohin_firmware::clock::Retired;

#[riscv_rt::entry]
fn main() -> ! {
    shohin_firmware::run(&mut Retired)
}
