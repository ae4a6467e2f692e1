//! The random number generator of the sampler: PCG32, the same on every target.
#![forbid(unsafe_code)]

const MULTIPLIER: u64 = 6_364_136_223_846_793_005;

/// PCG-XSH-RR 64/32 (O'Neill, "PCG: A Family of Simple Fast Space-Efficient Statistically Good
/// Algorithms for Random Number Generation", 2014). 16 bytes of state, integer arithmetic only, so
/// one seed gives one sequence on every machine. Not for secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pcg32 {
    state: u64,
    increment: u64,
}

impl Pcg32 {
    /// The generator seeded by `seed`, on the reference implementation's demo stream (54).
    pub const fn new(seed: u64) -> Self {
        Pcg32::with_stream(seed, 54)
    }

    /// As `pcg32_srandom(seed, stream)` of the reference implementation.
    pub const fn with_stream(seed: u64, stream: u64) -> Self {
        let increment = (stream << 1) | 1;
        let state = increment.wrapping_add(seed).wrapping_mul(MULTIPLIER).wrapping_add(increment);
        Pcg32 { state, increment }
    }

    /// The next 32 bits.
    pub const fn next_u32(&mut self) -> u32 {
        let old = self.state;
        self.state = old.wrapping_mul(MULTIPLIER).wrapping_add(self.increment);
        let xorshifted = (((old >> 18) ^ old) >> 27) as u32;
        xorshifted.rotate_right((old >> 59) as u32)
    }

    /// A number in [0, 1) from 53 random bits: two outputs, the first one on top.
    pub const fn next_f64(&mut self) -> f64 {
        let high = self.next_u32() as u64;
        let low = self.next_u32() as u64;
        (((high << 32) | low) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_the_reference_implementation() {
        // The output of the reference C library's demo, seeded with 42 and stream 54.
        let mut rng = Pcg32::new(42);
        let expected = [0xa15c02b7, 0x7b47f409, 0xba1d3330, 0x83d2f293, 0xbfa4784b, 0xcbed606e];
        assert_eq!(expected, core::array::from_fn(|_| rng.next_u32()));
    }
}
