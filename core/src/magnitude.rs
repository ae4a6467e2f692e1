//! The largest magnitude of floats, which scales are derived from.
#![forbid(unsafe_code)]

/// The bits of the largest magnitude. Magnitudes compare like their bits, with NaN above infinity.
#[cfg_attr(not(target_os = "none"), inline(always))]
#[cfg_attr(target_os = "none", inline)]
pub(crate) fn largest_bits(x: &[f32]) -> u32 {
    let mut max = [0; 16];
    let (whole, rest) = x.as_chunks::<16>();
    for x in whole {
        for i in 0..16 {
            max[i] = max[i].max(x[i].to_bits() & 0x7fff_ffff);
        }
    }
    for v in rest {
        max[0] = max[0].max(v.to_bits() & 0x7fff_ffff);
    }
    for width in [8, 4, 2, 1] {
        for i in 0..width {
            max[i] = max[i].max(max[i + width]);
        }
    }
    max[0]
}
