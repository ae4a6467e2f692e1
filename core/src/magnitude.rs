//! The largest magnitude of floats, which scales are derived from.
#![forbid(unsafe_code)]

/// The bits of the largest magnitude. Magnitudes compare like their bits, with NaN above infinity.
#[cfg_attr(not(target_os = "none"), inline(always))]
#[cfg_attr(target_os = "none", inline)]
pub(crate) fn largest_bits(x: &[f32]) -> u32 {
    x.iter().fold(0, |max, x| max.max(x.to_bits() & 0x7fff_ffff))
}
