//! Ranks on several NVIDIA GPUs of this machine: a thread for each, whose exchanges NCCL carries from GPU to GPU.

use super::device::SplitDevice;
use super::group::RankDevice;
use super::numa::Cores;
use super::weights::lead;
use crate::cuda::scratch_options;
use crate::error::Result;
use crate::source::Source;
use shohin_core::model::{Program, Split};
use shohin_core::{CpuOptions, SessionOptions};
use shohin_cuda::{Communicator, Cuda, CudaDevice, CudaModel, Driver, Nccl};
use std::sync::{Arc, Mutex};

impl RankDevice for CudaDevice<Cuda> {
    fn leave_group(&mut self) {
        self.backend_mut().leave_group();
    }

    fn head_runs(&self, cache: &Self::Cache, len: usize) -> Vec<usize> {
        cache.head_runs(len)
    }
}

/// The weights of the ranks: rank `i` is on GPU `i`.
#[derive(Debug)]
pub(crate) struct CudaSplit {
    split: Split,
    /// Dropped before the models: they need the GPUs for that.
    communicators: Vec<Arc<Communicator>>,
    models: Vec<Arc<CudaModel<Cuda>>>,
    /// The whole model's.
    program: Arc<Program>,
    /// The names of the GPUs.
    name: String,
    /// Sequences use the GPUs one after the other: NCCL needs the same order of exchanges on all of them.
    turn: Arc<Mutex<()>>,
}

impl CudaSplit {
    /// Divides the weights among GPUs; `compiling` as for [`Cuda::open_with`].
    pub(crate) fn load(source: &Source<'_>, split: Split, compiling: fn()) -> Result<CudaSplit> {
        Cuda::require(split.ranks())?;
        let nccl = Nccl::load()?;
        let gpus: Vec<usize> = (0..split.ranks()).collect();
        let drivers =
            gpus.iter().map(|&gpu| Cuda::open_with(gpu, compiling)).collect::<Result<Vec<_>, _>>()?;
        let name = drivers.iter().map(Driver::name).collect::<Vec<_>>().join(", ");
        let drivers: Vec<_> = drivers.into_iter().map(Arc::new).collect();
        // After the drivers: an error drops it first.
        let communicators = Communicator::connect(&nccl, &gpus)?.into_iter().map(Arc::new).collect();
        let mut models = Vec::new();
        for (rank, driver) in drivers.iter().enumerate() {
            let model = source.part((split, rank))?;
            models.push(CudaModel::from_model(Arc::clone(driver), &model)?);
        }
        let program = Arc::new(source.config.program());
        Ok(CudaSplit { split, communicators, models, program, name, turn: Arc::default() })
    }

    /// Devices of all ranks. A lost GPU or a failed exchange ends them: CUDA does not continue after most errors.
    pub(crate) fn device(&self, options: &CpuOptions) -> Result<SplitDevice<CudaDevice<Cuda>>> {
        let options = scratch_options(options);
        let cores = self.models.iter().map(|_| Cores::default());
        lead(self.split, &self.program, Some(&self.turn), cores, |rank, group| {
            let communicator = Arc::clone(&self.communicators[rank]);
            let mut device = self.models[rank].device(&options)?;
            device.backend_mut().join_group(communicator, group)?;
            Ok(device)
        })
    }

    /// Bytes of a sequence on all GPUs.
    pub(crate) fn sequence_bytes(&self, session: &SessionOptions) -> u64 {
        self.models.iter().map(|model| model.kv_bytes(session)).sum()
    }

    /// The names of the GPUs.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn split(&self) -> Split {
        self.split
    }
}
