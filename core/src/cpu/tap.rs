//! What products read and compute, shown to somebody.
#![forbid(unsafe_code)]

/// A product `y = x W^T`, or that of some rows of `W`.
#[derive(Clone, Copy, Debug)]
pub struct Product<'p> {
    /// The name of `W` in the file.
    pub name: &'p str,
    /// The first row of `W` that takes part: not 0 in the matrices of later experts.
    pub first: usize,
    /// Rows of `W` that take part.
    pub rows: usize,
    /// Columns of `W`.
    pub cols: usize,
    /// `(n, cols)`
    pub x: &'p [f32],
    /// `(n, rows)`
    pub y: &'p [f32],
}

/// Sees each product of a device, after it was computed.
pub trait Tap: Send + Sync {
    /// `product` was computed. Products of a batch come in the order of the program, from one thread.
    fn product(&self, product: &Product<'_>);

    /// `moment` came, in a batch of which `rows` rows take part in it. From the same thread.
    fn moment(&self, moment: Moment, rows: usize) {
        let _ = (moment, rows);
    }
}

/// What begins in a forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// This operation of [`Program::body`](crate::model::program::Program::body).
    Operation(usize),
    /// What follows the body for the rows that are read out: the last norm and the product with the vocabulary.
    Head,
    /// Nothing of the pass: the body or the head has ended.
    End,
}
