//! The driver on a CPU: the kernels compiled by g++, with threads as fibers (`shim/cuda.h`).

mod build;

use build::build;
use libloading::Library;
use shohin_core::Name;
use shohin_cuda::{CudaFailure, Driver, Error, LaunchSize, Result};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

/// The compiled kernels.
fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let built = build("shohin.cpp", "libshohin-kernels.so");
        // SAFETY: the library was built from this crate's sources, and has no initializers of its own.
        let library = unsafe { Library::new(&built) };
        library.unwrap_or_else(|e| panic!("{}: {e}", built.display()))
    })
}

/// A kernel and the size of its arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel {
    index: c_int,
    args: usize,
}

/// Recorded launches.
pub(crate) type Graph = Vec<(Kernel, LaunchSize, Vec<u8>)>;

/// A CPU that runs the kernels.
pub(crate) struct Shim {
    recording: RefCell<Option<Graph>>,
    seed: Cell<u32>,
    /// As many as it says that it has.
    pub(crate) multiprocessors: Cell<usize>,
    /// Launches of kernels outside of graphs, launches of graphs, and kernels in these.
    pub(crate) launches: Cell<usize>,
    pub(crate) replays: Cell<usize>,
    pub(crate) replayed: Cell<usize>,
    /// Kernels that have run.
    ran: RefCell<BTreeSet<c_int>>,
}

impl Shim {
    /// Threads run in their order with a seed of 0, and shuffled otherwise.
    pub(crate) fn new(seed: u32) -> Shim {
        Shim {
            recording: RefCell::new(None),
            seed: Cell::new(seed),
            multiprocessors: Cell::new(5),
            launches: Cell::new(0),
            replays: Cell::new(0),
            replayed: Cell::new(0),
            ran: RefCell::default(),
        }
    }

    /// Whether the kernel of this name has run.
    pub(crate) fn ran(&self, name: &str) -> bool {
        self.ran.borrow().contains(&self.kernel(name).expect("a kernel").index)
    }

    fn run(&self, kernel: Kernel, size: LaunchSize, args: &[u8]) {
        type Launch = unsafe extern "C" fn(
            c_int,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            *const c_void,
        ) -> *const c_char;
        self.ran.borrow_mut().insert(kernel.index);
        let LaunchSize { grid: [x, y, z], threads, shared, .. } = size;
        // Structs of arguments have addresses.
        let mut words = vec![0u64; args.len().div_ceil(8)];
        bytemuck::cast_slice_mut(&mut words)[..args.len()].copy_from_slice(args);
        let seed = self.seed.get();
        self.seed.set(if seed == 0 { 0 } else { seed.wrapping_mul(747_796_405) | 1 });
        // SAFETY: the function of this name has this type; the arguments have the kernel's size, and their addresses
        // are from `alloc`.
        unsafe {
            let launch = library().get::<Launch>(b"shim_launch").expect("in the library");
            let problem = launch(kernel.index, x, y, z, threads, shared, seed, words.as_ptr().cast());
            assert!(problem.is_null(), "kernel {}: {:?}", kernel.index, CStr::from_ptr(problem));
        }
    }
}

impl Driver for Shim {
    type Kernel = Kernel;
    type Graph = Graph;

    fn name(&self) -> &str {
        "CPU"
    }

    fn multiprocessors(&self) -> usize {
        self.multiprocessors.get()
    }

    fn block_memory(&self) -> usize {
        48 << 10
    }

    fn alloc(&self, bytes: usize) -> Result<u64> {
        // SAFETY: the function of this name has this type.
        let memory = unsafe {
            let alloc =
                library().get::<unsafe extern "C" fn(usize) -> *mut c_void>(b"shim_alloc").expect("there");
            alloc(bytes)
        };
        if memory.is_null() { Err(Error::OutOfMemory { need: bytes as u64 }) } else { Ok(memory as u64) }
    }

    fn free(&self, address: u64) {
        // SAFETY: the function of this name has this type; the address is from `alloc`.
        unsafe {
            let free = library().get::<unsafe extern "C" fn(*mut c_void)>(b"shim_free").expect("there");
            free(address as *mut c_void);
        }
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        // SAFETY: the device writes within memory from `alloc`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
        Ok(())
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<()> {
        // SAFETY: the device reads within memory from `alloc`.
        unsafe { std::ptr::copy_nonoverlapping(address as *const u8, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn kernel(&self, name: &str) -> Result<Kernel> {
        let text = CString::new(name).expect("no zero byte");
        let mut args = 0;
        // SAFETY: the function of this name has this type.
        let index = unsafe {
            let kernel = library()
                .get::<unsafe extern "C" fn(*const c_char, *mut usize) -> c_int>(b"shim_kernel")
                .expect("in the library");
            kernel(text.as_ptr(), &mut args)
        };
        match index {
            -1 => Err(CudaFailure::Driver { call: "kernel", problem: Name::new(name) }.into()),
            index => Ok(Kernel { index, args }),
        }
    }

    fn launch(&self, kernel: Kernel, size: LaunchSize, args: &[u8]) -> Result<()> {
        let LaunchSize { grid, threads, shared, .. } = size;
        assert_eq!(args.len(), kernel.args, "arguments of kernel {}", kernel.index);
        assert!(grid.iter().all(|&n| n > 0) && grid[1] <= 65535 && grid[2] <= 65535, "{grid:?}");
        assert!(threads.is_multiple_of(32) && (32..=1024).contains(&threads), "{threads}");
        assert!(shared as usize <= self.block_memory(), "{shared} bytes of shared memory");
        match &mut *self.recording.borrow_mut() {
            Some(graph) => graph.push((kernel, size, args.to_vec())),
            None => {
                self.launches.set(self.launches.get() + 1);
                self.run(kernel, size, args);
            }
        }
        Ok(())
    }

    fn begin(&self) -> Result<()> {
        assert!(self.recording.replace(Some(Vec::new())).is_none(), "recording already");
        Ok(())
    }

    fn end(&self) -> Result<Graph> {
        Ok(self.recording.take().expect("recording"))
    }

    fn replay(&self, graph: &Graph) -> Result<()> {
        self.replays.set(self.replays.get() + 1);
        self.replayed.set(self.replayed.get() + graph.len());
        graph.iter().for_each(|(kernel, size, args)| self.run(*kernel, *size, args));
        Ok(())
    }

    fn on_stream(&self, call: &mut dyn FnMut(*mut c_void) -> Result<()>) -> Result<()> {
        call(std::ptr::null_mut())
    }

    fn is_idle(&self) -> Result<bool> {
        Ok(true)
    }
}
