//! The scratch memory of the CPU device: the buffers of a program, and working memory for its operations.
#![forbid(unsafe_code)]

use core::ops::Range;

use heapless::Vec as ArrayVec;

use super::activation_lut::ActivationLut;
use super::activations::{Q8Block, q8_blocks};
use super::attention::scratch_len;
use super::matmul::{Lookups, lut_len};
use super::options::CpuOptions;
use super::window::Window;
use crate::arena::{Arena, Planner};
use crate::cache::KvShape;
use crate::device::Activations;
use crate::error::{Error, Result};
use crate::model::Program;
use crate::model::program::{BufferId, Exchange, Experts, MAX_OUTPUTS, Op};

/// Maximum number of buffers of a program.
const MAX_BUFFERS: usize = 16;

/// Lengths of the parts of [`Scratch`], in its order.
#[derive(Clone, Debug)]
pub(super) struct ScratchPlan {
    buffers: ArrayVec<usize, MAX_BUFFERS>,
    /// A block's contribution to the residual stream, `(batch, widest)`.
    delta: usize,
    /// The second half of gated products, `(batch, widest)`.
    up: usize,
    /// Cosines and sines, each `(rotations, batch, head_dim / 2)`.
    angles: usize,
    rotations: usize,
    /// The weights of routers, `(batch)`, and the angles of the rows that take part in a block.
    gates: usize,
    routed_angles: usize,
    /// A key that is being moved, `(head_dim)`.
    key: usize,
    attention: usize,
    logits: usize,
    /// What the ranks of a split program have computed.
    gathered: usize,
    q8: usize,
    lookups: Lookups,
    luts: usize,
    /// Bytes of weights that are not in memory.
    window: usize,
}

impl ScratchPlan {
    /// The plan for a device with `options`, which are within the model's limits. `lookups`: the
    /// products that use lookup tables. `window`: bytes of the window of weights, or 0.
    pub(super) fn new(
        program: &Program,
        options: &CpuOptions,
        lookups: Lookups,
        window: usize,
    ) -> Result<Self> {
        let batch = options.batch;
        let each = |cols: usize| batch.saturating_mul(cols);
        let routed = |cols| if program.routed_layers.is_empty() { 0 } else { each(cols) };
        let mut buffers = ArrayVec::new();
        for buffer in &program.buffers {
            let (found, max) = (program.buffers.len() as u64, MAX_BUFFERS as u64);
            let full = error!(Limit { what: "buffers of the program", found, max });
            buffers.push(each(buffer.cols)).map_err(|_| full)?;
        }
        let widest = |of: fn(&Op) -> Option<BufferId>| {
            program.body.iter().filter_map(of).map(|id| program.cols(id)).max().unwrap_or(0)
        };
        let delta = widest(|op| match op {
            Op::LinearAdd { to, .. } | Op::Experts(Experts { to, .. }) => Some(*to),
            _ => None,
        });
        let up = widest(|op| match op {
            Op::LinearSwiglu { out, .. } | Op::Experts(Experts { gated: out, .. }) => Some(*out),
            _ => None,
        });
        // Of a divided vocabulary, each rank has equally many tokens, the last ones unused.
        let vocab = match program.divided_vocab {
            Some(vocab) => vocab.saturating_add(program.ranks),
            None => program.vocab(),
        };
        let gathered = program.body.iter().map(|op| match op {
            Op::Exchange(Exchange::Gather { to, .. } | Exchange::GatherAdd { to, .. }) => {
                each(program.cols(*to))
            }
            Op::Exchange(Exchange::ReduceAdd { x, .. }) => {
                each(program.cols(*x)).saturating_mul(program.ranks)
            }
            _ => 0,
        });
        let divided = program.divided_vocab.map_or(0, |_| options.logit_rows.saturating_mul(vocab));
        let gathered = gathered.chain([divided]).max().unwrap_or(0);
        let input = program.widest_input();
        let int8 = options.activations == Activations::Int8;
        let shape = KvShape {
            layers: program.layers,
            kv_heads: program.heads.kv,
            capacity: options.context,
            head_dim: program.heads.dim,
        };
        // The maximum may be needed by a batch, a part of one or a single token.
        let luts = (1..=batch).filter(|tokens| lookups.include(options.isa, *tokens));
        let luts = luts.map(|tokens| lut_len(options.isa, tokens, input)).max().unwrap_or(0);
        Ok(ScratchPlan {
            buffers,
            delta: each(delta),
            up: each(up),
            angles: each(program.heads.dim / 2).saturating_mul(program.rotations.len()),
            rotations: program.rotations.len(),
            gates: routed(1),
            routed_angles: routed(program.heads.dim / 2),
            key: program.heads.dim,
            attention: scratch_len(&shape, program.heads.query, batch),
            logits: options.logit_rows.saturating_mul(vocab),
            gathered,
            q8: if int8 { each(q8_blocks(input)) } else { 0 },
            lookups,
            luts: if int8 { luts } else { 0 },
            window,
        })
    }

    /// Plans the memory of [`ScratchPlan::take`]; returns the bytes of the logits.
    pub(super) fn plan(&self, planner: &mut Planner) -> usize {
        let logits = planner.add::<f32>(self.logits);
        let angles = [self.angles, self.angles, self.gates, self.routed_angles, self.routed_angles];
        let others = [self.delta, self.up].into_iter().chain(angles).chain([self.key]);
        for len in self.buffers.iter().copied().chain(others) {
            planner.add::<f32>(len);
        }
        planner.add::<f32>(self.attention);
        planner.add::<f32>(self.gathered);
        planner.add::<Q8Block>(self.q8);
        planner.add::<ActivationLut>(self.luts);
        planner.add::<u8>(self.window);
        logits
    }

    /// Takes the buffers from `arena`.
    pub(super) fn take<'b>(&self, arena: &mut Arena<'b>) -> Result<Scratch<'b>> {
        let logits = arena.take(self.logits)?;
        let mut buffers = ArrayVec::new();
        for &len in &self.buffers {
            // As many as planned.
            let _ = buffers.push(arena.take(len)?);
        }
        Ok(Scratch {
            logits,
            buffers: Buffers(buffers),
            delta: arena.take(self.delta)?,
            up: arena.take(self.up)?,
            current: CurrentRows {
                cos: arena.take(self.angles)?,
                sin: arena.take(self.angles)?,
                rotation_len: self.angles / self.rotations.max(1),
                gates: arena.take(self.gates)?,
                taking_part: None,
                routed_cos: arena.take(self.routed_angles)?,
                routed_sin: arena.take(self.routed_angles)?,
            },
            key: arena.take(self.key)?,
            attention: arena.take(self.attention)?,
            gathered: arena.take(self.gathered)?,
            products: Products {
                inputs: Inputs {
                    q8: arena.take(self.q8)?,
                    lookups: self.lookups,
                    luts: arena.take(self.luts)?,
                },
                window: Window::new(arena.take(self.window)?),
            },
        })
    }
}

/// Views of the device's scratch memory. An operation borrows the fields it uses.
pub(super) struct Scratch<'b> {
    /// `(logit_rows, vocab)`
    pub(super) logits: &'b mut [f32],
    pub(super) buffers: Buffers<'b>,
    /// `(batch, widest output of Op::LinearAdd and Op::Experts)`
    pub(super) delta: &'b mut [f32],
    /// `(batch, widest output of Op::LinearSwiglu, or gated products of Op::Experts)`
    pub(super) up: &'b mut [f32],
    pub(super) current: CurrentRows<'b>,
    /// A key that is being moved, `(head_dim)`.
    pub(super) key: &'b mut [f32],
    /// Scratch memory of attention.
    pub(super) attention: &'b mut [f32],
    /// What the ranks of a split program have computed, `(ranks, rows, cols)`; empty if the program is not split.
    pub(super) gathered: &'b mut [f32],
    pub(super) products: Products<'b>,
}

/// Memory of matrix products.
pub(super) struct Products<'b> {
    pub(super) inputs: Inputs<'b>,
    /// Rows of weights that are not in memory.
    pub(super) window: Window<'b>,
}

/// The input of a product.
pub(super) struct Inputs<'b> {
    /// In int8, `(batch, blocks of the widest)`; empty with f32 activations.
    pub(super) q8: &'b mut [Q8Block],
    /// The products that use lookup tables.
    pub(super) lookups: Lookups,
    /// Its lookup tables; empty if there are no such products.
    pub(super) luts: &'b mut [ActivationLut],
}

/// The rows that operations compute: all of a batch, or in a [block that tokens skip](crate::model::depths) those that
/// take part.
pub(super) struct CurrentRows<'b> {
    /// Cosines and sines of their positions, each `(rotations, batch, head_dim / 2)`.
    pub(super) cos: &'b mut [f32],
    pub(super) sin: &'b mut [f32],
    /// Elements of a rotation's cosines.
    pub(super) rotation_len: usize,
    /// The router's weight of each row that takes part in a block, and 0 of the others, `(batch)`; empty without routers.
    pub(super) gates: &'b mut [f32],
    /// How many rows take part in the current block; `None` if no token skips it.
    pub(super) taking_part: Option<usize>,
    /// The angles of these rows, in the place of those of all rows meanwhile.
    pub(super) routed_cos: &'b mut [f32],
    pub(super) routed_sin: &'b mut [f32],
}

impl CurrentRows<'_> {
    /// Exchanges the angles of all rows and those of the rows that take part in a block.
    pub(super) fn swap_angles(&mut self) {
        core::mem::swap(&mut self.cos, &mut self.routed_cos);
        core::mem::swap(&mut self.sin, &mut self.routed_sin);
    }

    /// Which of the current rows are those of `rows`.
    pub(super) fn of(&self, rows: Range<usize>) -> Range<usize> {
        if self.taking_part.is_none() {
            return rows;
        }
        let count = |gates: &[f32]| gates.iter().filter(|gate| **gate > 0.0).count();
        let first = count(&self.gates[..rows.start]);
        first..first + count(&self.gates[rows])
    }
}

/// The buffers of a program by [`BufferId`], `(batch, cols)`.
pub(super) struct Buffers<'b>(ArrayVec<&'b mut [f32], MAX_BUFFERS>);

impl Buffers<'_> {
    /// The first `len` elements of a buffer.
    pub(super) fn get(&self, id: BufferId, len: usize) -> &[f32] {
        &self.0[id.index()][..len]
    }

    /// As [`Buffers::get`], mutable.
    pub(super) fn get_mut(&mut self, id: BufferId, len: usize) -> &mut [f32] {
        &mut self.0[id.index()][..len]
    }

    /// Several buffers at once: the first elements of each, as many as are asked for.
    pub(super) fn disjoint<const N: usize>(
        &mut self,
        wanted: [(BufferId, usize); N],
    ) -> Result<[&mut [f32]; N]> {
        let found = self.0.get_disjoint_mut(wanted.map(|(id, _)| id.index()));
        let mut buffers = found.map_err(|_| NAMED_TWICE)?.into_iter().zip(wanted);
        Ok(core::array::from_fn(|_| match buffers.next() {
            Some((buffer, (_, len))) => &mut buffer[..len],
            None => &mut [],
        }))
    }

    /// A buffer that is read, and those that are written meanwhile.
    pub(super) fn one_and_several(
        &mut self,
        x: (BufferId, usize),
        others: impl IntoIterator<Item = (BufferId, usize)>,
    ) -> Result<(&[f32], ArrayVec<&mut [f32], MAX_OUTPUTS>)> {
        let mut left: ArrayVec<_, MAX_BUFFERS> =
            self.0.iter_mut().map(|buffer| Some(&mut **buffer)).collect();
        let mut take = |(id, len): (BufferId, usize)| {
            let buffer: Option<&mut [f32]> = left[id.index()].take();
            buffer.map(|buffer| &mut buffer[..len]).ok_or(NAMED_TWICE)
        };
        let x: &[f32] = take(x)?;
        let mut several = ArrayVec::new();
        for other in others {
            // No operation has more.
            let _ = several.push(take(other)?);
        }
        Ok((x, several))
    }
}

const NAMED_TWICE: Error = error!(Device { problem: "an operation writes a buffer that it reads" });
