//! Key-value caches: what the model remembers of the tokens it has seen.
//!
//! A cache is a view of arena memory. Keys and values of one head of one layer lie together, position
//! after position, so that attention streams through them.
#![forbid(unsafe_code)]

use bytemuck::Pod;
use half::f16;

use crate::arena::{Arena, Planner};
use crate::error::Result;

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
    /// turn a whole conversation into NaN.
    #[inline(always)]
    fn store(value: f32) -> Self {
        f16::from_f32(value.clamp(-65504.0, 65504.0))
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
    /// Numbers of keys (and of values) in the whole cache; saturates, so that plans report the overflow.
    pub const fn elements(&self) -> usize {
        self.layers.saturating_mul(self.kv_heads).saturating_mul(self.capacity).saturating_mul(self.head_dim)
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

    fn start(&self, layer: usize, head: usize) -> usize {
        (layer * self.shape.kv_heads + head) * self.shape.capacity * self.shape.head_dim
    }

    /// Stores one token's keys and values of `layer`; both `(kv_heads, head_dim)`.
    pub fn write(&mut self, layer: usize, position: usize, keys: &[f32], values: &[f32]) {
        let d = self.shape.head_dim;
        for head in 0..self.shape.kv_heads {
            let at = self.start(layer, head) + position * d;
            let rows = [(&mut *self.keys, keys), (&mut *self.values, values)];
            for (stored, row) in rows {
                for (s, &x) in stored[at..at + d].iter_mut().zip(&row[head * d..(head + 1) * d]) {
                    *s = E::store(x);
                }
            }
        }
    }

    /// Keys and values of the first `len` positions of one head; both `(len, head_dim)`.
    pub fn head(&self, layer: usize, head: usize, len: usize) -> (&[E], &[E]) {
        let at = self.start(layer, head);
        let n = len * self.shape.head_dim;
        (&self.keys[at..at + n], &self.values[at..at + n])
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
        assert!(f16::store(f32::NAN).load().is_nan());
        assert_eq!(f16::store(1e9).load(), 65504.0);
        assert_eq!(f16::store(f32::NEG_INFINITY).load(), -65504.0);
    }

    #[test]
    fn heads_are_contiguous_and_separate() {
        let shape = KvShape { layers: 2, kv_heads: 2, capacity: 3, head_dim: 2 };
        let mut plan = Planner::default();
        assert_eq!(KvCacheFp16::plan(shape, &mut plan), 128);
        let mut memory = alloc::vec![0; plan.total().unwrap()];
        let mut cache = KvCacheFp16::new(shape, &mut Arena::new(&mut memory)).unwrap();
        cache.write(1, 0, &[1.0, 2.0, 3.0, 4.0], &[5.0, 6.0, 7.0, 8.0]);
        cache.write(1, 1, &[9.0, 10.0, 11.0, 12.0], &[13.0, 14.0, 15.0, 16.0]);
        let (k, v) = cache.head(1, 1, 2);
        assert!(k.iter().map(|x| x.load()).eq([3.0, 4.0, 11.0, 12.0]));
        assert!(v.iter().map(|x| x.load()).eq([7.0, 8.0, 15.0, 16.0]));
        assert!(cache.head(0, 1, 3).0.iter().all(|x| x.load() == 0.0));
    }
}
