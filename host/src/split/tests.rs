//! Ranks whose followers are at work for longer than rank 0, as GPUs may be.

use super::device::SplitDevice;
use super::group::{RankDevice, lost};
use super::numa::Cores;
use super::rank::CpuRank;
use super::thread_group::ThreadGroup;
use super::weights::{SplitWeights, lead};
use crate::file::ModelFile;
use crate::source::Source;
use shohin_core::collective::Collective;
use shohin_core::device::{Batch, BlockingDevice, Device, Readout, Run, Sink, Wants};
use shohin_core::gguf::ReadOptions;
use shohin_core::model::{ModelConfig, Program, Split};
use shohin_core::{CpuOptions, Format, Result, SessionOptions};
use shohin_tests::model::{Model, Shape, Stored};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

struct Late {
    cpu: CpuRank,
    group: Option<Arc<ThreadGroup>>,
    /// A follower has found another rank gone.
    broken: Arc<AtomicBool>,
}

impl Device for Late {
    type Cache = <CpuRank as Device>::Cache;
    type Error = shohin_core::Error;

    fn config(&self) -> &ModelConfig {
        self.cpu.config()
    }

    fn program(&self) -> &Program {
        self.cpu.program()
    }

    fn batch(&self) -> usize {
        self.cpu.batch()
    }

    async fn cache(&mut self, options: &SessionOptions) -> Result<Self::Cache> {
        self.cpu.cache(options).await
    }

    fn cache_options(&self, cache: &Self::Cache) -> SessionOptions {
        self.cpu.cache_options(cache)
    }

    async fn run(
        &mut self,
        batch: &Batch<'_>,
        caches: &mut [&mut Self::Cache],
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        self.cpu.run(batch, caches, sink).await?;
        let group = self.group.as_ref().ok_or(lost())?;
        for _ in 0..5 * group.rank() {
            thread::sleep(Duration::from_millis(1));
            group.check().inspect_err(|_| self.broken.store(true, SeqCst))?;
        }
        Ok(())
    }

    fn logits(&mut self) -> &[f32] {
        self.cpu.logits()
    }

    fn shift(&mut self, _: &mut Self::Cache, _: usize, keep: usize, _: usize) -> Result<usize> {
        Ok(keep)
    }

    fn export_len(&self, _: &Self::Cache, _: usize) -> usize {
        0
    }

    async fn export(&mut self, _: &mut Self::Cache, _: usize, _: &mut Vec<u8>) -> Result<()> {
        Ok(())
    }

    fn import(&mut self, _: &mut Self::Cache, _: usize, _: &[u8]) -> Result<()> {
        Ok(())
    }
}

impl BlockingDevice for Late {
    fn wait<F: Future<Output = Result<T>>, T>(future: F) -> Result<T> {
        CpuRank::wait(future)
    }
}

impl RankDevice for Late {
    fn leave_group(&mut self) {
        self.cpu.leave_group();
        self.group = None;
    }

    fn head_runs(&self, cache: &Self::Cache, len: usize) -> Vec<usize> {
        self.cpu.head_runs(cache, len)
    }
}

/// Sequences of one model come and go while one of them goes on.
#[test]
fn a_sequence_that_is_dropped_ends_no_work() {
    let shape = Shape { heads: 4, kv_heads: 4, ..Shape::tiny() };
    let file = Model::new(shape, Stored::new(Format::Q1_0), 3).to_vec().unwrap();
    let file = ModelFile::from_bytes("model", &file).unwrap();
    let (options, session) = (CpuOptions::default(), SessionOptions::default());
    let source = Source::read(&file, ReadOptions::default(), Ok, &[]).unwrap();
    let split = Split::Tensor(4);
    let weights = SplitWeights::load(&source, split, &options, 1).unwrap();
    let (turn, broken) = (Arc::default(), Arc::<AtomicBool>::default());
    let tokens = |count: u32| {
        let cores = weights.ranks.iter().map(|_| Cores::default());
        let rank = |rank: usize, group: Arc<ThreadGroup>| {
            let cpu = weights.ranks[rank].device(&options)?.in_group(group.clone());
            Ok(Late { cpu, group: Some(group), broken: Arc::clone(&broken) })
        };
        let mut device = lead(split, &source.config.program(), Some(&turn), cores, rank).unwrap();
        let mut cache = SplitDevice::<Late>::wait(device.cache(&session)).unwrap();
        for token in 0..count {
            let run = Run { tokens: &[token], position: token as usize, wants: Wants::Last(Readout::Logits) };
            SplitDevice::<Late>::wait(device.run(&[run], &mut [&mut cache], &mut |_, _, _| ())).unwrap();
        }
        device.logits().to_vec()
    };
    let want = tokens(20);
    thread::scope(|scope| {
        let long = scope.spawn(|| tokens(20));
        for _ in 0..8 {
            tokens(1);
        }
        assert!(long.join().unwrap() == want);
    });
    assert!(!broken.load(SeqCst));
}
