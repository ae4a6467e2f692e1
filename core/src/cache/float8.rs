//! Floats of 8 bits: E4M3 and E5M2.
//!
//! ```text
//! bit       7      6 ............... 0
//! E4M3      sign   4 exponent, 3 mantissa    largest 448, smallest 2^-9
//! E5M2      sign   5 exponent, 2 mantissa    largest 57344, smallest 2^-16
//! ```
//! Source: Micikevicius et al. 2022, "FP8 formats for deep learning". E4M3 has one NaN and no infinities; those of E5M2 are
//! not used, and read as NaN.
#![forbid(unsafe_code)]

use super::Element;

/// A float with `MANTISSA` bits of mantissa, 2 or 3, and the other bits, after the sign, of exponent.
///
/// Rounds to nearest even; larger magnitudes become the largest one, so that one outlier cannot turn a whole
/// conversation into NaN.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Float8<const MANTISSA: u32>;

impl<const MANTISSA: u32> Float8<MANTISSA> {
    /// Bias of the exponent.
    const BIAS: u32 = (1 << (6 - MANTISSA)) - 1;
    /// Of the largest finite value; of E4M3 the next one is NaN.
    const LARGEST: u8 = Self::NAN - 1;
    /// All of its bits are set in a NaN.
    const NAN: u8 = if MANTISSA == 2 { 0x7c } else { 0x7f };
}

impl<const MANTISSA: u32> Element for Float8<MANTISSA> {
    type Stored = u8;
    const MANTISSA: u32 = MANTISSA;

    #[inline(always)]
    fn store(value: f32) -> u8 {
        let shift = 23 - MANTISSA;
        let bits = value.to_bits();
        let largest = Self::load(Self::LARGEST).to_bits();
        let magnitude = bits & 0x7fff_ffff;
        let clamped = if magnitude > largest { largest } else { magnitude };
        // Half of the truncated part, minus one if the rest is even; the bias changes.
        let odd = clamped >> shift & 1;
        let rebias = (127 - Self::BIAS) << 23;
        let normal = clamped.wrapping_add((1 << (shift - 1)) - 1 + odd).wrapping_sub(rebias) >> shift;
        // The last bit of the sum is worth the smallest magnitude.
        let unit = f32::from_bits((127 + 24 - Self::BIAS - MANTISSA) << 23);
        let subnormal = (f32::from_bits(clamped) + unit).to_bits().wrapping_sub(unit.to_bits());
        let rounded = if clamped < (128 - Self::BIAS) << 23 { subnormal } else { normal };
        let rounded = if magnitude > f32::INFINITY.to_bits() { 0x7f } else { rounded };
        (rounded | bits >> 24 & 0x80) as u8
    }

    #[inline(always)]
    fn load(stored: u8) -> f32 {
        let bits = u32::from(stored);
        // A power of two changes the bias of the exponent and normalizes subnormals exactly.
        let scale = f32::from_bits((254 - Self::BIAS) << 23);
        let magnitude = f32::from_bits((bits & 0x7f) << (23 - MANTISSA)) * scale;
        let nan = if stored & Self::NAN == Self::NAN { 0x7fc0_0000 } else { 0 };
        f32::from_bits(magnitude.to_bits() | nan | (bits & 0x80) << 24)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// The finite values of the format, from its definition.
    fn values<const MANTISSA: u32>() -> Vec<(u8, f64)> {
        let bias = if MANTISSA == 3 { 7 } else { 15 };
        let value = |bits: u8| {
            let (exponent, mantissa) = (i32::from(bits >> MANTISSA), f64::from(bits & ((1 << MANTISSA) - 1)));
            let one = f64::from(1u32 << MANTISSA);
            match exponent {
                0 => mantissa / one * libm::exp2(f64::from(1 - bias)),
                _ => (1.0 + mantissa / one) * libm::exp2(f64::from(exponent - bias)),
            }
        };
        (0..=Float8::<MANTISSA>::LARGEST).map(|bits| (bits, value(bits))).collect()
    }

    fn check<const MANTISSA: u32>(largest: f32, smallest: f32) {
        let all = values::<MANTISSA>();
        for &(bits, value) in &all {
            assert_eq!(f64::from(Float8::<MANTISSA>::load(bits)), value, "{bits:#x}");
            assert_eq!(f64::from(Float8::<MANTISSA>::load(bits | 0x80)), -value);
            assert_eq!(Float8::<MANTISSA>::store(value as f32), bits, "{value}");
        }
        assert_eq!((all[1].1, all[all.len() - 1].1), (f64::from(smallest), f64::from(largest)));
        // Each float goes to the nearest, in the middle to the one with an even last bit.
        for pair in all.windows(2) {
            let [(low, a), (high, b)] = [pair[0], pair[1]];
            let middle = ((a + b) / 2.0) as f32;
            let even = if low % 2 == 0 { low } else { high };
            assert_eq!(Float8::<MANTISSA>::store(middle), even, "{middle}");
            assert_eq!(Float8::<MANTISSA>::store(-middle.next_down()), low | 0x80);
            assert_eq!(Float8::<MANTISSA>::store(middle.next_up()), high);
        }
        for over in [largest * 1.01, 1e30, f32::INFINITY] {
            assert_eq!(Float8::<MANTISSA>::load(Float8::<MANTISSA>::store(over)), largest);
        }
        assert_eq!(Float8::<MANTISSA>::store(-0.0), 0x80);
        assert!(Float8::<MANTISSA>::load(Float8::<MANTISSA>::store(f32::NAN)).is_nan());
    }

    #[test]
    fn values_are_those_of_the_formats() {
        check::<3>(448.0, 1.0 / 512.0);
        check::<2>(57344.0, 1.0 / 65536.0);
    }
}
