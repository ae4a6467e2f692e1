//! Forward mode: tangents of values, in the order of the forward pass.
#![forbid(unsafe_code)]

use shohin_core::model::program::TensorId;

use super::One;
use crate::gemm::Store;
use crate::loss::Loss;
use crate::op::{add, bias, embed, gated, head, linear, norm, scale};
use crate::plan::Slot;
use crate::tape::Node;

impl<'s, 'p: 's> One<'s, 'p> {
    /// The part of the direction for a tensor, if it is trained.
    fn direction(&self, id: Option<TensorId>) -> Option<&'s [f32]> {
        let range = self.ranges[id?.index()].clone()?;
        Some(&self.direction[range])
    }

    /// The loss, and its derivative.
    pub(super) fn loss_tangent(
        &mut self,
        loss: &Loss,
        total: f64,
        hidden: Slot,
        tangent: Option<Slot>,
    ) -> head::Outcome {
        let cols = self.cols(self.tape.hidden);
        let output = self.tensors.matrix(self.program.output);
        let tangents =
            [tangent.map(|slot| self.slots.read(slot, cols)), self.direction(Some(self.program.output))];
        let hidden = self.slots.read(hidden, cols);
        head::tangent(self.gemm, self.head, loss, self.batch, total, hidden, output, tangents)
    }

    /// The tangent of a node's result.
    pub(super) fn tangent(&mut self, node: usize, saved: &[Slot], tangents: &[Option<Slot>], out: Slot) {
        let node = self.tape.nodes[node];
        let cols = self.cols(node.out());
        let (isa, pool) = (self.gemm.isa(), self.gemm.pool());
        let dw = self.direction(node.tensor());
        let mut out = self.slots.take(out, cols);
        let of = |i: usize, cols: usize| tangents[i].map(|slot| self.slots.read(slot, cols));
        match node {
            Node::Embed { .. } => match dw {
                Some(dtable) => embed::tangent(self.gemm, self.batch.tokens, dtable, cols, out.data()),
                None => out.data().fill(0.0),
            },
            Node::RmsNorm { weight, eps, .. } => {
                let x = self.slots.read(saved[0], cols);
                let weight = self.tensors.vector(weight);
                norm::tangent(pool, isa, x, weight, eps, [of(0, cols), dw], out.data());
            }
            Node::Linear { x, weight, .. } | Node::LinearAdd { x, weight, .. } => {
                let store = match node.added_to() {
                    Some(_) => {
                        self.begin_sum(&mut out, tangents[1], cols);
                        Store::Add
                    }
                    None => Store::Replace,
                };
                let inputs = self.cols(x);
                let x = saved.first().map_or(&[][..], |slot| self.slots.read(*slot, inputs));
                let weight = self.tensors.matrix(weight);
                linear::tangent(self.gemm, x, weight, [of(0, inputs), dw], out.data(), store);
            }
            Node::Experts { x, logits, mixture, .. } => {
                self.begin_sum(&mut out, tangents[2], cols);
                let layer = self.layer(mixture, logits);
                let cols = [self.cols(x), self.cols(logits)];
                let read = [0, 1].map(|i| self.slots.read(saved[i], cols[i]));
                let tangents = [0, 1].map(|i| of(i, cols[i]));
                layer.tangent(self.gemm, self.experts, read, tangents, out.data());
            }
            Node::Gated { activation, .. } => {
                let read = [0, 1].map(|i| self.slots.read(saved[i], cols));
                gated::tangent(pool, isa, activation, read, [of(0, cols), of(1, cols)], out.data());
            }
            Node::Bias { .. } => {
                self.begin_sum(&mut out, tangents[0], cols);
                if let Some(dbias) = dw {
                    bias::forward(pool, dbias, out.data());
                }
            }
            Node::Add { .. } => {
                self.begin_sum(&mut out, tangents[1], cols);
                if let Some(dx) = of(0, cols) {
                    add::forward(pool, dx, out.data());
                }
            }
            Node::Scale { factor, .. } => match of(0, cols) {
                Some(dx) => scale::forward(pool, factor, dx, out.data()),
                None => out.data().fill(0.0),
            },
            Node::Rope { rotation, factor, norm, eps, .. } => {
                let x = saved.first().map_or(&[][..], |slot| self.slots.read(*slot, cols));
                let heads = self.heads(rotation, factor, norm, eps);
                heads.tangent(pool, isa, x, [of(0, cols), dw], cols, out.data());
            }
            Node::Attention { window, k, .. } => {
                let kv = self.cols(k);
                let widths = [cols, kv, kv, cols, self.program.heads.query];
                let read = core::array::from_fn(|i| self.slots.read(saved[i], widths[i]));
                let tangents = [of(0, cols), of(1, kv), of(2, kv)];
                self.shape(window).tangent(pool, self.attention, read, tangents, out.data());
            }
        }
        self.slots.put(out);
    }
}
