//! `e^x` in f32, branch-free so that loops over it vectorise, with the same result on every machine.
#![forbid(unsafe_code)]

/// `e^x`, relative error at most 2.5e-7 for results in the normal range.
///
/// `x = n ln 2 + r` with `|r| <= ln 2 / 2`; `e^r` by its degree-7 Taylor polynomial (truncation error
/// 2^-28), and `2^n` written into the exponent bits. Results below 2^-126 become 0, `x > 88.37`
/// saturates at `e^88.37` (about 2.4e38) instead of infinity, and NaN gives NaN.
#[cfg_attr(not(target_os = "none"), inline(always))]
#[cfg_attr(target_os = "none", inline)]
pub fn exp(x: f32) -> f32 {
    const LOG2_E: f32 = core::f32::consts::LOG2_E;
    // ln 2 in two parts: the first has trailing zeros, so that its product with n (|n| <= 127) is exact.
    const LN2_HI: f32 = 0.693_359_4;
    const LN2_LO: f32 = -2.121_944_4e-4;
    // Adding and subtracting 1.5 * 2^23 rounds to the nearest integer.
    const ROUND: f32 = 12_582_912.0;
    let clamped = if x > 88.37 { 88.37 } else { x };
    let shifted = clamped * LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (clamped - n * LN2_HI) - n * LN2_LO;
    let mut p = 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    // The low bits of `shifted` hold n; move them, biased, into the exponent.
    let scale = f32::from_bits(shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23);
    if x < -87.3 { 0.0 } else { p * scale }
}

#[cfg(test)]
mod tests {
    use super::exp;

    #[test]
    fn agrees_with_f64() {
        let mut worst = 0.0f64;
        let mut x = -87.0f32;
        while x < 88.3 {
            let want = libm::exp(f64::from(x));
            worst = worst.max((f64::from(exp(x)) - want).abs() / want);
            x += 0.000_37;
        }
        assert!(worst < 2.5e-7, "relative error {worst}");
    }

    #[test]
    fn ends_of_the_range() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-1e30), 0.0);
        assert!(exp(f32::INFINITY).is_finite() && exp(f32::INFINITY) > 2e38);
        assert!(exp(f32::NAN).is_nan());
    }
}
