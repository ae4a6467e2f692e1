//! Rotary position embedding of one head.
#![forbid(unsafe_code)]

/// NEOX pairing: elements `i` and `i + head_dim / 2` of a head `(head_dim)` are rotated by the angle whose
/// cosine and sine are `cos[i]` and `sin[i]`, both `(head_dim / 2)`.
#[inline(always)]
pub fn rotate(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (a, b) = head.split_at_mut(cos.len());
    for (((a, b), c), s) in a.iter_mut().zip(b).zip(cos).zip(sin) {
        (*a, *b) = (*a * c - *b * s, *a * s + *b * c);
    }
}

/// Interleaved pairing: elements `2 i` and `2 i + 1` are rotated; otherwise as [`rotate`].
#[inline(always)]
pub fn rotate_interleaved(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    for ((pair, c), s) in head.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
        let [a, b] = *pair;
        *pair = [a * c - b * s, a * s + b * c];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::rope::{Rope, RopeScaling};

    #[test]
    fn rotation_pairs_across_halves() {
        let rope = Rope::new(4, 10_000.0, RopeScaling::Linear { factor: 2.0 });
        let (mut cos, mut sin) = ([0.0; 2], [0.0; 2]);
        rope.angles(3, &mut cos, &mut sin);
        let mut head = [1.0, 2.0, 3.0, 4.0];
        rotate(&mut head, &cos, &sin);
        for (i, angle) in [1.5f64, 0.015].into_iter().enumerate() {
            let (s, c) = libm::sincos(angle);
            let (a, b) = (1.0 + i as f64, 3.0 + i as f64);
            assert!((f64::from(head[i]) - (a * c - b * s)).abs() < 1e-6);
            assert!((f64::from(head[i + 2]) - (a * s + b * c)).abs() < 1e-6);
        }
    }

    #[test]
    fn interleaved_rotation_pairs_neighbours() {
        let rope = Rope::new(4, 10_000.0, RopeScaling::None);
        let (mut cos, mut sin) = ([0.0; 2], [0.0; 2]);
        rope.angles(3, &mut cos, &mut sin);
        let mut head = [1.0, 2.0, 3.0, 4.0];
        rotate_interleaved(&mut head, &cos, &sin);
        for (i, angle) in [3.0f64, 0.03].into_iter().enumerate() {
            let (s, c) = libm::sincos(angle);
            let (a, b) = (1.0 + 2.0 * i as f64, 2.0 + 2.0 * i as f64);
            assert!((f64::from(head[2 * i]) - (a * c - b * s)).abs() < 1e-6);
            assert!((f64::from(head[2 * i + 1]) - (a * s + b * c)).abs() < 1e-6);
        }
    }
}
