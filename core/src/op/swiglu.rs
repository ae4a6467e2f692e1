//! The gated activation of the feed-forward block.
#![forbid(unsafe_code)]

use super::exp::exp;

/// `gate[i] = silu(gate[i]) * up[i]` with `silu(x) = x / (1 + e^-x)` (Shazeer 2020). Both `(n)`.
#[inline(always)]
pub fn swiglu(gate: &mut [f32], up: &[f32]) {
    for (g, u) in gate.iter_mut().zip(up) {
        *g = *g / (1.0 + exp(-*g)) * u;
    }
}

#[cfg(test)]
mod tests {
    use super::swiglu;

    #[test]
    fn agrees_with_f64() {
        let mut x = -100.0f32;
        while x < 100.0 {
            let mut gate = [x];
            swiglu(&mut gate, &[1.5]);
            let want = f64::from(x) / (1.0 + libm::exp(-f64::from(x))) * 1.5;
            assert!(
                (f64::from(gate[0]) - want).abs() <= 4e-7 * want.abs() + 1e-36,
                "{x}: {} {want}",
                gate[0]
            );
            x += 0.173;
        }
    }
}
