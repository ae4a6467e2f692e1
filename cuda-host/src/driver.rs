//! What the device needs of CUDA.

use crate::error::Result;
use core::ffi::c_void;
use std::sync::Arc;

/// The size of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchSize {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of each block.
    pub threads: u32,
    /// Bytes of memory that each block has besides those of the kernel's own variables.
    pub shared: u32,
    /// So many blocks along z are a cluster, on GPUs that have clusters.
    pub cluster: u32,
}

/// A GPU: memory, kernels and graphs, on one stream, in order.
pub trait Driver {
    /// A kernel.
    type Kernel: Copy;
    /// Recorded launches.
    type Graph;

    /// The GPU's name.
    fn name(&self) -> &str;

    /// Blocks that it runs at once, if one takes a multiprocessor.
    fn multiprocessors(&self) -> usize;

    /// Bytes of memory that a block of products of a single row may have, at least 48 KB. Where launches overlap, it is half of what a
    /// multiprocessor has: with the variables of the kernel there is no room for two such blocks, but for one and a block of the launch
    /// before, which uses less.
    fn block_memory(&self) -> usize;

    /// Allocates zeroed memory; returns its address, which is a multiple of 256.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    fn alloc(&self, bytes: usize) -> Result<u64>;

    /// Frees the memory at `address`.
    fn free(&self, address: u64);

    /// Copies `bytes` to `address`.
    ///
    /// # Errors
    /// Those of the driver.
    fn write(&self, address: u64, bytes: &[u8]) -> Result<()>;

    /// Waits for the work so far, and copies from `address`.
    ///
    /// # Errors
    /// Those of the driver.
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<()>;

    /// Allocates memory that the GPU writes to and the host reads in place, at one address: that of the GPU unless there is such.
    /// It has anything at first.
    ///
    /// # Errors
    /// Those of the driver.
    fn alloc_on_host(&self, bytes: usize) -> Result<u64> {
        self.alloc(bytes)
    }

    /// Frees memory of [`Driver::alloc_on_host`].
    fn free_on_host(&self, address: u64) {
        self.free(address);
    }

    /// Waits for the work so far, and reads from memory of [`Driver::alloc_on_host`].
    ///
    /// # Errors
    /// Those of the driver.
    fn read_on_host(&self, address: u64, bytes: &mut [u8]) -> Result<()> {
        self.read(address, bytes)
    }

    /// Finds a kernel of `kernels/` by its name.
    ///
    /// # Errors
    /// If there is none.
    fn kernel(&self, name: &str) -> Result<Self::Kernel>;

    /// Launches the kernel. `args` is its one argument.
    ///
    /// # Errors
    /// Those of the driver.
    fn launch(&self, kernel: Self::Kernel, size: LaunchSize, args: &[u8]) -> Result<()>;

    /// Records the following launches instead of running them.
    ///
    /// # Errors
    /// Those of the driver.
    fn begin(&self) -> Result<()>;

    /// Ends recording.
    ///
    /// # Errors
    /// Those of the driver.
    fn end(&self) -> Result<Self::Graph>;

    /// Runs a recording.
    ///
    /// # Errors
    /// Those of the driver.
    fn replay(&self, graph: &Self::Graph) -> Result<()>;

    /// Calls `call` with the stream, as CUDA's handle, while this GPU is the calling thread's: other libraries add work to
    /// it, which is recorded as launches are.
    ///
    /// # Errors
    /// Those of the driver and of `call`.
    fn on_stream(&self, call: &mut dyn FnMut(*mut c_void) -> Result<()>) -> Result<()>;

    /// Whether all work is done.
    ///
    /// # Errors
    /// Those of the driver, and of the work.
    fn is_idle(&self) -> Result<bool>;
}

/// Launches that are recorded. Dropped after a panic or an error, it ends the recording too: other threads may wait for that.
pub(crate) struct Recording<'d, D: Driver>(&'d D);

impl<'d, D: Driver> Recording<'d, D> {
    /// Begins one.
    pub(crate) fn begin(driver: &'d D) -> Result<Recording<'d, D>> {
        driver.begin()?;
        Ok(Recording(driver))
    }

    /// What was launched since.
    pub(crate) fn end(self) -> Result<D::Graph> {
        let driver = self.0;
        core::mem::forget(self);
        driver.end()
    }
}

impl<D: Driver> Drop for Recording<'_, D> {
    fn drop(&mut self) {
        let _ = self.0.end();
    }
}

/// Memory of a GPU, freed when it is dropped.
pub struct Memory<D: Driver> {
    driver: Arc<D>,
    address: u64,
    bytes: usize,
}

impl<D: Driver> Memory<D> {
    /// Allocates zeroed memory.
    ///
    /// # Errors
    /// Those of [`Driver::alloc`].
    pub fn new(driver: &Arc<D>, bytes: usize) -> Result<Memory<D>> {
        let address = driver.alloc(bytes.max(4))?;
        Ok(Memory { driver: Arc::clone(driver), address, bytes })
    }

    /// Where it is.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl<D: Driver> Drop for Memory<D> {
    fn drop(&mut self) {
        self.driver.free(self.address);
    }
}

impl<D: Driver> core::fmt::Debug for Memory<D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Memory").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// Memory of the host that a GPU writes to, freed when it is dropped.
pub(crate) struct HostMemory<D: Driver> {
    driver: Arc<D>,
    address: u64,
}

impl<D: Driver> HostMemory<D> {
    pub(crate) fn new(driver: &Arc<D>, bytes: usize) -> Result<HostMemory<D>> {
        let address = driver.alloc_on_host(bytes.max(4))?;
        Ok(HostMemory { driver: Arc::clone(driver), address })
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Waits for the work so far, and reads the first bytes.
    pub(crate) fn read(&self, bytes: &mut [u8]) -> Result<()> {
        self.driver.read_on_host(self.address, bytes)
    }
}

impl<D: Driver> Drop for HostMemory<D> {
    fn drop(&mut self) {
        self.driver.free_on_host(self.address);
    }
}
