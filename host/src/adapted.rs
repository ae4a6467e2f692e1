//! Models that share their weights with others, and have adapters (LoRA) beside them.

use crate::cpu::CpuModel;
use crate::error::{Error, Result};
use crate::lora::{self, Adapter};
use crate::model::{Inner, Model};
use crate::shard::ShardBytes;
use crate::weights::Weights;
use std::path::Path;
use std::sync::{Arc, OnceLock};

impl Adapter {
    /// Opens an adapter for `model`, at scale 1: a GGUF file, or with the feature `convert` a folder that PEFT has saved.
    ///
    /// # Errors
    /// [`Error::File`](crate::Error::File), [`Error::Convert`](crate::Error::Convert).
    pub fn open(path: impl AsRef<Path>, model: &Model) -> Result<Adapter> {
        Adapter::for_config(path.as_ref(), model.config())
    }
}

impl Model {
    /// The same model with `adapters`, in addition to those that it has. Both share the weights, the threads and the tokenizer, and
    /// run side by side: it takes the memory of the factors alone. Sessions know which adapters made their keys and values.
    ///
    /// # Errors
    /// [`Error::File`](crate::Error::File) for an adapter that does not fit the model; [`Error::Option`](crate::Error::Option) for a model that does not run
    /// on the CPU, or whose weights stay in their file.
    pub fn adapted(&self, adapters: &[Adapter]) -> Result<Model> {
        let Weights::Cpu(cpu) = &self.0.device else {
            let (name, found) = ("device", "another".into());
            let expected = "cpu: adapters join a model that is loaded on the CPU alone".into();
            return Err(Error::Option { name, found, expected });
        };
        let mut weights = Arc::clone(&cpu.weights);
        // One after another, as errors name the file.
        for adapter in adapters {
            let adapted =
                adapter.with(|factors| weights.adapt(&[(factors, adapter.scale)], ShardBytes::owned))?;
            weights = Arc::new(adapted);
        }
        let cpu = CpuModel { weights, ..cpu.clone() };
        let old = &*self.0;
        let factors = lora::bytes(cpu.weights.model(), old.file.parts())
            - lora::bytes(old.cpu.weights.model(), old.file.parts());
        Ok(Model(Arc::new(Inner {
            name: old.name.clone(),
            file: old.file.clone(),
            adapters: [&old.adapters[..], adapters].concat(),
            read: old.read,
            device: Weights::Cpu(cpu.clone()),
            cpu,
            cache_writer: None,
            tokenizer: Arc::clone(&old.tokenizer),
            template: Arc::clone(&old.template),
            pooling: old.pooling,
            options: old.options,
            kv: old.kv,
            attention: old.attention,
            readings: old.readings.clone(),
            fallback: old.fallback.clone(),
            vocabulary: Arc::clone(&old.vocabulary),
            format: old.format,
            weight_bytes: old.weight_bytes + factors,
            load_time: old.load_time,
            fingerprint: OnceLock::new(),
        })))
    }
}
