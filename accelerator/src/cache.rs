//! Keys and values of one sequence.

use core::ops::Range;
use shohin_core::cache::FlatKv;
use shohin_core::device::SessionOptions;
use shohin_core::model::Program;
use shohin_core::model::program::Heads;

/// Memory of a device and a sequence, in bytes, without the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct MemoryPlan {
    /// Keys and values of a sequence.
    pub kv: u64,
    /// Activations of one batch, and what is read out.
    pub scratch: u64,
}

/// How much there is of keys and values of a sequence, in the layout of [`FlatKv`].
#[derive(Clone, Copy, Debug)]
pub struct KvShape {
    /// Options of the sequence.
    pub options: SessionOptions,
    /// The heads of each layer.
    pub heads: Heads,
    /// Layers of the model.
    pub layers: usize,
}

impl KvShape {
    /// That of a sequence of the model.
    pub fn new(program: &Program, options: &SessionOptions) -> KvShape {
        KvShape { options: *options, heads: program.heads, layers: program.layers }
    }

    /// Numbers of the keys of a layer, and so of its values.
    pub fn numbers(&self) -> u64 {
        self.heads.kv as u64 * self.options.context as u64 * self.heads.dim as u64
    }

    /// Bytes of the keys of a layer, and so of its values.
    pub fn layer_bytes(&self) -> u64 {
        FlatKv::of(self.options.kv).bytes(self.numbers())
    }

    /// Bytes of all layers.
    pub fn bytes(&self) -> u64 {
        2 * self.layers as u64 * self.layer_bytes()
    }

    /// The ranges of the first `len` positions of each head in the keys of a layer, and so in its values.
    pub(crate) fn spans(&self, len: usize) -> impl Iterator<Item = Range<u64>> + use<> {
        let [kv, capacity, d, len] =
            [self.heads.kv, self.options.context, self.heads.dim, len].map(|n| n as u64);
        FlatKv::of(self.options.kv).spans(kv, capacity, d, len)
    }
}

/// Keys and values of one sequence. All memory is allocated when it is created.
pub struct Cache<M> {
    /// The [`Backend::id`](crate::Backend::id) that it was made by, as its kernels use that one's buffers.
    pub(crate) device: u64,
    pub(crate) shape: KvShape,
    pub(crate) memory: M,
}

impl<M> core::fmt::Debug for Cache<M> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Cache").field("options", &self.shape.options).finish_non_exhaustive()
    }
}

impl<M> Cache<M> {
    /// Its options.
    pub fn options(&self) -> &SessionOptions {
        &self.shape.options
    }

    /// What the backend allocated.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// The lengths of the runs of heads that a layer of an exported cache consists of, in bytes, for `len` positions: all
    /// heads of the keys, all of the values, and of formats with scales those apart.
    pub fn head_runs(&self, len: usize) -> Vec<usize> {
        let spans: Vec<usize> = self.shape.spans(len).map(|span| (span.end - span.start) as usize).collect();
        let runs = || spans.chunks(self.shape.heads.kv.max(1)).map(|run| run.iter().sum());
        runs().chain(runs()).collect()
    }

    /// Bytes of the keys and values of the first `len` positions.
    pub(crate) fn export_len(&self, len: usize) -> usize {
        let bytes: u64 = self.shape.spans(len).map(|span| span.end - span.start).sum();
        2 * self.shape.layers * bytes as usize
    }
}
