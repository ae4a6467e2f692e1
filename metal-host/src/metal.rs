//! The [`Driver`] for Macs. Memory is shared: buffers are read and written in place.

use crate::driver::{Dispatch, Driver};
use crate::error::{Error, MetalFailure, Result};
use crate::kernel::SOURCE;
use core::ffi::c_void;
use core::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSString;
use objc2_metal::{
    MTLBuffer, MTLCommandBuffer, MTLCommandBufferStatus, MTLCommandEncoder, MTLCommandQueue,
    MTLCompileOptions, MTLComputeCommandEncoder, MTLComputePipelineState, MTLCreateSystemDefaultDevice,
    MTLDevice, MTLLibrary, MTLResourceOptions, MTLSize,
};

/// Threads of the largest threadgroups: eight SIMD groups.
const MOST_THREADS: usize = 256;

type Object<T> = Retained<ProtocolObject<T>>;

/// The Mac's default GPU, with the kernels compiled for it.
pub struct Metal {
    name: String,
    device: Object<dyn MTLDevice>,
    queue: Object<dyn MTLCommandQueue>,
    library: Object<dyn MTLLibrary>,
}

impl core::fmt::Debug for Metal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Metal").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Metal {
    /// Opens the default device and compiles the kernels.
    ///
    /// # Errors
    /// [`MetalFailure::NoDevice`]; [`MetalFailure::Driver`] if Metal refuses the kernels.
    pub fn open() -> Result<Metal> {
        let absent = |problem: &str| Error::from(MetalFailure::NoDevice { problem: problem.into() });
        let device = MTLCreateSystemDefaultDevice().ok_or_else(|| absent("the system has none"))?;
        if !device.hasUnifiedMemory() {
            return Err(absent("its memory is not shared with the processor; Apple's own have that"));
        }
        let queue = device.newCommandQueue().ok_or_else(|| absent("it gives no command queue"))?;
        let options = MTLCompileOptions::new();
        // Integers are rounded as core rounds them, and NaN stays NaN.
        #[allow(deprecated, reason = "its successor requires macOS 15")]
        options.setFastMathEnabled(false);
        let library = device
            .newLibraryWithSource_options_error(&NSString::from_str(SOURCE), Some(&options))
            .map_err(|e| failed("compiling the kernels", &e.localizedDescription()))?;
        Ok(Metal { name: device.name().to_string(), device, queue, library })
    }
}

fn failed(what: &'static str, problem: &NSString) -> Error {
    MetalFailure::Driver { what, problem: problem.to_string() }.into()
}

/// Held while buffers are copied and while kernels run: buffers are shared by threads, and by several devices.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    // There is no state to be left half changed.
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory that the CPU and the GPU share.
#[derive(Clone, Debug)]
pub struct MetalBuffer(Object<dyn MTLBuffer>);

// SAFETY: Metal's buffers may be retained, bound and released on any thread, and their content is private: it is accessed
// by `Metal` only, one thread after the other (see `TURN`).
unsafe impl Send for MetalBuffer {}
// SAFETY: as above.
unsafe impl Sync for MetalBuffer {}

/// The address of `len` bytes at byte `at` of a buffer.
fn address(MetalBuffer(buffer): &MetalBuffer, at: u64, len: usize) -> Result<NonNull<u8>> {
    let end = usize::try_from(at).ok().and_then(|at| at.checked_add(len));
    if end.is_none_or(|end| end > buffer.length()) {
        let problem = format!("{len} bytes at {at} of {}", buffer.length());
        return Err(MetalFailure::Driver { what: "a copy", problem }.into());
    }
    // SAFETY: within the buffer, whose memory is shared and has an address.
    Ok(unsafe { buffer.contents().cast::<u8>().add(at as usize) })
}

impl Driver for Metal {
    type Buffer = MetalBuffer;
    type Pipeline = Object<dyn MTLComputePipelineState>;

    fn name(&self) -> &str {
        &self.name
    }

    fn buffer(&self, bytes: u64) -> Result<Self::Buffer> {
        let full = Error::OutOfMemory { need: bytes };
        let length =
            usize::try_from(bytes.max(1)).ok().filter(|&length| length <= self.device.maxBufferLength());
        let length = length.ok_or(full.clone())?;
        let made = self.device.newBufferWithLength_options(length, MTLResourceOptions::StorageModeShared);
        made.map(MetalBuffer).ok_or(full)
    }

    fn write(&self, buffer: &Self::Buffer, at: u64, bytes: &[u8]) -> Result<()> {
        let _turn = turn();
        let to = address(buffer, at, bytes.len())?;
        // SAFETY: the range is inside the buffer, whose content is private; it is this thread's turn.
        unsafe { to.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    fn read(&self, buffer: &Self::Buffer, at: u64, into: &mut [u8]) -> Result<()> {
        let _turn = turn();
        let from = address(buffer, at, into.len())?;
        // SAFETY: as in `write`. Metal fills new buffers with zeros.
        unsafe { from.as_ptr().copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    fn pipeline(&self, name: &str) -> Result<Self::Pipeline> {
        let function = self.library.newFunctionWithName(&NSString::from_str(name));
        let function =
            function.ok_or_else(|| MetalFailure::Driver { what: "a kernel's name", problem: name.into() })?;
        let pipeline = self
            .device
            .newComputePipelineStateWithFunction_error(&function)
            .map_err(|e| failed("compiling a kernel", &e.localizedDescription()))?;
        let lanes = pipeline.threadExecutionWidth();
        if lanes != 32 {
            let (what, found) = ("the number of threads of a SIMD group", lanes as u64);
            return Err(Error::Unsupported { what, found, expected: "32" });
        }
        let threads = pipeline.maxTotalThreadsPerThreadgroup();
        if threads < MOST_THREADS {
            let (what, found) = ("the number of threads of a threadgroup", threads as u64);
            return Err(Error::Unsupported { what, found, expected: "at least 256" });
        }
        Ok(pipeline)
    }

    fn run(&self, dispatches: &[Dispatch<'_, Metal>]) -> Result<()> {
        let _turn = turn();
        let absent = |what| MetalFailure::Driver { what, problem: "there is no memory".into() };
        autoreleasepool(|_| {
            let commands = self.queue.commandBuffer().ok_or_else(|| absent("a command buffer"))?;
            // Its dispatches run one after the other.
            let encoder = commands.computeCommandEncoder().ok_or_else(|| absent("a command encoder"))?;
            for dispatch in dispatches {
                encode(&encoder, dispatch);
            }
            encoder.endEncoding();
            commands.commit();
            commands.waitUntilCompleted();
            if commands.status() == MTLCommandBufferStatus::Completed {
                return Ok(());
            }
            let problem = commands.error().map(|error| error.localizedDescription().to_string());
            Err(MetalFailure::Driver { what: "running kernels", problem: problem.unwrap_or_default() }.into())
        })
    }
}

fn encode(encoder: &ProtocolObject<dyn MTLComputeCommandEncoder>, dispatch: &Dispatch<'_, Metal>) {
    encoder.setComputePipelineState(dispatch.pipeline);
    for (i, buffer) in dispatch.buffers.iter().enumerate() {
        // SAFETY: the kernel's argument `i` is a buffer of this size; the encoder retains it.
        unsafe { encoder.setBuffer_offset_atIndex(Some(&buffer.0), 0, i) };
    }
    let parameters: &[u32] = &dispatch.parameters;
    // SAFETY: the bytes are copied, and are the struct that the kernel takes as its last argument.
    unsafe {
        let bytes = NonNull::from(parameters).cast::<c_void>();
        encoder.setBytes_length_atIndex(bytes, size_of_val(parameters), dispatch.buffers.len());
        encoder.setThreadgroupMemoryLength_atIndex(dispatch.shared as usize, 0);
    }
    let [width, height, depth] = dispatch.grid.map(|n| n as usize);
    let threads = MTLSize { width: 32 * dispatch.simds as usize, height: 1, depth: 1 };
    encoder.dispatchThreadgroups_threadsPerThreadgroup(MTLSize { width, height, depth }, threads);
}
