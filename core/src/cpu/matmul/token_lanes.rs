//! Table lookup of activation sums for many tokens, a vector holding the same sum for several tokens.
//!
//! For every few columns all subset sums of the activations are tabulated, an entry being a vector with a lane per
//! token. As many bits of a row are the index of the entry to add: one load and one addition do five to eight
//! products per token, and nothing is shuffled or widened. A byte of four 2-bit codes selects a sum of four
//! products.
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
/// Maximum number of 16-bit integers of the tables that exist at the same time: with relaxed SIMD twice as many, for [`Words`] of 2 bits.
const TABLES_LEN: usize = if cfg!(target_feature = "relaxed-simd") { 1 << 16 } else { 1 << 15 };
/// 64-bit integers that hold the offsets of the entries that a panel selects from them: those of [`Fields`], which are
/// more than the 256 of 16 bits of [`Planes`] and [`Words`].
const ENTRIES: usize = LUT_COLS / PART / 2 * FIELDS.len() * PANEL_ROWS;
const _: () = assert!(ENTRIES * size_of::<u64>() >= 256 * size_of::<u16>());
/// Maximum number of sums that share tables, which bounds their memory; half as many if blocks are longer than a unit.
const SUMS: usize = 1 << 15;
/// 16-bit integers per token of a [`Block`].
const BLOCK_LEN: usize = Q8_LEN + 4;

/// The groups of tokens of an instruction set.
#[derive(Clone, Copy)]
pub(super) struct Lanes {
    /// Lanes of 16 bits in a vector; 0 if the instruction set has no such kernels.
    pub(super) vector: usize,
    /// Maximum number of vectors of a group, one or two: the indices of their tokens are found once.
    pub(super) vectors: usize,
    /// Minimum number of tokens that are worth a vector with empty lanes.
    pub(super) from: usize,
    /// Rows from which on building tables costs little beside looking sums up.
    pub(super) rows: usize,
}

impl Lanes {
    /// No kernels.
    pub(super) const NONE: Lanes = Lanes { vector: 0, vectors: 1, from: 0, rows: 0 };

    /// How many of `tokens`, the first ones, are computed in lanes: whole vectors, and the remaining tokens if they
    /// are worth a vector with empty lanes.
    pub(super) const fn tokens(self, tokens: usize) -> usize {
        if self.vector == 0 {
            return 0;
        }
        let rest = tokens % self.vector;
        if rest >= self.from { tokens } else { tokens - rest }
    }

    /// The lanes of the next group if `tokens` remain to be computed in lanes.
    fn group(self, tokens: usize) -> usize {
        if tokens > self.vector { self.vectors * self.vector } else { self.vector }
    }
}

/// The vectors of an instruction set.
///
/// Safety: all functions require the instruction set, and memory as they describe it.
pub(super) trait TokenLanes {
    /// The groups of tokens.
    const LANES: Lanes;
    /// Lanes of a group.
    const GROUP: usize = Self::LANES.vector;
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
    /// The scales of a panel's block, 16 half-precision numbers.
    unsafe fn scales(p: *const u8) -> [f32; PANEL_ROWS];
}

/// The vectors of instruction sets whose indices are bytes. Safety: as for [`TokenLanes`].
pub(super) trait ByteLanes: TokenLanes {
    /// Of each of 16 bytes, `byte << shift`; `shift` is known at compile time.
    unsafe fn entries(codes: *const u8, shift: u32, entries: *mut u16);
}

/// The vectors of instruction sets that use [`Fields`]. Safety: as for [`TokenLanes`].
pub(super) trait FieldLanes: TokenLanes {
    /// Of 16 rows of two words of 32 bits, whose bytes `codes` point to, `field << shift` for each of the [`FIELDS`] of their
    /// halves, which is less than 2^16. The same field of the four halves of a row makes one of `entries`,
    /// `(FIELDS, PANEL_ROWS)`, that of the first word's low half being the lowest 16 bits. `shift` is known at compile time.
    unsafe fn fields(codes: [[*const u8; 4]; 2], shift: u32, entries: *mut u64);
}

/// The position of token `t` of a group among 32-bit lanes, which are unpacked from the low and the high halves of
/// each eight 16-bit lanes of a vector.
const fn place(vector: usize, t: usize) -> usize {
    let lane = t % vector;
    t - lane + lane / 8 * 4 + lane % 4 + if lane % 8 < 4 { 0 } else { vector / 2 }
}

/// A group of two vectors.
pub(super) struct Pair<L>(L);

#[allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every block needs what the trait asks for, and no more"
)]
impl<L: TokenLanes> TokenLanes for Pair<L> {
    const LANES: Lanes = L::LANES;
    const GROUP: usize = 2 * L::GROUP;
    type Sums = [L::Sums; 2];
    type Integers = [L::Integers; 2];
    type Factors = [L::Factors; 2];

    #[inline(always)]
    unsafe fn load(p: *const i16) -> Self::Sums {
        unsafe { [L::load(p), L::load(p.add(L::GROUP))] }
    }

    #[inline(always)]
    unsafe fn store(p: *mut i16, [a, b]: Self::Sums) {
        unsafe {
            L::store(p, a);
            L::store(p.add(L::GROUP), b);
        }
    }

    #[inline(always)]
    unsafe fn add(a: Self::Sums, b: Self::Sums) -> Self::Sums {
        unsafe { [L::add(a[0], b[0]), L::add(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn load_integers(p: *const i32) -> Self::Integers {
        unsafe { [L::load_integers(p), L::load_integers(p.add(L::GROUP))] }
    }

    #[inline(always)]
    unsafe fn store_integers(p: *mut i32, [a, b]: Self::Integers) {
        unsafe {
            L::store_integers(p, a);
            L::store_integers(p.add(L::GROUP), b);
        }
    }

    #[inline(always)]
    unsafe fn add_integers(a: Self::Integers, b: Self::Integers) -> Self::Integers {
        unsafe { [L::add_integers(a[0], b[0]), L::add_integers(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn load_factors(p: *const i16) -> Self::Factors {
        unsafe { [L::load_factors(p), L::load_factors(p.add(2 * L::GROUP))] }
    }

    #[inline(always)]
    unsafe fn add_parts(
        n: Self::Integers,
        a: Self::Sums,
        b: Self::Sums,
        factors: Self::Factors,
    ) -> Self::Integers {
        unsafe { [L::add_parts(n[0], a[0], b[0], factors[0]), L::add_parts(n[1], a[1], b[1], factors[1])] }
    }

    #[inline(always)]
    unsafe fn add_block(sums: *mut f32, [a, b]: Self::Integers, d: f32) {
        unsafe {
            L::add_block(sums, a, d);
            L::add_block(sums.add(L::GROUP), b, d);
        }
    }

    #[inline(always)]
    unsafe fn scales(p: *const u8) -> [f32; PANEL_ROWS] {
        unsafe { L::scales(p) }
    }
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "the block needs what the trait asks for, and no more")]
impl<L: ByteLanes> ByteLanes for Pair<L> {
    #[inline(always)]
    unsafe fn entries(codes: *const u8, shift: u32, entries: *mut u16) {
        unsafe { L::entries(codes, shift, entries) };
    }
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "the block needs what the trait asks for, and no more")]
impl<L: FieldLanes> FieldLanes for Pair<L> {
    #[inline(always)]
    unsafe fn fields(codes: [[*const u8; 4]; 2], shift: u32, entries: *mut u64) {
        unsafe { L::fields(codes, shift, entries) };
    }
}

/// The size of an entry is two to the power of this.
const fn entry_shift<L: TokenLanes>() -> u32 {
    size_of::<L::Sums>().ilog2()
}

/// How the codes of a panel are read: its layout and the bits per code.
pub(super) trait Codes<L: TokenLanes> {
    /// Columns whose tables exist at the same time: one or two [`Q8Block`]s.
    const UNIT: usize;
    /// Bits per code.
    const BITS: usize;
    /// The offsets in bytes of one entry or several.
    type Offsets: Copy + Into<u64>;
    /// Tables of a part.
    const TABLES: usize;
    /// Entries of the tables of a part.
    const ENTRIES: usize;
    /// Indices of a row into the same table, the second with twice the weight.
    const PLANES: usize = 1;
    /// The distance between the indices of two rows.
    const ROW: usize = 1;
    /// Table `t`: the entries before it, and its columns.
    fn table(t: usize) -> (usize, usize) {
        (256 * t, 8)
    }
    /// The column of a part that digit `i` of an index into table `t` multiplies.
    fn column(t: usize, i: usize) -> usize {
        8 * t + i
    }
    /// The offset, in a panel, of the codes of the unit of columns `from ..`.
    fn offset(from: usize) -> usize {
        from * Self::BITS / 8 * PANEL_ROWS
    }
    /// Writes the offset in bytes of each entry that the codes of a unit select: at [`Codes::entry`], and for the
    /// other rows of the panel at distances of [`Codes::ROW`].
    ///
    /// Safety: the instruction set and the codes are there, and memory for [`ENTRIES`].
    unsafe fn find(codes: *const u8, entries: *mut Self::Offsets);
    /// Where the first row's entry of table `t` of a part is among them, and the bits before its 16.
    fn entry(part: usize, t: usize, plane: usize) -> (usize, u32);
}

/// Writes the entries for `count` vectors of codes, of which `vector` gives the offsets, if each byte is an index.
#[inline(always)]
unsafe fn find_bytes<L: ByteLanes>(
    codes: *const u8,
    entries: *mut u16,
    count: usize,
    vector: impl Fn(usize) -> usize,
) {
    for v in 0..count {
        // SAFETY: the caller's promise.
        unsafe { L::entries(codes.add(vector(v)), entry_shift::<L>(), entries.add(v * PANEL_ROWS)) };
    }
}

/// One bit per code, in [`Layout::Panels8`](crate::cpu::repack::Layout::Panels8): a table for each byte.
pub(super) struct Bytes;

impl<L: ByteLanes> Codes<L> for Bytes {
    const UNIT: usize = Q8_LEN;
    const BITS: usize = 1;
    type Offsets = u16;
    const TABLES: usize = 4;
    const ENTRIES: usize = 4 * 256;

    fn offset(from: usize) -> usize {
        (from / LUT_COLS * (LUT_COLS / 8) + from % LUT_COLS / PART) * PANEL_ROWS
    }

    #[inline(always)]
    unsafe fn find(codes: *const u8, entries: *mut u16) {
        // The bytes of 128 columns are interleaved by part.
        let vector = |v| (v % 4 * (LUT_COLS / PART) + v / 4) * PANEL_ROWS;
        // SAFETY: the caller's promise.
        unsafe { find_bytes::<L>(codes, entries, 8, vector) };
    }

    fn entry(part: usize, t: usize, _: usize) -> (usize, u32) {
        ((4 * part + t) * PANEL_ROWS, 0)
    }
}

/// As [`Bytes`], with four tables for five columns and two for six: less memory, which is soon filled. A load takes the
/// offsets of four entries, as some processors do not load one more in a cycle in which they load two vectors.
pub(super) struct Fields;

/// The columns of the tables for half a word.
pub(super) const FIELDS: [usize; 3] = [5, 5, 6];

/// The half of a word that table `t` of a part is for, and its field.
fn half_and_field(t: usize) -> (usize, usize) {
    (t / FIELDS.len(), t % FIELDS.len())
}

impl<L: FieldLanes> Codes<L> for Fields {
    const UNIT: usize = LUT_COLS;
    const BITS: usize = 1;
    type Offsets = u64;
    const TABLES: usize = 2 * FIELDS.len();
    const ENTRIES: usize = 256;

    fn table(t: usize) -> (usize, usize) {
        let (half, field) = half_and_field(t);
        let before: usize = FIELDS[..field].iter().map(|cols| 1 << cols).sum();
        (half * <Self as Codes<L>>::ENTRIES / 2 + before, FIELDS[field])
    }

    fn column(t: usize, i: usize) -> usize {
        let (half, field) = half_and_field(t);
        half * PART / 2 + FIELDS[..field].iter().sum::<usize>() + i
    }

    #[inline(always)]
    unsafe fn find(codes: *const u8, entries: *mut u64) {
        for pair in 0..LUT_COLS / PART / 2 {
            // SAFETY: the caller's promise.
            unsafe {
                let byte = |part: usize, i: usize| codes.add((i * (LUT_COLS / PART) + part) * PANEL_ROWS);
                let codes = [2 * pair, 2 * pair + 1].map(|part| [0, 1, 2, 3].map(|i| byte(part, i)));
                let entries = entries.add(pair * FIELDS.len() * PANEL_ROWS);
                L::fields(codes, entry_shift::<L>(), entries);
            }
        }
    }

    fn entry(part: usize, t: usize, _: usize) -> (usize, u32) {
        let (half, field) = half_and_field(t);
        ((part / 2 * FIELDS.len() + field) * PANEL_ROWS, 16 * (part % 2 * 2 + half) as u32)
    }
}

/// Two bits per code, in [`Layout::Panels8`](crate::cpu::repack::Layout::Panels8).
pub(super) struct Planes;

impl<L: ByteLanes> Codes<L> for Planes {
    const UNIT: usize = Q8_LEN;
    const BITS: usize = 2;
    type Offsets = u16;
    const TABLES: usize = 4;
    const ENTRIES: usize = 4 * 256;
    const PLANES: usize = 2;

    #[inline(always)]
    unsafe fn find(codes: *const u8, entries: *mut u16) {
        // SAFETY: the caller's promise.
        unsafe { find_bytes::<L>(codes, entries, 16, |v| v * PANEL_ROWS) };
    }

    fn entry(part: usize, t: usize, plane: usize) -> (usize, u32) {
        (((4 * part + t) * 2 + plane) * PANEL_ROWS, 0)
    }
}

/// `BITS` bits per code, in [`Layout::Panels32`](crate::cpu::repack::Layout::Panels32).
pub(super) struct Words<const BITS: usize>;

impl<const BITS: usize> Words<BITS> {
    /// Columns of a word, each of whose bytes has every fourth of them.
    const WORD: usize = 32 / BITS;
}

impl<L: ByteLanes, const BITS: usize> Codes<L> for Words<BITS> {
    const UNIT: usize = Q8_LEN;
    const BITS: usize = BITS;
    type Offsets = u16;
    const TABLES: usize = 4 * BITS;
    const ENTRIES: usize = 4 * BITS * 256;
    const ROW: usize = 4;

    fn table(t: usize) -> (usize, usize) {
        (256 * t, 8 / BITS)
    }

    fn column(t: usize, i: usize) -> usize {
        let i = if BITS == 1 { ONE_BIT_FOURS[i] } else { i };
        t / 4 * Self::WORD + 4 * i + t % 4
    }

    #[inline(always)]
    unsafe fn find(codes: *const u8, entries: *mut u16) {
        // SAFETY: the caller's promise.
        unsafe { find_bytes::<L>(codes, entries, 8 * BITS, |v| v * PANEL_ROWS) };
    }

    fn entry(part: usize, t: usize, _: usize) -> (usize, u32) {
        ((part * BITS + t / 4) * 4 * PANEL_ROWS + t % 4, 0)
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

/// Writes the blocks of all groups: `q8` of shape `(tokens, blocks)`, all of which are computed in lanes. Lanes without a
/// token are zero. `luts` has `each` tables per token.
pub(super) fn fill(lanes: Lanes, blocks: usize, q8: &[Q8Block], each: usize, luts: &mut [ActivationLut]) {
    let tokens = q8.len() / blocks;
    let mut first = 0;
    while first < tokens {
        let group = lanes.group(tokens - first);
        let end = tokens.min(first + group);
        let luts = &mut luts[first * each..end * each];
        fill_group(lanes.vector, group, blocks, &q8[first * blocks..end * blocks], luts);
        first = end;
    }
}

fn fill_group(vector: usize, lanes: usize, blocks: usize, q8: &[Q8Block], luts: &mut [ActivationLut]) {
    let luts: &mut [i16] = bytemuck::cast_slice_mut(luts);
    for (b, block) in luts.chunks_exact_mut(BLOCK_LEN * lanes).take(blocks).enumerate() {
        block.fill(0);
        let (q, rest) = block.split_at_mut(Q8_LEN * lanes);
        let (factors, start) = rest.split_at_mut(2 * lanes);
        let start: &mut [i32] = bytemuck::cast_slice_mut(start);
        for (t, y) in q8.iter().skip(b).step_by(blocks).enumerate() {
            for (q, y) in q.chunks_exact_mut(lanes).zip(&y.q) {
                q[t] = i16::from(*y);
            }
            let at = place(vector, t);
            factors[2 * at] = y.factor[0] as i16;
            factors[2 * at + 1] = y.factor[1] as i16;
            start[at] = y.start;
        }
    }
}

/// Computes rows `0..end` of `out`, whole panels with blocks of `block` columns, for the first [`Lanes::tokens`]. Returns
/// their number.
#[inline(always)]
pub(super) unsafe fn rows<L: TokenLanes, C: Codes<L> + Codes<Pair<L>>>(
    args: &MatmulArgs<'_>,
    out: &mut OutputRows<'_>,
    end: usize,
    block: usize,
) -> usize {
    const {
        let lanes = L::LANES.vectors * L::LANES.vector;
        // At compile time: the tables of a unit fit their memory.
        assert!(<C as Codes<L>>::UNIT / PART * <C as Codes<L>>::ENTRIES * lanes <= TABLES_LEN);
    }
    let tokens = L::LANES.tokens(args.tokens);
    let mut buffers = MaybeUninit::<Buffers>::uninit();
    let mut first = 0;
    while first < tokens {
        let group = L::LANES.group(tokens - first);
        let group_tokens = group.min(tokens - first);
        // SAFETY: the caller has the instruction set and the panels.
        unsafe {
            let buffers = Buffers::pointers(&mut buffers);
            if L::LANES.vectors == 1 || group == L::GROUP {
                group_rows::<L, C>(args, out, end, block, first, group_tokens, buffers);
            } else {
                group_rows::<Pair<L>, C>(args, out, end, block, first, group_tokens, buffers);
            }
        }
        first += group_tokens;
    }
    tokens
}

/// [`rows`] for `tokens` of a group from token `first` on.
#[inline(always)]
unsafe fn group_rows<L: TokenLanes, C: Codes<L>>(
    args: &MatmulArgs<'_>,
    out: &mut OutputRows<'_>,
    end: usize,
    block: usize,
    first: usize,
    tokens: usize,
    buffers: Pointers,
) {
    let lanes = L::GROUP;
    let blocks = args.w.cols().div_ceil(LUT_COLS);
    let luts = args.luts[first * blocks..].as_ptr();
    // Otherwise half of the buffer is for integers.
    let most = if block == C::UNIT { SUMS } else { SUMS / 2 };
    for row in (0..end).step_by(most / lanes) {
        let rows = (most / lanes).min(end - row);
        // SAFETY: the caller has the instruction set and the panels; `luts` has the blocks of the group.
        unsafe {
            sum_rows::<L, C>(args, luts, out.first() + row, rows, block, buffers);
            for i in (0..rows).step_by(PANEL_ROWS) {
                let sums = buffers.sums.add(i * lanes);
                for t in 0..tokens {
                    let (sums, step) = (sums.add(place(L::LANES.vector, t)), args.step(first + t));
                    let values: [f32; PANEL_ROWS] = core::array::from_fn(|r| *sums.add(r * lanes) * step);
                    out.put_all(first + t, row + i, &values);
                }
            }
        }
    }
}

#[repr(C, align(64))]
struct Buffers {
    /// `(tables, entries, lanes)`
    tables: [i16; TABLES_LEN],
    /// `(rows, lanes)`; from the middle on integers of the same shape, of a block of weights until its last column.
    sums: [f32; SUMS],
    /// See [`Codes::find`].
    entries: [u64; ENTRIES],
}

#[derive(Clone, Copy)]
struct Pointers {
    tables: *mut i16,
    sums: *mut f32,
    integers: *mut i32,
    entries: *mut u64,
}

impl Buffers {
    fn pointers(buffers: &mut MaybeUninit<Buffers>) -> Pointers {
        let p = buffers.as_mut_ptr();
        // SAFETY: addresses of fields.
        unsafe {
            Pointers {
                tables: (&raw mut (*p).tables).cast(),
                sums: (&raw mut (*p).sums).cast(),
                integers: (&raw mut (*p).sums).cast::<i32>().add(SUMS / 2),
                entries: (&raw mut (*p).entries).cast(),
            }
        }
    }
}

/// Writes the sums of rows `first..first + rows` to the buffer, in whole panels.
#[inline(always)]
unsafe fn sum_rows<L: TokenLanes, C: Codes<L>>(
    args: &MatmulArgs<'_>,
    luts: *const ActivationLut,
    first: usize,
    rows: usize,
    block: usize,
    Pointers { tables, sums, integers, entries }: Pointers,
) {
    let lanes = L::GROUP;
    let cols = args.w.cols();
    let entries = entries.cast::<C::Offsets>();
    // Entries of the tables of a Q8Block.
    let block_len = Q8_LEN / PART * C::ENTRIES * lanes;
    // SAFETY: the caller has the instruction set, the panels and the group.
    unsafe {
        sums.write_bytes(0, rows * lanes);
        for from in (0..cols).step_by(C::UNIT) {
            let x = Block::of(luts, lanes, from / Q8_LEN);
            let second = if C::UNIT > Q8_LEN { Block::of(luts, lanes, from / Q8_LEN + 1) } else { x };
            build::<L, C>(x.q, tables);
            if C::UNIT > Q8_LEN {
                build::<L, C>(second.q, tables.add(block_len));
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
                C::find(codes, entries);
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

/// Writes the tables of `q`, `(Q8_LEN, lanes)`: each entry is the sum of the columns times the digits of its index.
#[inline(always)]
unsafe fn build<L: TokenLanes, C: Codes<L>>(q: *const i16, tables: *mut i16) {
    let lanes = L::GROUP;
    for table in 0..Q8_LEN / PART * C::TABLES {
        let (part, t) = (table / C::TABLES, table % C::TABLES);
        let (before, cols) = C::table(t);
        // SAFETY: the caller has the instruction set, the activations, and memory for the tables.
        unsafe {
            let table = tables.add((part * C::ENTRIES + before) * lanes);
            let column = |i: usize| {
                let x = L::load(q.add((part * PART + C::column(t, i)) * lanes));
                // A weight is twice its bit minus 1.
                if C::BITS == 1 { L::add(x, x) } else { x }
            };
            // With planes, the digits are bits, too.
            let digit = C::BITS / C::PLANES;
            // The first four entries are those of the first digits. They stay in registers, and all others are one of them
            // more than every fourth.
            let a = column(0);
            let (b, known) = if digit == 1 { (column(1), 2) } else { (L::add(a, a), 1) };
            let first = [a, b, L::add(a, b)];
            table.write_bytes(0, lanes);
            for (i, first) in first.into_iter().enumerate() {
                L::store(table.add((i + 1) * lanes), first);
            }
            for i in known..cols {
                let more = column(i);
                let one = 1 << (i * digit);
                for entry in (one..one << digit).step_by(4) {
                    let every = L::add(L::load(table.add((entry - one) * lanes)), more);
                    L::store(table.add(entry * lanes), every);
                    for (i, first) in first.into_iter().enumerate() {
                        L::store(table.add((entry + i + 1) * lanes), L::add(every, first));
                    }
                }
            }
        }
    }
}

/// The sum of part `I` of a row.
#[inline(always)]
unsafe fn part_sum<L: TokenLanes, C: Codes<L>, const I: usize>(
    entries: *const C::Offsets,
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
unsafe fn plane_sum<L: TokenLanes, C: Codes<L>, const I: usize, const H: usize>(
    entries: *const C::Offsets,
    tables: *const i16,
) -> L::Sums {
    // SAFETY: the caller has the tables and the entries.
    unsafe {
        let entry = |t: usize| {
            let (at, bits) = C::entry(I, t, H);
            let offsets: u64 = (*entries.add(at)).into();
            let entry = (offsets >> bits) as u16;
            // The offset that is known at compile time comes last, so that it becomes part of the load.
            L::load(tables.byte_add(entry.into()).add((I * C::ENTRIES + C::table(t).0) * L::GROUP))
        };
        let mut sum = entry(0);
        for t in 1..C::TABLES {
            sum = L::add(sum, entry(t));
        }
        sum
    }
}
