//! Exported keys and values in the layout of another kind of device: blocks of a CPU's cache, or the rows of a GPU's.
//!
//! ```text
//! blocks: layer, head, block of 16 positions: its keys, its values, each as the format's codec stores them
//! rows:   layer, keys then values: codes (kv_heads, positions, head_dim), then, if the format has them,
//!         scales (kv_heads, positions, head_dim / 32) as f32
//! ```
//! Floats keep their bits. Integers are rounded as the other device rounds what it stores: a GPU has a scale for each 32
//! elements of a value, a CPU one for all of an 8-bit value. Heads that CPUs [rotate](KvCodec::ROTATED) are rotated back, and those of GPUs
//! rotated.
#![forbid(unsafe_code)]

use alloc::vec;
use alloc::vec::Vec;

use super::{BLOCK_POSITIONS, KvCodec, KvFormat, KvShape, SCALE_GROUP, with_codec};
use crate::error::{Error, Result};
use crate::hadamard::rotate_head;

/// A GPU's rows for the keys and values of `shape.capacity` positions, which a CPU exported.
///
/// # Errors
/// [`Error::Length`] for another number of bytes; [`Error::Option`] if a head does not consist of groups of 32 elements,
/// as on GPUs; [`Error::Memory`].
pub fn blocks_to_rows(format: KvFormat, shape: KvShape, blocks: &[u8]) -> Result<Vec<u8>> {
    with_codec!(format, C => convert::<C>(&Rows::new::<C>(shape)?, blocks, true))
}

/// A CPU's blocks for the keys and values of `shape.capacity` positions, which a GPU exported.
///
/// # Errors
/// As [`blocks_to_rows`].
pub fn rows_to_blocks(format: KvFormat, shape: KvShape, rows: &[u8]) -> Result<Vec<u8>> {
    with_codec!(format, C => convert::<C>(&Rows::new::<C>(shape)?, rows, false))
}

fn convert<C: KvCodec>(rows: &Rows, from: &[u8], to_rows: bool) -> Result<Vec<u8>> {
    let KvShape { layers, kv_heads, capacity: len, head_dim } = rows.shape;
    let sizes = [C::key_block(head_dim), C::value_block(head_dim)];
    let (heads, blocks) = (layers.saturating_mul(kv_heads), len.div_ceil(BLOCK_POSITIONS));
    let of_blocks = heads.saturating_mul(blocks).saturating_mul(sizes[0] + sizes[1]);
    let (expected, out) = if to_rows { (of_blocks, rows.len()) } else { (rows.len(), of_blocks) };
    if from.len() != expected {
        let (expected, found) = (expected as u64, from.len() as u64);
        return Err(error!(Length { what: "keys and values", expected, found }));
    }
    let mut out = bytemuck::allocation::try_zeroed_vec::<u8>(out)
        .map_err(|()| error!(Memory { need: out as u64, have: 0 }))?;
    // Aligned for any element of a block.
    let mut memory = vec![0f32; sizes[0].max(sizes[1]).div_ceil(4)];
    let mut row = vec![0.0; head_dim];
    let mut at = 0;
    for head in 0..heads {
        for start in (0..len).step_by(BLOCK_POSITIONS) {
            for (kind, size) in sizes.into_iter().enumerate() {
                let block = &mut bytemuck::cast_slice_mut::<f32, u8>(&mut memory)[..size];
                if to_rows {
                    block.copy_from_slice(&from[at..at + size]);
                } else {
                    block.fill(0);
                }
                for t in 0..BLOCK_POSITIONS.min(len - start) {
                    let place = rows.place(head, kind, start + t);
                    match (to_rows, kind) {
                        (true, 0) => C::get_key(block, t, &mut row),
                        (true, _) => C::get_value(block, t, &mut row),
                        (false, _) => rows.get::<C>(from, place, &mut row),
                    }
                    // Either way, as only CPUs rotate.
                    if C::ROTATED {
                        rotate_head(&mut row);
                    }
                    match (to_rows, kind) {
                        (true, _) => rows.put::<C>(&mut out, place, &row),
                        (false, 0) => C::put_key(block, t, &row),
                        (false, _) => C::put_value(block, t, &row),
                    }
                }
                if !to_rows {
                    out[at..at + size].copy_from_slice(block);
                }
                at += size;
            }
        }
    }
    Ok(out)
}

/// The layout of a GPU's rows.
struct Rows {
    shape: KvShape,
    /// Bytes of the codes and of the scales of a row.
    codes: usize,
    scales: usize,
}

impl Rows {
    fn new<C: KvCodec>(shape: KvShape) -> Result<Self> {
        let d = shape.head_dim;
        if !d.is_multiple_of(SCALE_GROUP) {
            let expected = "a multiple of 32";
            return Err(error!(Option { what: "elements of a head", found: d as f64, expected }));
        }
        let codes = C::FLAT.code_bytes(d as u64) as usize;
        Ok(Rows { shape, codes, scales: C::FLAT.bytes(d as u64) as usize - codes })
    }

    /// Bytes of the keys, or of the values, of a layer.
    fn buffer(&self) -> usize {
        self.shape.kv_heads.saturating_mul(self.shape.capacity).saturating_mul(self.codes + self.scales)
    }

    fn len(&self) -> usize {
        self.shape.layers.saturating_mul(2).saturating_mul(self.buffer())
    }

    /// Where the codes and the scales of a key (kind 0) or value (kind 1) of `head`, counted over all layers, begin.
    fn place(&self, head: usize, kind: usize, position: usize) -> [usize; 2] {
        let KvShape { kv_heads, capacity, .. } = self.shape;
        let start = (head / kv_heads * 2 + kind) * self.buffer();
        let row = head % kv_heads * capacity + position;
        [start + row * self.codes, start + kv_heads * capacity * self.codes + row * self.scales]
    }

    fn put<C: KvCodec>(&self, out: &mut [u8], [codes, scales]: [usize; 2], row: &[f32]) {
        // The scales of a layer come after all codes.
        let (all_codes, all_scales) = out.split_at_mut(scales);
        C::put_row(&mut all_codes[codes..][..self.codes], &mut all_scales[..self.scales], row);
    }

    fn get<C: KvCodec>(&self, from: &[u8], [codes, scales]: [usize; 2], row: &mut [f32]) {
        C::get_row(&from[codes..][..self.codes], &from[scales..][..self.scales], row);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::{Arena, Planner};
    use crate::cache::{FlatKv, KvStorage};

    /// What a CPU exports for numbers, and the numbers as it stored them: keys and values of each head, by position.
    fn stored<C: KvCodec>(shape: KvShape) -> (Vec<u8>, Vec<[Vec<f32>; 2]>) {
        let mut plan = Planner::default();
        KvStorage::<C>::plan(shape, &mut plan);
        let mut memory = vec![0; plan.total().unwrap()];
        let mut storage = KvStorage::<C>::new(shape, &mut Arena::new(&mut memory)).unwrap();
        let (heads, len, d) = (shape.layers * shape.kv_heads, shape.capacity, shape.head_dim);
        let mut numbers = Vec::new();
        for head in 0..heads {
            for t in 0..len {
                let number = |kind: usize, i: usize| {
                    libm::sinf((head * 977 + t * 151 + kind * 53 + i * 7) as f32) * (1 + i / 32) as f32
                };
                let row = [0, 1].map(|kind| (0..d).map(|i| number(kind, i)).collect::<Vec<f32>>());
                storage.set_key(head, t, &row[0]);
                storage.set_value(head, t, &row[1]);
                numbers.push(row);
            }
        }
        let mut out = vec![0; KvStorage::<C>::export_len(shape, len)];
        (0..shape.layers).for_each(|layer| storage.clear(layer, len..len.next_multiple_of(BLOCK_POSITIONS)));
        storage.export(len, &mut out);
        (out, numbers)
    }

    #[test]
    fn both_layouts_hold_the_same_numbers() {
        let shape = KvShape { layers: 2, kv_heads: 3, capacity: 37, head_dim: 96 };
        for format in KvFormat::ALL {
            let (blocks, numbers) = with_codec!(format, C => stored::<C>(shape));
            let rows = blocks_to_rows(format, shape, &blocks).unwrap();
            // As many bytes as a GPU exports.
            let spans = FlatKv::of(format).spans(3, 37, 96, 37);
            assert_eq!(rows.len() as u64, 4 * spans.map(|span| span.end - span.start).sum::<u64>());
            let layout = with_codec!(format, C => Rows::new::<C>(shape)).unwrap();
            // Steps of 8 and of 4 bits; rounded twice.
            let error = match format {
                KvFormat::F32 => 0.0,
                KvFormat::F16 => 1e-3,
                KvFormat::Q8 => 1.0 / 120.0,
                KvFormat::Q4 => 1.0 / 3.5,
                KvFormat::Fp8E4M3 => 1.0 / 15.0,
                KvFormat::Fp8E5M2 => 1.0 / 7.0,
            };
            let mut row = vec![0.0; 96];
            for (i, both) in numbers.iter().enumerate() {
                for (kind, want) in both.iter().enumerate() {
                    let place = layout.place(i / 37, kind, i % 37);
                    with_codec!(format, C => layout.get::<C>(&rows, place, &mut row));
                    let mut want = want.clone();
                    if with_codec!(format, C => C::ROTATED) {
                        rotate_head(&mut want);
                    }
                    let most = want.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
                    let worst = row.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                    assert!(worst <= error * most, "{format:?} {i} {kind}: {worst}");
                }
            }
            let back = rows_to_blocks(format, shape, &rows).unwrap();
            let again = blocks_to_rows(format, shape, &back).unwrap();
            match format {
                // Rounded once more, where the scales of a CPU have 16 bits, and values only one.
                KvFormat::Q8 | KvFormat::Q4 => assert_eq!(back.len(), blocks.len()),
                _ => assert!(back == blocks && again == rows, "{format:?}"),
            }
        }
        let wrong = |shape| blocks_to_rows(KvFormat::F16, shape, &[0; 64]).unwrap_err().code();
        assert_eq!(wrong(shape), "length");
        assert_eq!(wrong(KvShape { head_dim: 48, ..shape }), "option");
    }
}
