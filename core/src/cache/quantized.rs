//! Keys and values as small integers with f16 scales.
//!
//! ```text
//! keys of a block     codes (head_dim / 2, 16, 2): number 2 p + i of position t at [p][t][i]
//!                     f16 scales (groups of 32 numbers, 16)
//! values of a block   codes (8, head_dim, 2): number c of position 2 t + i at [t][c][i]
//!                     f16 scales (groups, 16), a group being the whole value (8 bits) or 32 numbers (4 bits)
//! ```
//! A pair of codes is two bytes, or the low and the high half of one byte: the operand of an instruction that
//! multiplies pairs. `number = code * scale`, `scale = largest magnitude / largest code`; numbers too large
//! for any f16 scale are stored as the largest that fits. Of 4 bits, the scale is the one of a few with the smallest sum of squared
//! errors, which may be too small for the largest numbers.
#![forbid(unsafe_code)]

use half::f16;

use super::{BLOCK_POSITIONS, FlatKv, KvCodec};
use crate::float16;
use crate::magnitude::largest_bits;

/// Elements of a key that share a scale.
pub(crate) const SCALE_GROUP: usize = 32;

/// Rounds a magnitude below 2^22 to the nearest integer; the result for NaN is unspecified.
#[inline(always)]
pub(crate) fn round(x: f32) -> i32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23
    (x + ROUND).to_bits().wrapping_sub(ROUND.to_bits()) as i32
}

/// The largest magnitude; NaN if any element is NaN.
#[inline(always)]
pub(crate) fn largest(x: &[f32]) -> f32 {
    // Magnitudes compare like their bits, with NaN above infinity.
    f32::from_bits(largest_bits(x))
}

/// Codes of `BITS` bits, 8 or 4.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Codes<const BITS: u32>;

impl<const BITS: u32> Codes<BITS> {
    /// The largest code; the smallest is its negative.
    const LARGEST: f32 = ((1 << (BITS - 1)) - 1) as f32;
}

/// Storage of a pair of codes.
pub(crate) trait PairCodec: Copy + Send + Sync + 'static {
    /// The largest code.
    const LARGEST: f32;
    /// The smallest code.
    const SMALLEST: f32 = -Self::LARGEST;
    /// Shares of the scale with which all numbers have a code, of which the best is taken.
    const SHARES: &[f32] = &[];
    /// Bytes of a pair.
    const PAIR: usize;
    /// [`KvCodec::ROTATED`]
    const ROTATED: bool = false;

    /// Elements of a value that share a scale.
    fn value_group(head_dim: usize) -> usize;
    /// Code `i` of a pair.
    fn get(pair: &[u8], i: usize) -> i8;
    /// Replaces code `i` of a pair.
    fn put(pair: &mut [u8], i: usize, code: i8);
}

impl PairCodec for Codes<8> {
    const LARGEST: f32 = Self::LARGEST;
    const PAIR: usize = 2;

    #[inline(always)]
    fn value_group(head_dim: usize) -> usize {
        head_dim
    }

    #[inline(always)]
    fn get(pair: &[u8], i: usize) -> i8 {
        pair[i] as i8
    }

    #[inline(always)]
    fn put(pair: &mut [u8], i: usize, code: i8) {
        pair[i] = code as u8;
    }
}

impl PairCodec for Codes<4> {
    const LARGEST: f32 = Self::LARGEST;
    const SMALLEST: f32 = -8.0;
    const SHARES: &[f32] = &[1.0, 0.95, 0.9, 0.85, 0.8, 0.75];
    const PAIR: usize = 1;
    const ROTATED: bool = true;

    #[inline(always)]
    fn value_group(_: usize) -> usize {
        SCALE_GROUP
    }

    #[inline(always)]
    fn get(pair: &[u8], i: usize) -> i8 {
        // Shifts the half byte to the upper half, and back with its sign.
        (pair[0] << (4 * (1 - i))) as i8 >> 4
    }

    #[inline(always)]
    fn put(pair: &mut [u8], i: usize, code: i8) {
        let shift = 4 * i;
        pair[0] = pair[0] & !(0x0f << shift) | (code as u8 & 0x0f) << shift;
    }
}

/// Keys and values stored as codes of `P`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quantized<P>(core::marker::PhantomData<P>);

impl<P: PairCodec> Quantized<P> {
    /// Bytes of the codes of a block.
    #[inline(always)]
    pub(crate) fn codes_len(head_dim: usize) -> usize {
        BLOCK_POSITIONS.saturating_mul(head_dim / 2).saturating_mul(P::PAIR)
    }

    /// Scales per value.
    #[inline(always)]
    pub(crate) fn value_scales(head_dim: usize) -> usize {
        head_dim.div_ceil(P::value_group(head_dim).max(1))
    }
}

/// The scale of codes for magnitudes up to `most`, and its reciprocal; NaN for NaN.
#[inline(always)]
fn scale_of(most: f32, largest_code: f32) -> (f16, f32) {
    let scale = float16::from_f32(most / largest_code);
    let value = float16::to_f32(scale);
    (scale, if value > 0.0 { 1.0 / value } else { 0.0 })
}

/// The scale of a group's codes, and its reciprocal.
#[inline(always)]
fn scale_for<P: PairCodec>(group: &[f32]) -> (f16, f32) {
    let most = largest(group);
    if P::SHARES.is_empty() || most.is_nan() || most >= 1e4 {
        return scale_of(most, P::LARGEST);
    }
    let whole = group.iter().fold(0.0, |scale: f32, &x| {
        let needed = if x < 0.0 { x / P::SMALLEST } else { x / P::LARGEST };
        if needed > scale { needed } else { scale }
    });
    let mut best = (scale_of(whole, 1.0), f32::INFINITY);
    for share in P::SHARES {
        let scale = scale_of(whole * share, 1.0);
        let error = squared_error::<P>(group, float16::to_f32(scale.0), scale.1);
        if error < best.1 {
            best = (scale, error);
        }
    }
    best.0
}

/// The sum of the squared errors of a group with this scale, whose reciprocal is `inverse`, in 16 partial sums.
#[inline(always)]
fn squared_error<P: PairCodec>(group: &[f32], scale: f32, inverse: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23
    let of = |x: f32| {
        let y = x * inverse;
        let y = if y > P::LARGEST { P::LARGEST } else { y };
        let y = if y < P::SMALLEST { P::SMALLEST } else { y };
        let error = x - (y + ROUND - ROUND) * scale;
        error * error
    };
    let (vectors, rest) = group.as_chunks::<BLOCK_POSITIONS>();
    let mut sums = [0.0; BLOCK_POSITIONS];
    for vector in vectors {
        for (sum, x) in sums.iter_mut().zip(vector) {
            *sum += of(*x);
        }
    }
    let rest: f32 = rest.iter().map(|x| of(*x)).sum();
    let mut half = BLOCK_POSITIONS / 2;
    while half > 0 {
        for i in 0..half {
            sums[i] += sums[i + half];
        }
        half /= 2;
    }
    sums[0] + rest
}

/// Element `i` of `scales`.
#[inline(always)]
fn scale_at(scales: &[u8], i: usize) -> f32 {
    float16::to_f32(f16::from_le_bytes([scales[2 * i], scales[2 * i + 1]]))
}

/// The nearest code.
#[inline(always)]
fn code(x: f32, smallest: f32, largest: f32) -> i8 {
    let most = if x > largest { largest } else { x };
    round(if most < smallest { smallest } else { most }) as i8
}

impl<P: PairCodec> KvCodec for Quantized<P> {
    const FLAT: FlatKv = FlatKv { bits: 4 * P::PAIR, scales: true, mantissa: 0 };
    const ROTATED: bool = P::ROTATED;

    fn key_block(head_dim: usize) -> usize {
        Self::codes_len(head_dim).saturating_add(2 * BLOCK_POSITIONS * head_dim.div_ceil(SCALE_GROUP))
    }

    fn value_block(head_dim: usize) -> usize {
        Self::codes_len(head_dim).saturating_add(2 * BLOCK_POSITIONS * Self::value_scales(head_dim))
    }

    #[inline(always)]
    fn put_key(block: &mut [u8], t: usize, key: &[f32]) {
        let (codes, scales) = block.split_at_mut(Self::codes_len(key.len()));
        for (g, key) in key.chunks(SCALE_GROUP).enumerate() {
            let (scale, inverse) = scale_for::<P>(key);
            scales[2 * (g * BLOCK_POSITIONS + t)..][..2].copy_from_slice(&scale.to_le_bytes());
            let codes = &mut codes[g * SCALE_GROUP / 2 * P::PAIR * BLOCK_POSITIONS..];
            let pairs = codes.chunks_exact_mut(P::PAIR * BLOCK_POSITIONS);
            for (numbers, pairs) in key.as_chunks::<2>().0.iter().zip(pairs) {
                let pair = &mut pairs[P::PAIR * t..][..P::PAIR];
                P::put(pair, 0, code(numbers[0] * inverse, P::SMALLEST, P::LARGEST));
                P::put(pair, 1, code(numbers[1] * inverse, P::SMALLEST, P::LARGEST));
            }
        }
    }

    #[inline(always)]
    fn put_value(block: &mut [u8], t: usize, value: &[f32]) {
        let d = value.len();
        let (codes, scales) = block.split_at_mut(Self::codes_len(d));
        let codes = &mut codes[t / 2 * P::PAIR * d..][..P::PAIR * d];
        let group = P::value_group(d).max(1);
        for (g, value) in value.chunks(group).enumerate() {
            let (scale, inverse) = scale_for::<P>(value);
            scales[2 * (g * BLOCK_POSITIONS + t)..][..2].copy_from_slice(&scale.to_le_bytes());
            let pairs = codes[g * group * P::PAIR..].chunks_exact_mut(P::PAIR);
            for (pair, x) in pairs.zip(value) {
                P::put(pair, t % 2, code(x * inverse, P::SMALLEST, P::LARGEST));
            }
        }
    }

    #[inline(always)]
    fn get_key(block: &[u8], t: usize, key: &mut [f32]) {
        let (codes, scales) = block.split_at(Self::codes_len(key.len()));
        for (g, key) in key.chunks_mut(SCALE_GROUP).enumerate() {
            let scale = scale_at(scales, g * BLOCK_POSITIONS + t);
            let codes = &codes[g * SCALE_GROUP / 2 * P::PAIR * BLOCK_POSITIONS..];
            let pairs = codes.chunks_exact(P::PAIR * BLOCK_POSITIONS);
            for (numbers, pairs) in key.as_chunks_mut::<2>().0.iter_mut().zip(pairs) {
                let pair = &pairs[P::PAIR * t..][..P::PAIR];
                *numbers = [0, 1].map(|i| f32::from(P::get(pair, i)) * scale);
            }
        }
    }

    fn get_value(block: &[u8], t: usize, value: &mut [f32]) {
        let d = value.len();
        let (codes, scales) = block.split_at(Self::codes_len(d));
        let group = P::value_group(d).max(1);
        for (c, x) in value.iter_mut().enumerate() {
            let pair = &codes[(t / 2 * d + c) * P::PAIR..][..P::PAIR];
            *x = f32::from(P::get(pair, t % 2)) * scale_at(scales, c / group * BLOCK_POSITIONS + t);
        }
    }

    #[inline(always)]
    fn copy_value(
        data: &mut [u8],
        source: Option<&[u8]>,
        d: usize,
        from: (usize, usize),
        to: (usize, usize),
    ) {
        for c in 0..d {
            let at = |(block, t): (usize, usize)| block + (t / 2 * d + c) * P::PAIR;
            let code = P::get(&source.unwrap_or(data)[at(from)..][..P::PAIR], from.1 % 2);
            P::put(&mut data[at(to)..][..P::PAIR], to.1 % 2, code);
        }
        for g in 0..Self::value_scales(d) {
            let at = |(block, t): (usize, usize)| block + Self::codes_len(d) + 2 * (g * BLOCK_POSITIONS + t);
            match source {
                None => data.copy_within(at(from)..at(from) + 2, at(to)),
                Some(source) => data[at(to)..at(to) + 2].copy_from_slice(&source[at(from)..at(from) + 2]),
            }
        }
    }

    fn put_row(codes: &mut [u8], scales: &mut [u8], row: &[f32]) {
        let groups = codes.chunks_exact_mut(SCALE_GROUP / 2 * P::PAIR).zip(scales.as_chunks_mut().0);
        for ((codes, stored), group) in groups.zip(row.chunks_exact(SCALE_GROUP)) {
            let scale = largest(group) / P::LARGEST;
            let inverse = if scale > 1e-30 { 1.0 / scale } else { 0.0 };
            *stored = scale.to_le_bytes();
            for (pair, numbers) in codes.chunks_exact_mut(P::PAIR).zip(group.as_chunks::<2>().0) {
                P::put(pair, 0, code(numbers[0] * inverse, -P::LARGEST, P::LARGEST));
                P::put(pair, 1, code(numbers[1] * inverse, -P::LARGEST, P::LARGEST));
            }
        }
    }

    fn get_row(codes: &[u8], scales: &[u8], row: &mut [f32]) {
        let groups = codes.chunks_exact(SCALE_GROUP / 2 * P::PAIR).zip(scales.as_chunks().0);
        for ((codes, scale), group) in groups.zip(row.chunks_exact_mut(SCALE_GROUP)) {
            let scale = f32::from_le_bytes(*scale);
            for (pair, numbers) in codes.chunks_exact(P::PAIR).zip(group.as_chunks_mut::<2>().0) {
                *numbers = [0, 1].map(|i| f32::from(P::get(pair, i)) * scale);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::{Arena, Planner};
    use crate::cache::{KvShape, KvStorage};

    /// Every number is within half a step of the stored one, and the bytes are laid out as in the diagram.
    fn near_what_was_stored<P: PairCodec>(bytes_per_position: usize) {
        let (d, heads, len) = (72, 2, 20);
        let shape = KvShape { layers: 2, kv_heads: heads, capacity: len, head_dim: d };
        let mut plan = Planner::default();
        // Two blocks of 16 positions of each of four heads.
        assert_eq!(KvStorage::<Quantized<P>>::plan(shape, &mut plan), 2 * 4 * 16 * bytes_per_position);
        let mut memory = alloc::vec![0; plan.total().unwrap()];
        let mut cache = KvStorage::<Quantized<P>>::new(shape, &mut Arena::new(&mut memory)).unwrap();
        let number = |t: usize, i: usize| libm::sinf((t * 151 + i * 7) as f32) * (1 + i / 32) as f32 * 100.0;
        for t in 0..len {
            let row: alloc::vec::Vec<f32> = (0..heads * d).map(|i| number(t, i)).collect();
            cache.write(1, t, &row, &row);
        }
        let view = cache.view(1, 0, len);
        // Or what is too large for the scale has the last code.
        let near = |code: f32, scale: f32, want: f32| {
            let last = !P::SHARES.is_empty() && (code == P::LARGEST || code == P::SMALLEST);
            (code * scale - want).abs() <= if last { 3.0 * scale } else { 0.51 * scale }
        };
        let codes = Quantized::<P>::codes_len(d);
        for h in 0..heads {
            for t in 0..len {
                let (chunk, keys, values) = view.placement.block(heads + h, t / BLOCK_POSITIONS);
                let data = view.data.chunk(view.placement, chunk);
                let (key, value) = (&data[keys], &data[values]);
                let t16 = t % BLOCK_POSITIONS;
                for i in 0..d {
                    let want = number(t, h * d + i);
                    let scale = scale_at(&key[codes..], i / SCALE_GROUP * BLOCK_POSITIONS + t16);
                    let pair = &key[(i / 2 * BLOCK_POSITIONS + t16) * P::PAIR..][..P::PAIR];
                    let code = f32::from(P::get(pair, i % 2));
                    assert!(near(code, scale, want), "key {t} {h} {i}: {code} {scale} {want}");
                    let group = i / P::value_group(d);
                    let scale = scale_at(&value[codes..], group * BLOCK_POSITIONS + t16);
                    let pair = &value[(t16 / 2 * d + i) * P::PAIR..][..P::PAIR];
                    let code = f32::from(P::get(pair, t16 % 2));
                    assert!(near(code, scale, want), "value {t} {h} {i}: {code} {scale} {want}");
                }
            }
        }
    }

    #[test]
    fn codes_are_near_what_was_stored() {
        // Codes and scales of a key, codes and scale of a value.
        near_what_was_stored::<Codes<8>>((72 + 2 * 3) + (72 + 2));
        near_what_was_stored::<Codes<4>>((36 + 2 * 3) + (36 + 2 * 3));
    }

    /// Less than with the scale of the largest magnitude.
    #[test]
    fn scales_of_nibbles_have_small_errors() {
        let error = |group: &[f32], scale: f64| -> f64 {
            let of = |x: &f32| {
                let x = f64::from(*x);
                let code = if scale > 0.0 { libm::round(x / scale).clamp(-8.0, 7.0) } else { 0.0 };
                (x - code * scale) * (x - code * scale)
            };
            group.iter().map(of).sum()
        };
        let (mut found, mut usual) = (0.0, 0.0);
        for seed in 0..500 {
            let number = |i: usize| {
                libm::sinf((seed * 31 + i * i * 7) as f32) + libm::sinf((seed * 17 + i * 5) as f32)
            };
            let group: alloc::vec::Vec<f32> = (0..[32, 8, 20][seed % 3]).map(number).collect();
            let scale = f64::from(float16::to_f32(scale_for::<Codes<4>>(&group).0));
            let whole = f64::from(float16::to_f32(scale_of(largest(&group), 7.0).0));
            found += error(&group, scale);
            usual += error(&group, whole);
        }
        assert!(found < 0.9 * usual, "{found} {usual}");
        assert_eq!(scale_for::<Codes<4>>(&[0.0; 32]), (f16::ZERO, 0.0));
        assert!(scale_for::<Codes<4>>(&[f32::NAN, 1.0]).0.to_f32().is_nan());
        assert_eq!(scale_for::<Codes<4>>(&[f32::INFINITY, 1.0]).0.to_f32(), 65504.0);
    }

    #[test]
    fn odd_numbers_have_defined_codes() {
        // NaN propagates; numbers that are too large are clamped.
        assert!(scale_of(f32::NAN, 127.0).0.to_f32().is_nan());
        let (scale, inverse) = scale_of(f32::INFINITY, 127.0);
        let codes = [f32::INFINITY * inverse, f32::NEG_INFINITY].map(|x| code(x, -127.0, 127.0));
        assert_eq!((scale.to_f32(), codes), (65504.0, [127, -127]));
        assert_eq!(scale_of(0.0, 127.0), (f16::ZERO, 0.0));
    }
}
