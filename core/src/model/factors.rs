//! Matrices with a factor of their own: `y = f (x W^T)`, with `f` a tensor of one number beside the matrix
//! (`blk.N.attn_q.scale` of `blk.N.attn_q.weight`). BitNet has one for each ternary matrix.
#![forbid(unsafe_code)]

use alloc::string::String;
use alloc::vec::Vec;

use super::program::{Activation, BufferId, Op, Program, TensorId, TensorRole, TensorSpec};
use crate::gguf::Header;

/// What programs of such models are called where they are refused.
pub const REFUSED: &str = "factors of single matrices (blk.N.attn_q.scale)";

const SUFFIX: &str = ".scale";

/// The tensors of factors in a file.
pub(super) fn names(header: &Header<'_>) -> Vec<String> {
    let names = header.tensors().iter().map(|tensor| tensor.name());
    names.filter(|name| name.ends_with(SUFFIX)).map(String::from).collect()
}

impl Program {
    /// Whether matrices have factors.
    pub fn has_factors(&self) -> bool {
        self.body.iter().any(|op| matches!(op, Op::Factor { .. }))
    }

    /// Multiplies by the factors `names`, each of a matrix of attention or of a feed-forward block. Those of others are not read, so
    /// that the file is [refused](Program::bind).
    pub(super) fn with_factors(mut self, names: &[String]) -> Program {
        let old = core::mem::take(&mut self.body);
        let blocks = core::mem::take(&mut self.blocks);
        let mut pass = Pass { names, body: Vec::with_capacity(old.len()), program: self };
        for (i, op) in old.into_iter().enumerate() {
            if blocks.contains(&i) {
                pass.program.blocks.push(pass.body.len());
            }
            pass.op(op);
        }
        pass.program.body = pass.body;
        pass.program
    }
}

/// The rewriting of a program.
struct Pass<'n> {
    names: &'n [String],
    body: Vec<Op>,
    program: Program,
}

impl Pass<'_> {
    fn op(&mut self, op: Op) {
        match op {
            Op::Linear { ref outputs, .. } => {
                let outputs = outputs.clone();
                self.body.push(op);
                outputs.into_iter().for_each(|(weight, out)| self.outputs(weight, out));
            }
            // Its sum has other terms: the input is multiplied, which no operation reads again.
            Op::LinearAdd { x, weight, .. } => {
                self.multiply(weight, x, self.program.tensor(weight).cols);
                self.body.push(op);
            }
            Op::LinearSwiglu { x, gate, up, out } if self.has(gate) || self.has(up) => {
                let cols = self.program.tensor(up).rows;
                let outputs = [(gate, out), (up, self.program.buffer("up", cols))];
                self.body.push(Op::Linear { x, outputs: outputs.into_iter().collect() });
                outputs.into_iter().for_each(|(weight, out)| self.outputs(weight, out));
                let (activation, up) = (Activation::Silu, outputs[1].1);
                self.body.push(Op::Gated { activation, gate: out, up, cols });
            }
            _ => self.body.push(op),
        }
    }

    /// The name of a matrix's factor, if the file has one.
    fn name(&self, weight: TensorId) -> Option<&String> {
        let matrix = self.program.tensor(weight).name.strip_suffix(".weight")?;
        self.names.iter().find(|name| name.strip_suffix(SUFFIX) == Some(matrix))
    }

    fn has(&self, weight: TensorId) -> bool {
        self.name(weight).is_some()
    }

    fn outputs(&mut self, weight: TensorId, out: BufferId) {
        self.multiply(weight, out, self.program.tensor(weight).rows);
    }

    /// `x *= f`, of `cols` elements in a row, if the matrix has a factor.
    fn multiply(&mut self, weight: TensorId, x: BufferId, cols: usize) {
        let Some(name) = self.name(weight).cloned() else { return };
        let tensors = &mut self.program.tensors;
        tensors.push(TensorSpec { name, rows: 1, cols: 1, role: TensorRole::Vector, matrices: 1, read: 1 });
        let factor = TensorId::at(tensors.len() - 1);
        self.body.push(Op::Factor { x, cols, factor });
    }
}
