//! Attention with linear biases (ALiBi; Press, Smith and Lewis 2021, arXiv 2108.12409): positions by distance alone.
//!
//! ```text
//! score(i, j) = q_i . k_j / sqrt(head_dim) + slope_h (j - i)
//! ```
//! for query head `h` at position `i` and a key at position `j <= i`. The slopes are not trained.
#![forbid(unsafe_code)]

use alloc::vec::Vec;

/// The property of a model that devices without biases refuse, and how they say it.
pub const REFUSED: &str = "the number of heads with ALiBi (attention.max_alibi_bias, or the option alibi)";

/// The slope of each of `heads` query heads.
///
/// With `n` heads, a power of two, they are `2^(-b h / n)` for `h = 1 ..= n`, where `b` is `max_bias`: 8 in the paper.
/// Other numbers of heads have the slopes of the power of two below, and then every other one, from the first on, of
/// those for twice as many: `2^(-b (2 h - 1) / (2 n))`.
pub fn slopes(heads: usize, max_bias: f32) -> Vec<f32> {
    let n = 1 << heads.checked_ilog2().unwrap_or(0);
    // `exp2` has a table of 4 kB, which would be in every download.
    let exp2 = |x: f64| libm::exp(x * core::f64::consts::LN_2);
    let slope = |step: usize, of: usize| exp2(-f64::from(max_bias) * step as f64 / of as f64) as f32;
    (1..=heads).map(|h| if h <= n { slope(h, n) } else { slope(2 * (h - n) - 1, 2 * n) }).collect()
}

#[cfg(test)]
mod tests {
    use super::slopes;
    use alloc::vec::Vec;

    /// The numbers in the paper: 1/2, 1/4 ... 1/256 for 8 heads, and those between for 16.
    #[test]
    fn slopes_of_the_paper() {
        assert_eq!(slopes(8, 8.0), core::array::from_fn::<f32, 8, _>(|h| 0.5f32.powi(h as i32 + 1)));
        let half: Vec<f64> = (1..=16).map(|h| 2.0f64.powf(-0.5 * f64::from(h))).collect();
        for (got, want) in slopes(16, 8.0).iter().zip(&half) {
            assert!((f64::from(*got) / want - 1.0).abs() < 1e-7);
        }
        // Twelve: those of 8, then the first, third, fifth and seventh of 16.
        let twelve = slopes(12, 8.0);
        assert_eq!(twelve[..8], slopes(8, 8.0));
        assert_eq!(twelve[8..], [0, 2, 4, 6].map(|h| slopes(16, 8.0)[h]));
        assert_eq!(slopes(1, 8.0), [1.0 / 256.0]);
    }
}
