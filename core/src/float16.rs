//! Branch-free conversions between `f32` and `f16`, so that loops over them vectorize on machines without
//! conversion instructions too.
#![forbid(unsafe_code)]

use half::f16;

/// Rounds to nearest even; magnitudes over 65504 become 65504, so that one outlier cannot turn a whole
/// conversation into NaN.
#[inline(always)]
pub(crate) fn from_f32(value: f32) -> f16 {
    const LEAST_NORMAL: u32 = (127 - 14) << 23;
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let largest = 65504.0f32.to_bits();
    let clamped = if magnitude > largest { largest } else { magnitude };
    // Half of the truncated part, minus one if the rest is even; the bias changes from 127 to 15.
    let odd = clamped >> 13 & 1;
    let normal = clamped.wrapping_add(0xfff + odd).wrapping_sub((127 - 15) << 23) >> 13;
    // The last bit of the sum is worth 2^-24, the smallest subnormal half.
    let subnormal = (f32::from_bits(clamped) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let rounded = if clamped < LEAST_NORMAL { subnormal } else { normal };
    let half = if magnitude > f32::INFINITY.to_bits() { 0x7e00 } else { rounded };
    f16::from_bits((half | bits >> 16 & 0x8000) as u16)
}

/// The value of `half`; infinities, which [`from_f32`] never makes, become NaN.
#[inline(always)]
pub(crate) fn to_f32(half: f16) -> f32 {
    let bits = u32::from(half.to_bits());
    // 2^112 changes the exponent bias from 15 to 127 and normalizes subnormals exactly.
    let magnitude = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23);
    let nan = if bits & 0x7c00 == 0x7c00 { 0x7fc0_0000 } else { 0 };
    f32::from_bits(magnitude.to_bits() | nan | (bits & 0x8000) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_convert_like_ieee() {
        for bits in 0..=u16::MAX {
            let want = f16::from_bits(bits);
            if want.is_finite() {
                assert_eq!(to_f32(want).to_bits(), want.to_f32().to_bits(), "{bits:#x}");
                assert_eq!(from_f32(want.to_f32()).to_bits(), bits);
            }
        }
        let mut bits = 0u32;
        while bits < 0xffff_0000 {
            let x = f32::from_bits(bits);
            if !x.is_nan() {
                assert_eq!(from_f32(x), f16::from_f32(x.clamp(-65504.0, 65504.0)), "{bits:#x}");
            }
            bits += 0x3ff;
        }
        assert!(to_f32(from_f32(f32::NAN)).is_nan());
        assert_eq!(to_f32(from_f32(1e9)), 65504.0);
        assert_eq!(to_f32(from_f32(f32::NEG_INFINITY)), -65504.0);
    }
}
