//! Where the time of a forward pass goes, on the CPU.

use crate::error::{Error, Result};
use crate::model::Model;
use shohin_core::cpu::{Moment, Product, Tap};
use shohin_core::model::program::{Op, Program, TensorId};
use shohin_core::{CpuOptions, Session};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Times of the operations of a model.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Profile {
    /// Operations in the order in which they run, the head last.
    pub operations: Vec<ProfiledOperation>,
    /// Tokens that were computed.
    pub tokens: usize,
}

/// An operation, over all batches.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ProfiledOperation {
    /// The block that it belongs to; none for the embedding and the head.
    pub block: Option<usize>,
    /// What it computes: the names of its matrices without their block, or else its kind.
    pub name: String,
    /// How often it ran.
    pub calls: u64,
    /// Rows that took part.
    pub rows: u64,
    /// Seconds.
    pub seconds: f64,
}

/// How many tokens a block of a mixture of depths computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DepthUse {
    /// The block.
    pub block: usize,
    /// Tokens that came to it.
    pub tokens: u64,
    /// Tokens that took part.
    pub taking_part: u64,
}

impl Profile {
    /// Seconds of all operations.
    pub fn seconds(&self) -> f64 {
        self.operations.iter().map(|operation| operation.seconds).sum()
    }

    /// The blocks that tokens skip, as the router of each decided; none unless the model is a mixture of depths.
    pub fn depths(&self) -> Vec<DepthUse> {
        let of = |(at, select): (usize, &ProfiledOperation)| {
            let block = select.block.filter(|_| select.name == ROUTER)?;
            // What follows has the rows that take part, and does not run without any.
            let next = self.operations.get(at + 1).filter(|next| next.block == Some(block));
            Some(DepthUse { block, tokens: select.rows, taking_part: next.map_or(0, |next| next.rows) })
        };
        self.operations.iter().enumerate().filter_map(of).collect()
    }
}

const ROUTER: &str = "depth router";

/// Adds up times between moments.
struct Clock(Mutex<State>);

struct State {
    /// Calls, rows and seconds of each operation of the body, and of the head.
    sums: Vec<(u64, u64, f64)>,
    running: Option<(usize, Instant)>,
}

impl Tap for Clock {
    fn product(&self, _product: &Product<'_>) {}

    fn moment(&self, moment: Moment, rows: usize) {
        let now = Instant::now();
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, start)) = state.running.take() {
            state.sums[at].2 += (now - start).as_secs_f64();
        }
        let at = match moment {
            Moment::Operation(at) => at,
            Moment::Head => state.sums.len() - 1,
            Moment::End => return,
        };
        let Some(sums) = state.sums.get_mut(at) else { return };
        sums.0 += 1;
        sums.1 += rows as u64;
        state.running = Some((at, now));
    }
}

impl Model {
    /// Computes `tokens` on the CPU, `batch` at a time, the last one with its logits, and measures each operation. `depth` tokens are
    /// computed before, which are not measured. Batches of one token are what generating takes.
    ///
    /// # Errors
    /// [`Error::Option`] if `batch` or the number of tokens is 0; if there are more than the model supports, or unknown ones.
    pub fn profile(&self, tokens: &[u32], depth: usize, batch: usize) -> Result<Profile> {
        let measured = tokens.get(depth..).unwrap_or_default();
        for (name, found) in [("batch", batch), ("tokens", measured.len())] {
            if found == 0 {
                return Err(Error::Option { name, found: "0".into(), expected: "at least 1".into() });
            }
        }
        let program = self.weights().model().program();
        let sums = vec![(0, 0, 0.0); program.body.len() + 1];
        let clock = Arc::new(Clock(Mutex::new(State { sums: sums.clone(), running: None })));
        let context = tokens.len();
        let options = CpuOptions { context, logit_rows: 1, ..self.0.options };
        let mut device = self.0.cpu.device(&options)?;
        let mut session = Session::new(&mut device, &self.session_options(context))?;
        if depth > 0 {
            session.forward_hidden(&mut device, &tokens[..depth], &mut |_, _| ())?;
        }
        device.set_tap(Arc::clone(&clock) as Arc<dyn Tap>);
        for part in measured.chunks(batch) {
            session.forward_prefill(&mut device, part)?;
        }
        let state = clock.0.lock().unwrap_or_else(PoisonError::into_inner);
        let operations = state.sums.iter().enumerate();
        let operations = operations.map(|(at, &(calls, rows, seconds))| ProfiledOperation {
            block: block(program, at),
            name: program.body.get(at).map_or_else(|| "head".into(), |op| name(program, op)),
            calls,
            rows,
            seconds,
        });
        Ok(Profile { operations: operations.collect(), tokens: measured.len() })
    }
}

/// The block of operation `at`.
fn block(program: &Program, at: usize) -> Option<usize> {
    if at >= program.body.len() {
        return None;
    }
    program.blocks.iter().filter(|first| **first <= at).count().checked_sub(1)
}

/// What an operation computes.
fn name(program: &Program, op: &Op) -> String {
    let tensor = |id: &TensorId| {
        let name = program.tensor(*id).name.trim_end_matches(".weight");
        let in_block = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
        in_block.map_or(name, |(_, name)| name).to_string()
    };
    let matrices: Vec<_> = op.matrices().iter().map(tensor).collect();
    if !matrices.is_empty() {
        return matrices.join(" + ");
    }
    match op {
        Op::Embed { table, .. } => tensor(table),
        Op::RmsNorm { weight, .. } => tensor(weight),
        Op::RopeStore { .. } => "rotation, cache".into(),
        Op::Attention { .. } => "attention".into(),
        Op::Gated { .. } => "gate".into(),
        Op::Bias { .. } => "bias".into(),
        Op::Add { .. } => "sum".into(),
        Op::Scale { .. } | Op::Factor { .. } => "scale".into(),
        Op::Conv(_) => "convolution".into(),
        Op::DeltaNet(_) => "delta rule".into(),
        Op::GatedNorm(_) => "gated norm".into(),
        Op::SplitHeads { .. } => "heads".into(),
        Op::Hadamard(_) => "Hadamard rotation".into(),
        Op::Select { .. } => ROUTER.into(),
        Op::Merge { .. } => "depth merge".into(),
        Op::Exchange(_) => "exchange".into(),
        Op::Linear { .. } | Op::LinearAdd { .. } | Op::LinearSwiglu { .. } | Op::Experts(_) => {
            "product".into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_counted_and_name_their_blocks() {
        let model = Model::builder().cpu().load_built_in().unwrap();
        let tokens: Vec<u32> = (1..=24).collect();
        let profile = model.profile(&tokens, 8, 4).unwrap();
        let layers = model.config().num_layers;
        let attention: Vec<_> =
            profile.operations.iter().filter(|operation| operation.name == "attention").collect();
        assert_eq!(attention.len(), layers);
        for (block, operation) in attention.iter().enumerate() {
            assert_eq!((operation.block, operation.calls, operation.rows), (Some(block), 4, 16));
            assert!(operation.seconds > 0.0);
        }
        let head = profile.operations.last().unwrap();
        assert_eq!((head.name.as_str(), head.block, head.calls, head.rows), ("head", None, 4, 4));
        assert!(profile.depths().is_empty());
        assert!(model.profile(&tokens, 24, 4).is_err() && model.profile(&tokens, 0, 0).is_err());
    }

    /// As `tests/oracle/depths.py` says of the routers of this file: a block that no token takes part in does not run.
    #[test]
    fn a_mixture_of_depths_says_how_many_tokens_take_part() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/qwen3-depths.gguf");
        let model = Model::builder().cpu().load(path).unwrap();
        let tokens: Vec<u32> = (0..20).collect();
        let depths = model.profile(&tokens, 0, 20).unwrap().depths();
        assert!(!depths.is_empty());
        assert!(depths.iter().all(|depth| depth.tokens == 20 && depth.taking_part < 20), "{depths:?}");
        // The same choice token by token.
        assert_eq!(model.profile(&tokens, 0, 1).unwrap().depths(), depths);
    }
}
