//! Loading a model.

use crate::builder::Builder;
use crate::choice::{self, Choice};
use crate::cpu::CpuModel;
use crate::devices::{DeviceName, Fallback};
use crate::error::{Error, Result};
use crate::file::ModelFile;
use crate::lora;
use crate::model::{Inner, Model};
use crate::plan::{Plan, Storage};
use crate::source::Source;
use crate::split::SplitWeights;
#[cfg(feature = "mpi")]
use crate::split::{Loaded, Mpi};
use crate::template::{self, SpecialTokens};
use crate::threads::ThreadPool;
use crate::weights::Weights;
use shohin_core::chat::Template;
use shohin_core::model::{ModelBytes, Pooling, Split};
use shohin_core::{CpuOptions, Format, is_printable};
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Instant;

impl Builder {
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
            (None, None) => return self.load_on_best(file),
            (Some(_), _) => "a model that is split runs on another device only by its name",
            (None, Some(_)) => "weights that stay in the file are for the CPU",
        };
        self.load_with(file, Some(Fallback { reason: reason.into(), found: false }))
    }

    /// Loads the model on the fastest device that there is.
    fn load_on_best(&self, file: &ModelFile) -> Result<Model> {
        let speed = (self.threads, self.kv, self.activations, self.isa.clone(), self.repack, self.compact);
        let speed = (speed, &self.adapters);
        let on = |name| self.clone().device(name);
        let choice = Choice { file, cache: self.weight_cache.as_ref(), options: &speed };
        match choice::fastest(&choice, &|name| on(name).load_with(file, None))? {
            Ok(model) => Ok(model),
            Err(fallback) => on(DeviceName::Cpu).load_with(file, Some(fallback)),
        }
    }

    /// As [`Builder::load_file`], without the automatic choice.
    fn load_with(&self, file: &ModelFile, fallback: Option<Fallback>) -> Result<Model> {
        let start = Instant::now();
        let options = self.cpu_options()?;
        let plan = Plan::of(self, options.isa)?;
        let threads = self.thread_count()?;
        let pool = ThreadPool::new(threads).map_err(|source| Error::Threads { count: threads, source })?;
        let source = Source::read(file, self.read, |config| self.configured(config), &self.adapters)?;
        let device = self.other_device(&plan, &source, &options, threads)?;
        let storage = if let Plan::Cpu(storage) = plan { storage } else { Storage::Mapped };
        // Both take about as long if the weights come from the cache.
        let (cpu, tokenizer) = thread::scope(|scope| {
            let tokenizer = thread::Builder::new().spawn_scoped(scope, || source.tokenizer());
            let cache = self.weight_cache.as_ref();
            let cpu = CpuModel::load(&source, storage, self.compact, options.isa, Arc::new(pool), cache);
            // WASI starts no threads.
            (cpu, tokenizer.map_or_else(|_| Ok(source.tokenizer()), |thread| thread.join()))
        });
        let (cpu, cache_writer) = cpu?;
        let tokenizer = tokenizer.unwrap_or_else(|panic| resume_unwind(panic));
        let tokenizer = tokenizer.map_err(|error| source.named(error))?;
        let metadata = source.gguf.metadata();
        let template = Template::from_metadata(metadata, &tokenizer).map_err(|error| source.named(error))?;
        let text = metadata.str("tokenizer.chat_template").ok().flatten();
        let template = template::choose(template, text, SpecialTokens::of(&tokenizer));
        let parts = cpu.weights.model().weights().parts();
        let weight_bytes = match &device {
            Some(Weights::Split(weights)) => weights.weight_bytes(),
            _ if storage == Storage::Inspected => {
                let factors = lora::bytes(cpu.weights.model(), file.parts());
                file.resident_len(&self.read, !self.compact)? + factors
            }
            // The window is a part of the memory of each chat.
            _ => parts.iter().map(|part| part.bytes().len()).sum(),
        };
        let name = metadata.str("general.name").ok().flatten().unwrap_or_default();
        let header = source.gguf.header();
        Ok(Model(Arc::new(Inner {
            name: name.chars().filter(|c| is_printable(*c)).take(60).collect(),
            weight_bytes,
            format: header.layer_format(),
            tokenizer: Arc::new(tokenizer),
            file: file.clone(),
            pooling: Pooling::from_metadata(metadata),
            readings: self.positions() + header.format_of_42().map_or("", Format::name),
            adapters: source.adapters,
            read: self.read,
            device: device.unwrap_or_else(|| Weights::Cpu(cpu.clone())),
            cpu,
            cache_writer,
            template: Arc::new(template),
            options,
            kv: self.kv,
            attention: self.attention,
            fallback,
            vocabulary: Arc::default(),
            load_time: start.elapsed(),
            fingerprint: OnceLock::new(),
        })))
    }

    /// The weights on the planned device; `None` if it is the CPU.
    fn other_device(
        &self,
        plan: &Plan,
        source: &Source<'_>,
        options: &CpuOptions,
        threads: usize,
    ) -> Result<Option<Weights>> {
        Ok(Some(match plan {
            Plan::Cpu(_) => return Ok(None),
            #[cfg(feature = "gpu")]
            Plan::Gpu(name) => Weights::Gpu(crate::gpu::GpuWeights::load(name, source)?),
            #[cfg(feature = "cuda")]
            Plan::Cuda(number) => {
                Weights::Cuda(crate::cuda::CudaWeights::load(*number, self.on_compile, source)?)
            }
            #[cfg(feature = "cuda")]
            Plan::CudaSplit(split) => {
                Weights::CudaSplit(crate::split::CudaSplit::load(source, *split, self.on_compile)?)
            }
            #[cfg(all(feature = "metal", target_os = "macos"))]
            Plan::Metal => Weights::Metal(crate::metal::MetalWeights::load(source)?),
            Plan::Split(split) => Weights::Split(self.split_weights(source, *split, options, threads)?),
        }))
    }

    fn split_weights(
        &self,
        source: &Source<'_>,
        split: Split,
        options: &CpuOptions,
        threads: usize,
    ) -> Result<SplitWeights> {
        #[cfg(feature = "mpi")]
        if let Some(world) = &self.world {
            return world.load(&self.description(source.file), || {
                SplitWeights::load_first(source, split, options, threads, world)
            });
        }
        SplitWeights::load(source, split, options, threads)
    }

    /// The model and the options that results depend on, one a line: all ranks have to agree on them.
    #[cfg(feature = "mpi")]
    fn description(&self, file: &ModelFile) -> String {
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
}

#[cfg(feature = "mpi")]
impl Mpi {
    /// On the ranks after the first, loads a part of the model with the options of `builder`, which are those of rank 0, and
    /// does what rank 0 says until it ends.
    ///
    /// # Errors
    /// Whatever keeps any rank from loading the model, such as another model or other options than those of rank 0. An error
    /// while the model runs ends all ranks when this is dropped.
    pub fn follow<E: std::fmt::Display>(
        &self,
        builder: &Builder,
        open: impl FnOnce() -> Result<ModelFile, E>,
    ) -> Result<()> {
        let none =
            || Error::Option { name: "split", found: "none".into(), expected: "that of rank 0".into() };
        self.world().follow(|theirs| {
            let file = open().map_err(|error| error.to_string())?;
            let mine = builder.description(&file);
            let differs = mine.lines().zip(theirs.lines()).find(|(mine, theirs)| mine != theirs);
            if let Some((mine, theirs)) = differs {
                return Err(format!("{mine}, expected {theirs} as on rank 0"));
            }
            let loaded = || {
                let source = Source::read(&file, builder.read, |config| builder.configured(config), &[])?;
                let rank = (builder.split.ok_or_else(none)?, self.rank());
                Loaded::new(&source, rank, builder.cpu_options()?, builder.thread_count()?)
            };
            loaded().map_err(|error| error.to_string())
        })
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
