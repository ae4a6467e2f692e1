//! A [`Driver`] that compiles the kernels as C++ and runs them on the CPU, in a chosen order of threads.

use super::Order;
use libloading::Library;
use shohin_metal::{Dispatch, Driver, Error, MetalFailure, Result, SOURCE};
use shohin_tests::shim::Compiler;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::rc::Rc;
use std::sync::OnceLock;

const COMPILER: Compiler<'static> = Compiler {
    variable: "CLANGXX",
    name: "clang++",
    flags: &[
        "-Wextra",
        "-Wno-unknown-attributes",
        "-Wno-unused-parameter",
        "-fvisibility=hidden",
        // Not every runtime library converts 16-bit floats.
        #[cfg(target_arch = "x86_64")]
        "-mf16c",
    ],
    folders: &[concat!(env!("CARGO_MANIFEST_DIR"), "/shim")],
};

/// Calls `compile` with the option that names `source`, and the file that includes it.
fn with_kernels<T>(source: &str, compile: impl FnOnce(&str, &Path) -> T) -> T {
    let mut hasher = std::hash::DefaultHasher::new();
    source.hash(&mut hasher);
    // The same name each time, as compiled libraries are found by it.
    let mut file = std::env::current_exe().unwrap();
    file.set_file_name(format!("shim-{:016x}.metal", hasher.finish()));
    let own = file.with_extension(std::process::id().to_string());
    std::fs::write(&own, source).unwrap();
    std::fs::rename(&own, &file).unwrap();
    let library = concat!(env!("CARGO_MANIFEST_DIR"), "/shim/library.cpp");
    compile(&format!("-DKERNELS=\"{}\"", file.display()), Path::new(library))
}

/// Compiles `source` to a shared library, unless an earlier test has.
pub(crate) fn compile(source: &str) -> Library {
    let library = with_kernels(source, |option, file| COMPILER.library(&[option], file));
    // SAFETY: the library has no initializers that do anything.
    unsafe { Library::new(&library) }.unwrap()
}

/// Checks that pointers keep to their address spaces; the error is the compiler's.
pub(crate) fn check(source: &str) -> std::result::Result<(), String> {
    with_kernels(source, |option, file| COMPILER.run(&[option, "-DCHECK", "-fsyntax-only"], file))
}

/// The compiled [`SOURCE`].
fn kernels() -> &'static Library {
    static KERNELS: OnceLock<Library> = OnceLock::new();
    KERNELS.get_or_init(|| compile(SOURCE))
}

/// Kernels on the CPU.
#[derive(Clone, Copy)]
pub(crate) struct Shim {
    library: &'static Library,
    order: Order,
}

impl Shim {
    pub(crate) fn new(order: Order) -> Shim {
        Shim { library: kernels(), order }
    }

    /// Other kernels than those of the crate.
    pub(crate) fn of(library: Library, order: Order) -> Shim {
        Shim { library: Box::leak(Box::new(library)), order }
    }
}

/// Memory that ends where nothing can be read or written.
pub(crate) struct Memory {
    at: *mut c_void,
    bytes: usize,
    library: &'static Library,
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the symbol has this type (see library.cpp), and the memory is of `shim_allocate`.
        unsafe {
            let free = self.library.get::<unsafe extern "C" fn(*mut c_void, usize)>(b"shim_free").unwrap();
            free(self.at, self.bytes);
        }
    }
}

impl Memory {
    /// The address of `len` bytes at byte `at`.
    fn range(&self, at: u64, len: usize) -> Result<*mut u8> {
        let end = usize::try_from(at).ok().and_then(|at| at.checked_add(len));
        if end.is_none_or(|end| end > self.bytes) {
            let problem = format!("{len} bytes at {at} of {}", self.bytes);
            return Err(MetalFailure::Driver { what: "a copy", problem }.into());
        }
        // SAFETY: within the allocation.
        Ok(unsafe { self.at.cast::<u8>().add(at as usize) })
    }
}

impl Driver for Shim {
    type Buffer = Rc<Memory>;
    type Pipeline = *mut c_void;

    fn name(&self) -> &str {
        "shim"
    }

    fn buffer(&self, bytes: u64) -> Result<Rc<Memory>> {
        let bytes = bytes as usize;
        // SAFETY: the symbol has this type.
        let at = unsafe {
            let allocate = self.library.get::<unsafe extern "C" fn(usize) -> *mut c_void>(b"shim_allocate");
            allocate.unwrap()(bytes)
        };
        if at.is_null() {
            return Err(Error::OutOfMemory { need: bytes as u64 });
        }
        Ok(Rc::new(Memory { at, bytes, library: self.library }))
    }

    fn write(&self, buffer: &Rc<Memory>, at: u64, bytes: &[u8]) -> Result<()> {
        let to = buffer.range(at, bytes.len())?;
        // SAFETY: the range is inside the buffer, which is not part of `bytes`.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    fn read(&self, buffer: &Rc<Memory>, at: u64, into: &mut [u8]) -> Result<()> {
        let from = buffer.range(at, into.len())?;
        // SAFETY: as in `write`; every byte is initialized when it is allocated.
        unsafe { from.copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    fn pipeline(&self, name: &str) -> Result<*mut c_void> {
        // SAFETY: only the address is used.
        let found = unsafe { self.library.get::<*mut c_void>(name.as_bytes()) };
        let found =
            found.map_err(|e| MetalFailure::Driver { what: "a kernel's name", problem: e.to_string() })?;
        // SAFETY: the library is never unloaded.
        Ok(unsafe { found.into_raw() }.as_raw_ptr())
    }

    fn run(&self, dispatches: &[Dispatch<'_, Shim>]) -> Result<()> {
        type Run = unsafe extern "C" fn(
            *mut c_void,
            *const *mut c_void,
            usize,
            *const c_uint,
            c_uint,
            usize,
            c_int,
            *mut c_char,
            usize,
        ) -> c_int;
        for dispatch in dispatches {
            let mut arguments: Vec<*mut c_void> = dispatch.buffers.iter().map(|buffer| buffer.at).collect();
            arguments.push(dispatch.parameters.as_ptr().cast_mut().cast());
            let mut error = [0u8; 200];
            // SAFETY: the symbol has this type; the pipeline is a kernel, which takes these arguments.
            let failed = unsafe {
                let run = self.library.get::<Run>(b"shim_run").unwrap();
                run(
                    *dispatch.pipeline,
                    arguments.as_ptr(),
                    arguments.len(),
                    dispatch.grid.as_ptr(),
                    dispatch.simds,
                    dispatch.shared as usize,
                    self.order as c_int,
                    error.as_mut_ptr().cast(),
                    error.len(),
                )
            };
            if failed != 0 {
                let text = error.split(|&b| b == 0).next().unwrap_or_default();
                let problem = String::from_utf8_lossy(text).into_owned();
                return Err(MetalFailure::Driver { what: "a kernel", problem }.into());
            }
        }
        Ok(())
    }
}
