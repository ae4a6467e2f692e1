//! What the options of a model ask for, together.

use crate::builder::Builder;
use crate::devices::DeviceName;
use crate::error::{Error, Result};
use shohin_core::cpu::Isa;
use shohin_core::cpu::repack::repacks;
use shohin_core::model::{ModelConfigBuilder, Split};
use shohin_core::{Activations, CpuOptions, ModelConfig};

/// Maximum threads of a pool.
const MAX_THREADS: usize = 1024;

/// Where a model runs. Whatever this program or the other options rule out is refused here, before anything is loaded.
#[derive(Debug)]
pub(crate) enum Plan {
    Cpu(Storage),
    #[cfg(feature = "gpu")]
    Gpu(String),
    #[cfg(feature = "cuda")]
    Cuda(usize),
    #[cfg(all(feature = "metal", target_os = "macos"))]
    Metal,
    /// On the CPU, among ranks.
    Split(Split),
    /// Rank `i` on NVIDIA GPU `i`.
    #[cfg(feature = "cuda")]
    CudaSplit(Split),
}

/// Where the CPU has its weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Storage {
    /// In the files, which stay mapped.
    Mapped,
    /// In the files, though a load without [`Builder::inspect_only`] repacks them.
    Inspected,
    /// In memory, in the layout of the kernels.
    Repacked,
    /// In the file, read through a window of this many bytes.
    Window(usize),
}

fn refused(name: &'static str, found: impl ToString, expected: impl Into<String>) -> Error {
    Error::Option { name, found: found.to_string(), expected: expected.into() }
}

impl Plan {
    pub(crate) fn of(builder: &Builder, isa: Isa) -> Result<Plan> {
        #[cfg(feature = "mpi")]
        check_ranks(builder)?;
        let on_cpu = matches!(builder.device, DeviceName::Auto | DeviceName::Cpu);
        let split = builder.split.filter(|split| split.ranks() > 1);
        if !builder.adapters.is_empty() {
            let expected = "none with an adapter (lora): it is applied to whole models in memory";
            match (split, builder.weights_window) {
                (Some(split), _) => return Err(refused("split", split, expected)),
                (None, Some(window)) => return Err(refused("weights-window", window, expected)),
                (None, None) => {}
            }
        }
        let split = split.filter(|_| builder.reads_weights);
        if let Some(window) = builder.weights_window
            && !(on_cpu && split.is_none())
        {
            let expected = "a model on the CPU that is not split, or none";
            return Err(refused("weights-window", window, expected));
        }
        match split {
            None => Plan::whole(builder, isa),
            Some(split) => Plan::divided(builder, split),
        }
    }

    /// A model that is not split.
    fn whole(builder: &Builder, isa: Isa) -> Result<Plan> {
        match &builder.device {
            // Without the weights there is nothing to choose by.
            DeviceName::Auto | DeviceName::Cpu => {
                let repack = builder.repack && builder.activations == Activations::Int8 && repacks(isa);
                Ok(Plan::Cpu(match builder.weights_window {
                    Some(bytes) => Storage::Window(bytes),
                    None if repack && builder.reads_weights => Storage::Repacked,
                    None if repack => Storage::Inspected,
                    None => Storage::Mapped,
                }))
            }
            #[cfg(feature = "gpu")]
            DeviceName::Gpu(name) => Ok(Plan::Gpu(name.clone())),
            #[cfg(not(feature = "gpu"))]
            DeviceName::Gpu(_) => Err(Error::NoGpuSupport),
            #[cfg(feature = "cuda")]
            DeviceName::Cuda(number) => Ok(Plan::Cuda(*number)),
            #[cfg(not(feature = "cuda"))]
            DeviceName::Cuda(_) => Err(Error::NoCudaSupport),
            #[cfg(all(feature = "metal", target_os = "macos"))]
            DeviceName::Metal => Ok(Plan::Metal),
            #[cfg(not(all(feature = "metal", target_os = "macos")))]
            DeviceName::Metal => Err(Error::NoMetalSupport),
        }
    }

    /// A model among several ranks.
    fn divided(builder: &Builder, split: Split) -> Result<Plan> {
        let on_cpu = matches!(builder.device, DeviceName::Auto | DeviceName::Cpu);
        #[cfg(feature = "mpi")]
        if builder.world.is_some() && !on_cpu {
            let expected = "a model on the CPU for ranks that are processes, or none";
            return Err(refused("split", split, expected));
        }
        match builder.device {
            _ if on_cpu => Ok(Plan::Split(split)),
            #[cfg(feature = "cuda")]
            DeviceName::Cuda(0) => Ok(Plan::CudaSplit(split)),
            #[cfg(not(feature = "cuda"))]
            DeviceName::Cuda(0) => Err(Error::NoCudaSupport),
            DeviceName::Cuda(_) => {
                Err(refused("split", split, "the device cuda, whose rank i is on GPU i, or none"))
            }
            DeviceName::Auto | DeviceName::Cpu | DeviceName::Gpu(_) | DeviceName::Metal => {
                let expected = "a model on the CPU or on NVIDIA GPUs (the device cuda), or none";
                Err(refused("split", split, expected))
            }
        }
    }
}

/// Refuses a split among another number of ranks than there are processes.
#[cfg(feature = "mpi")]
fn check_ranks(builder: &Builder) -> Result<()> {
    use shohin_core::collective::Collective;
    let Some(ranks) = builder.world.as_ref().map(|world| world.ranks()) else { return Ok(()) };
    if builder.split.map_or(1, Split::ranks) == ranks {
        return Ok(());
    }
    let found = builder.split.map_or_else(|| "none".into(), |split| split.to_string());
    let expected = format!("one among the {ranks} MPI ranks that were started, such as tensor:{ranks}");
    Err(refused("split", found, expected))
}

impl Builder {
    pub(crate) fn thread_count(&self) -> Result<usize> {
        // The cores that this program may use.
        let all = || std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
        let threads = self.threads.unwrap_or_else(all);
        match (1..=MAX_THREADS).contains(&threads) {
            true => Ok(threads),
            false => Err(refused("threads", threads, format!("1 to {MAX_THREADS}"))),
        }
    }

    pub(crate) fn cpu_options(&self) -> Result<CpuOptions> {
        let (context, activations, isa) = (self.context, self.activations, self.best_isa()?);
        Ok(CpuOptions { context, activations, isa, ..CpuOptions::default() })
    }

    fn best_isa(&self) -> Result<Isa> {
        let Some(name) = &self.isa else { return Ok(Isa::detect()) };
        Isa::named(name).map_err(|_| {
            let have: Vec<&str> = Isa::available().map(Isa::name).collect();
            refused("isa", name, format!("one this machine has: {}", have.join(", ")))
        })
    }

    /// The file's configuration with the overrides of the options.
    pub(crate) fn configured(&self, config: ModelConfig) -> Result<ModelConfig> {
        let mut builder = ModelConfigBuilder::from(config);
        if let Some(max_bias) = self.alibi {
            builder = builder.alibi(max_bias);
        }
        if let Some(scaling) = self.rope_scaling {
            builder = builder.rescale_rope(scaling);
        }
        if let Some(base) = self.rope_base {
            builder = builder.rope_freq_base(base);
        }
        let config = builder.build().map_err(Error::Config)?;
        let scaling = self.rope_scaling.map(|scaling| ("rope-scaling", scaling.to_string()));
        let base = self.rope_base.map(|base| ("rope-base", base.to_string()));
        if let Some((name, found)) = scaling.or(base).filter(|_| !config.positions.rotates()) {
            return Err(refused(
                name,
                found,
                "none: ALiBi is in the place of rotary positions in this model",
            ));
        }
        Ok(config.for_context(self.context))
    }

    /// What keys depend on besides the file.
    pub(crate) fn positions(&self) -> String {
        match (self.rope_scaling, self.rope_base, self.alibi) {
            (None, None, None) => String::new(),
            options => format!("{options:?}"),
        }
    }
}
