//! What a device needs of Metal.
#![forbid(unsafe_code)]

use crate::error::Result;

/// Buffers in memory that the CPU and the GPU share, kernels by name, and dispatches that run in order.
pub trait Driver {
    /// A buffer; clones are the same buffer.
    type Buffer: Clone;
    /// A kernel ready to run.
    type Pipeline: Clone;

    /// The device's name.
    fn name(&self) -> &str;

    /// Allocates `bytes` bytes, at least 1, of any content.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    fn buffer(&self, bytes: u64) -> Result<Self::Buffer>;

    /// Writes `bytes` at byte `at`. No dispatch runs meanwhile.
    ///
    /// # Errors
    /// For bytes beyond the end.
    fn write(&self, buffer: &Self::Buffer, at: u64, bytes: &[u8]) -> Result<()>;

    /// Reads `into.len()` bytes at byte `at`. No dispatch runs meanwhile.
    ///
    /// # Errors
    /// For bytes beyond the end.
    fn read(&self, buffer: &Self::Buffer, at: u64, into: &mut [u8]) -> Result<()>;

    /// The kernel called `name` in [`SOURCE`](crate::SOURCE).
    ///
    /// # Errors
    /// If there is none, or if its SIMD groups do not have 32 lanes.
    fn pipeline(&self, name: &str) -> Result<Self::Pipeline>;

    /// Runs `dispatches` one after the other, each of which sees the results of those before it, and waits.
    ///
    /// # Errors
    /// If one fails.
    fn run(&self, dispatches: &[Dispatch<'_, Self>]) -> Result<()>;
}

/// A kernel with its arguments.
pub struct Dispatch<'d, D: Driver + ?Sized> {
    /// The kernel.
    pub pipeline: &'d D::Pipeline,
    /// Its first arguments.
    pub buffers: Vec<&'d D::Buffer>,
    /// The argument after those: a struct of 32-bit words.
    pub parameters: Vec<u32>,
    /// Number of threadgroups.
    pub grid: [u32; 3],
    /// SIMD groups of 32 threads in each.
    pub simds: u32,
    /// Bytes of threadgroup memory.
    pub shared: u32,
}

impl<D: Driver + ?Sized> core::fmt::Debug for Dispatch<'_, D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Dispatch")
            .field("buffers", &self.buffers.len())
            .field("parameters", &self.parameters)
            .field("grid", &self.grid)
            .field("simds", &self.simds)
            .finish_non_exhaustive()
    }
}
