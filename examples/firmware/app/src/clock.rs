//! Counting instructions. QEMU executes one instruction per nanosecond of its clock with `-icount shift=0`, so that the
//! timers of a board count instructions, the same number in every run.

/// Counts instructions executed so far.
pub trait Clock {
    /// Instructions so far.
    fn instructions(&mut self) -> u64;
}

/// The system timer of Cortex-M processors.
#[cfg(target_arch = "arm")]
pub struct SysTick {
    timer: cortex_m::peripheral::SYST,
    hertz: u64,
    ticks: u64,
    last: u32,
}

#[cfg(target_arch = "arm")]
impl SysTick {
    const WRAP: u32 = 1 << 24;

    /// Takes the timer, which runs at `hertz`.
    pub fn new(hertz: u64) -> SysTick {
        use cortex_m::peripheral::syst::SystClkSource;
        // SAFETY: nothing else uses the peripherals.
        let mut timer = unsafe { cortex_m::Peripherals::steal() }.SYST;
        timer.set_clock_source(SystClkSource::Core);
        timer.set_reload(Self::WRAP - 1);
        timer.clear_current();
        timer.enable_counter();
        SysTick { timer, hertz, ticks: 0, last: 0 }
    }
}

#[cfg(target_arch = "arm")]
impl Clock for SysTick {
    /// Must be called at least every 2^24 ticks.
    fn instructions(&mut self) -> u64 {
        use cortex_m::peripheral::SYST;
        let _ = &self.timer;
        // It counts down.
        let now = Self::WRAP - 1 - SYST::get_current();
        self.ticks += u64::from(now.wrapping_sub(self.last) % Self::WRAP);
        self.last = now;
        self.ticks * 1_000_000_000 / self.hertz
    }
}

/// The counter of retired instructions of RISC-V processors.
#[cfg(target_arch = "riscv32")]
pub struct Retired;

#[cfg(target_arch = "riscv32")]
impl Clock for Retired {
    fn instructions(&mut self) -> u64 {
        riscv::register::minstret::read64()
    }
}
