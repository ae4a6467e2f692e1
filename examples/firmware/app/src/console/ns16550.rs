//! A UART with the registers of National Semiconductor's 16550, one byte apart, as on QEMU's `virt` board.

use core::hint::spin_loop;

/// Registers of 8 bits. While [`SET_DIVISOR`] is set, the first two hold the divisor's bytes.
const DATA: usize = 0;
const INTERRUPTS: usize = 1;
const FIFO: usize = 2;
const LINE: usize = 3;
const STATE: usize = 5;

/// Bits of [`STATE`]: a byte was received, and there is room to send one.
const RECEIVED: u8 = 1 << 0;
const TRANSMIT_EMPTY: u8 = 1 << 5;

/// Values of [`LINE`]: 8 bits, no parity, one stop bit.
const EIGHT_BITS: u8 = 0b11;
const SET_DIVISOR: u8 = 1 << 7;

unsafe extern "C" {
    /// Set by the board's linker script: where the registers are, and, as an address, what divides the clock.
    static mut _uart: [u8; 8];
    static _uart_divisor: u8;
}

/// Address of a register.
fn register(index: usize) -> *mut u8 {
    (&raw mut _uart).cast::<u8>().wrapping_add(index)
}

/// Sets the rate, switches interrupts off and the FIFOs on.
pub(crate) fn open() {
    let [low, high, ..] = (&raw const _uart_divisor).addr().to_le_bytes();
    // SAFETY: registers of the UART, which nothing else uses.
    unsafe {
        register(LINE).write_volatile(SET_DIVISOR | EIGHT_BITS);
        register(DATA).write_volatile(low);
        register(INTERRUPTS).write_volatile(high);
        register(LINE).write_volatile(EIGHT_BITS);
        register(INTERRUPTS).write_volatile(0);
        register(FIFO).write_volatile(1);
    }
}

fn wait(bit: u8) {
    // SAFETY: as in `open`.
    while unsafe { register(STATE).read_volatile() } & bit == 0 {
        spin_loop();
    }
}

/// Sends a byte, as soon as there is room.
pub(crate) fn write(byte: u8) {
    wait(TRANSMIT_EMPTY);
    // SAFETY: as in `open`.
    unsafe { register(DATA).write_volatile(byte) }
}

/// Waits for a byte.
pub(crate) fn read() -> u8 {
    wait(RECEIVED);
    // SAFETY: as in `open`.
    unsafe { register(DATA).read_volatile() }
}
