//! Key-value caches: what the model remembers of the tokens it has seen.
//!
//! A cache is a view of arena memory. Keys and values of one head of one layer lie together, so that
//! attention streams through them: values position after position, keys in blocks of [`BLOCK`] positions,
//! which hold number 0 of each position, then number 1 of each, and so on. So sixteen scores are computed
//! side by side, without adding up the lanes of a vector.
#![forbid(unsafe_code)]

use bytemuck::Pod;
use half::f16;

use crate::arena::{Arena, Planner};
use crate::error::Result;
use crate::kernel::attend::Head;

/// Positions whose keys are interleaved.
pub const BLOCK: usize = 16;

/// How cached keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum KvFormat {
    /// 32-bit floats: exact.
    F32,
    /// 16-bit floats: half the memory, relative rounding error 2^-11.
    #[default]
    F16,
}

impl KvFormat {
    /// Bytes of one cached number.
    pub const fn bytes(self) -> usize {
        match self {
            KvFormat::F32 => 4,
            KvFormat::F16 => 2,
        }
    }
}

/// A number as a cache stores it.
pub trait KvElement: Pod + Send + Sync {
    /// Rounds to the stored precision.
    fn store(value: f32) -> Self;
    /// The stored value.
    fn load(self) -> f32;
}

impl KvElement for f32 {
    #[inline(always)]
    fn store(value: f32) -> Self {
        value
    }
    #[inline(always)]
    fn load(self) -> f32 {
        self
    }
}

impl KvElement for f16 {
    /// Round to nearest even; magnitudes over 65504 are stored as 65504, so that one outlier cannot
    /// turn a whole conversation into NaN. Branch-free, so that loops over it vectorise.
    #[inline(always)]
    fn store(value: f32) -> Self {
        const LEAST_NORMAL: u32 = (127 - 14) << 23;
        let bits = value.to_bits();
        let magnitude = bits & 0x7fff_ffff;
        let largest = 65504.0f32.to_bits();
        let clamped = if magnitude > largest { largest } else { magnitude };
        // Half of what is cut off, less one where the rest is even; the bias moves from 127 to 15.
        let odd = clamped >> 13 & 1;
        let normal = clamped.wrapping_add(0xfff + odd).wrapping_sub((127 - 15) << 23) >> 13;
        // The last bit of the sum is worth 2^-24, the least subnormal half.
        let subnormal = (f32::from_bits(clamped) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
        let rounded = if clamped < LEAST_NORMAL { subnormal } else { normal };
        let half = if magnitude > f32::INFINITY.to_bits() { 0x7e00 } else { rounded };
        f16::from_bits((half | bits >> 16 & 0x8000) as u16)
    }

    /// Branch-free, unlike the library's software conversion, so that loops over it vectorise on
    /// machines without conversion instructions too.
    #[inline(always)]
    fn load(self) -> f32 {
        let bits = u32::from(self.to_bits());
        // 2^112 moves the exponent bias from 15 to 127 and normalises subnormals exactly.
        let magnitude = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23);
        // `store` makes no infinities, so the largest exponent is a NaN, which must stay one.
        let nan = if bits & 0x7c00 == 0x7c00 { 0x7fc0_0000 } else { 0 };
        f32::from_bits(magnitude.to_bits() | nan | (bits & 0x8000) << 16)
    }
}

/// Shape of a cache: `(layers, kv_heads, capacity, head_dim)` keys and as many values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Transformer layers.
    pub layers: usize,
    /// Key-value heads a layer.
    pub kv_heads: usize,
    /// Positions that can be held.
    pub capacity: usize,
    /// Numbers a head.
    pub head_dim: usize,
}

impl KvShape {
    /// Numbers of keys (and of values) of one head, of whole blocks; saturates, so that plans report the
    /// overflow.
    pub const fn head_len(&self) -> usize {
        self.capacity.div_ceil(BLOCK).saturating_mul(BLOCK).saturating_mul(self.head_dim)
    }

    /// Numbers of keys (and of values) in the whole cache; saturates too.
    pub const fn elements(&self) -> usize {
        self.layers.saturating_mul(self.kv_heads).saturating_mul(self.head_len())
    }
}

/// Keys and values of every layer, stored as `E`.
#[derive(Debug)]
pub struct Cache<'b, E> {
    shape: KvShape,
    keys: &'b mut [E],
    values: &'b mut [E],
}

/// Cache of 32-bit floats.
pub type KvCache<'b> = Cache<'b, f32>;
/// Cache of 16-bit floats.
pub type KvCacheFp16<'b> = Cache<'b, f16>;

impl<'b, E: KvElement> Cache<'b, E> {
    /// Plans what [`Cache::new`] takes; returns the bytes.
    pub fn plan(shape: KvShape, planner: &mut Planner) -> usize {
        let keys = planner.add::<E>(shape.elements());
        keys.saturating_add(planner.add::<E>(shape.elements()))
    }

    /// A view of the next bytes of `arena`, with the content they hold.
    pub fn new(shape: KvShape, arena: &mut Arena<'b>) -> Result<Self> {
        Ok(Cache { shape, keys: arena.take(shape.elements())?, values: arena.take(shape.elements())? })
    }

    /// The shape it was made with.
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    fn start(&self, layer: usize, head: usize) -> usize {
        (layer * self.shape.kv_heads + head) * self.shape.head_len()
    }

    /// Stores one token's keys and values of `layer`; both `(kv_heads, head_dim)`.
    #[inline(always)]
    pub fn write(&mut self, layer: usize, position: usize, keys: &[f32], values: &[f32]) {
        let d = self.shape.head_dim;
        for head in 0..self.shape.kv_heads {
            let start = self.start(layer, head);
            let row = head * d..(head + 1) * d;
            let value = start + position * d;
            for (stored, &x) in self.values[value..value + d].iter_mut().zip(&values[row.clone()]) {
                *stored = E::store(x);
            }
            let block = start + position / BLOCK * BLOCK * d;
            let block = &mut self.keys[block..block + BLOCK * d];
            for (stored, &x) in block.as_chunks_mut::<BLOCK>().0.iter_mut().zip(&keys[row]) {
                stored[position % BLOCK] = E::store(x);
            }
        }
    }

    /// What one head of one layer has of the first `len` positions.
    pub(crate) fn head(&self, layer: usize, head: usize, len: usize) -> Head<'_, E> {
        let (at, d) = (self.start(layer, head), self.shape.head_dim);
        Head {
            keys: &self.keys[at..at + len.next_multiple_of(BLOCK) * d],
            values: &self.values[at..at + len * d],
            head_dim: d,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_convert_like_ieee() {
        for bits in 0..=u16::MAX {
            let want = f16::from_bits(bits);
            if want.is_finite() {
                assert_eq!(want.load().to_bits(), want.to_f32().to_bits(), "{bits:#x}");
                assert_eq!(f16::store(want.to_f32()).to_bits(), bits);
            }
        }
        let mut bits = 0u32;
        while bits < 0xffff_0000 {
            let x = f32::from_bits(bits);
            if !x.is_nan() {
                assert_eq!(f16::store(x), f16::from_f32(x.clamp(-65504.0, 65504.0)), "{bits:#x}");
            }
            bits += 0x3ff;
        }
        assert!(f16::store(f32::NAN).load().is_nan());
        assert_eq!(f16::store(1e9).load(), 65504.0);
        assert_eq!(f16::store(f32::NEG_INFINITY).load(), -65504.0);
    }

    #[test]
    fn heads_are_contiguous_and_separate() {
        let shape = KvShape { layers: 2, kv_heads: 2, capacity: 3, head_dim: 2 };
        let mut plan = Planner::default();
        assert_eq!(KvCacheFp16::plan(shape, &mut plan), 2 * 4 * 16 * 2 * 2);
        let mut memory = alloc::vec![0; plan.total().unwrap()];
        let mut cache = KvCacheFp16::new(shape, &mut Arena::new(&mut memory)).unwrap();
        cache.write(1, 0, &[1.0, 2.0, 3.0, 4.0], &[5.0, 6.0, 7.0, 8.0]);
        cache.write(1, 1, &[9.0, 10.0, 11.0, 12.0], &[13.0, 14.0, 15.0, 16.0]);
        let head = cache.head(1, 1, 2);
        let key = |i: usize, position: usize| head.keys[i * BLOCK + position].load();
        assert_eq!([key(0, 0), key(1, 0), key(0, 1), key(1, 1)], [3.0, 4.0, 11.0, 12.0]);
        assert!(head.values.iter().map(|x| x.load()).eq([7.0, 8.0, 15.0, 16.0]));
        assert!(cache.head(0, 1, 3).keys.iter().all(|x| x.load() == 0.0));
    }

    #[test]
    fn blocks_follow_each_other() {
        let shape = KvShape { layers: 1, kv_heads: 2, capacity: 20, head_dim: 6 };
        let mut plan = Planner::default();
        KvCache::plan(shape, &mut plan);
        let mut memory = alloc::vec![0; plan.total().unwrap()];
        let mut cache = KvCache::new(shape, &mut Arena::new(&mut memory)).unwrap();
        let number = |position: usize, i: usize| (100 * position + i) as f32;
        for position in 0..20 {
            let keys: alloc::vec::Vec<f32> = (0..12).map(|i| number(position, i)).collect();
            cache.write(0, position, &keys, &keys);
        }
        for h in 0..2 {
            let head = cache.head(0, h, 20);
            for position in 0..20 {
                for i in 0..6 {
                    let block = &head.keys[position / BLOCK * BLOCK * 6..];
                    assert_eq!(block[i * BLOCK + position % BLOCK], number(position, 6 * h + i));
                    assert_eq!(head.values[position * 6 + i], number(position, 6 * h + i));
                }
            }
        }
    }
}
