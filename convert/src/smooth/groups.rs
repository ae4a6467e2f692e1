//! Where factors of channels can move from what computes an input to the matrices that it is multiplied with.

use shohin_core::model::program::{BufferId, Op, Program, TensorId};

/// Channels that are computed and multiplied in one place each: divided there and multiplied here, they change no result.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Group {
    /// What computes them.
    pub(super) from: From,
    /// Vectors that are added to them before.
    pub(super) biases: Vec<TensorId>,
    /// The matrices whose columns they are.
    pub(super) to: Vec<TensorId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From {
    /// The weights of a norm.
    Norm(TensorId),
    /// The rows of the second half of a gated product.
    Up(TensorId),
    /// The rows of values, which the heads of queries share.
    Values(TensorId),
}

impl From {
    pub(super) fn tensor(self) -> TensorId {
        match self {
            From::Norm(id) | From::Up(id) | From::Values(id) => id,
        }
    }
}

/// All groups of a program's layers.
pub(super) fn groups(program: &Program) -> Vec<Group> {
    let mut all: Vec<Group> = Vec::new();
    let body = &program.body;
    for (i, op) in body.iter().enumerate() {
        let group = match op {
            Op::RmsNorm { weight, out, .. } => {
                multiplied(body, i, *out).map(|to| (From::Norm(*weight), Vec::new(), to))
            }
            Op::LinearSwiglu { up, out, .. } => {
                multiplied(body, i, *out).map(|to| (From::Up(*up), Vec::new(), to))
            }
            Op::Gated { gate, up, .. } => computed(body, i, *up)
                .zip(multiplied(body, i, *gate))
                .map(|((id, biases), to)| (From::Up(id), biases, to)),
            Op::Attention { layer, out, .. } => stored(body, i, *layer)
                .zip(multiplied(body, i, *out))
                .map(|((id, biases), to)| (From::Values(id), biases, to)),
            _ => None,
        };
        all.extend(group.map(|(from, biases, to)| Group { from, biases, to }));
    }
    // A tensor that several operations read has no factors of its own.
    let uses = |id: TensorId| {
        let vectors = body.iter().chain(&program.tail).chain(&program.head).filter(|op| match op {
            Op::RmsNorm { weight, .. } => *weight == id,
            Op::Bias { bias, .. } => *bias == id,
            _ => false,
        });
        vectors.count() + program.matrices().filter(|other| *other == id).count()
    };
    all.retain(|group| {
        let own = [group.from.tensor()];
        let mut ids = group.to.iter().chain(&group.biases).chain(&own);
        ids.all(|id| uses(*id) == 1)
    });
    all
}

/// The matrices that `buffer` is multiplied with after operation `at` of `body`, if nothing else reads it.
fn multiplied(body: &[Op], at: usize, buffer: BufferId) -> Option<Vec<TensorId>> {
    let mut to = Vec::new();
    for op in &body[at + 1..] {
        let replaces = match op {
            Op::Linear { x, outputs } if *x == buffer => {
                to.extend(op.matrices());
                outputs.iter().any(|(_, out)| *out == buffer)
            }
            Op::LinearSwiglu { x, out, .. } if *x == buffer => {
                to.extend(op.matrices());
                *out == buffer
            }
            Op::LinearAdd { x, to: sum, weight } if *x == buffer && *sum != buffer => {
                to.push(*weight);
                false
            }
            Op::Experts(experts) if experts.x == buffer && experts.to != buffer => {
                to.extend([experts.router, experts.gate, experts.up]);
                false
            }
            other => match other.reads(buffer) {
                Some(true) => return None,
                Some(false) => true,
                None => false,
            },
        };
        if replaces {
            break;
        }
    }
    Some(to).filter(|to| !to.is_empty())
}

/// The matrix whose product `buffer` is before operation `at` of `body`, and the vectors that were added to it.
fn computed(body: &[Op], at: usize, buffer: BufferId) -> Option<(TensorId, Vec<TensorId>)> {
    let mut biases = Vec::new();
    for op in body[..at].iter().rev() {
        match op {
            Op::Bias { x, bias } if *x == buffer => biases.push(*bias),
            Op::Linear { outputs, .. } if outputs.iter().any(|(_, out)| *out == buffer) => {
                return outputs.iter().find(|(_, out)| *out == buffer).map(|(id, _)| (*id, biases));
            }
            other => {
                if other.reads(buffer).is_some() {
                    return None;
                }
            }
        }
    }
    None
}

/// The matrix whose product the cache of `layer` has as values when operation `at` of `body` reads it.
fn stored(body: &[Op], at: usize, layer: usize) -> Option<(TensorId, Vec<TensorId>)> {
    let stores = |op: &Op| match op {
        Op::RopeStore { layer: of, v, .. } if *of == layer => Some(*v),
        _ => None,
    };
    let (i, values) = body[..at].iter().enumerate().rev().find_map(|(i, op)| Some((i, stores(op)?)))?;
    computed(body, i, values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use shohin_core::{Gguf, ModelConfig};

    fn of(bytes: &[u8]) -> Vec<(String, Vec<String>)> {
        let config = ModelConfig::from_gguf(&Gguf::parse(bytes).unwrap()).unwrap();
        let program = config.program();
        let name = |id: &TensorId| program.tensor(*id).name.clone();
        let all = groups(&program).into_iter();
        all.map(|group| (name(&group.from.tensor()), group.to.iter().map(name).collect())).collect()
    }

    #[test]
    fn groups_are_those_of_the_formulas() {
        let found = of(include_bytes!("../../../models/sprout-nano.gguf"));
        let layer = |from: &str, to: &[&str]| {
            let name = |name: &str| format!("blk.0.{name}.weight");
            (name(from), to.iter().map(|to| name(to)).collect::<Vec<_>>())
        };
        let expected = [
            layer("attn_norm", &["attn_q", "attn_k", "attn_v"]),
            layer("attn_v", &["attn_output"]),
            layer("ffn_norm", &["ffn_gate", "ffn_up"]),
            layer("ffn_up", &["ffn_down"]),
        ];
        assert_eq!(found[..4], expected);
        // Experts read what their router does, and their halves have no factors of their own.
        let experts = of(include_bytes!("../../../tests/fixtures/qwen3moe.gguf"));
        let norm = experts.iter().find(|(from, _)| from == "blk.0.ffn_norm.weight").unwrap();
        let names = ["ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps"];
        assert_eq!(norm.1, names.map(|name| format!("blk.0.{name}.weight")));
        assert!(!experts.iter().any(|(from, _)| from.contains("ffn_up")));
    }
}
