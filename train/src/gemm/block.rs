//! A part of a buffer of rows that one worker writes.
#![allow(unsafe_code)]

use core::marker::PhantomData;
use core::ops::Range;

/// Some columns of some rows of a mutable buffer.
#[derive(Debug)]
pub struct Block<'a> {
    base: *mut f32,
    stride: usize,
    rows: usize,
    cols: usize,
    data: PhantomData<&'a mut [f32]>,
}

// SAFETY: it is a mutable borrow of its elements, which no other block has.
unsafe impl Send for Block<'_> {}

impl<'a> Block<'a> {
    /// All of `data`, as rows of `cols`.
    ///
    /// # Panics
    /// If `data` is no whole number of rows.
    pub fn new(data: &'a mut [f32], cols: usize) -> Self {
        let rows = data.len().checked_div(cols).unwrap_or(0);
        assert!(rows * cols == data.len(), "{} elements in rows of {cols}", data.len());
        Block { base: data.as_mut_ptr(), stride: cols, rows, cols, data: PhantomData }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Row `i`.
    ///
    /// # Panics
    /// If there is none.
    pub fn row(&mut self, i: usize) -> &mut [f32] {
        assert!(i < self.rows, "row {i} of {}", self.rows);
        // SAFETY: inside the borrowed buffer, and borrowed by no other block.
        unsafe { core::slice::from_raw_parts_mut(self.base.add(i * self.stride), self.cols) }
    }

    /// The same elements, for a shorter time.
    pub fn reborrow(&mut self) -> Block<'_> {
        Block { base: self.base, stride: self.stride, rows: self.rows, cols: self.cols, data: PhantomData }
    }

    /// Columns `cols` of rows `rows`.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn part(self, rows: Range<usize>, cols: Range<usize>) -> Block<'a> {
        assert!(rows.start <= rows.end && rows.end <= self.rows, "rows {rows:?} of {}", self.rows);
        assert!(cols.start <= cols.end && cols.end <= self.cols, "columns {cols:?} of {}", self.cols);
        // SAFETY: inside the borrowed buffer, or at its end.
        let base = unsafe { self.base.add(rows.start * self.stride + cols.start) };
        Block { base, stride: self.stride, rows: rows.len(), cols: cols.len(), data: PhantomData }
    }

    /// The first `rows` rows, and the others.
    pub fn split_rows(self, rows: usize) -> (Block<'a>, Block<'a>) {
        let (all, end) = (0..self.cols, self.rows);
        // The second has none of the first one's elements.
        let first = Block { data: PhantomData, ..self };
        (first.part(0..rows, all.clone()), self.part(rows..end, all))
    }

    /// The first `cols` columns, and the others.
    pub fn split_cols(self, cols: usize) -> (Block<'a>, Block<'a>) {
        let (all, end) = (0..self.rows, self.cols);
        let first = Block { data: PhantomData, ..self };
        (first.part(all.clone(), 0..cols), self.part(all, cols..end))
    }

    /// The first element, and the distance of rows.
    pub(super) fn pointer(&mut self) -> (*mut f32, usize) {
        (self.base, self.stride)
    }
}
