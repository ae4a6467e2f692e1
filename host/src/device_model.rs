//! A loaded model on a device of any kind.

use crate::any_device::{AnyDevice, Search};
use crate::error::Result;
use crate::sequence::Sequence;
use shohin_core::beam::Beam;
use shohin_core::chat::snapshot::Layout;
use shohin_core::device::ScratchOptions;
use shohin_core::model::Split;
use shohin_core::{CpuOptions, SessionOptions};

/// The weights of a model on a device. Of the options, GPUs have their own logit rows, and no instruction set.
pub(crate) trait DeviceModel: Send + Sync {
    /// A device that runs the model.
    fn open(&self, options: &CpuOptions) -> Result<Box<dyn AnyDevice>>;

    /// Bytes of a sequence on the device.
    fn sequence_bytes(&self, options: &CpuOptions, session: &SessionOptions) -> Result<u64>;

    /// Name of the GPU, or names of several, if any.
    fn gpu(&self) -> Option<&str> {
        None
    }

    /// How the model is split among ranks, if it is.
    fn split(&self) -> Option<Split> {
        None
    }

    /// Whether it is split among several processes.
    fn is_distributed(&self) -> bool {
        false
    }

    /// Bytes of the weights in memory, if not those of the whole model on the CPU.
    fn weight_bytes(&self) -> Option<usize> {
        None
    }

    /// How keys and values are ordered.
    fn layout(&self) -> Layout {
        Layout::Gpu
    }

    /// Rows of a batch up to which more are faster per row, if that is more than usual.
    fn fast_batch(&self) -> Option<usize> {
        None
    }

    /// An empty sequence.
    fn sequence(&self, options: &CpuOptions, session: &SessionOptions) -> Result<Box<dyn Sequence>> {
        let batch = self.fast_batch().unwrap_or(ScratchOptions::default().batch);
        self.open(&CpuOptions { batch, ..*options })?.sequence(session, self.gpu().is_some())
    }

    /// The same, with all of the cache's memory resident, where memory is not before it is written.
    fn filled_sequence(&self, options: &CpuOptions, session: &SessionOptions) -> Result<Box<dyn Sequence>> {
        self.sequence(options, session)
    }

    /// The result of a beam search; `whole` is the model on the CPU.
    fn beam_search(
        &self,
        options: &CpuOptions,
        search: Search<'_>,
        whole: &dyn DeviceModel,
    ) -> Result<Vec<Beam>> {
        let _ = whole;
        self.open(options)?.beam_search(search)
    }

    /// A device in the place of one that has lost a rank, if another can be had.
    fn reopen(&self, options: &CpuOptions) -> Option<Box<dyn AnyDevice>> {
        let _ = options;
        None
    }
}
