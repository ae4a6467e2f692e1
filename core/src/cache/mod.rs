//! Key-value caches: what the model remembers of the tokens it has seen.
//!
//! A cache is a view of arena memory. Keys and values of one head of one layer lie together for a chunk of
//! positions (`chunks.rs`), so that attention streams through them: values position after position, keys in
//! blocks of [`BLOCK`] positions, which hold number 0 of each position, then number 1 of each, and so on. So
//! sixteen scores are computed side by side, without adding up the lanes of a vector.
#![forbid(unsafe_code)]

use alloc::vec;
use core::ops::Range;

pub(crate) mod chunks;
pub(crate) mod shift;

use bytemuck::Pod;
use half::f16;

use crate::arena::{Arena, Planner};
use crate::error::Result;
use crate::kernel::attend::Source;
use crate::kernel::attend::bytes::{ByteHead, key_block, largest, round, value_block};
use crate::kernel::attend::floats::{Element, Head};
use chunks::Chunks;

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
    /// 8-bit integers with a scale for each 32 numbers of a key and for each value: half of that.
    Q8,
}

impl KvFormat {
    /// Every form, the most exact first.
    pub const ALL: [KvFormat; 3] = [KvFormat::F32, KvFormat::F16, KvFormat::Q8];

    /// What options call it.
    pub const fn name(self) -> &'static str {
        match self {
            KvFormat::F32 => "f32",
            KvFormat::F16 => "f16",
            KvFormat::Q8 => "q8",
        }
    }

    /// The form called `name`.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }
}

/// Numbers of a key that share a scale in [`KvFormat::Q8`].
pub const GROUP: usize = 32;

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

/// Keys and values of every layer, in some form. What [`crate::arena::Arena`] supplies may hold anything
/// at first.
pub(crate) trait Store<'b>: Sized + Sync {
    /// What one head of one layer has.
    type Head<'a>: Source
    where
        Self: 'a;

    /// Plans what [`Store::new`] takes; returns the bytes.
    fn plan(shape: KvShape, planner: &mut Planner) -> usize;

    /// A view of the next bytes of `arena`, with the content they hold.
    fn new(shape: KvShape, arena: &mut Arena<'b>) -> Result<Self>;

    /// The shape it was made with.
    fn shape(&self) -> KvShape;

    /// Stores the key `(head_dim)` of `head` of all layers' heads.
    fn set_key(&mut self, head: usize, position: usize, key: &[f32]);

    /// Stores the value `(head_dim)` of `head` of all layers' heads.
    fn set_value(&mut self, head: usize, position: usize, value: &[f32]);

    /// Reads the key `(head_dim)` of `head` of all layers' heads.
    fn key(&self, head: usize, position: usize, key: &mut [f32]);

    /// Copies the value of `head` of all layers' heads, as it is stored, to another position.
    fn move_value(&mut self, head: usize, from: usize, to: usize);

    /// Stores one token's keys and values of `layer`; both `(kv_heads, head_dim)`.
    #[inline(always)]
    fn write(&mut self, layer: usize, position: usize, keys: &[f32], values: &[f32]) {
        let KvShape { kv_heads, head_dim, .. } = self.shape();
        let heads = keys.chunks_exact(head_dim).zip(values.chunks_exact(head_dim));
        for (head, (key, value)) in (layer * kv_heads..).zip(heads) {
            self.set_key(head, position, key);
            self.set_value(head, position, value);
        }
    }

    /// What one head of one layer has of the first `len` positions.
    fn head(&self, layer: usize, head: usize, len: usize) -> Self::Head<'_>;

    /// Bytes that [`Store::export`] writes for `len` positions. They do not depend on the capacity.
    fn export_len(shape: KvShape, len: usize) -> usize;

    /// Stores zeros behind the first `len` positions, as far as their last block goes: what stood there is of
    /// a text that is no more.
    fn clear_rest(&mut self, len: usize) {
        let shape = self.shape();
        let zeros = vec![0.0; shape.head_dim];
        for head in 0..shape.layers * shape.kv_heads {
            for position in len..len.next_multiple_of(BLOCK) {
                self.set_key(head, position, &zeros);
                self.set_value(head, position, &zeros);
            }
        }
    }

    /// Copies the blocks of the first `len` positions, at most the capacity, to `out`, head after head, of each
    /// keys and values in turn.
    fn export(&self, len: usize, out: &mut [u8]);

    /// Takes over what [`Store::export`] wrote for as many positions.
    fn import(&mut self, len: usize, from: &[u8]);
}

/// Keys and values of every layer, stored as `E`.
#[derive(Debug)]
pub struct Cache<'b, E> {
    shape: KvShape,
    /// Keys in blocks of `(head_dim, 16)`, values in blocks of `(16, head_dim)`.
    data: &'b mut [E],
}

/// Cache of 32-bit floats.
pub type KvCache<'b> = Cache<'b, f32>;
/// Cache of 16-bit floats.
pub type KvCacheFp16<'b> = Cache<'b, f16>;

impl<E> Cache<'_, E> {
    const fn chunks(shape: &KvShape) -> Chunks {
        let block = BLOCK.saturating_mul(shape.head_dim);
        Chunks::new(shape, block, block)
    }

    /// Where a value lies.
    #[inline(always)]
    fn value(&self, head: usize, position: usize) -> Range<usize> {
        let d = self.shape.head_dim;
        let start = Self::chunks(&self.shape).place(head, position / BLOCK).1 + position % BLOCK * d;
        start..start + d
    }
}

impl<'b, E: Element> Store<'b> for Cache<'b, E> {
    type Head<'a>
        = Head<'a, E>
    where
        Self: 'a;

    fn plan(shape: KvShape, planner: &mut Planner) -> usize {
        planner.add::<E>(Self::chunks(&shape).len())
    }

    fn new(shape: KvShape, arena: &mut Arena<'b>) -> Result<Self> {
        Ok(Cache { shape, data: arena.take(Self::chunks(&shape).len())? })
    }

    fn shape(&self) -> KvShape {
        self.shape
    }

    #[inline(always)]
    fn set_key(&mut self, head: usize, position: usize, key: &[f32]) {
        let (block, _) = Self::chunks(&self.shape).block(head, position / BLOCK);
        for (stored, &x) in self.data[block].as_chunks_mut::<BLOCK>().0.iter_mut().zip(key) {
            stored[position % BLOCK] = E::store(x);
        }
    }

    #[inline(always)]
    fn set_value(&mut self, head: usize, position: usize, value: &[f32]) {
        let row = self.value(head, position);
        for (stored, &x) in self.data[row].iter_mut().zip(value) {
            *stored = E::store(x);
        }
    }

    #[inline(always)]
    fn key(&self, head: usize, position: usize, key: &mut [f32]) {
        let (block, _) = Self::chunks(&self.shape).block(head, position / BLOCK);
        for (x, stored) in key.iter_mut().zip(self.data[block].as_chunks::<BLOCK>().0) {
            *x = stored[position % BLOCK].load();
        }
    }

    #[inline(always)]
    fn move_value(&mut self, head: usize, from: usize, to: usize) {
        let to = self.value(head, to).start;
        self.data.copy_within(self.value(head, from), to);
    }

    fn export_len(shape: KvShape, len: usize) -> usize {
        Self::chunks(&shape).export_len(len) * size_of::<E>()
    }

    fn export(&self, len: usize, out: &mut [u8]) {
        Self::chunks(&self.shape).export(self.data, len, out);
    }

    fn import(&mut self, len: usize, from: &[u8]) {
        Self::chunks(&self.shape).import(self.data, len, from);
    }

    fn head(&self, layer: usize, head: usize, len: usize) -> Head<'_, E> {
        Head {
            data: self.data,
            chunks: Self::chunks(&self.shape),
            head: layer * self.shape.kv_heads + head,
            len,
            head_dim: self.shape.head_dim,
        }
    }
}

/// Cache of 8-bit integers. A key has a scale for each [`GROUP`] of its numbers, a value has one; scales are
/// f16, so that numbers over 8 million are stored as that.
#[derive(Debug)]
pub struct QuantizedKvCache<'b> {
    shape: KvShape,
    /// Blocks as [`ByteHead`] has them.
    data: &'b mut [u8],
}

impl QuantizedKvCache<'_> {
    const fn chunks(shape: &KvShape) -> Chunks {
        Chunks::new(shape, key_block(shape.head_dim), value_block(shape.head_dim))
    }
}

/// Scale of integers for numbers up to `most` in magnitude, and what to multiply them by; NaN for NaN.
#[inline(always)]
fn byte_scale(most: f32) -> (f16, f32) {
    let scale = <f16 as KvElement>::store(most / 127.0);
    let value = scale.load();
    (scale, if value > 0.0 { 1.0 / value } else { 0.0 })
}

/// The `i`-th of some scales.
#[inline(always)]
fn half_at(scales: &[u8], i: usize) -> f32 {
    f16::from_le_bytes([scales[2 * i], scales[2 * i + 1]]).load()
}

/// The nearest integer of -127..=127.
#[inline(always)]
fn byte(x: f32) -> u8 {
    let most = if x > 127.0 { 127.0 } else { x };
    round(if most < -127.0 { -127.0 } else { most }) as u8
}

impl<'b> Store<'b> for QuantizedKvCache<'b> {
    type Head<'a>
        = ByteHead<'a>
    where
        Self: 'a;

    fn plan(shape: KvShape, planner: &mut Planner) -> usize {
        planner.add::<u8>(Self::chunks(&shape).len())
    }

    fn new(shape: KvShape, arena: &mut Arena<'b>) -> Result<Self> {
        Ok(QuantizedKvCache { shape, data: arena.take(Self::chunks(&shape).len())? })
    }

    fn shape(&self) -> KvShape {
        self.shape
    }

    #[inline(always)]
    fn set_key(&mut self, head: usize, position: usize, key: &[f32]) {
        let (block, _) = Self::chunks(&self.shape).block(head, position / BLOCK);
        let (codes, scales) = self.data[block].split_at_mut(BLOCK * self.shape.head_dim);
        let t = position % BLOCK;
        for (g, key) in key.chunks(GROUP).enumerate() {
            let (scale, inverse) = byte_scale(largest(key));
            scales[2 * (g * BLOCK + t)..][..2].copy_from_slice(&scale.to_le_bytes());
            let codes = &mut codes[g * GROUP * BLOCK..];
            for (pair, codes) in key.as_chunks::<2>().0.iter().zip(codes.as_chunks_mut::<{ 2 * BLOCK }>().0) {
                codes[2 * t] = byte(pair[0] * inverse);
                codes[2 * t + 1] = byte(pair[1] * inverse);
            }
        }
    }

    #[inline(always)]
    fn set_value(&mut self, head: usize, position: usize, value: &[f32]) {
        let (_, block) = Self::chunks(&self.shape).block(head, position / BLOCK);
        let (d, t) = (self.shape.head_dim, position % BLOCK);
        let (codes, scales) = self.data[block].split_at_mut(BLOCK * d);
        let (scale, inverse) = byte_scale(largest(value));
        scales[2 * t..][..2].copy_from_slice(&scale.to_le_bytes());
        let codes = &mut codes[t / 2 * 2 * d..][..2 * d];
        for (codes, x) in codes.as_chunks_mut::<2>().0.iter_mut().zip(value) {
            codes[t % 2] = byte(x * inverse);
        }
    }

    #[inline(always)]
    fn key(&self, head: usize, position: usize, key: &mut [f32]) {
        let (block, _) = Self::chunks(&self.shape).block(head, position / BLOCK);
        let (codes, scales) = self.data[block].split_at(BLOCK * self.shape.head_dim);
        let t = position % BLOCK;
        for (g, key) in key.chunks_mut(GROUP).enumerate() {
            let scale = half_at(scales, g * BLOCK + t);
            let codes = codes[g * GROUP * BLOCK..].as_chunks::<{ 2 * BLOCK }>().0;
            for (pair, codes) in key.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
                *pair = [codes[2 * t], codes[2 * t + 1]].map(|code| f32::from(code as i8) * scale);
            }
        }
    }

    #[inline(always)]
    fn move_value(&mut self, head: usize, from: usize, to: usize) {
        let d = self.shape.head_dim;
        let chunks = Self::chunks(&self.shape);
        let place = |position: usize| {
            let (block, t) = (chunks.place(head, position / BLOCK).1, position % BLOCK);
            (block + t / 2 * 2 * d + t % 2, block + BLOCK * d + 2 * t)
        };
        let ((from, from_scale), (to, to_scale)) = (place(from), place(to));
        for i in 0..d {
            self.data[to + 2 * i] = self.data[from + 2 * i];
        }
        self.data.copy_within(from_scale..from_scale + 2, to_scale);
    }

    fn export_len(shape: KvShape, len: usize) -> usize {
        Self::chunks(&shape).export_len(len)
    }

    fn export(&self, len: usize, out: &mut [u8]) {
        Self::chunks(&self.shape).export(self.data, len, out);
    }

    fn import(&mut self, len: usize, from: &[u8]) {
        Self::chunks(&self.shape).import(self.data, len, from);
    }

    fn head(&self, layer: usize, head: usize, len: usize) -> ByteHead<'_> {
        ByteHead {
            data: self.data,
            chunks: Self::chunks(&self.shape),
            head: layer * self.shape.kv_heads + head,
            len,
            head_dim: self.shape.head_dim,
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
        let chunks = KvCacheFp16::chunks(&shape);
        let (keys, values) = chunks.place(3, 0);
        let key = |i: usize, position: usize| cache.data[keys + i * BLOCK + position].load();
        assert_eq!([key(0, 0), key(1, 0), key(0, 1), key(1, 1)], [3.0, 4.0, 11.0, 12.0]);
        assert!(cache.data[values..values + 4].iter().map(|x| x.load()).eq([7.0, 8.0, 15.0, 16.0]));
        for head in 0..2 {
            let (keys, values) = chunks.block(head, 0);
            assert!(cache.data[keys].iter().chain(&cache.data[values]).all(|x| x.load() == 0.0));
        }
    }

    #[test]
    fn blocks_follow_each_other() {
        let shape = KvShape { layers: 1, kv_heads: 2, capacity: 200, head_dim: 6 };
        let mut plan = Planner::default();
        KvCache::plan(shape, &mut plan);
        let mut memory = alloc::vec![0; plan.total().unwrap()];
        let mut cache = KvCache::new(shape, &mut Arena::new(&mut memory)).unwrap();
        let number = |position: usize, i: usize| (100 * position + i) as f32;
        for position in 0..200 {
            let keys: alloc::vec::Vec<f32> = (0..12).map(|i| number(position, i)).collect();
            cache.write(0, position, &keys, &keys);
        }
        for h in 0..2 {
            for position in 0..200 {
                let (keys, values) = KvCache::chunks(&shape).place(h, position / BLOCK);
                for i in 0..6 {
                    let key = cache.data[keys + i * BLOCK + position % BLOCK];
                    let value = cache.data[values + position % BLOCK * 6 + i];
                    assert_eq!([key, value], [number(position, 6 * h + i); 2]);
                }
            }
        }
    }

    #[test]
    fn bytes_are_near_what_was_stored() {
        let (d, heads, len) = (72, 2, 20);
        let shape = KvShape { layers: 2, kv_heads: heads, capacity: len, head_dim: d };
        let mut plan = Planner::default();
        // Blocks of 16 positions: bytes, and scales for 3 groups a key and for each value.
        let bytes = 2 * 2 * 2 * 16 * (72 + 2 * 3) + 2 * 2 * 2 * 16 * (72 + 2);
        assert_eq!(QuantizedKvCache::plan(shape, &mut plan), bytes);
        let mut memory = alloc::vec![0; plan.total().unwrap()];
        let mut cache = QuantizedKvCache::new(shape, &mut Arena::new(&mut memory)).unwrap();
        let number = |t: usize, i: usize| libm::sinf((t * 151 + i * 7) as f32) * (1 + i / 32) as f32 * 100.0;
        for t in 0..len {
            let row: alloc::vec::Vec<f32> = (0..heads * d).map(|i| number(t, i)).collect();
            cache.write(1, t, &row, &row);
        }
        for h in 0..heads {
            for t in 0..len {
                let (keys, values) = QuantizedKvCache::chunks(&shape).block(heads + h, t / BLOCK);
                let (key, value) = (&cache.data[keys], &cache.data[values]);
                for i in 0..d {
                    let scale = half_at(&key[BLOCK * d..], i / GROUP * BLOCK + t % BLOCK);
                    let got = f32::from(key[(i / 2 * BLOCK + t % BLOCK) * 2 + i % 2] as i8) * scale;
                    assert!((got - number(t, h * d + i)).abs() <= 0.502 * scale, "{t} {h} {i}");
                    let scale = half_at(&value[BLOCK * d..], t % BLOCK);
                    let got = f32::from(value[(t % BLOCK / 2 * d + i) * 2 + t % 2] as i8) * scale;
                    assert!((got - number(t, h * d + i)).abs() <= 0.502 * scale, "{t} {h} {i}");
                }
            }
        }
        // Scales: NaN shows, and what is too large is the largest.
        assert!(byte_scale(f32::NAN).0.load().is_nan());
        let (scale, inverse) = byte_scale(f32::INFINITY);
        assert_eq!((scale.load(), byte(f32::INFINITY * inverse), byte(-f32::INFINITY)), (65504.0, 127, 129));
        assert_eq!(byte_scale(0.0), (f16::ZERO, 0.0));
    }
}
