//! A [`Driver`] that compiles the kernels as C++ and runs them on the CPU, in a chosen order of threads.

use super::Order;
use libloading::Library;
use shohin_metal::{Dispatch, Driver, Error, Result, SOURCE};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::OnceLock;

/// The sources of the shim, on which the compiled kernels depend.
const SHIM: [&str; 3] = [
    include_str!("../../shim/fibers.h"),
    include_str!("../../shim/metal.h"),
    include_str!("../../shim/library.cpp"),
];

/// A path for compiled files of `source`, beside the tests.
fn place(source: &str) -> PathBuf {
    let mut hasher = std::hash::DefaultHasher::new();
    (source, SHIM, FLAGS).hash(&mut hasher);
    let mut dir = std::env::current_exe().unwrap();
    dir.set_file_name("metal-shim");
    std::fs::create_dir_all(&dir).unwrap();
    dir.join(format!("{:016x}", hasher.finish()))
}

const FLAGS: &[&str] = &[
    "-std=c++17",
    "-O2",
    "-ffp-contract=off",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unknown-attributes",
    "-Wno-unused-parameter",
    // Not every runtime library converts 16-bit floats.
    #[cfg(target_arch = "x86_64")]
    "-mf16c",
];

/// Runs the compiler on `source`.
fn clang(source: &str, place: &Path, arguments: &[&str]) -> std::result::Result<(), String> {
    let file = place.with_extension(format!("{}.metal", std::process::id()));
    std::fs::write(&file, source).unwrap();
    let mut command = Command::new(std::env::var_os("CLANGXX").unwrap_or("clang++".into()));
    command.args(FLAGS).args(arguments).arg(format!("-DKERNELS=\"{}\"", file.display()));
    let output = command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/shim/library.cpp")).output();
    let output = output.expect("clang++, of Debian's package clang");
    std::fs::remove_file(&file).unwrap();
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

/// Compiles `source` to a shared library, unless an earlier test has.
pub(crate) fn compile(source: &str) -> Library {
    let place = place(source);
    let library = place.with_extension("so");
    if !library.exists() {
        // Another test may compile the same at the same time: one of them takes the other's place.
        let own = place.with_extension(format!("{}.so", std::process::id()));
        let output = own.to_str().unwrap();
        clang(source, &place, &["-shared", "-fPIC", "-fvisibility=hidden", "-o", output])
            .unwrap_or_else(|e| panic!("{e}"));
        std::fs::rename(&own, &library).unwrap();
    }
    // SAFETY: the library has no initializers that do anything.
    unsafe { Library::new(&library) }.unwrap()
}

/// Checks that pointers keep to their address spaces; the error is the compiler's.
pub(crate) fn check(source: &str) -> std::result::Result<(), String> {
    clang(source, &place(source).with_extension("check"), &["-DCHECK", "-fsyntax-only"])
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
            return Err(Error::Driver { what: "a copy", problem });
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
        let found = found.map_err(|e| Error::Driver { what: "a kernel's name", problem: e.to_string() })?;
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
                return Err(Error::Driver { what: "a kernel", problem });
            }
        }
        Ok(())
    }
}
