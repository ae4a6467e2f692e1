//! The UART of Arm's Cortex-M System Design Kit (DDI0479), as in the FPGA images of MPS2 and MPS3 boards.

use core::hint::spin_loop;

/// Registers of 32 bits.
const DATA: usize = 0;
const STATE: usize = 1;
const CONTROL: usize = 2;
const DIVISOR: usize = 4;

/// Bits of [`STATE`]: a byte waits to be sent, and one was received.
const TRANSMIT_FULL: u32 = 1 << 0;
const RECEIVE_FULL: u32 = 1 << 1;

/// Both bits of [`CONTROL`] that switch it on; interrupts stay off.
const TRANSMIT_AND_RECEIVE: u32 = 0b11;

unsafe extern "C" {
    /// Set by the board's linker script: where the registers are, and, as an address, what divides the clock.
    static mut _uart: [u32; 5];
    static _uart_divisor: u8;
}

/// Address of a register.
fn register(index: usize) -> *mut u32 {
    (&raw mut _uart).cast::<u32>().wrapping_add(index)
}

/// Sets the rate and switches it on.
pub(crate) fn open() {
    let divisor = (&raw const _uart_divisor).addr() as u32;
    // SAFETY: registers of the UART, which nothing else uses.
    unsafe {
        register(DIVISOR).write_volatile(divisor);
        register(CONTROL).write_volatile(TRANSMIT_AND_RECEIVE);
    }
}

fn wait(bit: u32, value: u32) {
    // SAFETY: as in `open`.
    while unsafe { register(STATE).read_volatile() } & bit != value {
        spin_loop();
    }
}

/// Sends a byte, as soon as the one before it is on its way.
pub(crate) fn write(byte: u8) {
    wait(TRANSMIT_FULL, 0);
    // SAFETY: as in `open`.
    unsafe { register(DATA).write_volatile(byte.into()) }
}

/// Waits for a byte.
pub(crate) fn read() -> u8 {
    wait(RECEIVE_FULL, RECEIVE_FULL);
    // SAFETY: as in `open`.
    unsafe { register(DATA).read_volatile() as u8 }
}
