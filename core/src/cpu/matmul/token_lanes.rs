//! Table lookup of activation sums for many tokens, a vector holding the same sum for several tokens.
//!
//! For every eight (four) columns all 256 (16) subset sums of the activations are tabulated, an entry being a
//! vector with a lane per token. Eight (four) bits of a row are the index of the entry to add: one load and one
//! addition do as many products per token, and nothing is shuffled or widened. A byte of four 2-bit codes
//! selects a sum of four products.
//!
//! This is the method of four Russians (Arlazarov, Dinic, Kronrod and Faradzev 1970) with tables of activations
//! rather than weights, since a prompt has fewer tokens than a matrix has rows.
#![allow(unsafe_code)]

use core::mem::MaybeUninit;

use super::args::MatmulArgs;
use crate::cpu::activation_lut::{ActivationLut, LUT_COLS};
use crate::cpu::activations::{Q8_LEN, Q8Block};
use crate::cpu::parallel::OutputRows;
use crate::cpu::repack::{ONE_BIT_FOURS, PANEL_ROWS};

/// Columns that share a factor.
const PART: usize = 32;
/// Lanes of the widest vectors.
const MAX_LANES: usize = 32;
/// Most 16-bit integers of the tables that exist at the same time: those of 64 columns by 256 entries, or of
/// 128 by 16 entries.
const TABLES_LEN: usize = 16 * 256 * 8;
/// Most bytes of codes of a panel that are used with the same tables.
const CODES: usize = Q8_LEN / 4 * PANEL_ROWS;
/// Most sums that share tables, which bounds their memory.
const SUMS: usize = 1 << 14;
/// 16-bit integers per token of a [`Block`].
const BLOCK_LEN: usize = Q8_LEN + 4;

/// The groups of tokens of an instruction set.
#[derive(Clone, Copy)]
pub(super) struct Lanes {
    /// Tokens of a group: lanes of 16 bits in a vector; 0 if the instruction set has no such kernels.
    pub(super) group: usize,
    /// Fewest tokens of a product for which groups are faster than one token after the other.
    pub(super) least: usize,
    /// Fewest tokens that are worth a group with empty lanes.
    pub(super) from: usize,
    /// Rows from which on building tables costs little beside looking sums up.
    pub(super) rows: usize,
}

impl Lanes {
    /// No kernels.
    pub(super) const NONE: Lanes = Lanes { group: 0, least: 0, from: 0, rows: 0 };

    /// How many of `tokens`, the first ones, are computed in lanes: whole groups, and the remaining tokens if they
    /// are worth a group with empty lanes.
    pub(super) const fn tokens(self, tokens: usize) -> usize {
        if self.group == 0 || tokens < self.least {
            return 0;
        }
        let rest = tokens % self.group;
        if rest >= self.from { tokens } else { tokens - rest }
    }
}

/// The vectors of an instruction set.
///
/// Safety: all functions require the instruction set, and memory as they describe it.
pub(super) trait TokenLanes {
    /// The groups of tokens, of at most [`MAX_LANES`].
    const LANES: Lanes;
    /// A 16-bit integer per token.
    type Sums: Copy;
    /// A 32-bit integer per token, in the order of [`place`].
    type Integers: Copy;
    /// Two 16-bit integers per token, in the order of [`place`].
    type Factors: Copy;

    /// Loads an integer per token.
    unsafe fn load(p: *const i16) -> Self::Sums;
    /// Stores an integer per token.
    unsafe fn store(p: *mut i16, sums: Self::Sums);
    /// `a + b`.
    unsafe fn add(a: Self::Sums, b: Self::Sums) -> Self::Sums;
    /// Loads an integer per token.
    unsafe fn load_integers(p: *const i32) -> Self::Integers;
    /// Stores an integer per token.
    unsafe fn store_integers(p: *mut i32, n: Self::Integers);
    /// `a + b`.
    unsafe fn add_integers(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// Loads two factors per token.
    unsafe fn load_factors(p: *const i16) -> Self::Factors;
    /// `n + a * factor of a + b * factor of b`.
    unsafe fn add_parts(
        n: Self::Integers,
        a: Self::Sums,
        b: Self::Sums,
        factors: Self::Factors,
    ) -> Self::Integers;
    /// Adds `n * d` to the floats at `sums`, one per token in the order of [`place`]; both operations round.
    unsafe fn add_block(sums: *mut f32, n: Self::Integers, d: f32);
    /// Of 16 bytes: `(byte >> shift & mask) * size_of::<Self::Sums>()`.
    unsafe fn entries(codes: *const u8, shift: i32, mask: u8, entries: *mut u16);
    /// The scales of a panel's block, 16 half-precision numbers.
    unsafe fn scales(p: *const u8) -> [f32; PANEL_ROWS];
}

/// The position of token `t` of a group among 32-bit lanes, which are unpacked from the low and the high halves of
/// each eight 16-bit lanes.
const fn place(lanes: usize, t: usize) -> usize {
    t / 8 * 4 + t % 4 + if t % 8 < 4 { 0 } else { lanes / 2 }
}

/// How the codes of a panel are read: its layout and the bits per code.
pub(super) trait Codes {
    /// Columns whose tables exist at the same time: one or two [`Q8Block`]s.
    const UNIT: usize;
    /// Bits per code.
    const BITS: usize;
    /// Columns of a table.
    const COLS: usize;
    /// Bits that select from a table: a byte or half of one.
    const INDEX_BITS: usize;
    /// Indices of a row into the same table, the second with twice the weight.
    const PLANES: usize = 1;
    /// The distance between the bytes of two rows.
    const ROW: usize = 1;
    /// The offset, in a panel, of the codes of the unit of columns `from ..`.
    fn offset(from: usize) -> usize {
        from * Self::BITS / 8 * PANEL_ROWS
    }
    /// The offset, in a unit, of the `v`-th vector of 16 bytes.
    fn vector(v: usize) -> usize {
        v * PANEL_ROWS
    }
    /// The position, in these vectors, of the first row's byte that selects from table `t` of a part.
    fn byte(part: usize, t: usize, plane: usize) -> usize;
    /// The column of table `t` in a part that bits `i * BITS ..` of an index multiply, or bit `i` with planes.
    fn column(t: usize, i: usize) -> usize {
        t * Self::COLS + i
    }
}

/// One bit per code, in [`Layout::Panels8`](crate::cpu::repack::Layout::Panels8).
pub(super) struct Bits;

impl Codes for Bits {
    const UNIT: usize = Q8_LEN;
    const BITS: usize = 1;
    const COLS: usize = 8;
    const INDEX_BITS: usize = 8;

    fn offset(from: usize) -> usize {
        (from / LUT_COLS * (LUT_COLS / 8) + from % LUT_COLS / PART) * PANEL_ROWS
    }

    fn vector(v: usize) -> usize {
        let (part, t) = (v / (PART / Self::COLS), v % (PART / Self::COLS));
        (t * (LUT_COLS / PART) + part) * PANEL_ROWS
    }

    fn byte(part: usize, t: usize, _: usize) -> usize {
        (part * (PART / Self::COLS) + t) * PANEL_ROWS
    }
}

/// As [`Bits`], with an index for each half of a byte: more lookups in small tables, which are soon built.
pub(super) struct HalfBytes;

impl Codes for HalfBytes {
    const UNIT: usize = LUT_COLS;
    const BITS: usize = 1;
    const COLS: usize = 4;
    const INDEX_BITS: usize = 4;

    fn byte(part: usize, t: usize, _: usize) -> usize {
        (t / 2 * (LUT_COLS / PART) + part) * PANEL_ROWS
    }
}

/// Two bits per code, in [`Layout::Panels8`](crate::cpu::repack::Layout::Panels8).
pub(super) struct Planes;

impl Codes for Planes {
    const UNIT: usize = Q8_LEN;
    const BITS: usize = 2;
    const COLS: usize = 8;
    const INDEX_BITS: usize = 8;
    const PLANES: usize = 2;

    fn byte(part: usize, t: usize, plane: usize) -> usize {
        ((part * (PART / Self::COLS) + t) * Self::PLANES + plane) * PANEL_ROWS
    }
}

/// `BITS` bits per code, in [`Layout::Panels32`](crate::cpu::repack::Layout::Panels32).
pub(super) struct Words<const BITS: usize>;

impl<const BITS: usize> Words<BITS> {
    /// Columns of a word, each of whose bytes has every fourth of them.
    const WORD: usize = 32 / BITS;
}

impl<const BITS: usize> Codes for Words<BITS> {
    const UNIT: usize = Q8_LEN;
    const BITS: usize = BITS;
    const COLS: usize = 8 / BITS;
    const INDEX_BITS: usize = 8;
    const ROW: usize = 4;

    fn byte(part: usize, t: usize, _: usize) -> usize {
        (part * (PART / Self::WORD) + t / 4) * 4 * PANEL_ROWS + t % 4
    }

    fn column(t: usize, i: usize) -> usize {
        let i = if BITS == 1 { ONE_BIT_FOURS[i] } else { i };
        t / 4 * Self::WORD + 4 * i + t % 4
    }
}

/// A [`Q8Block`] of each token of a group, stored where the lookup tables of single tokens would be.
#[derive(Clone, Copy)]
struct Block {
    /// `(Q8_LEN, lanes)`
    q: *const i16,
    /// `(lanes, 2)`, in the order of [`place`].
    factors: *const i16,
    /// `(lanes)`, in the order of [`place`].
    start: *const i32,
}

impl Block {
    /// Block `b` of a group. Safety: `group` has it.
    #[inline(always)]
    unsafe fn of(group: *const ActivationLut, lanes: usize, b: usize) -> Block {
        // SAFETY: the caller's promise.
        unsafe {
            let q = group.cast::<i16>().add(b * BLOCK_LEN * lanes);
            let factors = q.add(Q8_LEN * lanes);
            Block { q, factors, start: factors.add(2 * lanes).cast() }
        }
    }
}

/// Writes the blocks of a group: `q8` of shape `(tokens, blocks)` with at most `lanes` tokens. Lanes without a token
/// are zero.
pub(super) fn fill(lanes: usize, blocks: usize, q8: &[Q8Block], group: &mut [ActivationLut]) {
    let group: &mut [i16] = bytemuck::cast_slice_mut(group);
    for (b, block) in group.chunks_exact_mut(BLOCK_LEN * lanes).take(blocks).enumerate() {
        block.fill(0);
        let (q, rest) = block.split_at_mut(Q8_LEN * lanes);
        let (factors, start) = rest.split_at_mut(2 * lanes);
        let start: &mut [i32] = bytemuck::cast_slice_mut(start);
        for (t, y) in q8.iter().skip(b).step_by(blocks).enumerate() {
            for (q, y) in q.chunks_exact_mut(lanes).zip(&y.q) {
                q[t] = i16::from(*y);
            }
            let at = place(lanes, t);
            factors[2 * at] = y.factor[0] as i16;
            factors[2 * at + 1] = y.factor[1] as i16;
            start[at] = y.start;
        }
    }
}

/// Computes rows `0..end` of `out`, whole panels with blocks of `block` columns, for the first [`Lanes::tokens`]. Returns
/// their number.
#[inline(always)]
pub(super) unsafe fn rows<L: TokenLanes, C: Codes>(
    args: &MatmulArgs<'_>,
    out: &mut OutputRows<'_>,
    end: usize,
    block: usize,
) -> usize {
    let lanes = L::LANES.group;
    let blocks = args.w.cols().div_ceil(LUT_COLS);
    let tokens = L::LANES.tokens(args.tokens);
    let mut buffers = MaybeUninit::<Buffers>::uninit();
    for group in (0..tokens).step_by(lanes) {
        let luts = args.luts[group * blocks..].as_ptr();
        for first in (0..end).step_by(SUMS / lanes) {
            let rows = (SUMS / lanes).min(end - first);
            // SAFETY: the caller has the instruction set and the panels; `luts` has the blocks of the group.
            unsafe {
                let buffers = Buffers::pointers(&mut buffers);
                sum_rows::<L, C>(args, luts, out.first() + first, rows, block, buffers);
                for t in 0..lanes.min(tokens - group) {
                    let step = args.step(group + t);
                    let sums = buffers.sums.add(place(lanes, t));
                    for i in (0..rows).step_by(PANEL_ROWS) {
                        let values = core::array::from_fn(|r| *sums.add((i + r) * lanes) * step);
                        out.put16(group + t, first + i, &values);
                    }
                }
            }
        }
    }
    tokens
}

#[repr(C, align(64))]
struct Buffers {
    /// `(tables, entries, lanes)`
    tables: [i16; TABLES_LEN],
    /// `(rows, lanes)`
    sums: [f32; SUMS],
    /// `(rows, lanes)`, of a block of weights until its last column.
    integers: [i32; SUMS],
    /// Of a panel, for each byte of its codes: offsets of entries in bytes, those of second halves of bytes
    /// after all of the first.
    entries: [u16; 2 * CODES],
}

#[derive(Clone, Copy)]
struct Pointers {
    tables: *mut i16,
    sums: *mut f32,
    integers: *mut i32,
    entries: *mut u16,
}

impl Buffers {
    fn pointers(buffers: &mut MaybeUninit<Buffers>) -> Pointers {
        let p = buffers.as_mut_ptr();
        // SAFETY: addresses of fields.
        unsafe {
            Pointers {
                tables: (&raw mut (*p).tables).cast(),
                sums: (&raw mut (*p).sums).cast(),
                integers: (&raw mut (*p).integers).cast(),
                entries: (&raw mut (*p).entries).cast(),
            }
        }
    }
}

/// Writes the sums of rows `first..first + rows` to the buffer, in whole panels.
#[inline(always)]
unsafe fn sum_rows<L: TokenLanes, C: Codes>(
    args: &MatmulArgs<'_>,
    luts: *const ActivationLut,
    first: usize,
    rows: usize,
    block: usize,
    Pointers { tables, sums, integers, entries }: Pointers,
) {
    let lanes = L::LANES.group;
    let cols = args.w.cols();
    let table_len = lanes << C::INDEX_BITS;
    // SAFETY: the caller has the instruction set, the panels and the group.
    unsafe {
        sums.write_bytes(0, rows * lanes);
        for from in (0..cols).step_by(C::UNIT) {
            let x = Block::of(luts, lanes, from / Q8_LEN);
            let second = if C::UNIT > Q8_LEN { Block::of(luts, lanes, from / Q8_LEN + 1) } else { x };
            for t in 0..Q8_LEN / C::COLS {
                build::<L, C>(x.q, t, tables.add(t * table_len));
                if C::UNIT > Q8_LEN {
                    build::<L, C>(second.q, t, tables.add((Q8_LEN / C::COLS + t) * table_len));
                }
            }
            let factors = [L::load_factors(x.factors), L::load_factors(second.factors)];
            let mut start = L::load_integers(x.start);
            if C::UNIT > Q8_LEN {
                start = L::add_integers(start, L::load_integers(second.start));
            }
            let (is_first, is_last) = (from.is_multiple_of(block), (from + C::UNIT).is_multiple_of(block));
            for i in (0..rows).step_by(PANEL_ROWS) {
                let panel = args.w.panel(first + i).as_ptr();
                let d = if is_last {
                    L::scales(panel.add(from / block * 2 * PANEL_ROWS))
                } else {
                    [0.0; PANEL_ROWS]
                };
                let codes = panel.add(cols / block * 2 * PANEL_ROWS + C::offset(from));
                find_entries::<L, C>(codes, entries);
                for r in 0..PANEL_ROWS {
                    let at = (i + r) * lanes;
                    let entries = entries.cast_const().add(r * C::ROW);
                    let (a, b) = (part_sum::<L, C, 0>(entries, tables), part_sum::<L, C, 1>(entries, tables));
                    let mut n = L::add_parts(start, a, b, factors[0]);
                    if C::UNIT > Q8_LEN {
                        let (a, b) =
                            (part_sum::<L, C, 2>(entries, tables), part_sum::<L, C, 3>(entries, tables));
                        n = L::add_parts(n, a, b, factors[1]);
                    }
                    if !is_first {
                        n = L::add_integers(n, L::load_integers(integers.add(at)));
                    }
                    if is_last {
                        L::add_block(sums.add(at), n, d[r]);
                    } else {
                        L::store_integers(integers.add(at), n);
                    }
                }
            }
        }
    }
}

/// Writes the sums of the columns of table `t`, of `q` of shape `(Q8_LEN, lanes)`, that each index selects.
#[inline(always)]
unsafe fn build<L: TokenLanes, C: Codes>(q: *const i16, t: usize, table: *mut i16) {
    let lanes = L::LANES.group;
    let digit = C::INDEX_BITS / C::COLS;
    let tables = PART / C::COLS;
    // SAFETY: the caller has the instruction set, the activations, and memory for the table.
    unsafe {
        table.write_bytes(0, lanes);
        for i in 0..C::COLS {
            let mut more = L::load(q.add((t / tables * PART + C::column(t % tables, i)) * lanes));
            if C::BITS == 1 {
                // A weight is twice its bit minus 1.
                more = L::add(more, more);
            }
            let one = 1 << (i * digit);
            for entry in one..one << digit {
                let sum = L::load(table.add((entry - one) * lanes));
                L::store(table.add(entry * lanes), L::add(sum, more));
            }
        }
    }
}

/// Writes the offsets of the entries that a panel's codes of a unit select.
#[inline(always)]
unsafe fn find_entries<L: TokenLanes, C: Codes>(codes: *const u8, entries: *mut u16) {
    // SAFETY: the caller has the instruction set, the codes and memory for the entries.
    unsafe {
        for v in 0..C::UNIT * C::BITS / 8 {
            let (codes, entries) = (codes.add(C::vector(v)), entries.add(v * PANEL_ROWS));
            if C::INDEX_BITS == 8 {
                L::entries(codes, 0, 0xff, entries);
            } else {
                L::entries(codes, 0, 0x0f, entries);
                L::entries(codes, 4, 0x0f, entries.add(CODES));
            }
        }
    }
}

/// The sum of part `I` of a row.
#[inline(always)]
unsafe fn part_sum<L: TokenLanes, C: Codes, const I: usize>(
    entries: *const u16,
    tables: *const i16,
) -> L::Sums {
    // SAFETY: the caller has the tables and the entries.
    unsafe {
        let low = plane_sum::<L, C, I, 0>(entries, tables);
        if C::PLANES == 1 {
            return low;
        }
        let high = plane_sum::<L, C, I, 1>(entries, tables);
        L::add(low, L::add(high, high))
    }
}

/// The sum of the entries that plane `H` selects.
#[inline(always)]
unsafe fn plane_sum<L: TokenLanes, C: Codes, const I: usize, const H: usize>(
    entries: *const u16,
    tables: *const i16,
) -> L::Sums {
    let table_len = L::LANES.group << C::INDEX_BITS;
    // SAFETY: the caller has the tables and the entries.
    unsafe {
        let entry = |t: usize| {
            let half = if C::INDEX_BITS == 4 { t % 2 * CODES } else { 0 };
            let entry = usize::from(*entries.add(C::byte(I, t, H) + half));
            // The offset that is known at compile time comes last, so that it becomes part of the load.
            L::load(tables.byte_add(entry).add((I * (PART / C::COLS) + t) * table_len))
        };
        let mut sum = entry(0);
        for t in 1..PART / C::COLS {
            sum = L::add(sum, entry(t));
        }
        sum
    }
}
