//! Keys and values stored as floats.
//!
//! ```text
//! keys of a block     (head_dim, 16)
//! values of a block   (16, head_dim)
//! ```
#![forbid(unsafe_code)]

use bytemuck::Pod;
use core::marker::PhantomData;
use half::f16;

use super::{BLOCK_POSITIONS, FlatKv, KvCodec};
use crate::float16;

/// A kind of float that a cache stores.
pub(crate) trait Element: Copy + Send + Sync + 'static {
    /// Its bits.
    type Stored: Pod;
    /// Bits of mantissa if it has 8 bits, otherwise 0.
    const MANTISSA: u32 = 0;
    /// Rounds to the stored precision.
    fn store(value: f32) -> Self::Stored;
    /// The stored value.
    fn load(stored: Self::Stored) -> f32;
}

impl Element for f32 {
    type Stored = f32;
    #[inline(always)]
    fn store(value: f32) -> f32 {
        value
    }
    #[inline(always)]
    fn load(stored: f32) -> f32 {
        stored
    }
}

impl Element for f16 {
    type Stored = f16;
    #[inline(always)]
    fn store(value: f32) -> f16 {
        float16::from_f32(value)
    }
    #[inline(always)]
    fn load(stored: f16) -> f32 {
        float16::to_f32(stored)
    }
}

/// Keys and values stored as `E`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Float<E>(PhantomData<E>);

impl<E: Element> KvCodec for Float<E> {
    const FLAT: FlatKv = FlatKv { bits: 8 * size_of::<E::Stored>(), scales: false, mantissa: E::MANTISSA };

    fn key_block(head_dim: usize) -> usize {
        BLOCK_POSITIONS.saturating_mul(head_dim).saturating_mul(size_of::<E::Stored>())
    }

    fn value_block(head_dim: usize) -> usize {
        Self::key_block(head_dim)
    }

    #[inline(always)]
    fn put_key(block: &mut [u8], t: usize, key: &[f32]) {
        let block = bytemuck::cast_slice_mut::<u8, E::Stored>(block);
        for (stored, &x) in block.as_chunks_mut::<BLOCK_POSITIONS>().0.iter_mut().zip(key) {
            stored[t] = E::store(x);
        }
    }

    #[inline(always)]
    fn put_value(block: &mut [u8], t: usize, value: &[f32]) {
        let block = bytemuck::cast_slice_mut::<u8, E::Stored>(block);
        for (stored, &x) in block[t * value.len()..][..value.len()].iter_mut().zip(value) {
            *stored = E::store(x);
        }
    }

    #[inline(always)]
    fn get_key(block: &[u8], t: usize, key: &mut [f32]) {
        let block = bytemuck::cast_slice::<u8, E::Stored>(block);
        for (x, stored) in key.iter_mut().zip(block.as_chunks::<BLOCK_POSITIONS>().0) {
            *x = E::load(stored[t]);
        }
    }

    fn get_value(block: &[u8], t: usize, value: &mut [f32]) {
        let block = bytemuck::cast_slice::<u8, E::Stored>(block);
        let row = &block[t * value.len()..];
        for (x, &stored) in value.iter_mut().zip(row) {
            *x = E::load(stored);
        }
    }

    #[inline(always)]
    fn copy_value(
        data: &mut [u8],
        source: Option<&[u8]>,
        head_dim: usize,
        from: (usize, usize),
        to: (usize, usize),
    ) {
        let row = head_dim * size_of::<E::Stored>();
        let (start, to) = (from.0 + from.1 * row, to.0 + to.1 * row);
        match source {
            None => data.copy_within(start..start + row, to),
            Some(source) => data[to..to + row].copy_from_slice(&source[start..start + row]),
        }
    }

    fn put_row(codes: &mut [u8], _: &mut [u8], row: &[f32]) {
        for (stored, &x) in codes.chunks_exact_mut(size_of::<E::Stored>()).zip(row) {
            stored.copy_from_slice(bytemuck::bytes_of(&E::store(x)));
        }
    }

    fn get_row(codes: &[u8], _: &[u8], row: &mut [f32]) {
        for (x, stored) in row.iter_mut().zip(codes.chunks_exact(size_of::<E::Stored>())) {
            *x = E::load(bytemuck::pod_read_unaligned(stored));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::{Arena, Planner};
    use crate::cache::chunked::Place;
    use crate::cache::{KvShape, KvStorage};

    #[test]
    fn heads_are_contiguous_and_separate() {
        type Cache<'b> = KvStorage<'b, Float<f16>>;
        let shape = KvShape { layers: 2, kv_heads: 2, capacity: 3, head_dim: 2 };
        let mut plan = Planner::default();
        assert_eq!(Cache::plan(shape, &mut plan), 2 * 4 * 16 * 2 * 2);
        let mut memory = alloc::vec![0; plan.total().unwrap()];
        let mut cache = Cache::new(shape, &mut Arena::new(&mut memory)).unwrap();
        cache.write(1, 0, &[1.0, 2.0, 3.0, 4.0], &[5.0, 6.0, 7.0, 8.0]);
        cache.write(1, 1, &[9.0, 10.0, 11.0, 12.0], &[13.0, 14.0, 15.0, 16.0]);
        let view = cache.view(1, 1, 2);
        let data = view.data.chunk(view.placement, 0);
        let number = |at: usize| f16::from_le_bytes([data[at], data[at + 1]]).to_f32();
        let Place { keys, values, .. } = view.placement.place(3, 0);
        let key = |i: usize, position: usize| number(keys + 2 * (i * BLOCK_POSITIONS + position));
        assert_eq!([key(0, 0), key(1, 0), key(0, 1), key(1, 1)], [3.0, 4.0, 11.0, 12.0]);
        assert!((0..4).map(|i| number(values + 2 * i)).eq([7.0, 8.0, 15.0, 16.0]));
        for head in 0..2 {
            let (_, keys, values) = view.placement.block(head, 0);
            assert!(data[keys].iter().chain(&data[values]).all(|&x| x == 0));
        }
    }

    #[test]
    fn blocks_follow_each_other() {
        type Cache<'b> = KvStorage<'b, Float<f32>>;
        let shape = KvShape { layers: 1, kv_heads: 2, capacity: 200, head_dim: 6 };
        let mut plan = Planner::default();
        Cache::plan(shape, &mut plan);
        let mut memory = alloc::vec![0; plan.total().unwrap()];
        let mut cache = Cache::new(shape, &mut Arena::new(&mut memory)).unwrap();
        let number = |position: usize, i: usize| (100 * position + i) as f32;
        for position in 0..200 {
            let keys: alloc::vec::Vec<f32> = (0..12).map(|i| number(position, i)).collect();
            cache.write(0, position, &keys, &keys);
        }
        let view = cache.view(0, 0, 200);
        let at = |chunk, i: usize| {
            let data = view.data.chunk(view.placement, chunk);
            f32::from_le_bytes(data[4 * i..][..4].try_into().unwrap())
        };
        for h in 0..2 {
            for position in 0..200 {
                let Place { chunk, keys, values } = view.placement.place(h, position / BLOCK_POSITIONS);
                for i in 0..6 {
                    let key = at(chunk, keys / 4 + i * BLOCK_POSITIONS + position % BLOCK_POSITIONS);
                    let value = at(chunk, values / 4 + position % BLOCK_POSITIONS * 6 + i);
                    assert_eq!([key, value], [number(position, 6 * h + i); 2]);
                }
            }
        }
    }
}
