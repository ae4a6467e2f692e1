//! Products with Hadamard matrices, as fast transforms.
#![forbid(unsafe_code)]

/// Elements that are transformed at once.
const LANES: usize = 16;

/// Rotates a head, or back: `x = H x / sqrt(n)` on blocks of `n` elements, the largest power of two that divides the head's.
#[inline(always)]
pub(crate) fn rotate_head(x: &mut [f32]) {
    if x.is_empty() {
        return;
    }
    let block = 1 << x.len().trailing_zeros();
    let scale = 1.0 / libm::sqrtf(block as f32);
    for block in x.chunks_exact_mut(block) {
        transform(block);
        block.iter_mut().for_each(|x| *x *= scale);
    }
}

/// `x = H x` with the Hadamard matrix of Sylvester, `H[r][c] = (-1)^popcount(r & c)`, of a power of two of elements: `log2(n)` additions
/// each (Fino & Algazi 1976).
#[inline(always)]
pub(crate) fn transform(x: &mut [f32]) {
    let (groups, rest) = x.as_chunks_mut::<LANES>();
    if !rest.is_empty() {
        // Fewer than a vector has.
        return small(rest);
    }
    groups.iter_mut().for_each(within);
    let mut step = 1;
    while step < groups.len() {
        for pair in groups.chunks_exact_mut(2 * step) {
            let (a, b) = pair.split_at_mut(step);
            for (a, b) in a.iter_mut().zip(b) {
                for i in 0..LANES {
                    (a[i], b[i]) = (a[i] + b[i], a[i] - b[i]);
                }
            }
        }
        step *= 2;
    }
}

#[inline(always)]
fn small(x: &mut [f32]) {
    let mut step = 1;
    while step < x.len() {
        for pair in x.chunks_exact_mut(2 * step) {
            let (a, b) = pair.split_at_mut(step);
            for (a, b) in a.iter_mut().zip(b) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        step *= 2;
    }
}

/// The first stages, which stay within a vector: sums and differences of neighbours, four times, with the sums put before the differences
/// (Pease 1968). Each number is then where it was.
#[inline(always)]
fn within(x: &mut [f32; LANES]) {
    let mut y = [0.0; LANES];
    for i in 0..LANES / 2 {
        (y[i], y[i + 8]) = (x[2 * i] + x[2 * i + 1], x[2 * i] - x[2 * i + 1]);
    }
    for i in 0..LANES / 2 {
        (x[i], x[i + 8]) = (y[2 * i] + y[2 * i + 1], y[2 * i] - y[2 * i + 1]);
    }
    for i in 0..LANES / 2 {
        (y[i], y[i + 8]) = (x[2 * i] + x[2 * i + 1], x[2 * i] - x[2 * i + 1]);
    }
    for i in 0..LANES / 2 {
        (x[i], x[i + 8]) = (y[2 * i] + y[2 * i + 1], y[2 * i] - y[2 * i + 1]);
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn numbers(n: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 7919 + 13) % 1009) as f32 / 504.0 - 1.0).collect()
    }

    #[test]
    fn small_blocks_are_transformed() {
        for n in [1, 2, 4, 8] {
            let mut x = numbers(n);
            let old = x.clone();
            transform(&mut x);
            transform(&mut x);
            assert!(x.iter().zip(&old).all(|(x, old)| (x - n as f32 * old).abs() < 1e-5));
        }
        let mut x = [1.0, 2.0, 3.0, 5.0];
        transform(&mut x);
        assert_eq!(x, [11.0, -3.0, -5.0, 1.0]);
    }

    /// Products of two heads, and a head's length, stay as they are; a large element is spread over its block.
    #[test]
    fn rotations_keep_products() {
        for n in [2, 18, 64, 96, 128, 256] {
            let (a, b) = (numbers(2 * n), numbers(n));
            let (mut a, mut b) = (a[n..].to_vec(), b);
            let dot = |a: &[f32], b: &[f32]| -> f64 {
                a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
            };
            let (product, old) = (dot(&a, &b), a.clone());
            rotate_head(&mut a);
            rotate_head(&mut b);
            assert!((dot(&a, &b) - product).abs() < 1e-4, "{n}");
            assert!(a.iter().zip(&old).any(|(a, old)| (a - old).abs() > 1e-3));
            rotate_head(&mut a);
            assert!(a.iter().zip(&old).all(|(a, old)| (a - old).abs() < 1e-5));
        }
        let mut peak = [0.0; 64];
        peak[17] = 8.0;
        rotate_head(&mut peak);
        assert!(peak.iter().all(|x| x.abs() == 1.0));
        rotate_head(&mut []);
    }
}
