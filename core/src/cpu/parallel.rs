//! Splits mutable buffers over the workers of a [`Pool`].
#![allow(unsafe_code)]

use crate::pool::Pool;
use crate::sync::{Counter, THREADS};

struct Base<T>(*mut T);

// SAFETY: only `for_each_chunk` uses it, which hands every chunk to exactly one job.
unsafe impl<T: Send> Sync for Base<T> {}

impl<T> Base<T> {
    fn get(&self) -> *mut T {
        self.0
    }
}

/// Calls `job(i, chunk)` for the `i`-th run of `chunk` elements of `data` (the last may be shorter),
/// spread over `pool`.
///
/// Chunks are claimed from a counter, so that even a pool that breaks its contract and runs an index twice
/// cannot make two jobs share one.
pub fn for_each_chunk<T: Send>(
    pool: &dyn Pool,
    data: &mut [T],
    chunk: usize,
    job: &(dyn Fn(usize, &mut [T]) + Sync),
) {
    let chunk = chunk.max(1);
    let len = data.len();
    let jobs = len.div_ceil(chunk);
    if !THREADS || pool.workers() <= 1 || jobs <= 1 {
        for (i, part) in data.chunks_mut(chunk).enumerate() {
            job(i, part);
        }
        return;
    }
    let base = Base(data.as_mut_ptr());
    let next = Counter::new();
    pool.run(jobs, &|_| {
        let i = next.next();
        if i < jobs {
            let start = i * chunk;
            // SAFETY: start < len, the run ends at or before len, and the counter hands out each `i`
            // once, so no two live slices overlap; `data` stays mutably borrowed until `run` returns.
            let part =
                unsafe { core::slice::from_raw_parts_mut(base.get().add(start), chunk.min(len - start)) };
            job(i, part);
        }
    });
}

/// A part of a buffer of rows: some columns of some rows.
pub(crate) struct Tile<'y> {
    /// The first column of the first row.
    base: *mut f32,
    /// Elements from one row to the next.
    stride: usize,
    rows: usize,
    cols: usize,
    y: core::marker::PhantomData<&'y mut [f32]>,
}

impl<'y> Tile<'y> {
    /// All of `data`, as rows of `cols`.
    pub(crate) fn new(data: &'y mut [f32], cols: usize) -> Self {
        let rows = data.len().checked_div(cols).unwrap_or(0);
        Tile { base: data.as_mut_ptr(), stride: cols, rows, cols, y: core::marker::PhantomData }
    }

    /// Rows in the tile.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Row `r`; empty if there is none.
    pub(crate) fn row(&mut self, r: usize) -> &mut [f32] {
        if r >= self.rows {
            return &mut [];
        }
        // SAFETY: these columns of this row are inside the buffer and not aliased.
        unsafe { core::slice::from_raw_parts_mut(self.base.add(r * self.stride), self.cols) }
    }

    /// Pointer to columns `at..at + n` of row `r`, which must be inside the tile.
    pub(crate) fn pointer(&mut self, r: usize, at: usize, n: usize) -> *mut f32 {
        // Callers ask for columns of their own tile; the pointer relies on it.
        assert!(r < self.rows && at <= self.cols && n <= self.cols - at, "outside of the tile");
        // SAFETY: inside the buffer, as just checked.
        unsafe { self.base.add(r * self.stride + at) }
    }
}

/// Calls `job(row, column, tiles)` for every tile of at most `tile` `(rows, columns)`, of all buffers at
/// once, spread over `pool`. Each buffer is `(rows, cols)`, or empty, which gives tiles without rows.
/// Tiles of the same columns come one after another.
pub(crate) fn for_each_tile<const N: usize>(
    pool: &dyn Pool,
    buffers: [&mut [f32]; N],
    (rows, cols): (usize, usize),
    tile: (usize, usize),
    job: &(dyn Fn(usize, usize, [Tile<'_>; N]) + Sync),
) {
    let (tile_rows, tile_cols) = (tile.0.max(1), tile.1.max(1));
    let down = rows.div_ceil(tile_rows);
    let tiles = down.saturating_mul(cols.div_ceil(tile_cols));
    let size = rows.checked_mul(cols);
    let bases = buffers.map(|buffer| {
        // Callers give buffers of these dimensions; the tiles rely on it.
        assert!(buffer.is_empty() || Some(buffer.len()) == size, "a buffer of other dimensions");
        (Base(buffer.as_mut_ptr()), if buffer.is_empty() { 0 } else { rows })
    });
    let next = Counter::new();
    let one = |_| {
        let i = next.next();
        if i >= tiles {
            return;
        }
        let (row, col) = (i % down * tile_rows, i / down * tile_cols);
        // The counter yields each tile once, and tiles do not overlap; the buffers stay mutably borrowed
        // until all jobs have returned.
        let tiles = core::array::from_fn(|n| {
            let (base, rows) = &bases[n];
            let at = if *rows == 0 { 0 } else { row * cols + col };
            Tile {
                // SAFETY: row < rows and col < cols, or no offset.
                base: unsafe { base.get().add(at) },
                stride: cols,
                rows: tile_rows.min(rows.saturating_sub(row)),
                cols: tile_cols.min(cols - col),
                y: core::marker::PhantomData,
            }
        });
        job(row, col, tiles);
    };
    if !THREADS || pool.workers() <= 1 {
        (0..tiles).for_each(one);
    } else {
        pool.run(tiles, &one);
    }
}

/// The outputs of some rows of a matrix product: `y[(token, first + i)]` for `i < len`, for every token.
pub(crate) struct OutputRows<'y> {
    /// Element (0, first) of `y`.
    base: *mut f32,
    /// Rows of the whole matrix: elements from one token to the next.
    stride: usize,
    tokens: usize,
    first: usize,
    len: usize,
    y: core::marker::PhantomData<&'y mut [f32]>,
}

impl OutputRows<'_> {
    /// The first row.
    pub(crate) fn first(&self) -> usize {
        self.first
    }

    /// The number of rows.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Sets the output of row `first + i` for `token`.
    #[inline(always)]
    pub(crate) fn put(&mut self, token: usize, i: usize, value: f32) {
        debug_assert!(token < self.tokens && i < self.len);
        if token < self.tokens && i < self.len {
            // SAFETY: (token, first + i) is inside `y`, and no other `OutputRows` has this row.
            unsafe { *self.base.add(token * self.stride + i) = value };
        }
    }
}

impl OutputRows<'_> {
    /// Sets the outputs of N rows from row `first + i` for `token`.
    #[inline(always)]
    #[allow(dead_code, reason = "not every target has kernels for groups of rows")]
    pub(crate) fn put_all<const N: usize>(&mut self, token: usize, i: usize, values: &[f32; N]) {
        debug_assert!(token < self.tokens && i + N <= self.len);
        if token < self.tokens && i + N <= self.len {
            // SAFETY: as in `put`, for each of the rows.
            unsafe { self.base.add(token * self.stride + i).cast::<[f32; N]>().write_unaligned(*values) };
        }
    }
}

impl OutputRows<'_> {
    /// The outputs of `token`, `(rows)`; empty if there is no such token.
    #[allow(dead_code, reason = "not every target has kernels that add to outputs")]
    pub(crate) fn of(&mut self, token: usize) -> &mut [f32] {
        if token >= self.tokens {
            return &mut [];
        }
        // SAFETY: these rows of `token` are inside `y`, and no other `OutputRows` has them.
        unsafe { core::slice::from_raw_parts_mut(self.base.add(token * self.stride), self.len) }
    }
}

impl OutputRows<'_> {
    /// Sets all outputs to zero.
    pub(crate) fn zero(&mut self) {
        for token in 0..self.tokens {
            (0..self.len).for_each(|i| self.put(token, i, 0.0));
        }
    }
}

/// The outputs that [`for_each_rows`] fills, `(tokens, rows)`, and the rows per job.
pub(crate) struct Output<'y> {
    pub(crate) y: &'y mut [f32],
    pub(crate) rows: usize,
    pub(crate) chunk: usize,
}

/// Calls `job(i, rows)` for every chunk of rows of every `outputs[i]`, spread over `pool`.
///
/// A chunk is a job: a fast worker takes more of them, and the pool can measure how long one takes.
pub(crate) fn for_each_rows<const N: usize>(
    pool: &dyn Pool,
    tokens: usize,
    outputs: heapless::Vec<Output<'_>, N>,
    job: &(dyn Fn(usize, OutputRows<'_>) + Sync),
) {
    let output = |Output { y, rows, chunk }: Output<'_>| {
        assert_eq!(tokens.checked_mul(rows), Some(y.len()), "checked by matmul");
        (Base(y.as_mut_ptr()), rows, chunk.max(1))
    };
    let outputs: heapless::Vec<_, N> = outputs.into_iter().map(output).collect();
    let chunks = outputs.iter().map(|(_, rows, chunk)| rows.div_ceil(*chunk)).sum();
    let next = Counter::new();
    let one = |_| {
        let mut left = next.next();
        for (i, (base, rows, chunk)) in outputs.iter().enumerate() {
            let chunks = rows.div_ceil(*chunk);
            if left >= chunks {
                left -= chunks;
                continue;
            }
            let first = left * chunk;
            // SAFETY: first < rows, so inside `y` or, without tokens, at most one element past its end.
            let base = unsafe { base.get().add(if tokens == 0 { 0 } else { first }) };
            let len = (*chunk).min(rows - first);
            // The counter yields each chunk once, so no two `OutputRows` share a row; the outputs stay
            // mutably borrowed until all jobs have returned.
            let y = core::marker::PhantomData;
            return job(i, OutputRows { base, stride: *rows, tokens, first, len, y });
        }
    };
    if !THREADS || pool.workers() <= 1 {
        (0..chunks).for_each(one);
    } else {
        pool.run(chunks, &one);
    }
}

/// As [`for_each_rows`], for `output.rows` rows of a matrix of `all`, those from `start` on; `output.y` is `(tokens, all)`.
/// Jobs count rows from `start` on.
pub(crate) fn for_each_rows_of(
    pool: &dyn Pool,
    tokens: usize,
    output: Output<'_>,
    (all, start): (usize, usize),
    job: &(dyn Fn(OutputRows<'_>) + Sync),
) {
    let Output { y, rows, chunk } = output;
    let fits = start <= all && rows <= all - start;
    // Callers have checked the lengths; the outputs rely on them.
    assert!(fits && tokens.checked_mul(all) == Some(y.len()), "checked by matmul");
    let (base, chunk, next) = (Base(y.as_mut_ptr()), chunk.max(1), Counter::new());
    let chunks = rows.div_ceil(chunk);
    let one = |_| {
        let first = next.next().saturating_mul(chunk);
        if first >= rows {
            return;
        }
        // SAFETY: start + first < all, so inside `y`; without tokens, there is no offset.
        let base = unsafe { base.get().add(if tokens == 0 { 0 } else { start + first }) };
        let len = chunk.min(rows - first);
        // The counter yields each chunk once, so no two `OutputRows` share a row; `y` stays mutably borrowed until
        // all jobs have returned.
        job(OutputRows { base, stride: all, tokens, first, len, y: core::marker::PhantomData });
    };
    if !THREADS || pool.workers() <= 1 {
        (0..chunks).for_each(one);
    } else {
        pool.run(chunks, &one);
    }
}
