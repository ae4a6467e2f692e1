//! The choice of experts.
#![forbid(unsafe_code)]

use super::exp::exp;
use crate::cpu::simd::SimdOp;

/// Turns logits into the probabilities of the chosen experts, and those of the others into 0:
/// `p = softmax(x)`, of which the `used` largest stay, the lower index first where two are equal. They are divided
/// by their sum if `normalize` says so.
///
/// Source: Shazeer 2017, "Outrageously Large Neural Networks", without noise; `Qwen3MoeTopKRouter` of
/// transformers. A chosen probability below the smallest f32 is 0, too: such an expert adds nothing. NaN stays NaN.
#[derive(Debug)]
pub struct Route<'a> {
    /// `(experts)`: logits, then probabilities.
    pub row: &'a mut [f32],
    /// How many experts are chosen.
    pub used: usize,
    /// Whether their probabilities add up to 1.
    pub normalize: bool,
}

impl SimdOp for Route<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Route { row, used, normalize } = self;
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut sum = 0.0;
        for x in row.iter_mut() {
            *x = exp(*x - max);
            sum += *x;
        }
        // A probability that is chosen gets a sign, until the others are erased.
        let mut chosen = 0.0;
        for _ in 0..used.min(row.len()) {
            let mut best: Option<usize> = None;
            for (i, p) in row.iter().enumerate() {
                if !p.is_sign_negative() && best.is_none_or(|best| p.total_cmp(&row[best]).is_gt()) {
                    best = Some(i);
                }
            }
            let Some(best) = best else { break };
            chosen += row[best];
            row[best] = -row[best];
        }
        let whole = if normalize { chosen } else { sum };
        for p in row {
            *p = if p.is_sign_negative() { -*p / whole } else { 0.0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn route(logits: &[f32], used: usize, normalize: bool) -> Vec<f32> {
        let mut row = logits.to_vec();
        Route { row: &mut row, used, normalize }.run();
        row
    }

    #[test]
    fn agrees_with_f64() {
        let logits: Vec<f32> = (0..37).map(|i| ((i * 29) % 37) as f32 * 0.31 - 4.0).collect();
        let total: f64 = logits.iter().map(|x| libm::exp(f64::from(*x))).sum();
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
        for (used, normalize) in [(1, false), (1, true), (8, false), (8, true), (37, false)] {
            let chosen = &order[..used];
            let sum: f64 = chosen.iter().map(|i| libm::exp(f64::from(logits[*i]))).sum();
            let found = route(&logits, used, normalize);
            for (i, found) in found.iter().enumerate() {
                let want = libm::exp(f64::from(logits[i])) / if normalize { sum } else { total };
                let want = if chosen.contains(&i) { want } else { 0.0 };
                assert!((f64::from(*found) - want).abs() <= 1e-6 * want, "{used} {i}: {found} {want}");
            }
        }
    }

    #[test]
    fn the_lower_index_wins_where_two_are_equal() {
        assert_eq!(route(&[1.0, 2.0, 2.0, 2.0], 2, true), [0.0, 0.5, 0.5, 0.0]);
        assert_eq!(route(&[0.0; 3], 1, true), [1.0, 0.0, 0.0]);
    }

    #[test]
    fn extremes_do_not_overflow() {
        assert_eq!(route(&[1e38, -1e38, 0.0], 2, true), [1.0, 0.0, 0.0]);
        assert!(route(&[f32::NAN, 1.0, 2.0], 2, true).iter().any(|p| p.is_nan()));
    }
}
