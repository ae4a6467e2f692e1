//! Ranks on several NVIDIA GPUs of this machine: a thread for each, whose exchanges NCCL carries from GPU to GPU.

use super::numa::Cores;
use super::{RankDevice, lead};
use crate::any_device::AnyDevice;
use crate::cuda::scratch_options;
use crate::device_model::DeviceModel;
use crate::error::Result;
use crate::file::ModelFile;
use shohin_core::gguf::ReadOptions;
use shohin_core::model::{ModelConfig, Program, Split};
use shohin_core::{CpuOptions, SessionOptions};
use shohin_cuda::{BATCH, Communicator, Cuda, CudaDevice, CudaModel, Driver, Nccl};
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
}

/// A lost GPU or a failed exchange ends a sequence: CUDA does not go on after most errors.
impl DeviceModel for CudaSplit {
    fn open(&self, options: &CpuOptions) -> Result<Box<dyn AnyDevice>> {
        let options = scratch_options(options);
        let cores = self.models.iter().map(|_| Cores::default());
        let device = lead(self.split, &self.program, Some(&self.turn), cores, |rank, group| {
            let communicator = Arc::clone(&self.communicators[rank]);
            let mut device = self.models[rank].device(&options)?;
            device.backend_mut().join_group(communicator, group)?;
            Ok(device)
        });
        Ok(Box::new(device?))
    }

    /// On all GPUs.
    fn sequence_bytes(&self, _: &CpuOptions, session: &SessionOptions) -> Result<u64> {
        Ok(self.models.iter().map(|model| model.kv_bytes(session)).sum())
    }

    fn gpu(&self) -> Option<&str> {
        Some(&self.name)
    }

    fn split(&self) -> Option<Split> {
        Some(self.split)
    }

    fn fast_batch(&self) -> Option<usize> {
        Some(BATCH)
    }
}
