//! Key-value caches: what the model remembers of the tokens it has seen.
//!
//! A cache is a view of arena memory. Keys and values of one head of one layer lie together, so that
//! attention streams through them: values position after position, keys in blocks of [`BLOCK`] positions,
//! which hold number 0 of each position, then number 1 of each, and so on. So sixteen scores are computed
//! side by side, without adding up the lanes of a vector.
#![forbid(unsafe_code)]

use core::ops::Range;

use bytemuck::Pod;
use half::f16;

use crate::arena::{Arena, Planner};
use crate::error::Result;
use crate::kernel::attend::Source;
use crate::kernel::attend::bytes::{ByteHead, key_block, largest, round, value_block};
use crate::kernel::attend::floats::{Element, Head};

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

    /// Stores one token's keys and values of `layer`; both `(kv_heads, head_dim)`.
    fn write(&mut self, layer: usize, position: usize, keys: &[f32], values: &[f32]);

    /// What one head of one layer has of the first `len` positions.
    fn head(&self, layer: usize, head: usize, len: usize) -> Self::Head<'_>;

    /// Bytes that [`Store::export`] writes for `len` positions. They do not depend on the capacity.
    fn export_len(shape: KvShape, len: usize) -> usize;

    /// Copies the first `len` positions, at most the capacity, to `out`, head after head, each its keys and
    /// its values.
    fn export(&self, len: usize, out: &mut [u8]);

    /// Takes over what [`Store::export`] wrote for as many positions.
    fn import(&mut self, len: usize, from: &[u8]);
}

/// Writes `part` to the front of `out`, which is cut to what follows.
fn put(out: &mut &mut [u8], part: &[u8]) {
    let (front, rest) = core::mem::take(out).split_at_mut(part.len());
    front.copy_from_slice(part);
    *out = rest;
}

/// Reads `part` from the front of `from`, which is cut to what follows.
fn take(from: &mut &[u8], part: &mut [u8]) {
    let (front, rest) = from.split_at(part.len());
    part.copy_from_slice(front);
    *from = rest;
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

impl<E> Cache<'_, E> {
    fn start(&self, layer: usize, head: usize) -> usize {
        (layer * self.shape.kv_heads + head) * self.shape.head_len()
    }

    /// Where the keys, in whole blocks, and the values of the first `len` positions of each head lie.
    fn spans(&self, len: usize) -> impl Iterator<Item = (Range<usize>, Range<usize>)> + use<E> {
        let (heads, head_len, d) =
            (self.shape.layers * self.shape.kv_heads, self.shape.head_len(), self.shape.head_dim);
        let at = move |head: usize, len: usize| head * head_len..head * head_len + len * d;
        (0..heads).map(move |head| (at(head, len.next_multiple_of(BLOCK)), at(head, len)))
    }
}

impl<'b, E: Element> Store<'b> for Cache<'b, E> {
    type Head<'a>
        = Head<'a, E>
    where
        Self: 'a;

    fn plan(shape: KvShape, planner: &mut Planner) -> usize {
        let keys = planner.add::<E>(shape.elements());
        keys.saturating_add(planner.add::<E>(shape.elements()))
    }

    fn new(shape: KvShape, arena: &mut Arena<'b>) -> Result<Self> {
        Ok(Cache { shape, keys: arena.take(shape.elements())?, values: arena.take(shape.elements())? })
    }

    fn shape(&self) -> KvShape {
        self.shape
    }

    #[inline(always)]
    fn write(&mut self, layer: usize, position: usize, keys: &[f32], values: &[f32]) {
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

    fn export_len(shape: KvShape, len: usize) -> usize {
        let positions = len.next_multiple_of(BLOCK) + len;
        shape.layers * shape.kv_heads * positions * shape.head_dim * size_of::<E>()
    }

    fn export(&self, len: usize, out: &mut [u8]) {
        let mut rest = out;
        for (keys, values) in self.spans(len) {
            put(&mut rest, bytemuck::cast_slice(&self.keys[keys]));
            put(&mut rest, bytemuck::cast_slice(&self.values[values]));
        }
    }

    fn import(&mut self, len: usize, from: &[u8]) {
        let mut rest = from;
        for (keys, values) in self.spans(len) {
            take(&mut rest, bytemuck::cast_slice_mut(&mut self.keys[keys]));
            take(&mut rest, bytemuck::cast_slice_mut(&mut self.values[values]));
        }
    }

    fn head(&self, layer: usize, head: usize, len: usize) -> Head<'_, E> {
        let (at, d) = (self.start(layer, head), self.shape.head_dim);
        Head {
            keys: &self.keys[at..at + len.next_multiple_of(BLOCK) * d],
            values: &self.values[at..at + len * d],
            head_dim: d,
        }
    }
}

/// Cache of 8-bit integers. A key has a scale for each [`GROUP`] of its numbers, a value has one; scales are
/// f16, so that numbers over 8 million are stored as that.
#[derive(Debug)]
pub struct QuantizedKvCache<'b> {
    shape: KvShape,
    /// Heads of blocks as [`ByteHead`] has them.
    keys: &'b mut [u8],
    values: &'b mut [u8],
}

impl QuantizedKvCache<'_> {
    /// Bytes of the keys and of the values of a head.
    const fn head_bytes(shape: &KvShape) -> (usize, usize) {
        let blocks = shape.capacity.div_ceil(BLOCK);
        (blocks.saturating_mul(key_block(shape.head_dim)), blocks.saturating_mul(value_block(shape.head_dim)))
    }

    /// Where the blocks with the keys and the values of the first `len` positions of each head lie.
    fn spans(&self, len: usize) -> impl Iterator<Item = (Range<usize>, Range<usize>)> + use<> {
        let (shape, (keys, values)) = (self.shape, Self::head_bytes(&self.shape));
        let (n, d) = (len.div_ceil(BLOCK), shape.head_dim);
        let at = |start: usize, len: usize| start..start + len;
        (0..shape.layers * shape.kv_heads)
            .map(move |head| (at(head * keys, n * key_block(d)), at(head * values, n * value_block(d))))
    }
}

/// Scale of integers for numbers up to `most` in magnitude, and what to multiply them by; NaN for NaN.
#[inline(always)]
fn byte_scale(most: f32) -> (f16, f32) {
    let scale = <f16 as KvElement>::store(most / 127.0);
    let value = scale.load();
    (scale, if value > 0.0 { 1.0 / value } else { 0.0 })
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
        let heads = shape.layers.saturating_mul(shape.kv_heads);
        let (keys, values) = Self::head_bytes(&shape);
        let keys = planner.add::<u8>(heads.saturating_mul(keys));
        keys.saturating_add(planner.add::<u8>(heads.saturating_mul(values)))
    }

    fn new(shape: KvShape, arena: &mut Arena<'b>) -> Result<Self> {
        let heads = shape.layers.saturating_mul(shape.kv_heads);
        let (keys, values) = Self::head_bytes(&shape);
        let keys = arena.take(heads.saturating_mul(keys))?;
        Ok(QuantizedKvCache { shape, keys, values: arena.take(heads.saturating_mul(values))? })
    }

    fn shape(&self) -> KvShape {
        self.shape
    }

    #[inline(always)]
    fn write(&mut self, layer: usize, position: usize, keys: &[f32], values: &[f32]) {
        let d = self.shape.head_dim;
        let (key_bytes, value_bytes) = Self::head_bytes(&self.shape);
        let (block, t) = (position / BLOCK, position % BLOCK);
        for head in 0..self.shape.kv_heads {
            let at = layer * self.shape.kv_heads + head;
            let row = head * d..(head + 1) * d;
            let start = at * key_bytes + block * key_block(d);
            let (codes, scales) = self.keys[start..start + key_block(d)].split_at_mut(BLOCK * d);
            for (g, key) in keys[row.clone()].chunks(GROUP).enumerate() {
                let (scale, inverse) = byte_scale(largest(key));
                scales[2 * (g * BLOCK + t)..][..2].copy_from_slice(&scale.to_le_bytes());
                let codes = &mut codes[g * GROUP * BLOCK..];
                for (pair, codes) in
                    key.as_chunks::<2>().0.iter().zip(codes.as_chunks_mut::<{ 2 * BLOCK }>().0)
                {
                    codes[2 * t] = byte(pair[0] * inverse);
                    codes[2 * t + 1] = byte(pair[1] * inverse);
                }
            }
            let start = at * value_bytes + block * value_block(d);
            let (codes, scales) = self.values[start..start + value_block(d)].split_at_mut(BLOCK * d);
            let value = &values[row];
            let (scale, inverse) = byte_scale(largest(value));
            scales[2 * t..][..2].copy_from_slice(&scale.to_le_bytes());
            let codes = &mut codes[t / 2 * 2 * d..][..2 * d];
            for (codes, x) in codes.as_chunks_mut::<2>().0.iter_mut().zip(value) {
                codes[t % 2] = byte(x * inverse);
            }
        }
    }

    fn export_len(shape: KvShape, len: usize) -> usize {
        let block = key_block(shape.head_dim) + value_block(shape.head_dim);
        shape.layers * shape.kv_heads * len.div_ceil(BLOCK) * block
    }

    fn export(&self, len: usize, out: &mut [u8]) {
        let mut rest = out;
        for (keys, values) in self.spans(len) {
            put(&mut rest, &self.keys[keys]);
            put(&mut rest, &self.values[values]);
        }
    }

    fn import(&mut self, len: usize, from: &[u8]) {
        let mut rest = from;
        for (keys, values) in self.spans(len) {
            take(&mut rest, &mut self.keys[keys]);
            take(&mut rest, &mut self.values[values]);
        }
    }

    fn head(&self, layer: usize, head: usize, len: usize) -> ByteHead<'_> {
        let d = self.shape.head_dim;
        let at = layer * self.shape.kv_heads + head;
        let (keys, values) = Self::head_bytes(&self.shape);
        let blocks = len.div_ceil(BLOCK);
        ByteHead {
            keys: &self.keys[at * keys..][..blocks * key_block(d)],
            values: &self.values[at * values..][..blocks * value_block(d)],
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
        let half = |bytes: &[u8], i: usize| f16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]).load();
        for h in 0..heads {
            let head = cache.head(1, h, len);
            for t in 0..len {
                let key = &head.keys[t / BLOCK * key_block(d)..];
                let value = &head.values[t / BLOCK * value_block(d)..];
                for i in 0..d {
                    let scale = half(&key[BLOCK * d..], i / GROUP * BLOCK + t % BLOCK);
                    let got = f32::from(key[(i / 2 * BLOCK + t % BLOCK) * 2 + i % 2] as i8) * scale;
                    assert!((got - number(t, h * d + i)).abs() <= 0.502 * scale, "{t} {h} {i}");
                    let scale = half(&value[BLOCK * d..], t % BLOCK);
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
