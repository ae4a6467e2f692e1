//! A device as one rank of a group: what a split program exchanges.

use super::backend::CudaBackend;
use super::kernels::THREADS;
use super::rank::Rank;
use super::shape::Shape;
use crate::args::GatherArgs;
use crate::driver::{Driver, Memory};
use crate::error::Result;
use crate::nccl::{Communicator, Floats};
use shohin_accelerator::{Backend, Cache, Outputs, new_id, read_out};
use shohin_core::Error as CoreError;
use shohin_core::collective::Collective;
use shohin_core::device::Batch;
use shohin_core::model::Program;
use shohin_core::model::program::{Exchange, Op};
use shohin_core::rows::{Rows, Segment};
use std::sync::Arc;

/// Columns that a block of the kernel `gather` has.
const GATHER_COLS: usize = 1024;

/// Tokens of each rank's part of the logits; the last one may have fewer.
fn logits_part(program: &Program) -> usize {
    program.divided_vocab.map_or(0, |vocab| vocab.div_ceil(program.ranks))
}

impl<D: Driver> CudaBackend<D> {
    /// Runs a split program as one rank of a group, whose exchanges `communicator` carries. While this rank waits for its GPU
    /// it asks `group`, which has the same ranks, whether the others are still there. Sequences are made after it: the device
    /// refuses those from before.
    ///
    /// # Errors
    /// If the program, `communicator` and `group` are of different ranks, or of different numbers of ranks;
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub fn join_group(&mut self, communicator: Arc<Communicator>, group: Arc<dyn Collective>) -> Result<()> {
        let program = self.model.program();
        let same = |what, expected: usize, found: usize| match expected == found {
            true => Ok(()),
            false => Err(CoreError::Length { what, expected: expected as u64, found: found as u64 }),
        };
        same("ranks of a group", program.ranks, communicator.ranks())?;
        same("ranks of a group", program.ranks, group.ranks())?;
        // Of all programs, only stages show whose they are: by the rank that they send to.
        let is_next = match program.body.last() {
            Some(Op::Exchange(Exchange::Send { rank, .. })) => *rank == (group.rank() + 1) % program.ranks,
            _ => true,
        };
        if communicator.rank() != group.rank() || !is_next {
            return Err(CoreError::Device { problem: "it is another rank of the split model" }.into());
        }
        let (batch, ranks) = (self.options.batch, program.ranks);
        let of_op = |op: &Op| match op {
            Op::Exchange(Exchange::Gather { x, .. } | Exchange::GatherAdd { x, .. }) => {
                ranks * batch * program.cols(*x)
            }
            _ => 0,
        };
        let part = self.options.logit_rows * logits_part(program);
        let gathered = program.body.iter().map(of_op).max().unwrap_or(0).max(ranks * part);
        let returned = if program.stages > 1 { batch * program.cols(program.residual) } else { 0 };
        let memory = |floats: usize| Memory::new(&self.model.driver, 4 * floats);
        let rank = Rank {
            gathered: memory(gathered)?,
            logits: memory(part)?,
            returned: memory(returned)?,
            communicator,
            group,
        };
        self.leave_group();
        self.rank = Some(rank);
        Ok(())
    }

    /// Leaves the group: other ranks then know that this one will not answer. Sequences end.
    pub fn leave_group(&mut self) {
        // NCCL waits for the end of graphs with its exchanges before its own.
        self.graphs.clear();
        self.rank = None;
        self.id = new_id();
    }

    /// `to (rows, cols)` is replaced by, or with `add` increased by `from (ranks, rows, part)`.
    fn gather(&self, from: u64, to: u64, rows: usize, part: usize, cols: usize, add: bool) -> Result<()> {
        let args = GatherArgs {
            from,
            to,
            rows: rows as u32,
            part: part as u32,
            cols: cols as u32,
            add: u32::from(add),
        };
        self.launch(self.kernels.gather, [rows, cols.div_ceil(GATHER_COLS), 1], THREADS, args)
    }

    pub(super) fn exchange(&self, exchange: Exchange, rows: usize) -> Result<()> {
        let (rank, driver, program) = (self.in_rank()?, self.driver(), self.model.program());
        let communicator = &rank.communicator;
        let floats = |x| -> Floats { (self.floats(x), rows * program.cols(x)) };
        let (to, cols) = match exchange {
            Exchange::Gather { x, to } | Exchange::GatherAdd { x, to } => {
                let (part, add) = (program.cols(x), matches!(exchange, Exchange::GatherAdd { .. }));
                let cols = communicator.ranks() * part;
                match rows == 1 && !add {
                    // They are side by side already.
                    true => communicator.all_gather(driver, floats(x), self.floats(to))?,
                    false => {
                        let gathered = rank.gathered.address();
                        communicator.all_gather(driver, floats(x), gathered)?;
                        self.gather(gathered, self.floats(to), rows, part, cols, add)?;
                    }
                }
                (to, cols)
            }
            Exchange::ReduceAdd { x, to } => {
                let cols = program.cols(x);
                communicator.all_reduce(driver, floats(x))?;
                self.gather(self.floats(x), self.floats(to), rows, cols, cols, true)?;
                (to, cols)
            }
            Exchange::Send { x, rank } => return communicator.pass(driver, Some((floats(x), rank)), None),
            Exchange::Receive { x, rank } => {
                communicator.pass(driver, None, Some((floats(x), rank)))?;
                (x, program.cols(x))
            }
        };
        // For products that read it.
        self.quantize(to, rows, cols)
    }

    /// From the parts of the logits that the ranks have to the logits of `rows` rows, on every rank.
    pub(super) fn gather_logits(&self, rows: usize) -> Result<()> {
        let (rank, program) = (self.in_rank()?, self.model.program());
        let (part, vocab) = (logits_part(program), program.vocab());
        let gathered = rank.gathered.address();
        rank.communicator.all_gather(self.driver(), (rank.logits(), rows * part), gathered)?;
        self.gather(gathered, self.logits_memory.address(), rows, part, vocab, false)
    }

    /// The first stage of a pipeline with several parts of a batch: as many are on their way as there are other stages, so that
    /// all are busy.
    pub(super) async fn pipeline(
        &mut self,
        batch: &Batch<'_>,
        caches: &[&mut Cache<<Self as Backend>::Memory>],
        out: &mut Outputs<'_>,
    ) -> Result<()> {
        let model = Arc::clone(&self.model);
        let program = model.program();
        let Some((Op::Exchange(Exchange::Send { x, rank }), rest)) = program.body.split_last() else {
            return Err(CoreError::Device { problem: "a stage of a pipeline sends what it computes" }.into());
        };
        let (cols, last) = (program.cols(*x), program.ranks - 1);
        let mut returning = Rows::parts(batch, self.options.batch);
        for (begun, rows) in Rows::parts(batch, self.options.batch).enumerate() {
            if begun > 0 {
                self.wait()?;
            }
            let segments: Vec<Segment<'_>> = rows.segments().collect();
            self.write_step(&segments, None, caches)?;
            self.first_operations(rest.len(), self.shape(&segments))?;
            let oldest = if begun < last { None } else { returning.next() };
            // At the same time: the other stages have no room for one more.
            let here = self.in_rank()?;
            let receive = oldest.map(|rows| ((here.returned.address(), rows.len() * cols), last));
            let send = ((self.floats(*x), rows.len() * cols), *rank);
            here.communicator.pass(self.driver(), Some(send), receive)?;
            if let Some(rows) = oldest {
                self.gather(here.returned.address(), self.floats(*x), rows.len(), cols, cols, false)?;
                read_out(self, rows, out).await?;
            }
        }
        for rows in returning {
            self.tail(Shape::whole(rows.len()))?;
            read_out(self, rows, out).await?;
        }
        Ok(())
    }
}
