//! Scales as blocks store them.
#![forbid(unsafe_code)]

/// The f16 at byte `at`, as f32; every block scale is read by this function.
#[inline(always)]
pub(crate) fn f16_at(bytes: &[u8], at: usize) -> f32 {
    let half = u32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    // Without branches: the library's conversion takes longer than 32 products.
    let magnitude = (half & 0x7fff) << 13;
    let least_normal = (127 - 14) << 23;
    let wide = match magnitude >> 23 {
        0 => (f32::from_bits(magnitude + least_normal) - f32::from_bits(least_normal)).to_bits(),
        31 => magnitude + ((255 - 31) << 23),
        _ => magnitude + ((127 - 15) << 23),
    };
    f32::from_bits(wide | (half & 0x8000) << 16)
}

#[cfg(test)]
mod tests {
    use super::f16_at;
    use half::f16;

    #[test]
    fn scales_are_ieee_halves() {
        for bits in 0..=u16::MAX {
            let (found, expected) = (f16_at(&bits.to_le_bytes(), 0), f16::from_bits(bits).to_f32());
            assert!(
                found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan(),
                "{bits:#x}"
            );
        }
    }
}
