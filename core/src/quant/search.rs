//! Searches for scales and minima, which the quantizers of several formats share.
//!
//! A group of weights `x` with importances `w` is stored as `d q + m` with small integers `q`. For given
//! integers, the least squares solution follows from sums; the integers follow from a candidate of `1/d`, and
//! the best of several candidates is kept. The order of the operations is that of llama.cpp's quantizers,
//! because the bytes depend on the rounding of every step.
//!
//! Source: llama.cpp, `ggml-quants.c`.
#![forbid(unsafe_code)]

/// A group whose weights are all smaller counts as zeros.
pub(super) const NEGLIGIBLE: f32 = 1e-15;

/// The nearest integer, ties to even, for magnitudes below 2^22; meaningless, but never a panic, for others.
#[inline(always)]
pub(super) fn nearest(x: f32) -> i32 {
    // In f32, 1.5 * 2^23 plus an integer is exact and has the integer in its lowest bits.
    ((x + 12_582_912.0).to_bits() & 0x7f_ffff) as i32 - 0x40_0000
}

/// The weight of the largest magnitude, with its sign: the first of several, 0 for none.
pub(super) fn extreme(x: &[f32]) -> f32 {
    let (mut largest, mut extreme) = (0.0, 0.0);
    for &v in x {
        if v.abs() > largest {
            (largest, extreme) = (v.abs(), v);
        }
    }
    extreme
}

/// 1 / x, or 0 for 0.
pub(super) fn inverse(x: f32) -> f32 {
    if x != 0.0 { 1.0 / x } else { 0.0 }
}

/// How much errors of the weights `x` count: as `importance` says, and more for larger ones. `mean_square` is that of the
/// block or the row.
pub(super) fn weigh<const N: usize>(x: &[f32; N], importance: &[f32], mean_square: f32) -> [f32; N] {
    let mut w = [0.0; N];
    for ((w, &x), importance) in w.iter_mut().zip(x).zip(importance) {
        *w = importance * libm::sqrtf(mean_square + x * x);
    }
    w
}

/// The sum of the squares.
pub(super) fn sum_squares(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |sum, x| sum + x * x)
}

/// The scale `d` for which `d q` is close to `x`, with integers `q` of at least `-most` and less than `most`; `codes` are `q + most`.
pub(super) fn symmetric_scale<const N: usize>(
    most: u8,
    x: &[f32; N],
    w: &[f32; N],
    codes: &mut [u8; N],
) -> f32 {
    let max = extreme(x);
    if max.abs() < NEGLIGIBLE {
        codes.fill(0);
        return 0.0;
    }
    let (bound, end) = (i32::from(most), f32::from(most));
    let integer = |inverse: f32, x: f32| nearest(inverse * x).clamp(-bound, bound - 1);
    let steps = (-9i8..=9).filter(|&i| i != 0);
    let others = steps.map(|i| -(end + 0.1 * f32::from(i)) / max);
    let sums = |inverse: f32| {
        let (mut xq, mut qq) = (0.0, 0.0);
        for (&x, &w) in x.iter().zip(w) {
            let q = integer(inverse, x) as f32;
            xq += w * x * q;
            qq += w * q * q;
        }
        [xq, qq]
    };
    let [d, inverse] = best_scale(-end / max, others, sums);
    *codes = x.map(|x| (integer(inverse, x) + bound) as u8);
    d
}

/// The scale `d` for which `d q` is close to `x`, none of which is negative, with `codes` `q` of at most `most`: the best of nine
/// scales, then coordinate descent on the codes.
pub(super) fn positive_scale<const N: usize>(
    most: u8,
    x: &[f32; N],
    w: &[f32; N],
    codes: &mut [u8; N],
) -> f32 {
    let max = x.iter().fold(0.0, |max, &x| if x > max { x } else { max });
    codes.fill(0);
    if max < NEGLIGIBLE {
        return 0.0;
    }
    let bound = i32::from(most);
    let integer = |inverse: f32, x: f32| nearest(inverse * x).clamp(0, bound) as f32;
    let error = |inverse: f32| {
        let d = 1.0 / inverse;
        x.iter().zip(w).fold(0.0, |sum, (&x, &w)| {
            let off = x - d * integer(inverse, x);
            sum + w * off * off
        })
    };
    let mut inverse = f32::from(most) / max;
    let mut least = error(inverse);
    for i in (-4i8..=4).filter(|&i| i != 0) {
        let candidate = (0.1 * f32::from(i) + f32::from(most)) / max;
        let error = error(candidate);
        if error < least {
            (least, inverse) = (error, candidate);
        }
    }
    let mut q = x.map(|x| integer(inverse, x));
    let (mut sum_xq, mut sum_qq) = (0.0, 0.0);
    for ((&x, &w), &q) in x.iter().zip(w).zip(&q) {
        sum_xq += w * x * q;
        sum_qq += w * q * q;
    }
    for _ in 0..5 {
        let mut changed = false;
        for ((&x, &w), q) in x.iter().zip(w).zip(&mut q) {
            let (mut xq, mut qq) = (sum_xq - w * x * *q, sum_qq - w * *q * *q);
            if xq > 0.0 && qq > 0.0 {
                let new = nearest(x * qq / xq).clamp(0, bound) as f32;
                if new != *q {
                    xq += w * x * new;
                    qq += w * new * new;
                    if xq * xq * sum_qq > sum_xq * sum_xq * qq {
                        (*q, sum_xq, sum_qq) = (new, xq, qq);
                        changed = true;
                    }
                }
            }
        }
        if !changed {
            break;
        }
    }
    *codes = q.map(|q| q as u8);
    if sum_qq > 0.0 { sum_xq / sum_qq } else { 0.0 }
}

/// The best scale for one of several candidates of its inverse, and that candidate. `sums` returns the sums of
/// `w x q` and of `w q q` over the group, with the integers `q` of a candidate.
///
/// For these `q`, `d = sum(w x q) / sum(w q q)` has the least error, which is smallest where
/// `sum(w x q)^2 / sum(w q q)` is largest.
pub(super) fn best_scale(
    first: f32,
    others: impl Iterator<Item = f32>,
    sums: impl Fn(f32) -> [f32; 2],
) -> [f32; 2] {
    let [xq, qq] = sums(first);
    // Nothing counts where no weight is important.
    let mut best = [if qq > 0.0 { xq / qq } else { 0.0 }, first];
    let mut gain = best[0] * xq;
    for candidate in others {
        let [xq, qq] = sums(candidate);
        if qq > 0.0 && xq * xq > gain * qq {
            best = [xq / qq, candidate];
            gain = best[0] * xq;
        }
    }
    best
}

/// How [`best_range`] searches.
pub(super) struct RangeSearch {
    /// The largest code.
    pub(super) most: u8,
    /// Candidates of `1/d` are `(first + step i + most) / (max - min)`, with i = 0 to `steps`.
    pub(super) first: f32,
    pub(super) step: f32,
    pub(super) steps: u8,
    /// Measures errors by their magnitude instead of their square.
    pub(super) magnitude: bool,
}

impl RangeSearch {
    /// With codes up to `most`, by the importance of the weights.
    pub(super) const fn by_importance(most: u8) -> Self {
        RangeSearch { most, first: -0.9, step: 0.05, steps: 36, magnitude: false }
    }
}

/// The scale `d` and the minimum `m`, 0 or positive, for which `d q - m` is close to `x`, and the codes `q`, 0 to
/// `search.most`.
pub(super) fn best_range<const N: usize>(
    search: &RangeSearch,
    x: &[f32; N],
    w: &[f32; N],
    codes: &mut [u8; N],
) -> [f32; 2] {
    let most = f32::from(search.most);
    let (mut min, mut max) = (x[0], x[0]);
    let (mut sum_w, mut sum_x) = (w[0], w[0] * x[0]);
    for (&x, &w) in x.iter().zip(w).skip(1) {
        if x < min {
            min = x;
        }
        if x > max {
            max = x;
        }
        sum_w += w;
        sum_x += w * x;
    }
    if min > 0.0 {
        min = 0.0;
    }
    if max == min {
        codes.fill(0);
        return [0.0, -min];
    }
    let quantize = |inverse: f32, min: f32, q: &mut [f32; N]| {
        for (q, &x) in q.iter_mut().zip(x) {
            *q = nearest(inverse * (x - min)).clamp(0, i32::from(search.most)) as f32;
        }
    };
    let error = |q: &[f32; N], d: f32, m: f32| {
        let mut error = 0.0;
        for ((&q, &x), &w) in q.iter().zip(x).zip(w) {
            let off = d * q + m - x;
            error += w * if search.magnitude { off.abs() } else { off * off };
        }
        error
    };
    let mut best = [0.0; N];
    let mut q = [0.0; N];
    let inverse = most / (max - min);
    let mut scale = 1.0 / inverse;
    quantize(inverse, min, &mut best);
    let mut least_error = error(&best, scale, min);
    for i in 0..=search.steps {
        // With the minimum found so far.
        let inverse = (search.first + search.step * f32::from(i) + most) / (max - min);
        quantize(inverse, min, &mut q);
        let (mut sum_q, mut sum_qq, mut sum_xq) = (0.0, 0.0, 0.0);
        for ((&q, &x), &w) in q.iter().zip(x).zip(w) {
            sum_q += w * q;
            sum_qq += w * q * q;
            sum_xq += w * q * x;
        }
        let determinant = sum_w * sum_qq - sum_q * sum_q;
        if determinant > 0.0 {
            let mut d = (sum_w * sum_xq - sum_x * sum_q) / determinant;
            let mut m = (sum_qq * sum_x - sum_q * sum_xq) / determinant;
            if m > 0.0 {
                m = 0.0;
                d = sum_xq / sum_qq;
            }
            let error = error(&q, d, m);
            if error < least_error {
                (least_error, scale, min, best) = (error, d, m, q);
            }
        }
    }
    for (code, q) in codes.iter_mut().zip(best) {
        *code = q as u8;
    }
    [scale, -min]
}

/// Codes of the weights of a group with the scale `d` and the minimum `m` that are stored. Those with a scale of
/// zero are left alone.
pub(super) fn requantize(x: &[f32], d: f32, m: f32, least: i32, most: i32, codes: &mut [u8]) {
    if d != 0.0 {
        for (code, &x) in codes.iter_mut().zip(x) {
            *code = (nearest((x + m) / d).clamp(least, most) - least) as u8;
        }
    }
}
