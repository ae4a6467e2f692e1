//! The CUDA driver, loaded when it is first used.

use crate::driver::{Driver, LaunchSize};
use crate::error::{CudaFailure, Error, Result};
use core::ffi::c_void;
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError, result, sys};
use shohin_core::Name;
use std::ffi::CString;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

/// The kernels, compiled for compute capability 7.5 and for 9.0; the driver compiles them for newer GPUs.
const PTX: [&str; 2] = [include_str!("../kernels/shohin.ptx"), include_str!("../kernels/shohin_90.ptx")];

/// How much of a multiprocessor's cache is memory of the blocks of a launch at most. The same for all kernels: it must be idle before
/// its cache is divided in another way, and launches could not overlap.
const LAUNCH_BYTES: i32 = 98 << 10;

/// Kernels that the driver has kept are loaded in a fraction of it; those that it compiles take some ten seconds.
const KEPT: Duration = Duration::from_secs(1);

/// An NVIDIA GPU.
pub struct Cuda {
    name: String,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    /// Of copies from the GPU, which wait for the work that they need and for no other thread's.
    copies: Arc<CudaStream>,
    /// Those that no thread waits for: a new one for each token takes two calls more.
    events: Mutex<Vec<CudaEvent>>,
    module: sys::CUmodule,
    /// Whether a launch may begin before the one before has ended: kernels wait for that where they have to.
    overlaps: bool,
    multiprocessors: usize,
    /// The memory of the launches that overlap, each [`LAUNCH_BYTES`] at most, as a part of all there is.
    shared_percent: i32,
    /// What a block may have, with the variables of its kernel.
    memory_of_block: i32,
    /// See [`Driver::block_memory`].
    block_memory: i32,
    /// The thread that records launches. Locked for every call.
    recorder: Mutex<Option<ThreadId>>,
    recorded: Condvar,
}

impl core::fmt::Debug for Cuda {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Cuda").field("name", &self.name).finish_non_exhaustive()
    }
}

// SAFETY: CUDA's handles may be used from any thread; every call first makes the context current there.
unsafe impl Send for Cuda {}
// SAFETY: as above; the driver serializes calls of one stream.
unsafe impl Sync for Cuda {}

/// Launches recorded by [`Cuda`].
#[derive(Debug)]
pub struct CudaGraph {
    graph: sys::CUgraph,
    exec: sys::CUgraphExec,
}

// SAFETY: as for `Cuda`; a graph is launched only by the device that has it.
unsafe impl Send for CudaGraph {}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        // SAFETY: both were made by `Cuda::end` and are destroyed once. An error cannot be reported here.
        unsafe {
            let _ = result::graph::exec_destroy(self.exec);
            let _ = result::graph::destroy(self.graph);
        }
    }
}

fn absent(problem: &str) -> Error {
    CudaFailure::Absent { problem: Name::new(problem) }.into()
}

fn refused(call: &'static str) -> impl Fn(DriverError) -> Error {
    move |error| {
        let text = error.error_string().ok().map(|text| text.to_string_lossy().into_owned());
        let problem = Name::new(text.unwrap_or_else(|| format!("{:?}", error.0)));
        CudaFailure::Driver { call, problem }.into()
    }
}

/// Whether the system has a CUDA driver.
fn check_library() -> Result<()> {
    // SAFETY: loads the driver's library, whose initializers are the driver's own.
    if unsafe { sys::is_culib_present() } { Ok(()) } else { Err(absent("there is no NVIDIA driver")) }
}

/// Calls `late` on another thread if `work` takes longer than `limit`.
fn overseen<T>(work: impl FnOnce() -> T, limit: Duration, late: fn()) -> T {
    thread::scope(|scope| {
        let (working, ended) = mpsc::channel::<()>();
        let wait = move || {
            if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                late();
            }
        };
        // Where no thread can be started, nobody is told.
        let _ = thread::Builder::new().spawn_scoped(scope, wait);
        let done = work();
        drop(working);
        done
    })
}

impl Cuda {
    /// The names of the GPUs, in the order of their numbers; empty without a driver.
    pub fn names() -> Vec<String> {
        if check_library().is_err() {
            return Vec::new();
        }
        let count = CudaContext::device_count().unwrap_or(0);
        let name = |i| CudaContext::new(i as usize).and_then(|context| context.name());
        (0..count).map(|i| name(i).unwrap_or_else(|_| "unknown".into())).collect()
    }

    /// Opens GPU `number`.
    ///
    /// # Errors
    /// [`CudaFailure::Absent`] without a driver or such a GPU.
    pub fn open(number: usize) -> Result<Cuda> {
        Cuda::open_with(number, || ())
    }

    /// As [`Cuda::open`]. Calls `compiling`, on another thread, if loading the kernels takes longer than a second: the driver
    /// compiles them then, and keeps the result for the next start.
    ///
    /// # Errors
    /// As [`Cuda::open`].
    pub fn open_with(number: usize, compiling: fn()) -> Result<Cuda> {
        check_library()?;
        let count = CudaContext::device_count().map_err(refused("cuDeviceGetCount"))?;
        if number >= count.max(0) as usize {
            return Err(absent(&format!("there is no GPU {number}, only {}", Self::names().join(", "))));
        }
        let context = CudaContext::new(number).map_err(refused("cuDevicePrimaryCtxRetain"))?;
        let name = context.name().map_err(refused("cuDeviceGetName"))?;
        let new_stream = || context.new_stream().map_err(refused("cuStreamCreate"));
        let (stream, copies) = (new_stream()?, new_stream()?);
        let (major, _) = context.compute_capability().map_err(refused("cuDeviceGetAttribute"))?;
        let count = sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        let multiprocessors =
            context.attribute(count).map_err(refused("cuDeviceGetAttribute"))?.max(1) as usize;
        let most = sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR;
        let most = context.attribute(most).map_err(refused("cuDeviceGetAttribute"))?;
        let of_block = sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        let memory_of_block = context.attribute(of_block).map_err(refused("cuDeviceGetAttribute"))?;
        let overlaps = major >= 9;
        let launches = if overlaps { 2 } else { 1 };
        let shared = (launches * LAUNCH_BYTES).min(most);
        // The driver takes the next larger part that it knows.
        let shared_percent = (100 * shared / most.max(1)).clamp(1, 100);
        // Products of a single row have few variables of their own.
        let block_memory = (shared / launches).min(memory_of_block - (4 << 10));
        let ptx = CString::new(PTX[usize::from(overlaps)]);
        let ptx = ptx.map_err(|_| absent("the kernels have a zero byte"))?;
        // SAFETY: `ptx` is text that ends with a zero byte, and the context is current.
        let load = || unsafe { result::module::load_data(ptx.as_ptr().cast()) };
        let module = overseen(load, KEPT, compiling).map_err(refused("cuModuleLoadData"))?;
        let (events, recorder, recorded) = (Mutex::default(), Mutex::new(None), Condvar::new());
        Ok(Cuda {
            name,
            context,
            stream,
            copies,
            events,
            module,
            overlaps,
            multiprocessors,
            shared_percent,
            memory_of_block,
            block_memory,
            recorder,
            recorded,
        })
    }

    /// Refuses more GPUs than there are.
    ///
    /// # Errors
    /// [`CudaFailure::Absent`] without a driver, [`CudaFailure::TooFewGpus`].
    pub fn require(expected: usize) -> Result<()> {
        check_library()?;
        let count = CudaContext::device_count().map_err(refused("cuDeviceGetCount"))?;
        let found = count.max(0) as usize;
        if found < expected { Err(CudaFailure::TooFewGpus { expected, found }.into()) } else { Ok(()) }
    }

    /// Waits while another thread records: what this one does would be a part of its graph, or end the recording.
    fn turn(&self) -> MutexGuard<'_, Option<ThreadId>> {
        let mut recorder = self.recorder.lock().unwrap_or_else(PoisonError::into_inner);
        let me = thread::current().id();
        while recorder.is_some_and(|thread| thread != me) {
            recorder = self.recorded.wait(recorder).unwrap_or_else(PoisonError::into_inner);
        }
        recorder
    }

    /// Makes the GPU the calling thread's, for one call.
    fn bind(&self) -> Result<MutexGuard<'_, Option<ThreadId>>> {
        let turn = self.turn();
        self.context.bind_to_thread().map_err(refused("cuCtxSetCurrent"))?;
        Ok(turn)
    }

    /// Waits for the work so far. Other threads give the GPU more meanwhile.
    fn finish(&self) -> Result<()> {
        let events = || self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let event = {
            let _turn = self.bind()?;
            let unused = events().pop();
            let event = match unused {
                Some(event) => event,
                None => self.context.new_event(None).map_err(refused("cuEventCreate"))?,
            };
            event.record(&self.stream).map_err(refused("cuEventRecord"))?;
            event
        };
        event.synchronize().map_err(refused("cuEventSynchronize"))?;
        events().push(event);
        Ok(())
    }
}

impl Driver for Cuda {
    type Kernel = CudaKernel;
    type Graph = CudaGraph;

    fn name(&self) -> &str {
        &self.name
    }

    fn multiprocessors(&self) -> usize {
        self.multiprocessors
    }

    fn block_memory(&self) -> usize {
        self.block_memory.max(0) as usize
    }

    fn alloc(&self, bytes: usize) -> Result<u64> {
        let _turn = self.bind()?;
        // SAFETY: the context is current; the memory is zeroed before it is read.
        let address = unsafe { result::malloc_sync(bytes) }.map_err(|error| match error.0 {
            sys::cudaError_enum::CUDA_ERROR_OUT_OF_MEMORY => Error::OutOfMemory { need: bytes as u64 },
            _ => refused("cuMemAlloc")(error),
        })?;
        // SAFETY: the memory has this many bytes.
        let zeroed = unsafe { result::memset_d8_async(address, 0, bytes, self.stream.cu_stream()) };
        zeroed.map_err(refused("cuMemsetD8Async"))?;
        Ok(address)
    }

    fn free(&self, address: u64) {
        if self.finish().is_ok()
            && let Ok(_turn) = self.bind()
        {
            // SAFETY: `address` is from `alloc` and freed once; no work that uses it is left.
            let _ = unsafe { result::free_sync(address) };
        }
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        let _turn = self.bind()?;
        // SAFETY: the memory at `address` has room, as callers make sure; a copy from pageable memory has read
        // it when the call returns.
        let copied = unsafe { result::memcpy_htod_async(address, bytes, self.stream.cu_stream()) };
        copied.map_err(refused("cuMemcpyHtoDAsync"))
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<()> {
        self.finish()?;
        let _turn = self.bind()?;
        // SAFETY: the memory at `address` has as many bytes; the stream is waited for before `bytes` are used.
        let copied = unsafe { result::memcpy_dtoh_async(bytes, address, self.copies.cu_stream()) };
        let waited = self.copies.synchronize();
        copied.map_err(refused("cuMemcpyDtoHAsync"))?;
        waited.map_err(refused("cuStreamSynchronize"))
    }

    fn alloc_on_host(&self, bytes: usize) -> Result<u64> {
        let _turn = self.bind()?;
        // SAFETY: the context is current.
        let memory = unsafe { result::malloc_host(bytes, sys::CU_MEMHOSTALLOC_PORTABLE) };
        // All addresses are unified.
        memory.map(|memory| memory as u64).map_err(refused("cuMemHostAlloc"))
    }

    fn free_on_host(&self, address: u64) {
        if self.finish().is_ok()
            && let Ok(_turn) = self.bind()
        {
            // SAFETY: `address` is from `alloc_on_host` and freed once; no work that uses it is left.
            let _ = unsafe { result::free_host(address as *mut c_void) };
        }
    }

    fn read_on_host(&self, address: u64, bytes: &mut [u8]) -> Result<()> {
        self.finish()?;
        // SAFETY: the memory at `address` has as many bytes, and no work writes to it before the next launch.
        unsafe { core::ptr::copy_nonoverlapping(address as *const u8, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn kernel(&self, name: &str) -> Result<CudaKernel> {
        let _turn = self.bind()?;
        let name = CString::new(name).map_err(|_| absent("a kernel's name has a zero byte"))?;
        // SAFETY: the module is loaded.
        let function = unsafe { result::module::get_function(self.module, name) };
        let function = function.map_err(refused("cuModuleGetFunction"))?;
        let carveout = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
        // SAFETY: the function exists.
        let set =
            unsafe { result::function::set_function_attribute(function, carveout, self.shared_percent) };
        set.map_err(refused("cuFuncSetAttribute"))?;
        let own = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES;
        let most = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: as above.
        let own = unsafe { result::function::get_function_attribute(function, own) };
        let rest = self.memory_of_block - own.map_err(refused("cuFuncGetAttribute"))?;
        // SAFETY: as above.
        let set =
            unsafe { result::function::set_function_attribute(function, most, self.block_memory.min(rest)) };
        set.map_err(refused("cuFuncSetAttribute"))?;
        Ok(CudaKernel(function))
    }

    fn launch(&self, kernel: CudaKernel, size: LaunchSize, args: &[u8]) -> Result<()> {
        let _turn = self.bind()?;
        let LaunchSize { grid: [x, y, z], threads, shared, cluster } = size;
        let mut params = [args.as_ptr().cast_mut().cast::<c_void>()];
        let attribute = |id, value| sys::CUlaunchAttribute { id, pad: [0; 4], value };
        let mut attributes = [
            attribute(
                sys::CUlaunchAttributeID_enum::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
            ),
            attribute(
                sys::CUlaunchAttributeID_enum::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                sys::CUlaunchAttributeValue {
                    clusterDim: sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: 1, y: 1, z: cluster },
                },
            ),
        ];
        // GPUs whose launches overlap are those that have clusters.
        let count = if !self.overlaps { 0 } else { 1 + u32::from(cluster > 1) };
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shared,
            hStream: self.stream.cu_stream(),
            attrs: attributes.as_mut_ptr(),
            numAttrs: count,
        };
        // SAFETY: `args` is the kernel's one argument, whose addresses the device keeps allocated, and `config` and what it
        // points to live during the call.
        let launched = unsafe {
            sys::cuLaunchKernelEx(&raw const config, kernel.0, params.as_mut_ptr(), core::ptr::null_mut())
        }
        .result();
        launched.map_err(refused("cuLaunchKernelEx"))
    }

    fn begin(&self) -> Result<()> {
        let mut recorder = self.bind()?;
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream exists.
        let begun = unsafe { result::stream::begin_capture(self.stream.cu_stream(), mode) };
        begun.map_err(refused("cuStreamBeginCapture"))?;
        *recorder = Some(thread::current().id());
        Ok(())
    }

    fn end(&self) -> Result<CudaGraph> {
        let mut recorder = self.turn();
        // Also if ending it fails.
        *recorder = None;
        self.recorded.notify_all();
        self.context.bind_to_thread().map_err(refused("cuCtxSetCurrent"))?;
        // SAFETY: the stream is being captured.
        let graph = unsafe { result::stream::end_capture(self.stream.cu_stream()) };
        let graph = graph.map_err(refused("cuStreamEndCapture"))?;
        let mut exec = core::ptr::null_mut();
        // SAFETY: the graph was just made; `exec` is written if the call succeeds.
        let made = unsafe { sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0) }.result();
        if made.is_err() {
            // SAFETY: nothing else has the graph.
            let _ = unsafe { result::graph::destroy(graph) };
        }
        made.map_err(refused("cuGraphInstantiate"))?;
        Ok(CudaGraph { graph, exec })
    }

    fn replay(&self, graph: &CudaGraph) -> Result<()> {
        let _turn = self.bind()?;
        // SAFETY: the graph exists, and so does the memory it uses, as the device makes sure.
        let launched = unsafe { result::graph::launch(graph.exec, self.stream.cu_stream()) };
        launched.map_err(refused("cuGraphLaunch"))
    }

    fn on_stream(&self, call: &mut dyn FnMut(*mut c_void) -> Result<()>) -> Result<()> {
        let _turn = self.bind()?;
        call(self.stream.cu_stream().cast())
    }

    fn is_idle(&self) -> Result<bool> {
        let _turn = self.bind()?;
        // SAFETY: the stream exists.
        match unsafe { sys::cuStreamQuery(self.stream.cu_stream()) }.result() {
            Ok(()) => Ok(true),
            Err(DriverError(sys::cudaError_enum::CUDA_ERROR_NOT_READY)) => Ok(false),
            Err(error) => Err(refused("cuStreamQuery")(error)),
        }
    }
}

/// A kernel of [`Cuda`].
#[derive(Clone, Copy, Debug)]
pub struct CudaKernel(sys::CUfunction);

// SAFETY: as for `Cuda`.
unsafe impl Send for CudaKernel {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_driver_is_told_so() {
        if Cuda::names().is_empty() {
            let error = Cuda::open(0).unwrap_err();
            assert!(error.to_string().starts_with("CUDA cannot be used: there is no"), "{error}");
        }
    }
}
