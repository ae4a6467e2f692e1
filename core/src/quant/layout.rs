//! How the rows of a matrix lie in memory: as in the file, or interleaved for vector instructions.
//!
//! Interleaved, 16 rows (a group) stand side by side, in as many bytes as before: first, for each block
//! of the columns, the 16 scales; then, block after block, the codes, a piece of each row in turn, so
//! that one vector holds the same columns of 16 rows and no sum crosses its lanes. Rows past the last
//! whole group stay as they are.
#![forbid(unsafe_code)]

use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use super::{Format, Matrix};
use crate::error::{Error, Result};
use crate::kernel::for_each_chunk;
use crate::pool::Pool;

/// Rows side by side in an interleaved matrix.
pub const GROUP: usize = 16;

/// The arrangement of a matrix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Layout {
    /// Row after row, as files have it.
    #[default]
    Rows,
    /// 32 bits of each of 16 rows in turn, for instructions that add up four products a lane. Within
    /// the 32 bits, shifting right and keeping the lowest code of each byte brings out four neighbours.
    Words,
    /// A byte of each of 16 rows in turn, for table lookups: a bit of each of eight columns, in their
    /// order. Two bits of eight columns are two bytes, the low bits first. With one bit, the bytes of
    /// 128 columns stand in the order of columns 0, 32, 64, 96, 8, 40 and so on, so that a vector of
    /// several times 16 bytes holds columns with factors of their own.
    Bytes,
}

/// The arrangement of the codes of a block, scale apart.
struct Codes {
    /// The format of the interleaved block, whose scale and codes are apart anyway.
    format: Format,
    /// Bits a code.
    bits: u32,
    /// 32-bit words a block.
    words: usize,
}

fn codes(format: Format) -> Option<Codes> {
    match format {
        Format::Q1_0 => Some(Codes { format, bits: 1, words: 4 }),
        Format::Q2_0 => Some(Codes { format, bits: 2, words: 4 }),
        Format::Pq2_0 | Format::Tq2_0G128 => Some(Codes { format: Format::Pq2_0, bits: 2, words: 8 }),
        Format::Tq2_0 => Some(Codes { format, bits: 2, words: 16 }),
        _ => None,
    }
}

/// The format that matrices of `format` are of once [`interleave`] has been at them, or `None` if they
/// stay as they are.
pub fn interleaved_format(format: Format) -> Option<Format> {
    Some(codes(format)?.format)
}

/// Swaps the bits `mask` of `x` with those `by` places higher. Done twice, it is undone.
#[inline(always)]
const fn swap(x: u32, mask: u32, by: u32) -> u32 {
    let moved = (x ^ (x >> by)) & mask;
    x ^ moved ^ (moved << by)
}

/// Between codes in the order of the columns and those of [`Layout::Words`]: its own inverse.
///
/// With 2 bits, column `4 s + j` goes to byte `j`, `2 s` bits up; with 1 bit, as many bits up as
/// [`ONE_BIT_SHIFT`] says.
#[inline(always)]
const fn shuffle(word: u32, bits: u32) -> u32 {
    if bits == 1 {
        swap(swap(word, 0x0000_cccc, 14), 0x00aa_00aa, 7)
    } else {
        swap(swap(word, 0x0000_f0f0, 12), 0x00cc_00cc, 6)
    }
}

/// The low bits of the 2-bit codes in each half of `word` to its lower byte, the high bits to its upper.
#[inline(always)]
const fn unzip(word: u32) -> u32 {
    swap(swap(swap(word, 0x2222_2222, 1), 0x0c0c_0c0c, 2), 0x00f0_00f0, 4)
}

/// The inverse of [`unzip`].
#[inline(always)]
const fn zip(word: u32) -> u32 {
    swap(swap(swap(word, 0x00f0_00f0, 4), 0x0c0c_0c0c, 2), 0x2222_2222, 1)
}

/// How far right [`Layout::Words`] of 1-bit weights are shifted to bring out columns `4 s .. 4 s + 4`.
#[allow(dead_code, reason = "not every target has kernels for it")]
pub(crate) const ONE_BIT_SHIFT: [u32; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// Scale and codes of a file's block, the codes in the order of the columns.
#[inline(always)]
fn split(format: Format, block: &[u8], words: &mut [u32]) -> [u8; 2] {
    let read = |at: usize| u32::from_le_bytes(core::array::from_fn(|i| block[at + i]));
    match format {
        Format::Tq2_0G128 => {
            words.iter_mut().enumerate().for_each(|(i, w)| *w = read(4 * i));
            [block[32], block[33]]
        }
        Format::Tq2_0 => {
            // Byte m of 32 holds columns m, 32 + m, 64 + m and 96 + m.
            for (i, word) in words.iter_mut().enumerate() {
                let (at, plane) = (i / 8 * 32 + i % 2 * 16, i % 8 / 2);
                *word = 0;
                for four in 0..4 {
                    let x = read(at + 4 * four) >> (2 * plane) & 0x0303_0303;
                    *word |= ((x | x >> 6 | x >> 12 | x >> 18) & 0xff) << (8 * four);
                }
            }
            [block[64], block[65]]
        }
        _ => {
            words.iter_mut().enumerate().for_each(|(i, w)| *w = read(2 + 4 * i));
            [block[0], block[1]]
        }
    }
}

/// The inverse of [`split`].
fn join(format: Format, scale: [u8; 2], words: &[u32], block: &mut [u8]) {
    if format == Format::Tq2_0 {
        block.fill(0);
        for (i, word) in words.iter().enumerate() {
            let (at, plane) = (i / 8 * 32 + i % 2 * 16, i % 8 / 2);
            for m in 0..16 {
                block[at + m] |= ((word >> (2 * m) & 3) << (2 * plane)) as u8;
            }
        }
        block[64..66].copy_from_slice(&scale);
    } else {
        block[..2].copy_from_slice(&scale);
        for (bytes, word) in block[2..].chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// Where byte `byte` of block `b` of row `r` is in a group, its scales left out.
#[inline(always)]
const fn place(layout: Layout, codes: &Codes, b: usize, byte: usize, r: usize) -> usize {
    let len = 4 * codes.words;
    match layout {
        Layout::Words => (b * len + byte / 4 * 4) * GROUP + 4 * r + byte % 4,
        _ if codes.bits == 1 => (b * len + byte % 4 * 4 + byte / 4) * GROUP + r,
        _ => (b * len + byte) * GROUP + r,
    }
}

/// Rearranges the bytes of a `(rows, cols)` matrix of `format` in place; what comes out is of
/// [`interleaved_format`]. Nothing happens to a format that has none, or for [`Layout::Rows`].
///
/// # Errors
/// [`Error::Length`] if `data` is no such matrix; then it is as it was. [`Error::Memory`] if there is no
/// room for 16 rows; then `data` is lost.
pub fn interleave(
    format: Format,
    layout: Layout,
    rows: usize,
    cols: usize,
    data: &mut [u8],
    pool: &dyn Pool,
) -> Result<()> {
    let row_bytes = Matrix::new(format, rows, cols, data)?.row_bytes();
    let Some(codes) = codes(format) else { return Ok(()) };
    if layout == Layout::Rows || rows == 0 || cols == 0 {
        return Ok(());
    }
    // At most the length of `data`, unlike 16 rows where there are fewer.
    let (grouped, rest) = data.split_at_mut(rows / GROUP * GROUP * row_bytes);
    let group_bytes = grouped.len() / (rows / GROUP).max(1);
    let full = AtomicBool::new(false);
    for_each_chunk(pool, grouped, group_bytes, &|_, group| {
        let mut copy = Vec::new();
        if copy.try_reserve_exact(group.len()).is_err() {
            full.store(true, Ordering::Relaxed);
            return;
        }
        copy.extend_from_slice(group);
        interleave_group(format, &codes, layout, &copy, group);
    });
    if full.into_inner() {
        return Err(Error::Memory { need: group_bytes as u64, have: 0 });
    }
    if codes.format != format {
        for block in rest.chunks_exact_mut(format.block_bytes()) {
            let mut words = [0; 16];
            let scale = split(format, block, &mut words[..codes.words]);
            join(codes.format, scale, &words[..codes.words], block);
        }
    }
    Ok(())
}

/// `from` is 16 rows as in the file, `to` the same size.
fn interleave_group(format: Format, codes: &Codes, layout: Layout, from: &[u8], to: &mut [u8]) {
    let block_bytes = format.block_bytes();
    let row_bytes = from.len() / GROUP;
    let blocks = row_bytes / block_bytes;
    let (scales, packed) = to.split_at_mut(2 * GROUP * blocks);
    let mut words = [0; 16];
    let words = &mut words[..codes.words];
    for b in 0..blocks {
        for r in 0..GROUP {
            let block = &from[r * row_bytes + b * block_bytes..][..block_bytes];
            let scale = split(format, block, words);
            scales[2 * (b * GROUP + r)..][..2].copy_from_slice(&scale);
            for (i, &word) in words.iter().enumerate() {
                if layout == Layout::Words {
                    let word = shuffle(word, codes.bits).to_le_bytes();
                    packed[place(layout, codes, b, 4 * i, r)..][..4].copy_from_slice(&word);
                } else {
                    let word = if codes.bits == 2 { unzip(word) } else { word };
                    for (j, byte) in word.to_le_bytes().into_iter().enumerate() {
                        packed[place(layout, codes, b, 4 * i + j, r)] = byte;
                    }
                }
            }
        }
    }
}

/// Block `b` of row `r` of an interleaved group of `format`, as a file has it, in the first bytes of
/// `block`.
pub(super) fn block_of<'c>(
    format: Format,
    layout: Layout,
    group: &[u8],
    r: usize,
    b: usize,
    block: &'c mut [u8; 66],
) -> &'c [u8] {
    let block = &mut block[..format.block_bytes()];
    let Some(codes) = codes(format) else { return block };
    let blocks = group.len() / GROUP / format.block_bytes();
    let (scales, packed) = group.split_at(2 * GROUP * blocks);
    let at = 2 * (b * GROUP + r);
    let mut words = [0; 16];
    let words = &mut words[..codes.words];
    for (i, word) in words.iter_mut().enumerate() {
        let byte = |j: usize| packed[place(layout, &codes, b, 4 * i + j, r)];
        *word = u32::from_le_bytes([byte(0), byte(1), byte(2), byte(3)]);
        if layout == Layout::Words {
            *word = shuffle(*word, codes.bits);
        } else if codes.bits == 2 {
            *word = zip(*word);
        }
    }
    join(format, [scales[at], scales[at + 1]], words, block);
    block
}
