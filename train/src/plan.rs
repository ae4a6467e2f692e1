//! What a step computes in which order, and where its values are: the memory is known before anything is computed.
//!
//! A value that a derivative needs is kept since the forward pass, or computed once more before it is needed, by the same
//! operations in the same order: gradients have the same bits whatever is kept.
#![forbid(unsafe_code)]

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use shohin_core::error::Name;
use shohin_core::{Error, Result};

#[cfg(doc)]
use crate::tape::Node;
use crate::tape::{Tape, ValueId};

/// Which activations are kept for the derivatives, and which are computed again (Chen et al. 2016, arXiv:1604.06174).
///
/// What costs no more than a pass over it is computed again with all of them: norms, rotations, gates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Checkpoints {
    /// Everything that a derivative reads is kept.
    #[default]
    None,
    /// The residual stream before each block is kept, and the block computed again.
    Every,
    /// The residual stream before every `n`-th block is kept.
    EveryNth(usize),
    /// [`Checkpoints::EveryNth`] with the square root of the number of blocks. As a block keeps some ten times as much as the
    /// stream between two, it takes more memory than [`Checkpoints::Every`] in models of usual depth.
    Sqrt,
    /// As many blocks are computed again as it takes for all activations to fit into so many bytes.
    Bytes(u64),
}

impl fmt::Display for Checkpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Checkpoints::None => f.write_str("none"),
            Checkpoints::Every => f.write_str("every"),
            Checkpoints::EveryNth(n) => write!(f, "nth:{n}"),
            Checkpoints::Sqrt => f.write_str("sqrt"),
            Checkpoints::Bytes(bytes) => write!(f, "{bytes}"),
        }
    }
}

/// Parses `none`, `every`, `nth:N`, `sqrt`, or a number of bytes, which may end in K, M or G.
impl FromStr for Checkpoints {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bytes = || {
            let digits = text.trim_end_matches(['K', 'M', 'G']);
            let shift = match &text[digits.len()..] {
                "" => 0,
                "K" => 10,
                "M" => 20,
                "G" => 30,
                _ => return None,
            };
            digits.parse::<u64>().ok()?.checked_mul(1 << shift).map(Checkpoints::Bytes)
        };
        let nth = |n: &str| n.parse().ok().filter(|n| *n > 0).map(Checkpoints::EveryNth);
        let parsed = match (text, text.strip_prefix("nth:")) {
            ("none", _) => Some(Checkpoints::None),
            ("every", _) => Some(Checkpoints::Every),
            ("sqrt", _) => Some(Checkpoints::Sqrt),
            (_, Some(n)) => nth(n),
            _ => bytes(),
        };
        parsed.ok_or(Error::Unsupported {
            key: Name::new("checkpoints"),
            found: Name::new(text),
            expected: "none, every, nth:N, sqrt, or bytes as in 500M",
        })
    }
}

/// An array of floats that a step uses for a time: an index into [`Plan::slots`].
pub(crate) type Slot = usize;

/// A part of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Computes the values of a node.
    Forward { node: usize, reads: Vec<Slot>, writes: Vec<Slot> },
    /// Replaces the hidden state's logits by their gradients, and writes that of the hidden state; in forward mode, its tangent
    /// is read from there.
    Loss { hidden: Slot, grad: Option<Slot> },
    /// Computes the tangent of a node's result.
    Tangent {
        node: usize,
        /// Of [`Node::saved`].
        saved: Vec<Slot>,
        /// The tangents of [`Node::reads`]; none where they are 0.
        tangents: Vec<Option<Slot>>,
        out: Slot,
    },
    /// Computes the gradients of what a node reads.
    Backward {
        node: usize,
        /// Of [`Node::saved`].
        saved: Vec<Slot>,
        /// The gradient of its result.
        grad: Slot,
        /// The gradients of [`Node::reads`]; none for those that have no gradient.
        to: Vec<Option<Target>>,
    },
}

/// Where the gradient of something that is read goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) slot: Slot,
    /// Whether there is one already, to which it is added.
    pub(crate) add: bool,
}

/// The steps and the memory of a batch.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
    /// Floats of each slot for a row.
    pub(crate) slots: Vec<usize>,
    /// Nodes that are computed again, except cheap ones.
    pub(crate) recomputed: usize,
}

impl Plan {
    /// Plans `tape` for batches of at most `rows` rows.
    ///
    /// # Errors
    /// [`Error::Memory`] if the bytes of [`Checkpoints::Bytes`] are too few.
    pub(crate) fn new(tape: &Tape, checkpoints: Checkpoints, rows: usize) -> Result<Plan> {
        let blocks = tape.segments.len();
        let every = |n: usize| -> Vec<Keep> {
            let keep = |i: usize| if i.is_multiple_of(n) { Keep::Start } else { Keep::Nothing };
            let mut all: Vec<Keep> = (0..blocks).map(keep).collect();
            // Derivatives begin with what was computed last, a block and the norm after it: it is still there.
            let last = blocks.saturating_sub(2) / n * n;
            all[last..].fill(Keep::All);
            all
        };
        match checkpoints {
            Checkpoints::None => Ok(Planner::new(tape, &vec![Keep::All; blocks]).plan()),
            Checkpoints::Every => Ok(Planner::new(tape, &every(1)).plan()),
            Checkpoints::EveryNth(n) => Ok(Planner::new(tape, &every(n.clamp(1, blocks.max(1)))).plan()),
            Checkpoints::Sqrt => {
                let n = (1..).find(|n| n * n >= blocks).unwrap_or(1);
                Ok(Planner::new(tape, &every(n)).plan())
            }
            Checkpoints::Bytes(bytes) => {
                let mut least = u64::MAX;
                for n in [1, 2, 3, 4] {
                    for again in 0..=blocks {
                        let mut keep = every(n);
                        keep[again..].fill(Keep::All);
                        let plan = Planner::new(tape, &keep).plan();
                        least = least.min(plan.bytes(rows));
                        if plan.bytes(rows) <= bytes {
                            return Ok(plan);
                        }
                    }
                }
                Err(Error::Memory { need: least, have: bytes })
            }
        }
    }

    /// Plans a forward pass over `tape` that carries tangents.
    pub(crate) fn forward_mode(tape: &Tape) -> Plan {
        Planner::new(tape, &vec![Keep::Nothing; tape.segments.len()]).forward_mode()
    }

    /// Bytes of all slots for `rows` rows.
    pub(crate) fn bytes(&self, rows: usize) -> u64 {
        self.slots.iter().map(|cols| (cols * rows).next_multiple_of(16) as u64 * 4).sum()
    }
}

/// What is kept of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keep {
    /// What its derivatives read.
    All,
    /// What it begins with.
    Start,
    /// Nothing: it is computed again from the segment before it.
    Nothing,
}

/// A value or gradient while it exists.
#[derive(Clone, Copy, Debug)]
struct Instance {
    cols: usize,
    begin: usize,
    end: usize,
    /// Written in place of this one, if it is not needed any longer.
    over: Option<usize>,
}

struct Planner<'t> {
    tape: &'t Tape,
    keep: Vec<bool>,
    instances: Vec<Instance>,
    steps: Vec<Step>,
    /// The instance that holds each value now.
    values: Vec<Option<usize>>,
    /// The instance that holds the gradient, or the tangent, of each value now.
    grads: Vec<Option<usize>>,
    recomputed: usize,
}

impl<'t> Planner<'t> {
    fn new(tape: &'t Tape, keep: &[Keep]) -> Self {
        let none = vec![None; tape.values.len()];
        Planner {
            tape,
            keep: kept(tape, keep),
            instances: Vec::new(),
            steps: Vec::new(),
            values: none.clone(),
            grads: none,
            recomputed: 0,
        }
    }

    fn plan(mut self) -> Plan {
        let tape = self.tape;
        for node in 0..tape.nodes.len() {
            self.forward(node);
        }
        let hidden = self.touch(tape.hidden);
        let grad = tape.value(tape.hidden).grad.then(|| self.instance(tape.value(tape.hidden).cols, None));
        self.grads[tape.hidden.index()] = grad;
        self.steps.push(Step::Loss { hidden, grad });
        for (value, keep) in self.values.iter_mut().zip(&self.keep) {
            if !keep {
                *value = None;
            }
        }
        for node in (0..tape.nodes.len()).rev() {
            self.backward(node);
        }
        self.assigned()
    }

    fn forward_mode(mut self) -> Plan {
        let tape = self.tape;
        for node in 0..tape.nodes.len() {
            self.forward(node);
            self.tangent(node);
        }
        let hidden = self.touch(tape.hidden);
        let grad = self.touch_grad(tape.hidden);
        self.steps.push(Step::Loss { hidden, grad });
        self.assigned()
    }

    fn assigned(self) -> Plan {
        let (slots, of) = assign(&self.instances);
        let mut steps = self.steps;
        for step in &mut steps {
            step.map(|instance| of[instance]);
        }
        Plan { steps, slots, recomputed: self.recomputed }
    }

    /// A new instance, from the next step on.
    fn instance(&mut self, cols: usize, over: Option<usize>) -> usize {
        let now = self.steps.len();
        self.instances.push(Instance { cols, begin: now, end: now, over });
        self.instances.len() - 1
    }

    /// The instance of a value, which the next step reads.
    fn touch(&mut self, value: ValueId) -> usize {
        // Every value is computed before it is read.
        let instance = self.values[value.index()].unwrap_or(0);
        self.instances[instance].end = self.steps.len();
        instance
    }

    /// The instance of a value's gradient or tangent, if there is one, which the next step reads.
    fn touch_grad(&mut self, value: ValueId) -> Option<usize> {
        let instance = self.grads[value.index()]?;
        self.instances[instance].end = self.steps.len();
        Some(instance)
    }

    fn forward(&mut self, at: usize) {
        let node = &self.tape.nodes[at];
        let reads: Vec<usize> = node.reads().iter().map(|id| self.touch(*id)).collect();
        let over = node.added_to().and_then(|to| self.values[to.index()]);
        let mut writes = Vec::new();
        for id in node.writes() {
            let instance = self.instance(self.tape.value(id).cols, over);
            self.values[id.index()] = Some(instance);
            writes.push(instance);
        }
        self.steps.push(Step::Forward { node: at, reads, writes });
    }

    fn tangent(&mut self, at: usize) {
        let tape = self.tape;
        let node = &tape.nodes[at];
        let result = *tape.value(node.out());
        if !result.grad {
            return;
        }
        let trained = node.tensor().is_some_and(|id| tape.is_trained(id));
        let saved = node.saved(trained).iter().map(|id| self.touch(*id)).collect();
        let tangents = node.reads().iter().map(|id| self.touch_grad(*id)).collect();
        let over = node.added_to().and_then(|to| self.grads[to.index()]);
        let out = self.instance(result.cols, over);
        self.grads[node.out().index()] = Some(out);
        self.steps.push(Step::Tangent { node: at, saved, tangents, out });
    }

    /// Computes a value again, if it is not there.
    fn restore(&mut self, value: ValueId) {
        if self.values[value.index()].is_some() {
            return;
        }
        let at = self.tape.value(value).node;
        let node = &self.tape.nodes[at];
        for id in node.reads() {
            self.restore(id);
        }
        self.recomputed += usize::from(!node.is_cheap());
        self.forward(at);
    }

    fn backward(&mut self, at: usize) {
        let tape = self.tape;
        let node = &tape.nodes[at];
        let Some(grad) = self.grads[node.out().index()] else { return };
        let trained = node.tensor().is_some_and(|id| tape.is_trained(id));
        for id in node.saved(trained) {
            self.restore(id);
        }
        let saved = node.saved(trained).iter().map(|id| self.touch(*id)).collect();
        self.instances[grad].end = self.steps.len();
        let mut to = Vec::new();
        for id in node.reads() {
            let value = *tape.value(id);
            if !value.grad {
                to.push(None);
                continue;
            }
            let there = self.grads[id.index()];
            // What is added to passes its gradient on as it is.
            let passed = node.added_to() == Some(id);
            let slot = match there {
                Some(there) => {
                    self.instances[there].end = self.steps.len();
                    there
                }
                None if passed => grad,
                None => self.instance(value.cols, None),
            };
            self.grads[id.index()] = Some(slot);
            to.push(Some(Target { slot, add: there.is_some() }));
        }
        self.steps.push(Step::Backward { node: at, saved, grad, to });
    }
}

impl Step {
    /// Replaces instances by their slots.
    fn map(&mut self, of: impl Fn(usize) -> Slot) {
        match self {
            Step::Forward { reads, writes, .. } => {
                reads.iter_mut().chain(writes).for_each(|slot| *slot = of(*slot));
            }
            Step::Loss { hidden, grad } => {
                *hidden = of(*hidden);
                grad.iter_mut().for_each(|slot| *slot = of(*slot));
            }
            Step::Tangent { saved, tangents, out, .. } => {
                saved.iter_mut().chain(tangents.iter_mut().flatten()).for_each(|slot| *slot = of(*slot));
                *out = of(*out);
            }
            Step::Backward { saved, grad, to, .. } => {
                saved.iter_mut().for_each(|slot| *slot = of(*slot));
                *grad = of(*grad);
                to.iter_mut().flatten().for_each(|target| target.slot = of(target.slot));
            }
        }
    }
}

/// Which values are kept after the forward pass.
fn kept(tape: &Tape, keep: &[Keep]) -> Vec<bool> {
    let segment_of = |node: usize| {
        let of = tape.segments.iter().position(|segment| segment.contains(&node));
        of.unwrap_or(tape.segments.len().max(1) - 1)
    };
    let mut kept = vec![false; tape.values.len()];
    for (at, node) in tape.nodes.iter().enumerate() {
        let here = segment_of(at);
        // What a segment begins with.
        for id in node.reads() {
            let from = segment_of(tape.value(id).node);
            let starts = (from + 1..=here).any(|segment| keep[segment] != Keep::Nothing);
            kept[id.index()] |= starts;
        }
        if keep[here] != Keep::All || !tape.value(node.out()).grad {
            continue;
        }
        let trained = node.tensor().is_some_and(|id| tape.is_trained(id));
        let mut wanted: Vec<ValueId> = node.saved(trained).iter().copied().collect();
        while let Some(id) = wanted.pop() {
            let from = tape.value(id).node;
            match &tape.nodes[from] {
                // Before it, something else may be computed again.
                _ if keep[segment_of(from)] != Keep::All => {}
                cheap if cheap.is_cheap() => wanted.extend(cheap.reads()),
                _ => kept[id.index()] = true,
            }
        }
    }
    kept
}

/// Gives instances slots, which those share that do not exist at the same time: floats of each slot for a row, and the slot of
/// each instance.
fn assign(instances: &[Instance]) -> (Vec<usize>, Vec<Slot>) {
    let mut slots: Vec<(usize, Option<usize>)> = Vec::new();
    let mut of = vec![0; instances.len()];
    for (i, instance) in instances.iter().enumerate() {
        let over = instance.over.filter(|over| instances[*over].end == instance.begin);
        let over = over.map(|over| of[over]).filter(|slot| slots[*slot].0 == instance.cols);
        let free = |(cols, until): &(usize, Option<usize>)| {
            *cols >= instance.cols && until.is_none_or(|until| until < instance.begin)
        };
        let best = || {
            let fitting = slots.iter().enumerate().filter(|(_, slot)| free(slot));
            fitting.min_by_key(|(_, (cols, _))| *cols).map(|(slot, _)| slot)
        };
        let slot = over.or_else(best).unwrap_or_else(|| {
            slots.push((instance.cols, None));
            slots.len() - 1
        });
        slots[slot].1 = Some(instance.end);
        of[i] = slot;
    }
    (slots.into_iter().map(|(cols, _)| cols).collect(), of)
}
