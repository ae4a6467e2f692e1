//! Options for loading a model.

use crate::devices::DeviceName;
#[cfg(feature = "mpi")]
use crate::split::{Mpi, World};
use crate::weight_cache::WeightCache;
use shohin_core::gguf::{Id42, ReadOptions};
use shohin_core::model::{RopeScaling, Split};
use shohin_core::{Activations, AttentionPattern, KvFormat};
use std::path::PathBuf;
#[cfg(feature = "mpi")]
use std::sync::Arc;

/// Options for loading a model; see [`Model::builder`](crate::Model::builder). Unset ones have the fastest value.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing before `load`"]
pub struct Builder {
    pub(crate) threads: Option<usize>,
    pub(crate) context: usize,
    pub(crate) kv: KvFormat,
    pub(crate) attention: AttentionPattern,
    pub(crate) activations: Activations,
    pub(crate) isa: Option<String>,
    pub(crate) repack: bool,
    pub(crate) reads_weights: bool,
    pub(crate) compact: bool,
    pub(crate) weight_cache: Option<WeightCache>,
    pub(crate) weights_window: Option<usize>,
    pub(crate) read: ReadOptions,
    pub(crate) rope_scaling: Option<RopeScaling>,
    pub(crate) rope_base: Option<f32>,
    pub(crate) alibi: Option<f32>,
    pub(crate) adapters: Vec<(PathBuf, f32)>,
    pub(crate) device: DeviceName,
    pub(crate) on_compile: fn(),
    pub(crate) split: Option<Split>,
    #[cfg(feature = "mpi")]
    pub(crate) world: Option<Arc<World>>,
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
    /// thread of its own, to which [`Model::finish_caching`](crate::Model::finish_caching) and dropping the model wait.
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
    /// [`ModelConfigBuilder::rescale_rope`](shohin_core::model::ModelConfigBuilder::rescale_rope).
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
    /// On a GPU, ranks are filled up with zeros to a multiple of 32. Loading fails for a split model, or one that is read through a
    /// [window](Builder::weights_window).
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
    /// that the automatic choice then is the CPU: [`Model::fallback`](crate::Model::fallback) says why.
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
    /// ten, and the driver keeps the result. With several GPUs perhaps once for each. No callback by default.
    pub fn on_compile(mut self, notice: fn()) -> Self {
        self.on_compile = notice;
        self
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
}
