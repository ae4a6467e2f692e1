//! A GPU: its selection, capabilities and errors.

use crate::error::{Error, GpuFailure, Result};
use crate::shader::{self, Extensions};
use shohin_core::Name;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use wgpu::{Buffer, BufferUsages, ComputePipeline, Features};

/// Bytes of a storage binding that every WebGPU device supports. Larger matrices are split by rows.
pub(crate) const MAX_BINDING: u64 = 128 << 20;

/// Lanes of a subgroup that the kernels rely on.
const MIN_SUBGROUP: u32 = 4;

/// Maximum number of rows per dispatch: 4 per workgroup, 65535 workgroups.
const MAX_ROWS: usize = 4 * 65535;

/// Which GPU to use, and which of its features.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuOptions {
    /// Part of the GPU's name, case-insensitive; `None` takes the system's choice.
    pub name: Option<String>,
    /// Whether to accept a software implementation, which is slower than the engine on the CPU.
    pub software: bool,
    /// Subgroup reductions, if supported.
    pub subgroups: bool,
    /// 16-bit floats, if supported.
    pub f16: bool,
    /// The packed 4x8-bit dot product instruction, if supported.
    pub packed_dot: bool,
    /// Maximum number of rows of the embedding and the head per binding; larger ones are split at this number, or at 128
    /// MiB.
    pub split_rows: usize,
}

impl Default for GpuOptions {
    fn default() -> Self {
        GpuOptions {
            name: None,
            software: false,
            subgroups: true,
            f16: true,
            packed_dot: true,
            split_rows: MAX_ROWS,
        }
    }
}

/// An open GPU.
pub struct Gpu {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    name: String,
    extensions: Extensions,
    /// Maximum number of rows per binding.
    pub(crate) split_rows: usize,
    failure: Arc<Failure>,
    pipelines: Mutex<HashMap<String, ComputePipeline>>,
}

/// The first error, which the driver may report at any time.
#[derive(Default)]
struct Failure(Mutex<Option<(Error, String)>>);

impl Failure {
    fn set(&self, error: Error, words: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert((error, words));
    }

    fn get(&self) -> Option<(Error, String)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl core::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Gpu").field("name", &self.name).field("extensions", &self.extensions).finish()
    }
}

impl Gpu {
    /// Opens a GPU.
    ///
    /// # Errors
    /// [`GpuFailure::NoAdapter`] if there is none that the options allow.
    pub async fn open(options: &GpuOptions) -> Result<Gpu> {
        let absent = |problem: &str| Error::from(GpuFailure::NoAdapter { problem: Name::new(problem) });
        let (adapter, wgsl) = adapter(options).await.ok_or_else(|| {
            absent(if options.name.is_some() { "none of that name" } else { "no driver offers one" })
        })?;
        let info = adapter.get_info();
        let software = info.device_type == wgpu::DeviceType::Cpu;
        if software && !options.software {
            return Err(absent("only one in software"));
        }
        let has = adapter.features();
        let subgroups = options.subgroups && info.subgroup_min_size >= MIN_SUBGROUP;
        let f16 = options.f16 && has.contains(Features::SHADER_F16);
        let mut features = Features::empty();
        features.set(Features::SUBGROUP, subgroups && has.contains(Features::SUBGROUP));
        features.set(Features::SHADER_F16, f16);
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("shohin"),
            required_features: features,
            // The limits that every WebGPU device supports; no kernel needs more.
            required_limits: wgpu::Limits::default(),
            // Large blocks would waste up to a block.
            memory_hints: wgpu::MemoryHints::Manual {
                suballocated_device_memory_block_size: 1 << 20..8 << 20,
            },
            ..Default::default()
        };
        let opened = device(&adapter, &descriptor, subgroups).await;
        let ((device, queue), subgroups) = opened.map_err(|e| absent(&e.to_string()))?;
        let extensions = Extensions { subgroups, f16, packed_dot: options.packed_dot && wgsl };
        let failure = Arc::new(Failure::default());
        let lost = Arc::clone(&failure);
        device.set_device_lost_callback(move |_, words| lost.set(GpuFailure::Lost.into(), words));
        let refused = Arc::clone(&failure);
        device.on_uncaptured_error(Arc::new(move |error| {
            let words = error.to_string();
            let error = match error {
                wgpu::Error::OutOfMemory { .. } => Error::OutOfMemory { need: 0 },
                _ => GpuFailure::Device { problem: Name::new(cause(&words)) }.into(),
            };
            refused.set(error, words);
        }));
        // Browsers may hide it.
        let name = match (info.name.as_str(), software) {
            ("", true) => "GPU in software".into(),
            ("", false) => "GPU".into(),
            (name, _) => name.into(),
        };
        let split_rows = options.split_rows.clamp(64, MAX_ROWS);
        let pipelines = Mutex::default();
        Ok(Gpu { device, queue, name, extensions, split_rows, failure, pipelines })
    }

    /// The names of all GPUs of this machine; empty in browsers, which do not list them.
    pub async fn names() -> Vec<String> {
        Gpu::adapters().await.into_iter().map(|(name, _)| name).collect()
    }

    /// The names of all GPUs of this machine, and whether each is a software implementation; empty in browsers.
    pub async fn adapters() -> Vec<(String, bool)> {
        let adapters = instance().enumerate_adapters(wgpu::Backends::all()).await;
        let info = adapters.iter().map(wgpu::Adapter::get_info);
        info.map(|info| (info.name, info.device_type == wgpu::DeviceType::Cpu)).collect()
    }

    /// The driver's name for it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The features that the kernels use.
    pub fn extensions(&self) -> Extensions {
        self.extensions
    }

    /// Checks for the error that made this GPU unusable.
    ///
    /// # Errors
    /// Any error that the driver has reported since the GPU was opened.
    pub fn check(&self) -> Result<()> {
        self.failure.get().map_or(Ok(()), |(error, _)| Err(error))
    }

    /// The driver's full message for that error, often many lines.
    pub fn report(&self) -> Option<String> {
        self.failure.get().map(|(_, words)| words)
    }

    /// Destroys the device, as if it had been unplugged: everything on it fails from here on.
    pub fn destroy(&self) {
        self.device.destroy();
        self.failure.set(GpuFailure::Lost.into(), String::new());
    }

    /// A buffer filled with zeros.
    pub(crate) async fn buffer(&self, label: &str, size: u64, usage: BufferUsages) -> Result<Buffer> {
        let need = size.max(16).next_multiple_of(16);
        let limit = self.device.limits().max_buffer_size;
        if need > limit {
            return Err(Error::Unsupported {
                what: "a buffer's size in bytes",
                found: need,
                expected: "what the device allows",
            });
        }
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let buffer = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some(label),
            size: need,
            usage,
            mapped_at_creation: false,
        });
        match scope.pop().await {
            Some(_) => Err(Error::OutOfMemory { need }),
            None => self.check().map(|()| buffer),
        }
    }

    /// A buffer for kernels.
    pub(crate) async fn storage(&self, label: &str, size: u64) -> Result<Buffer> {
        if size > MAX_BINDING {
            return Err(Error::Unsupported {
                what: "a tensor's size in bytes",
                found: size,
                expected: "at most 134217728",
            });
        }
        self.buffer(label, size, BufferUsages::STORAGE | BufferUsages::COPY_DST | BufferUsages::COPY_SRC)
            .await
    }

    /// The pipeline of a shader, compiled once.
    pub(crate) fn pipeline(&self, entry: &str, source: String) -> ComputePipeline {
        let mut pipelines = self.pipelines.lock().unwrap_or_else(PoisonError::into_inner);
        let key = format!("{entry}\n{source}");
        if let Some(known) = pipelines.get(&key) {
            return known.clone();
        }
        let source = shader::head(self.extensions) + &source;
        let module = self.device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: Some(entry),
            source: wgpu::ShaderSource::Wgsl(source.into()),
        });
        let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(entry),
            layout: None,
            module: &module,
            entry_point: Some(entry),
            compilation_options: wgpu::PipelineCompilationOptions {
                // Every kernel writes before it reads.
                zero_initialize_workgroup_memory: false,
                ..Default::default()
            },
            cache: None,
        });
        pipelines.insert(key, pipeline.clone());
        pipeline
    }

    /// Reads the first bytes of `buffer`, which must be mappable, after all commands so far.
    pub(crate) async fn read(&self, buffer: &Buffer, bytes: &mut [u8]) -> Result<()> {
        self.check()?;
        let size = bytes.len() as u64;
        let (sender, receiver) = futures_channel::oneshot::channel();
        buffer.map_async(wgpu::MapMode::Read, ..size, move |done| {
            let _ = sender.send(done);
        });
        self.wait();
        // A dropped sender means that the device is gone.
        let mapped = matches!(receiver.await, Ok(Ok(())));
        self.check()?;
        let lost = Error::from(GpuFailure::Lost);
        if !mapped {
            return Err(lost);
        }
        let view = buffer.get_mapped_range(..size).map_err(|_| lost)?;
        bytes.copy_from_slice(&view);
        drop(view);
        buffer.unmap();
        Ok(())
    }

    /// Waits until the device has finished the submitted work. In browsers this happens by itself.
    pub(crate) fn wait(&self) {
        #[cfg(not(target_arch = "wasm32"))]
        if self.device.poll(wgpu::PollType::wait_indefinitely()).is_err() {
            self.failure.set(GpuFailure::Lost.into(), String::new());
        }
    }
}

/// The line of a report that names the cause.
fn cause(text: &str) -> &str {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.clone().find(|line| line.contains("error")).or(lines.next_back()).unwrap_or_default()
}

fn instance() -> wgpu::Instance {
    wgpu::Instance::new(wgpu::InstanceDescriptor {
        // Validation costs time on every command, and its layers are for developers of engines.
        flags: wgpu::InstanceFlags::empty(),
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    })
}

/// The adapter, and whether its shaders support packed dot products.
async fn adapter(options: &GpuOptions) -> Option<(wgpu::Adapter, bool)> {
    let instance = instance();
    let packed =
        instance.wgsl_language_features().contains(wgpu::WgslLanguageFeatures::Packed4x8IntegerDotProduct);
    if let Some(wanted) = &options.name {
        let wanted = wanted.to_lowercase();
        let adapters = instance.enumerate_adapters(wgpu::Backends::all()).await;
        let found = adapters.into_iter().find(|a| a.get_info().name.to_lowercase().contains(&wanted))?;
        return Some((found, packed));
    }
    let request = wgpu::RequestAdapterOptions {
        power_preference: wgpu::PowerPreference::HighPerformance,
        ..Default::default()
    };
    let found = match instance.request_adapter(&request).await {
        Ok(found) => found,
        // The system may not report that this is a software implementation.
        Err(_) if options.software => {
            let request = wgpu::RequestAdapterOptions { force_fallback_adapter: true, ..request };
            instance.request_adapter(&request).await.ok()?
        }
        Err(_) => return None,
    };
    Some((found, packed))
}

/// A device of an adapter, and whether it has subgroups, which the descriptor lacks where wgpu does not know of them.
async fn device(
    adapter: &wgpu::Adapter,
    descriptor: &wgpu::DeviceDescriptor<'_>,
    subgroups: bool,
) -> std::result::Result<((wgpu::Device, wgpu::Queue), bool), wgpu::RequestDeviceError> {
    let known = descriptor.required_features.contains(Features::SUBGROUP);
    #[cfg(target_arch = "wasm32")]
    if subgroups && !known {
        let (request, asked) = crate::subgroups::added(|| adapter.request_device(descriptor));
        let opened = request.await;
        if opened.is_ok() || !asked {
            return opened.map(|opened| (opened, asked));
        }
    }
    Ok((adapter.request_device(descriptor).await?, subgroups && known))
}
