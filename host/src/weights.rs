//! A loaded model on the device where it runs.

use crate::cpu::CpuModel;
#[cfg(feature = "cuda")]
use crate::cuda::CudaWeights;
use crate::device::HostDevice;
use crate::error::Result;
#[cfg(feature = "gpu")]
use crate::gpu::GpuWeights;
#[cfg(all(feature = "metal", target_os = "macos"))]
use crate::metal::MetalWeights;
use crate::sequence::Sequence;
#[cfg(feature = "cuda")]
use crate::split::CudaSplit;
use crate::split::SplitWeights;
use shohin_core::chat::snapshot::Layout;
use shohin_core::device::ScratchOptions;
use shohin_core::model::Split;
use shohin_core::{CpuOptions, SessionOptions};

/// The weights of a model on a device. Of its options, GPUs have their own logit rows, and no instruction set.
pub(crate) enum Weights {
    Cpu(CpuModel),
    Split(SplitWeights),
    #[cfg(feature = "gpu")]
    Gpu(GpuWeights),
    #[cfg(feature = "cuda")]
    Cuda(CudaWeights),
    #[cfg(feature = "cuda")]
    CudaSplit(CudaSplit),
    #[cfg(all(feature = "metal", target_os = "macos"))]
    Metal(MetalWeights),
}

impl Weights {
    /// A device that runs the model.
    pub(crate) fn open(&self, options: &CpuOptions) -> Result<HostDevice> {
        Ok(match self {
            Weights::Cpu(weights) => HostDevice::Cpu(weights.device(options)?),
            Weights::Split(weights) => HostDevice::Split(weights.device(options)?),
            #[cfg(feature = "gpu")]
            Weights::Gpu(weights) => HostDevice::Gpu(Box::new(weights.device(options)?)),
            #[cfg(feature = "cuda")]
            Weights::Cuda(weights) => HostDevice::Cuda(Box::new(weights.device(options)?)),
            #[cfg(feature = "cuda")]
            Weights::CudaSplit(weights) => HostDevice::CudaSplit(Box::new(weights.device(options)?)),
            #[cfg(all(feature = "metal", target_os = "macos"))]
            Weights::Metal(weights) => HostDevice::Metal(Box::new(weights.device(options)?)),
        })
    }

    /// An empty sequence.
    pub(crate) fn sequence(&self, options: &CpuOptions, session: &SessionOptions) -> Result<Sequence> {
        let opened = |mut device: HostDevice, session: &SessionOptions| {
            let session = device.session(session)?;
            Ok((device, session))
        };
        if let Weights::Split(weights) = self
            && !weights.is_distributed()
        {
            let (weights, options, session) = (weights.clone(), *options, *session);
            return Sequence::recovering(move || {
                opened(HostDevice::Split(weights.device(&options)?), &session)
            });
        }
        Ok(Sequence::new(opened(self.open(&self.sequence_options(options))?, session)?))
    }

    /// The same, with all of the cache's memory resident, where memory is not before it is written.
    pub(crate) fn filled_sequence(&self, options: &CpuOptions, session: &SessionOptions) -> Result<Sequence> {
        let Weights::Cpu(weights) = self else { return self.sequence(options, session) };
        let mut device = HostDevice::Cpu(weights.device(options)?);
        let session = device.filled_session(session)?;
        Ok(Sequence::new((device, session)))
    }

    /// Those of a device with one sequence: GPUs compute more rows at once.
    fn sequence_options(&self, options: &CpuOptions) -> CpuOptions {
        match self.gpu() {
            None => *options,
            Some(_) => {
                let batch = self.fast_batch().unwrap_or(ScratchOptions::default().batch);
                CpuOptions { batch, ..*options }
            }
        }
    }

    /// Bytes of a sequence on the device; of a split model, on all ranks in this process.
    pub(crate) fn sequence_bytes(&self, options: &CpuOptions, session: &SessionOptions) -> Result<u64> {
        match self {
            Weights::Cpu(weights) => Ok(weights.memory_plan(options, session)?.total as u64),
            Weights::Split(weights) => weights.sequence_bytes(options, session),
            #[cfg(feature = "gpu")]
            Weights::Gpu(weights) => weights.sequence_bytes(options, session),
            #[cfg(feature = "cuda")]
            Weights::Cuda(weights) => Ok(weights.sequence_bytes(session)),
            #[cfg(feature = "cuda")]
            Weights::CudaSplit(weights) => Ok(weights.sequence_bytes(session)),
            #[cfg(all(feature = "metal", target_os = "macos"))]
            Weights::Metal(weights) => weights.sequence_bytes(options, session),
        }
    }

    /// Name of the GPU, or names of several, if any.
    pub(crate) fn gpu(&self) -> Option<&str> {
        match self {
            Weights::Cpu(_) | Weights::Split(_) => None,
            #[cfg(feature = "gpu")]
            Weights::Gpu(weights) => Some(weights.name()),
            #[cfg(feature = "cuda")]
            Weights::Cuda(weights) => Some(weights.name()),
            #[cfg(feature = "cuda")]
            Weights::CudaSplit(weights) => Some(weights.name()),
            #[cfg(all(feature = "metal", target_os = "macos"))]
            Weights::Metal(weights) => Some(weights.name()),
        }
    }

    /// How the model is split among ranks, if it is.
    pub(crate) fn split(&self) -> Option<Split> {
        match self {
            Weights::Cpu(_) => None,
            Weights::Split(weights) => Some(weights.split()),
            #[cfg(feature = "gpu")]
            Weights::Gpu(_) => None,
            #[cfg(feature = "cuda")]
            Weights::Cuda(_) => None,
            #[cfg(feature = "cuda")]
            Weights::CudaSplit(weights) => Some(weights.split()),
            #[cfg(all(feature = "metal", target_os = "macos"))]
            Weights::Metal(_) => None,
        }
    }

    /// Whether it is split among several processes.
    pub(crate) fn is_distributed(&self) -> bool {
        matches!(self, Weights::Split(weights) if weights.is_distributed())
    }

    /// How keys and values are ordered.
    pub(crate) fn layout(&self) -> Layout {
        if self.gpu().is_some() { Layout::Gpu } else { Layout::Cpu }
    }

    /// Rows of a batch up to which more are faster per row, if that is more than usual.
    pub(crate) fn fast_batch(&self) -> Option<usize> {
        #[cfg(feature = "cuda")]
        if matches!(self, Weights::Cuda(_) | Weights::CudaSplit(_)) {
            return Some(shohin_cuda::BATCH);
        }
        None
    }
}
