//! Ranks on several NVIDIA GPUs of this machine: a thread for each, whose exchanges NCCL carries from GPU to GPU.

use super::numa::Cores;
use super::{RankDevice, SplitDevice, lead};
use crate::error::Result;
use crate::file::ModelFile;
use crate::sequence::{OnDevice, Sequence};
use shohin_core::device::ScratchOptions;
use shohin_core::gguf::ReadOptions;
use shohin_core::model::{ModelConfig, Program, Split};
use shohin_core::{Activations, Session, SessionOptions};
use shohin_cuda::{BATCH, Communicator, Cuda, CudaDevice, CudaModel, Driver, Nccl};
use std::sync::{Arc, Mutex};

/// A rank on a GPU.
pub(crate) type CudaRank = CudaDevice<Cuda>;

impl RankDevice for CudaRank {
    fn leave_group(&mut self) {
        CudaDevice::leave_group(self);
    }

    fn head_runs(&self, cache: &Self::Cache, len: usize) -> Vec<usize> {
        CudaDevice::head_runs(self, cache, len)
    }
}

/// The weights of the ranks: rank `i` is on GPU `i`.
#[derive(Clone, Debug)]
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
    /// Divides the weights of `file` among GPUs; `compiling` as for [`Cuda::open_with`].
    pub(crate) fn load(
        file: &ModelFile,
        read: &ReadOptions,
        config: &ModelConfig,
        split: Split,
        compiling: fn(),
    ) -> Result<CudaSplit> {
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
            let model = file.split_model(read, config.clone(), (split, rank))?;
            models.push(CudaModel::from_model(Arc::clone(driver), &model)?);
        }
        let program = Arc::new(config.program());
        Ok(CudaSplit { split, communicators, models, program, name, turn: Arc::default() })
    }

    /// How the model is split.
    pub(crate) fn split(&self) -> Split {
        self.split
    }

    /// The names of the GPUs.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of the keys and values of a sequence, on all GPUs.
    pub(crate) fn session_bytes(&self, session: &SessionOptions) -> u64 {
        self.models.iter().map(|model| crate::cuda::session_bytes(model, session)).sum()
    }

    /// Devices for several sequences, which compute `batch` rows together.
    pub(crate) fn device(
        &self,
        context: usize,
        activations: Activations,
        batch: usize,
    ) -> Result<SplitDevice<CudaRank>> {
        let options = ScratchOptions { context, activations, batch, ..ScratchOptions::default() };
        let cores = self.models.iter().map(|_| Cores::default());
        lead(self.split, &self.program, Some(&self.turn), cores, |rank, group| {
            let communicator = Arc::clone(&self.communicators[rank]);
            Ok(CudaDevice::new(&self.models[rank], &options)?.in_group(communicator, group)?)
        })
    }

    /// An empty sequence. A lost GPU or a failed exchange ends it: CUDA does not go on after most errors.
    pub(crate) fn sequence(
        &self,
        session: &SessionOptions,
        activations: Activations,
    ) -> Result<Box<dyn Sequence>> {
        let mut device = self.device(session.context, activations, BATCH)?;
        let session = Session::new(&mut device, session)?;
        Ok(Box::new(OnDevice::new(device, session, true)))
    }
}
