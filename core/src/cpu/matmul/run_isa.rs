//! What formats with at most 32 weights per scale need of an instruction set.
#![allow(unsafe_code)]

/// Some bytes in each row of a tile.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    /// Those of the first row.
    pub first: *const u8,
    /// Bytes from a row to the next one.
    pub stride: usize,
}

impl Rows {
    /// The bytes of row `r`.
    #[inline(always)]
    pub(super) fn row(self, r: usize) -> *const u8 {
        self.first.wrapping_add(r * self.stride)
    }

    /// Later bytes of the same rows.
    #[inline(always)]
    pub(super) fn skip(self, bytes: usize) -> Rows {
        Rows { first: self.first.wrapping_add(bytes), ..self }
    }
}

/// An instruction set with tiles of `N` rows.
///
/// Safety: all functions need the instruction set, and as many bytes as they say.
pub(super) trait RunIsa<const N: usize> {
    /// 32 bytes of each row.
    type Bytes: Copy;
    /// A run of each row, ready to be multiplied.
    type Codes: Copy;
    /// A 32-bit integer for each row.
    type Words: Copy;
    /// A float for each row.
    type Floats: Copy;
    /// What [`RunIsa::codes`] adds to signed integers.
    const SIGNED_ZERO: i32 = 0;
    /// Whether [`RunIsa::dots`] is faster for two tokens than for each of them.
    const PAIRS: bool = false;

    /// 32 bytes of each row.
    unsafe fn load(rows: Rows) -> Self::Bytes;
    /// The low nibbles of 16 bytes of each row, then the high ones.
    unsafe fn nibbles(rows: Rows) -> Self::Bytes;
    /// The 16 bytes of each row as four words.
    unsafe fn words(rows: Rows) -> [Self::Words; 4];
    unsafe fn to_words(x: &[u32; N]) -> Self::Words;
    /// `(x >> shift) & mask`
    unsafe fn word_field(x: Self::Words, shift: usize, mask: u32) -> Self::Words;
    /// `a | b << shift`
    unsafe fn join(a: Self::Words, b: Self::Words, shift: usize) -> Self::Words;
    /// `x + n`
    unsafe fn offset(x: Self::Words, n: i32) -> Self::Words;
    /// The signed byte `at` of each word, minus `zero`.
    unsafe fn byte(x: Self::Words, at: usize, zero: i32) -> Self::Floats;
    /// The f16 in the low half of each word.
    unsafe fn f16(x: Self::Words) -> Self::Floats;
    /// The float with the bits of each word.
    unsafe fn f32(x: Self::Words) -> Self::Floats;

    /// `(x >> shift) & mask` of each byte; `mask` has at most `8 - shift` bits.
    unsafe fn field(x: Self::Bytes, shift: usize, mask: u8) -> Self::Bytes;
    /// `x << shift` of each byte, which overflows no byte.
    unsafe fn shl(x: Self::Bytes, shift: usize) -> Self::Bytes;
    unsafe fn or(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// `value` where bit j of a row's `bits` is set, else 0, as its byte j.
    unsafe fn bits(bits: Self::Words, value: u8) -> Self::Bytes;
    /// Each byte, below 16, replaced by its element of `table`.
    unsafe fn look_up(table: &[i8; 16], x: Self::Bytes) -> Self::Bytes;
    /// Exchanges bytes 8 to 15 with bytes 16 to 23.
    unsafe fn swap_middle(x: Self::Bytes) -> Self::Bytes;

    /// Integers to multiply; not negative unless `signed`.
    unsafe fn codes(x: Self::Bytes, signed: bool) -> Self::Codes;
    /// `start` plus the products with the activations at `q`: of half `half`, 16 weights, or of all 32. `largest` is
    /// the largest code, or none if codes are signed.
    unsafe fn dot(
        w: &Self::Codes,
        half: Option<usize>,
        q: *const i8,
        start: i32,
        largest: Option<u8>,
    ) -> Self::Floats;
    /// [`RunIsa::dot`] for `P` tokens.
    #[inline(always)]
    unsafe fn dots<const P: usize>(
        w: &Self::Codes,
        half: Option<usize>,
        q: [*const i8; P],
        start: [i32; P],
        largest: Option<u8>,
    ) -> [Self::Floats; P] {
        // SAFETY: as for this function.
        unsafe {
            let mut n = [Self::splat(0.0); P];
            for p in 0..P {
                n[p] = Self::dot(w, half, q[p], start[p], largest);
            }
            n
        }
    }
    /// `x` for each row.
    unsafe fn splat(x: f32) -> Self::Floats;
    /// `a * b`
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `sum + a * b`, each operation rounded.
    unsafe fn add(sum: Self::Floats, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    unsafe fn store(sum: Self::Floats) -> [f32; N];
    /// Prefetches the `bytes` at `p`, which may be any address.
    fn prefetch(p: *const u8, bytes: usize);
}

/// What is done with each run of a tile.
pub(super) trait EachRun<I: RunIsa<N>, const N: usize> {
    /// Takes run `run` of a block.
    ///
    /// Safety: needs the instruction set.
    unsafe fn run(&mut self, run: usize, x: I::Bytes);
}
