//! NCCL, NVIDIA's library of exchanges among GPUs, loaded when it is first used.

use crate::driver::Driver;
use crate::error::{CudaFailure, Error, Result};
use core::ffi::{c_int, c_void};
use core::mem::ManuallyDrop;
use libloading::Library;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// The library's names: that of its packages, and the link that only those for developers have.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// The first version whose exchanges can be recorded in graphs: 2.9.
const OLDEST: c_int = 20_900;

// Values of nccl.h.
const SUCCESS: c_int = 0;
const FLOAT32: c_int = 7;
const SUM: c_int = 0;

/// Declares the functions of the library that are used, and loads them.
macro_rules! functions {
    ($($field:ident = $name:literal($($argument:ty),*);)*) => {
        struct Functions {
            $($field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Functions {
            /// # Safety
            /// The library has to be NCCL.
            unsafe fn of(library: &Library) -> core::result::Result<Functions, libloading::Error> {
                // SAFETY: the functions of these names have these types in all versions of NCCL 2.
                unsafe { Ok(Functions { $($field: *library.get(concat!($name, "\0").as_bytes())?,)* }) }
            }
        }
    };
}

functions! {
    version = "ncclGetVersion"(*mut c_int);
    init_all = "ncclCommInitAll"(*mut *mut c_void, c_int, *const c_int);
    destroy = "ncclCommDestroy"(*mut c_void);
    abort = "ncclCommAbort"(*mut c_void);
    async_error = "ncclCommGetAsyncError"(*mut c_void, *mut c_int);
    all_gather = "ncclAllGather"(*const c_void, *mut c_void, usize, c_int, *mut c_void, *mut c_void);
    all_reduce = "ncclAllReduce"(*const c_void, *mut c_void, usize, c_int, c_int, *mut c_void, *mut c_void);
    send = "ncclSend"(*const c_void, usize, c_int, c_int, *mut c_void, *mut c_void);
    receive = "ncclRecv"(*mut c_void, usize, c_int, c_int, *mut c_void, *mut c_void);
    group_start = "ncclGroupStart"();
    group_end = "ncclGroupEnd"();
}

/// The library.
pub struct Nccl {
    functions: Functions,
    version: c_int,
}

impl core::fmt::Debug for Nccl {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Nccl").field("version", &self.version).finish_non_exhaustive()
    }
}

/// The meaning of a result that is not a success.
fn problem(result: c_int) -> &'static str {
    match result {
        1 => "NCCL reports that a call of CUDA failed (ncclUnhandledCudaError); NCCL_DEBUG=WARN shows which",
        2 => "NCCL reports that a call of the system failed (ncclSystemError); NCCL_DEBUG=WARN shows which",
        3 => "NCCL reports an internal error (ncclInternalError)",
        4 => "NCCL refused an argument (ncclInvalidArgument)",
        5 => "NCCL refused a call (ncclInvalidUsage); NCCL_DEBUG=WARN shows why",
        6 => "NCCL reports that another rank failed (ncclRemoteError)",
        _ => "NCCL reports an unknown error",
    }
}

fn check(call: &'static str, result: c_int) -> Result<()> {
    match result {
        SUCCESS => Ok(()),
        result => Err(CudaFailure::Exchange { call, problem: problem(result) }.into()),
    }
}

impl Nccl {
    /// Loads the library.
    ///
    /// # Errors
    /// [`CudaFailure::NoNccl`] if there is none, or one that is too old.
    pub fn load() -> Result<Arc<Nccl>> {
        // SAFETY: loads NVIDIA's library by its name, whose initializers are its own.
        let found = NAMES.into_iter().find_map(|name| unsafe { Library::new(name) }.ok());
        // Never unloaded: threads of NCCL, and those that abort communicators, may be in it until the process ends.
        let library = ManuallyDrop::new(found.ok_or(CudaFailure::NoNccl { version: None })?);
        let mut version = 0;
        // SAFETY: it has the name of NCCL.
        let functions =
            unsafe { Functions::of(&library) }.map_err(|_| CudaFailure::NoNccl { version: None })?;
        // SAFETY: the function writes one integer.
        check("ncclGetVersion", unsafe { (functions.version)(&mut version) })?;
        if version < OLDEST {
            return Err(CudaFailure::NoNccl { version: Some(version) }.into());
        }
        Ok(Arc::new(Nccl { functions, version }))
    }

    fn abort(&self, Handle(handle): Handle) {
        // SAFETY: this owns the handle: nothing uses it after this. An error could not be reported.
        unsafe { (self.functions.abort)(handle) };
    }

    fn destroy(&self, Handle(handle): Handle) {
        // SAFETY: as for `abort`.
        unsafe { (self.functions.destroy)(handle) };
    }
}

/// What the communicators of a group share.
#[derive(Debug)]
struct Clique {
    nccl: Arc<Nccl>,
    /// The first error of any rank: the group has ended.
    failure: Mutex<Option<Error>>,
}

/// A handle of NCCL.
#[derive(Debug)]
struct Handle(*mut c_void);

// SAFETY: NCCL's communicators may be used by any thread, one at a time.
unsafe impl Send for Handle {}

/// One rank's side of a group of GPUs.
#[derive(Debug)]
pub struct Communicator {
    clique: Arc<Clique>,
    /// `None` once it was aborted.
    handle: Mutex<Option<Handle>>,
    rank: usize,
    ranks: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A buffer of floats on the GPU: its address and their number.
pub(crate) type Floats = (u64, usize);

impl Communicator {
    /// A communicator for each of these GPUs of this process, in order.
    ///
    /// # Errors
    /// [`CudaFailure::Exchange`] if NCCL cannot connect them.
    pub fn connect(nccl: &Arc<Nccl>, gpus: &[usize]) -> Result<Vec<Communicator>> {
        let numbers: Vec<c_int> = gpus.iter().map(|&gpu| gpu as c_int).collect();
        let mut handles = vec![core::ptr::null_mut(); gpus.len()];
        // SAFETY: there are as many numbers and handles as the call is told.
        let made = unsafe {
            (nccl.functions.init_all)(handles.as_mut_ptr(), numbers.len() as c_int, numbers.as_ptr())
        };
        check("ncclCommInitAll", made)?;
        let clique = Arc::new(Clique { nccl: Arc::clone(nccl), failure: Mutex::new(None) });
        let ranks = gpus.len();
        let one = |(rank, handle)| Communicator {
            clique: Arc::clone(&clique),
            handle: Mutex::new(Some(Handle(handle))),
            rank,
            ranks,
        };
        Ok(handles.into_iter().enumerate().map(one).collect())
    }

    /// This rank, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// The first error of any rank.
    ///
    /// # Errors
    /// That error.
    pub(crate) fn check(&self) -> Result<()> {
        if let Some(failure) = *lock(&self.clique.failure) {
            return Err(failure);
        }
        self.call("ncclCommGetAsyncError", |functions, handle| {
            let mut result = SUCCESS;
            // SAFETY: the communicator exists, and the call writes one integer.
            match unsafe { (functions.async_error)(handle, &mut result) } {
                SUCCESS => result,
                failed => failed,
            }
        })
    }

    /// Ends the group: all ranks fail from now on. What this one has given to its GPU ends without the others.
    pub(crate) fn fail(&self, error: Error) {
        lock(&self.clique.failure).get_or_insert(error);
        if let Some(handle) = lock(&self.handle).take() {
            let nccl = Arc::clone(&self.clique.nccl);
            // NCCL tells the GPU to stop first, and then waits until the graphs with its exchanges are gone, which is when
            // their device leaves the group or is dropped.
            // Without a thread for it, it is left to the end of the process.
            let _ = thread::Builder::new().name("shohin-nccl-abort".into()).spawn(move || nccl.abort(handle));
        }
    }

    fn call(&self, name: &'static str, call: impl FnOnce(&Functions, *mut c_void) -> c_int) -> Result<()> {
        let handle = lock(&self.handle);
        let Some(Handle(handle)) = &*handle else {
            return Err(lock(&self.clique.failure)
                .unwrap_or(CudaFailure::Exchange { call: name, problem: problem(6) }.into()));
        };
        check(name, call(&self.clique.nccl.functions, *handle))
    }

    /// `to (ranks, count) = ` the `(count)` floats at `from` of every rank, in order.
    pub(crate) fn all_gather<D: Driver>(&self, driver: &D, (from, count): Floats, to: u64) -> Result<()> {
        driver.on_stream(&mut |stream| {
            // SAFETY: the device keeps the memory and the stream, and the stream is that of the rank's GPU.
            self.call("ncclAllGather", |functions, handle| unsafe {
                (functions.all_gather)(
                    from as *const c_void,
                    to as *mut c_void,
                    count,
                    FLOAT32,
                    handle,
                    stream,
                )
            })
        })
    }

    /// Replaces the floats by the sum of those of all ranks.
    pub(crate) fn all_reduce<D: Driver>(&self, driver: &D, (x, count): Floats) -> Result<()> {
        driver.on_stream(&mut |stream| {
            // SAFETY: as for `all_gather`; input and output may be the same.
            self.call("ncclAllReduce", |functions, handle| unsafe {
                (functions.all_reduce)(
                    x as *const c_void,
                    x as *mut c_void,
                    count,
                    FLOAT32,
                    SUM,
                    handle,
                    stream,
                )
            })
        })
    }

    /// Sends to a rank and receives from one, at the same time.
    pub(crate) fn pass<D: Driver>(
        &self,
        driver: &D,
        send: Option<(Floats, usize)>,
        receive: Option<(Floats, usize)>,
    ) -> Result<()> {
        driver.on_stream(&mut |stream| {
            // SAFETY: has no arguments.
            self.call("ncclGroupStart", |functions, _| unsafe { (functions.group_start)() })?;
            let sent = send.map_or(Ok(()), |((x, count), to)| {
                // SAFETY: as for `all_gather`.
                self.call("ncclSend", |functions, handle| unsafe {
                    (functions.send)(x as *const c_void, count, FLOAT32, to as c_int, handle, stream)
                })
            });
            let received = receive.map_or(Ok(()), |((x, count), from)| {
                // SAFETY: as for `all_gather`.
                self.call("ncclRecv", |functions, handle| unsafe {
                    (functions.receive)(x as *mut c_void, count, FLOAT32, from as c_int, handle, stream)
                })
            });
            // Ends the thread's group in any case.
            // SAFETY: has no arguments.
            let ended = self.call("ncclGroupEnd", |functions, _| unsafe { (functions.group_end)() });
            sent.and(received).and(ended)
        })
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        let failed = lock(&self.clique.failure).is_some();
        let Some(handle) = lock(&self.handle).take() else { return };
        match failed {
            true => self.clique.nccl.abort(handle),
            false => self.clique.nccl.destroy(handle),
        }
    }
}
