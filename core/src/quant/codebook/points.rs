//! The codebooks: in the program as a bit for each point of their spaces, in memory as bytes that are ready to be
//! multiplied, from the first use of such a format on.
//!
//! The points of a codebook are numbered in ascending order, the first weight being the lowest digit. Source: the Python
//! package `gguf`, by `tests/oracle/codebooks.py`, which writes `points.bin`.
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::{iq1, iq2, iq3};

/// A codebook.
#[derive(Clone, Copy)]
pub(crate) struct Book {
    /// Its first word in [`Points`].
    first: usize,
    /// Its points.
    len: usize,
    /// Where its bits begin.
    bits: usize,
    /// Weights of a point, 4 to a word.
    weights: usize,
    /// The bytes that digits stand for.
    levels: &'static [u8],
}

impl Book {
    /// Words of a point.
    const fn words(&self) -> usize {
        self.weights / 4
    }

    /// Points of the space.
    const fn space(&self) -> usize {
        self.levels.len().pow(self.weights as u32)
    }

    /// A codebook that follows this one.
    const fn then(&self, len: usize, weights: usize, levels: &'static [u8]) -> Book {
        Book {
            first: self.first + self.len * self.words(),
            len,
            bits: self.bits + self.space().div_ceil(8),
            weights,
            levels,
        }
    }
}

pub(crate) const IQ2_XXS: Book = Book { first: 0, len: 256, bits: 0, weights: 8, levels: &iq2::DIGITS };
pub(crate) const IQ2_XS: Book = IQ2_XXS.then(512, 8, &iq2::DIGITS);
pub(crate) const IQ2_S: Book = IQ2_XS.then(1024, 8, &iq2::DIGITS);
pub(crate) const IQ1: Book = IQ2_S.then(2048, 8, &iq1::DIGITS);
pub(crate) const IQ3_XXS: Book = IQ1.then(256, 4, &iq3::DIGITS_XXS);
pub(crate) const IQ3_S: Book = IQ3_XXS.then(512, 4, &iq3::DIGITS_S);
/// What would follow the last.
const END: Book = IQ3_S.then(0, 4, &[]);

/// A bit for each point of each space, padded to bytes.
const BITS: &[u8; END.bits] = include_bytes!("points.bin");

/// Four weights of a point in each word, the first in the lowest byte.
pub(crate) struct Points([AtomicU32; END.first]);

impl Points {
    /// Word `at`; 0 if there is none.
    #[inline(always)]
    fn word(&self, at: usize) -> u32 {
        self.0.get(at).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Point `index` of a codebook with four weights; another one if there is none.
    #[inline(always)]
    pub(crate) fn four(&self, book: Book, index: usize) -> u32 {
        self.word(book.first + index)
    }

    /// Point `index` of a codebook with eight weights; another one if there is none.
    #[inline(always)]
    pub(crate) fn eight(&self, book: Book, index: usize) -> u64 {
        let at = book.first + 2 * index;
        u64::from(self.word(at)) | u64::from(self.word(at + 1)) << 32
    }
}

static POINTS: Points = Points([const { AtomicU32::new(0) }; END.first]);
static FILLED: AtomicBool = AtomicBool::new(false);

/// The points of all codebooks.
#[inline(always)]
pub(crate) fn points() -> &'static Points {
    if !FILLED.load(Ordering::Acquire) {
        fill();
    }
    &POINTS
}

/// Fills the table. Threads that do so at the same time write the same.
#[cold]
#[inline(never)]
fn fill() {
    let mut words = POINTS.0.iter();
    for book in [IQ2_XXS, IQ2_XS, IQ2_S, IQ1, IQ3_XXS, IQ3_S] {
        let bits = BITS.iter().skip(book.bits).flat_map(|byte| (0..8).map(move |i| byte >> i & 1 == 1));
        for (mut point, _) in bits.take(book.space()).enumerate().filter(|(_, is_in)| *is_in) {
            for word in words.by_ref().take(book.words()) {
                let four = [(); 4].map(|()| {
                    let digit = book.levels[point % book.levels.len()];
                    point /= book.levels.len();
                    digit
                });
                word.store(u32::from_le_bytes(four), Ordering::Relaxed);
            }
        }
    }
    FILLED.store(true, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codebooks_have_as_many_points_as_indices_reach() {
        for book in [IQ2_XXS, IQ2_XS, IQ2_S, IQ1, IQ3_XXS, IQ3_S] {
            let bits = &BITS[book.bits..][..book.space().div_ceil(8)];
            assert_eq!(bits.iter().map(|byte| byte.count_ones() as usize).sum::<usize>(), book.len);
            // No level is 0 where signs are added.
            let words = &points().0[book.first..][..book.len * book.words()];
            let bytes = || words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes());
            assert!(bytes().all(|byte| book.levels.contains(&byte)));
        }
        assert_eq!(points().eight(IQ2_XXS, 255).to_le_bytes().iter().max(), Some(&43));
    }
}
