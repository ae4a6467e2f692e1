//! The positions with keys and values in a layer that tokens skip (see [`depths`](crate::model::depths)): bit `p % 64`
//! of word `p / 64` for position `p`. The layer has them one after another, so that those of a position come after as
//! many as there are bits before its own.
#![forbid(unsafe_code)]

/// Words for `positions` of a layer.
pub(crate) const fn words(positions: usize) -> usize {
    positions.div_ceil(64)
}

/// How many of the first `positions` are present.
pub(crate) fn before(bits: &[u64], positions: usize) -> usize {
    let (whole, rest) = (positions / 64, positions % 64);
    let count = |words: &[u64]| words.iter().map(|word| word.count_ones() as usize).sum::<usize>();
    let last = bits.get(whole).map_or(0, |word| word & ((1 << rest) - 1));
    count(bits.get(..whole).unwrap_or(bits)) + count(&[last])
}

/// Whether a position is present.
pub(crate) fn get(bits: &[u64], position: usize) -> bool {
    bits[position / 64] >> (position % 64) & 1 == 1
}

/// Notes whether a position is present.
pub(crate) fn set(bits: &mut [u64], position: usize, present: bool) {
    let (word, bit) = (&mut bits[position / 64], 1 << (position % 64));
    *word = if present { *word | bit } else { *word & !bit };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_the_positions_noted() {
        let present = |p: usize| p * p % 7 < 3;
        // Bits from before do not matter.
        let mut bits = [u64::MAX; words(192)];
        let mut count = 0;
        for p in 0..192 {
            assert_eq!(before(&bits, p), count);
            set(&mut bits, p, present(p));
            count += usize::from(present(p));
        }
        assert_eq!(before(&bits, 192), count);
        assert!((0..192).all(|p| get(&bits, p) == present(p)));
        assert_eq!(before(&[], 9), 0);
    }
}
