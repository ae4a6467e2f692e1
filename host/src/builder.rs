//! Loading a model.

use crate::cpu::CpuModel;
#[cfg(feature = "cuda")]
use crate::cuda::CudaWeights;
use crate::device_model::DeviceModel;
use crate::devices::{DeviceName, Fallback};
use crate::error::{Error, Result};
use crate::file::ModelFile;
#[cfg(feature = "gpu")]
use crate::gpu::GpuWeights;
use crate::lora::{self, Adapter};
use crate::model::{Inner, Model};
use crate::shard::ShardBytes;
#[cfg(feature = "cuda")]
use crate::split::CudaSplit;
use crate::split::SplitWeights;
#[cfg(feature = "mpi")]
use crate::split::{Mpi, World};
use crate::threads::ThreadPool;
use crate::weight_cache::{CacheWriter, WeightCache};
use shohin_core::chat::Template;
use shohin_core::cpu::repack::repacks;
use shohin_core::cpu::{CpuWeights, Isa};
use shohin_core::gguf::{Id42, ReadOptions};
use shohin_core::model::{ModelBytes, ModelConfigBuilder, Pooling, RopeScaling, Split};
use shohin_core::{
    Activations, AttentionPattern, CpuOptions, Format, Gguf, KvFormat, ModelConfig, Tokenizer, is_printable,
};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Instant;

/// Most threads of a pool.
const MAX_THREADS: usize = 1024;

/// Options for loading a model; see [`Model::builder`]. Unset ones have the fastest value.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing before `load`"]
pub struct Builder {
    threads: Option<usize>,
    context: usize,
    kv: KvFormat,
    attention: AttentionPattern,
    activations: Activations,
    isa: Option<String>,
    repack: bool,
    reads_weights: bool,
    compact: bool,
    weight_cache: Option<WeightCache>,
    weights_window: Option<usize>,
    read: ReadOptions,
    rope_scaling: Option<RopeScaling>,
    rope_base: Option<f32>,
    alibi: Option<f32>,
    adapters: Vec<(PathBuf, f32)>,
    device: DeviceName,
    on_compile: fn(),
    split: Option<Split>,
    #[cfg(feature = "mpi")]
    world: Option<Arc<World>>,
}

impl Default for Builder {
    fn default() -> Self {
        Builder {
            threads: None,
            context: 4096,
            kv: KvFormat::default(),
            attention: AttentionPattern::default(),
            activations: Activations::default(),
            isa: None,
            repack: true,
            reads_weights: true,
            compact: false,
            weight_cache: None,
            weights_window: None,
            read: ReadOptions::default(),
            rope_scaling: None,
            rope_base: None,
            alibi: None,
            adapters: Vec::new(),
            device: DeviceName::Auto,
            on_compile: || (),
            split: None,
            #[cfg(feature = "mpi")]
            world: None,
        }
    }
}

impl Builder {
    /// Number of threads, at least 1; one per core unless set.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Context size of a chat in tokens, clamped to the model's context; 4096 unless set. Models with LongRoPE or dynamic
    /// NTK have the rotary frequencies for it, and no longer sequences with others.
    pub fn context(mut self, tokens: usize) -> Self {
        self.context = tokens;
        self
    }

    /// Format of the KV cache; [`KvFormat::F16`] unless set.
    pub fn kv(mut self, format: KvFormat) -> Self {
        self.kv = format;
        self
    }

    /// The positions that each token attends to; all unless set.
    pub fn attention(mut self, pattern: AttentionPattern) -> Self {
        self.attention = pattern;
        self
    }

    /// Precision of activations; [`Activations::Int8`] unless set.
    pub fn activations(mut self, activations: Activations) -> Self {
        self.activations = activations;
        self
    }

    /// Instruction set of the kernels by name, such as `scalar` or `avx2`; the best available unless set.
    pub fn isa(mut self, name: impl Into<String>) -> Self {
        self.isa = Some(name.into());
        self
    }

    /// Whether weights are repacked in memory for the kernels, which takes a copy of the file in memory; the
    /// results are the same. On unless set: decode is up to twice as fast.
    pub fn repack(mut self, repack: bool) -> Self {
        self.repack = repack;
        self
    }

    /// Leaves the weights in the file, for inspection: sizes are those of a load without this, and results are
    /// the same, but slow.
    pub fn inspect_only(mut self) -> Self {
        self.reads_weights = false;
        self
    }

    /// Whether base-3 weights (PTQ1_0, TQ1_0) stay packed: one sixth less memory, much slower. Off unless set.
    pub fn compact(mut self, compact: bool) -> Self {
        self.compact = compact;
        self
    }

    /// Where repacked weights are kept, so that the next load maps them: it takes a fraction of the time, and
    /// programs that run the same model share the memory. Nowhere unless set. The first load writes them on a
    /// thread of its own, to which [`Model::finish_caching`] and dropping the model wait.
    pub fn weight_cache(mut self, cache: impl Into<Option<WeightCache>>) -> Self {
        self.weight_cache = cache.into();
        self
    }

    /// Leaves the weights in the file, which is one on disk, and reads them for each token through a window of `bytes`: for
    /// a model that is larger than memory. Slower than any other way if it is not. The window is a part of the memory of
    /// each chat; see [`shohin_core::paging`]. Only on the CPU, which the automatic choice then is; loading fails for
    /// another device, a split model, or one in parts.
    pub fn weights_window(mut self, bytes: usize) -> Self {
        self.weights_window = Some(bytes);
        self
    }

    /// Layout of tensors of type 42 if the file does not determine it; [`Id42::Auto`] unless set.
    pub fn id42(mut self, layout: Id42) -> Self {
        self.read.id42 = layout;
        self
    }

    /// Replaces the file's RoPE scaling, and with it the longest context; see
    /// [`ModelConfigBuilder::rescale_rope`].
    pub fn rope_scaling(mut self, scaling: RopeScaling) -> Self {
        self.rope_scaling = Some(scaling);
        self
    }

    /// Replaces the file's base of the RoPE frequencies.
    pub fn rope_base(mut self, base: f32) -> Self {
        self.rope_base = Some(base);
        self
    }

    /// ALiBi in the place of rotary positions, with slopes down to `2^-max_bias` (8 in the paper), as if the file had the
    /// key `attention.max_alibi_bias`; with 0, rotary positions in the place of ALiBi. Only on the CPU.
    pub fn alibi(mut self, max_bias: f32) -> Self {
        self.alibi = Some(max_bias);
        self
    }

    /// Applies an adapter (LoRA) at this scale, in addition to others: a GGUF file, or with the feature `convert` a folder that
    /// PEFT has saved. Computes `y = W x + scale (alpha / r) B (A x)` for each adapted matrix, see
    /// [`shohin_core::model::lora`]. The model's own weights stay packed, and the [`WeightCache`] keeps them without adapters.
    /// Only on the CPU, which the automatic choice then is; loading fails for another device, a split model, or one that is
    /// read through a [window](Builder::weights_window).
    ///
    /// ```no_run
    /// let model = shohin::Model::builder().adapter("adapter.gguf", 1.0).load("model.gguf")?;
    /// # Ok::<(), shohin::Error>(())
    /// ```
    pub fn adapter(mut self, path: impl Into<PathBuf>, scale: f32) -> Self {
        self.adapters.push((path.into(), scale));
        self
    }

    /// Runs the model on this device; [`DeviceName::Auto`] unless set. Loading fails if there is no such device, except
    /// that the automatic choice then is the CPU: [`Model::fallback`] says why.
    ///
    /// The automatic choice is made by a short measurement, which is kept beside the repacked weights.
    pub fn device(mut self, device: DeviceName) -> Self {
        self.device = device;
        self
    }

    /// Runs the model on the CPU.
    pub fn cpu(self) -> Self {
        self.device(DeviceName::Cpu)
    }

    /// Runs the model on the GPU whose name contains `name`; an empty name takes the system's choice, which
    /// is never a software implementation.
    pub fn gpu(self, name: impl Into<String>) -> Self {
        self.device(DeviceName::Gpu(name.into()))
    }

    /// Runs the model on the GPU of a Mac, with Metal; loading fails elsewhere, and without the feature `metal`.
    pub fn metal(self) -> Self {
        self.device(DeviceName::Metal)
    }

    /// Runs the model on NVIDIA GPU `number`, with CUDA.
    pub fn cuda(self, number: usize) -> Self {
        self.device(DeviceName::Cuda(number))
    }

    /// Calls `notice`, on another thread, once the NVIDIA driver has compiled the kernels for a second: the first start takes some
    /// ten, and the driver keeps the result. With several GPUs perhaps once for each. Nobody is told unless set.
    pub fn on_compile(mut self, notice: fn()) -> Self {
        self.on_compile = notice;
        self
    }

    /// Where repacked weights are kept.
    pub(crate) fn cache(&self) -> Option<&WeightCache> {
        self.weight_cache.as_ref()
    }

    /// The options that speed depends on.
    pub(crate) fn measured(&self) -> impl std::fmt::Debug + use<> {
        (self.threads, self.kv, self.activations, self.isa.clone(), self.repack, self.compact)
    }

    /// Splits the model among ranks, which are threads of this process; each has a part of the weights, of the cache and of the
    /// threads. Not split unless set. See [`shohin_core::model::split`] for the ways to split it.
    ///
    /// On the CPU, a sequence goes on with new threads if one of them is lost: see
    /// [`Chat::recoveries`](crate::Chat::recoveries). With [`Builder::cuda`] and the number 0, rank `i` computes on NVIDIA GPU `i`,
    /// and a lost rank is an error.
    pub fn split(mut self, split: Split) -> Self {
        self.split = Some(split);
        self
    }

    /// Splits the model among these processes instead, of which this is rank 0. Each has [`Builder::threads`] threads. Loading
    /// fails if [`Builder::split`] is for another number of ranks, and for all of them if one has another model or other options.
    ///
    /// One model in a program can be split so. A lost process ends all others. Without effect if there is one process.
    #[cfg(feature = "mpi")]
    pub fn mpi(mut self, mpi: &Mpi) -> Self {
        self.world = (mpi.ranks() > 1).then(|| Arc::clone(mpi.world()));
        self
    }

    /// Loads a GGUF file, or a model in parts by the name of any of them.
    ///
    /// # Errors
    /// If it cannot be read, is not a supported model, or an option is invalid.
    pub fn load(&self, path: impl AsRef<Path>) -> Result<Model> {
        self.load_file(&ModelFile::open(path)?)
    }

    /// Loads the model that is built into this library.
    ///
    /// # Errors
    /// If an option is invalid.
    #[cfg(feature = "built-in")]
    pub fn load_built_in(&self) -> Result<Model> {
        self.load_file(&ModelFile::built_in())
    }

    /// Loads a file that is already open.
    ///
    /// # Errors
    /// As [`Builder::load`].
    pub fn load_file(&self, file: &ModelFile) -> Result<Model> {
        #[cfg(feature = "mpi")]
        if let Some(world) = &self.world {
            return world.lead(|| self.load_with(file, None));
        }
        if self.device != DeviceName::Auto || !self.reads_weights {
            return self.load_with(file, None);
        }
        let reason = match (self.split, self.weights_window) {
            _ if !self.adapters.is_empty() => "adapters are for the CPU",
            (None, None) => return self.load_on_best(file),
            (Some(_), _) => "a model that is split runs on another device only by its name",
            (None, Some(_)) => "weights that stay in the file are for the CPU",
        };
        self.load_with(file, Some(Fallback { reason: reason.into(), found: false }))
    }

    /// As [`Builder::load_file`], without the automatic choice.
    pub(crate) fn load_with(&self, file: &ModelFile, fallback: Option<Fallback>) -> Result<Model> {
        let start = Instant::now();
        #[cfg(feature = "mpi")]
        self.check_ranks()?;
        self.check_adapters()?;
        let threads = self.thread_count()?;
        let pool = ThreadPool::new(threads).map_err(|source| Error::Threads { count: threads, source })?;
        let gguf = file.gguf(&self.read)?;
        let named = |source| Error::Model { name: file.name().into(), source };
        lora::refuse(&gguf).map_err(named)?;
        let config = self.configured(ModelConfig::from_gguf(&gguf).map_err(named)?)?;
        let adapters = lora::open(&self.adapters, &config)?;
        let options = self.cpu_options()?;
        let isa = options.isa;
        let device = match self.split.filter(|split| split.ranks() > 1 && self.reads_weights) {
            None => self.other_device(&gguf, config.clone())?,
            Some(split) if matches!(self.device, DeviceName::Auto | DeviceName::Cpu) => {
                Some(self.split_weights(file, &config, split, &options, threads)?)
            }
            Some(split) => Some(self.split_on_gpus(file, &config, split)?),
        };
        let on_cpu = device.is_none();
        let window = self.weights_window;
        if let Some(found) = window.filter(|_| !on_cpu) {
            let expected = "a model on the CPU that is not split, or none".into();
            return Err(Error::Option { name: "weights-window", found: found.to_string(), expected });
        }
        let repack = self.repack && on_cpu && self.activations == Activations::Int8;
        let repack = repack && repacks(isa) && window.is_none();
        let reads = repack && self.reads_weights;
        // Both take about as long if the weights come from the cache.
        let read_tokenizer = || Tokenizer::from_gguf(&gguf).map(Tokenizer::into_owned);
        let (weights, tokenizer) = thread::scope(|scope| {
            let tokenizer = thread::Builder::new().spawn_scoped(scope, read_tokenizer);
            let weights = match (reads, window) {
                (_, Some(window)) => {
                    file.paged_weights(&self.read, config, window).map(|weights| (Arc::new(weights), None))
                }
                (true, None) => self.repacked(file, config, isa, &pool, &adapters),
                (false, None) => {
                    let weights = file.weights(&self.read, config, &adapters);
                    weights.map(|weights| (Arc::new(weights), None))
                }
            };
            // WASI starts no threads.
            (weights, tokenizer.map_or_else(|_| Ok(read_tokenizer()), |thread| thread.join()))
        });
        let (weights, cache_writer) = weights?;
        let tokenizer = tokenizer.unwrap_or_else(|panic| resume_unwind(panic)).map_err(named)?;
        let template = Template::from_metadata(gguf.metadata(), &tokenizer).map_err(named)?;
        let pooling = Pooling::from_metadata(gguf.metadata());
        let parts = weights.model().weights().parts();
        let weight_bytes = match device.as_ref().and_then(|device| device.weight_bytes()) {
            Some(bytes) => bytes,
            None if repack && !reads => {
                let factors = lora::bytes(weights.model(), file.parts());
                file.resident_len(&self.read, !self.compact)? + factors
            }
            // The window is a part of the memory of each chat.
            None => parts.iter().map(|part| part.bytes().len()).sum(),
        };
        let name = gguf.metadata().str("general.name").ok().flatten().unwrap_or_default();
        let name = name.chars().filter(|c| is_printable(*c)).take(60).collect();
        let plans_repacked = (repack && !reads).then_some(self.compact);
        let cpu = CpuModel { weights, pool: Arc::new(pool), plans_repacked };
        Ok(Model(Arc::new(Inner {
            name,
            weight_bytes,
            format: gguf.header().layer_format(),
            tokenizer,
            file: file.clone(),
            adapters,
            read: self.read,
            device: device.unwrap_or_else(|| Box::new(cpu.clone())),
            cpu,
            cache_writer,
            template,
            pooling,
            options,
            kv: self.kv,
            attention: self.attention,
            readings: self.positions() + gguf.header().format_of_42().map_or("", Format::name),
            fallback,
            vocabulary: OnceLock::new(),
            load_time: start.elapsed(),
            fingerprint: OnceLock::new(),
        })))
    }

    /// A model split among devices other than the CPU.
    fn split_on_gpus(
        &self,
        file: &ModelFile,
        config: &ModelConfig,
        split: Split,
    ) -> Result<Box<dyn DeviceModel>> {
        // Not used in builds without CUDA.
        let _ = (file, config);
        let refused = |expected: &str| {
            Err(Error::Option { name: "split", found: split.to_string(), expected: expected.into() })
        };
        #[cfg(feature = "mpi")]
        if self.world.is_some() {
            return refused("a model on the CPU for ranks that are processes, or none");
        }
        match self.device {
            #[cfg(feature = "cuda")]
            DeviceName::Cuda(0) => {
                let weights = CudaSplit::load(file, &self.read, config, split, self.on_compile)?;
                Ok(Box::new(weights))
            }
            #[cfg(not(feature = "cuda"))]
            DeviceName::Cuda(0) => Err(Error::NoCudaSupport),
            DeviceName::Cuda(_) => refused("the device cuda, whose rank i is on GPU i, or none"),
            DeviceName::Auto | DeviceName::Cpu | DeviceName::Gpu(_) | DeviceName::Metal => {
                refused("a model on the CPU or on NVIDIA GPUs (the device cuda), or none")
            }
        }
    }

    fn split_weights(
        &self,
        file: &ModelFile,
        config: &ModelConfig,
        split: Split,
        options: &CpuOptions,
        threads: usize,
    ) -> Result<Box<dyn DeviceModel>> {
        #[cfg(feature = "mpi")]
        if let Some(world) = &self.world {
            let weights = world.load(&self.description(file), || {
                SplitWeights::load_first(file, &self.read, config, split, options, threads, world)
            });
            return Ok(Box::new(weights?));
        }
        Ok(Box::new(SplitWeights::load(file, &self.read, config, split, options, threads)?))
    }

    /// Refuses a split among another number of ranks than there are processes.
    #[cfg(feature = "mpi")]
    fn check_ranks(&self) -> Result<()> {
        use shohin_core::collective::Collective;
        let Some(ranks) = self.world.as_ref().map(|world| world.ranks()) else { return Ok(()) };
        if self.split.map_or(1, Split::ranks) == ranks {
            return Ok(());
        }
        let found = self.split.map_or_else(|| "none".into(), |split| split.to_string());
        let expected = format!("one among the {ranks} MPI ranks that were started, such as tensor:{ranks}");
        Err(Error::Option { name: "split", found, expected })
    }

    /// The model and the options that results depend on, one a line: all ranks have to agree on them.
    #[cfg(feature = "mpi")]
    pub(crate) fn description(&self, file: &ModelFile) -> String {
        let split = self.split.map_or_else(|| "none".into(), |split| split.to_string());
        let print: String = file.fingerprint().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        format!(
            "the version is {}\nthe model is a file of {} bytes with the fingerprint {print}\nsplit is {split}\n\
             context is {}\nkv is {}\nattention is {}\nact is {}\nid42 is {}\n\
             the options of positions are {:?}",
            env!("CARGO_PKG_VERSION"),
            file.file_len(),
            self.context,
            self.kv.name(),
            self.attention,
            format!("{:?}", self.activations).to_lowercase(),
            self.read.id42.name(),
            self.positions(),
        )
    }

    /// How a rank after the first runs the model: split, configuration, options and number of threads.
    #[cfg(feature = "mpi")]
    pub(crate) fn rank_options(&self, file: &ModelFile) -> Result<(Split, ModelConfig, CpuOptions, usize)> {
        let none =
            || Error::Option { name: "split", found: "none".into(), expected: "that of rank 0".into() };
        let gguf = file.gguf(&self.read)?;
        let config = ModelConfig::from_gguf(&gguf);
        let config = config.map_err(|source| Error::Model { name: file.name().into(), source })?;
        Ok((
            self.split.ok_or_else(none)?,
            self.configured(config)?,
            self.cpu_options()?,
            self.thread_count()?,
        ))
    }

    /// Options for reading the file.
    #[cfg(feature = "mpi")]
    pub(crate) fn read(&self) -> &ReadOptions {
        &self.read
    }

    /// Refuses adapters where they are not computed.
    fn check_adapters(&self) -> Result<()> {
        if self.adapters.is_empty() {
            return Ok(());
        }
        let cpu = matches!(self.device, DeviceName::Auto | DeviceName::Cpu);
        let other = match (self.split.filter(|split| split.ranks() > 1), self.weights_window) {
            _ if !cpu => Some(("device", self.device.to_string())),
            (Some(split), _) => Some(("split", split.to_string())),
            (None, Some(window)) => Some(("weights-window", window.to_string())),
            (None, None) => None,
        };
        match other {
            Some((name, found)) => {
                let expected = match name {
                    "device" => "auto or cpu with an adapter (lora): it is applied on the CPU",
                    _ => "none with an adapter (lora): it is applied to whole models in memory",
                };
                Err(Error::Option { name, found, expected: expected.into() })
            }
            None => Ok(()),
        }
    }

    fn thread_count(&self) -> Result<usize> {
        let threads = self.threads.unwrap_or_else(default_threads);
        match (1..=MAX_THREADS).contains(&threads) {
            true => Ok(threads),
            false => Err(Error::Option {
                name: "threads",
                found: threads.to_string(),
                expected: format!("1 to {MAX_THREADS}"),
            }),
        }
    }

    fn cpu_options(&self) -> Result<CpuOptions> {
        let (context, activations, isa) = (self.context, self.activations, self.best_isa()?);
        Ok(CpuOptions { context, activations, isa, ..CpuOptions::default() })
    }

    /// Repacked weights from the cache, or from the file: these are then being kept in the cache.
    fn repacked(
        &self,
        file: &ModelFile,
        config: ModelConfig,
        isa: Isa,
        pool: &ThreadPool,
        adapters: &[Adapter],
    ) -> Result<(Arc<CpuWeights<ShardBytes>>, Option<CacheWriter>)> {
        let cache = self.weight_cache.as_ref();
        let entry = cache.and_then(|cache| cache.entry(file, &self.read, self.compact, isa));
        if let Some(files) = entry.as_ref().and_then(|entry| entry.open(pool))
            && let Ok(weights) = file.cached_weights(&self.read, config.clone(), files, isa, adapters)
        {
            return Ok((Arc::new(weights), None));
        }
        let weights =
            Arc::new(file.repacked_weights(&self.read, config, self.compact, isa, pool, adapters)?);
        let cache_writer = entry.map(|entry| entry.start_writing(&weights, file.parts()));
        Ok((weights, cache_writer))
    }

    fn best_isa(&self) -> Result<Isa> {
        let Some(name) = &self.isa else { return Ok(Isa::detect()) };
        Isa::named(name).map_err(|_| {
            let have: Vec<&str> = Isa::available().map(Isa::name).collect();
            let expected = format!("one this machine has: {}", have.join(", "));
            Error::Option { name: "isa", found: name.clone(), expected }
        })
    }

    /// The file's configuration with the overrides of the options.
    fn configured(&self, config: ModelConfig) -> Result<ModelConfig> {
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
        if let Some((name, found)) = scaling.or(base).filter(|_| !config.rotary) {
            let expected = "none: ALiBi is in the place of rotary positions in this model".into();
            return Err(Error::Option { name, found, expected });
        }
        Ok(config.for_context(self.context))
    }

    /// What keys depend on besides the file.
    fn positions(&self) -> String {
        match (self.rope_scaling, self.rope_base, self.alibi) {
            (None, None, None) => String::new(),
            options => format!("{options:?}"),
        }
    }

    /// The model on the device that the options name; `None` on the CPU.
    fn other_device(&self, gguf: &Gguf<'_>, config: ModelConfig) -> Result<Option<Box<dyn DeviceModel>>> {
        // Not used in builds without these devices.
        let _ = (gguf, &config, self.on_compile);
        match &self.device {
            // Without the weights there is nothing to choose by.
            DeviceName::Auto | DeviceName::Cpu => Ok(None),
            #[cfg(feature = "gpu")]
            DeviceName::Gpu(name) => {
                let name = Some(name.as_str()).filter(|name| !name.is_empty());
                Ok(Some(Box::new(GpuWeights::load(name, gguf, config)?)))
            }
            #[cfg(not(feature = "gpu"))]
            DeviceName::Gpu(_) => Err(Error::NoGpuSupport),
            #[cfg(feature = "cuda")]
            DeviceName::Cuda(number) => {
                let weights = CudaWeights::load(*number, self.on_compile, gguf, config)?;
                Ok(Some(Box::new(weights)))
            }
            #[cfg(not(feature = "cuda"))]
            DeviceName::Cuda(_) => Err(Error::NoCudaSupport),
            #[cfg(all(feature = "metal", target_os = "macos"))]
            DeviceName::Metal => Ok(Some(Box::new(crate::metal::MetalWeights::load(gguf, config)?))),
            #[cfg(not(all(feature = "metal", target_os = "macos")))]
            DeviceName::Metal => Err(Error::NoMetalSupport),
        }
    }
}

impl Model {
    /// Loads a GGUF file, or a model in parts by the name of any of them: on all cores, with weights repacked for the
    /// CPU's kernels, or on a faster device if there is one; see [`Builder::device`].
    ///
    /// # Errors
    /// If it cannot be read or is not a supported model.
    pub fn load(path: impl AsRef<Path>) -> Result<Model> {
        Model::builder().load(path)
    }

    /// Loads the model that is built into this library.
    ///
    /// # Errors
    /// If the system refuses threads or memory.
    #[cfg(feature = "built-in")]
    pub fn built_in() -> Result<Model> {
        Model::builder().load_built_in()
    }

    /// Options for loading.
    pub fn builder() -> Builder {
        Builder::default()
    }
}

/// Cores this program may use.
fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS)
}
