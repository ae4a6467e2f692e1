//! Programs that the kernels of GPUs cannot compute.

use crate::error::{Error, Result};
use shohin_core::model::program::{BufferId, Experts, Op, TensorId, TensorRole};
use shohin_core::model::{Program, alibi, depths, factors, hadamard};
use shohin_core::quant::packed::PackedFormat;
use shohin_core::{Error as CoreError, Format, Name};

/// What the kernels of some GPUs compute, and those of others do not.
#[derive(Clone, Copy, Debug)]
pub struct Supported {
    /// Mixtures of experts.
    pub experts: bool,
    /// Programs that are split among ranks.
    pub ranks: bool,
}

/// Refuses programs that the kernels cannot compute.
///
/// # Errors
/// [`Error::Unsupported`], [`Error::Operation`].
pub fn check<F>(program: &Program, supported: Supported) -> Result<(), F> {
    let unsupported =
        |what, found: usize, expected| Err(Error::Unsupported { what, found: found as u64, expected });
    let (d, on_cpu) = (program.heads.dim, "0; the CPU computes them");
    if !d.is_multiple_of(32) || d > 256 {
        let what = "the number of dimensions of a head";
        return unsupported(what, d, "a multiple of 32, at most 256");
    }
    if !program.alibi_slopes.is_empty() {
        return unsupported(alibi::REFUSED, program.alibi_slopes.len(), on_cpu);
    }
    if !program.routed_layers.is_empty() {
        return unsupported(depths::REFUSED, program.routed_layers.len(), on_cpu);
    }
    if !program.bases.is_empty() {
        return unsupported(hadamard::REFUSED, program.bases.len(), on_cpu);
    }
    if program.has_factors() {
        return unsupported(factors::REFUSED, 1, on_cpu);
    }
    for op in program.body.iter().chain(&program.head) {
        let (found, expected) = match op {
            Op::Exchange(_) if !supported.ranks => {
                ("a program that is split among devices", "a whole one; the CPU computes both")
            }
            Op::Experts(_) if !supported.experts => {
                ("a mixture of experts", "one feed-forward block for all tokens; the CPU computes both")
            }
            Op::Experts(experts) if experts.clamp.is_some() => {
                ("experts with clamped activations", "others; the CPU computes both")
            }
            Op::Conv(_) | Op::DeltaNet(_) | Op::GatedNorm(_) | Op::SplitHeads { .. } => {
                ("layers with a recurrent state", "attention in every layer; the CPU computes both")
            }
            Op::RmsNorm { weight, .. } if !program.tensor(*weight).cols.is_multiple_of(32) => {
                let cols = program.tensor(*weight).cols;
                return unsupported("the width of the residual stream", cols, "a multiple of 32");
            }
            Op::RmsNorm { .. }
            | Op::Exchange(_)
            | Op::Experts(_)
            | Op::Embed { .. }
            | Op::Linear { .. }
            | Op::LinearAdd { .. }
            | Op::LinearSwiglu { .. }
            | Op::Gated { .. }
            | Op::Bias { .. }
            | Op::Add { .. }
            | Op::Scale { .. }
            // Refused above.
            | Op::Factor { .. }
            | Op::Hadamard(_)
            | Op::RopeStore { .. }
            | Op::Attention { .. }
            | Op::Select { .. }
            | Op::Merge { .. } => continue,
        };
        return Err(Error::Operation { found, expected });
    }
    match head(program)? {
        // A stage of a pipeline after the first.
        None if !supported.ranks || program.ranks == 1 => {
            Err(Error::Operation { found: "no operation after the last block", expected: "an RMSNorm" })
        }
        _ => Ok(()),
    }
}

/// The operations after the last block: `hidden = factor * x / sqrt(mean(x^2) + eps) * weight`, of the residual stream `x`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Head {
    /// `(rows, cols)`
    pub x: BufferId,
    /// `(cols)`
    pub weight: TensorId,
    /// Avoids division by zero.
    pub eps: f32,
    /// 1 in most models.
    pub factor: f32,
}

/// The head of a program; `None` if there are no operations, as in a stage of a pipeline after the first.
///
/// # Errors
/// [`Error::Operation`] for others than an RMSNorm and a factor.
pub fn head<F>(program: &Program) -> Result<Option<Head>, F> {
    let (norm, factor) = match &program.head[..] {
        [] => return Ok(None),
        [norm] => (norm, 1.0),
        [norm @ Op::RmsNorm { weight, .. }, Op::Scale { x, cols, factor }]
            if *x == program.hidden && *cols == program.tensor(*weight).cols =>
        {
            (norm, *factor)
        }
        [norm, ..] => (norm, 0.0),
    };
    match *norm {
        Op::RmsNorm { x, weight, eps, out }
            if factor != 0.0 && x == program.residual && out == program.hidden =>
        {
            Ok(Some(Head { x, weight, eps, factor }))
        }
        _ => Err(Error::Operation {
            found: "the operations after the last block",
            expected: "an RMSNorm, perhaps with a factor",
        }),
    }
}

/// The layout of each matrix of a program, and `None` for vectors. Gate and up matrices are multiplied by one kernel: their
/// layout holds both exactly.
///
/// # Errors
/// For a format or a shape without kernels.
pub fn layouts<F>(
    program: &Program,
    format: impl Fn(TensorId) -> Format,
) -> Result<Vec<Option<PackedFormat>>, F> {
    let mut layouts = Vec::new();
    for (id, spec) in program.tensor_ids().zip(&program.tensors) {
        if spec.role == TensorRole::Vector {
            layouts.push(None);
            continue;
        }
        let packed = PackedFormat::of(format(id)).ok_or_else(|| CoreError::Unsupported {
            key: Name::new(&spec.name),
            found: Name::new(format(id).name()),
            expected: "a tensor type that GPUs compute with",
        })?;
        if !spec.cols.is_multiple_of(32) {
            let (what, found) = ("a matrix's number of columns", spec.cols as u64);
            return Err(Error::Unsupported { what, found, expected: "a multiple of 32" });
        }
        layouts.push(Some(packed));
    }
    for op in &program.body {
        if let Op::LinearSwiglu { gate, up, .. } | Op::Experts(Experts { gate, up, .. }) = op {
            let [gate, up] = [gate.index(), up.index()];
            let both = layouts[gate].and_then(|packed| packed.with(layouts[up]?));
            let (found, expected) =
                ("gate and up matrices of floats and of integers", "both floats or both integers");
            let both = Some(both.ok_or(Error::Operation { found, expected })?);
            (layouts[gate], layouts[up]) = (both, both);
        }
    }
    Ok(layouts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use shohin_core::gguf::Gguf;
    use shohin_core::model::ModelConfig;
    use std::convert::Infallible;

    fn refused(bytes: &[u8], configure: impl FnOnce(&mut ModelConfig)) -> String {
        let mut config = ModelConfig::from_gguf(&Gguf::parse(bytes).unwrap()).unwrap();
        configure(&mut config);
        let all = Supported { experts: true, ranks: true };
        format!("{:?}", check::<Infallible>(&config.program(), all).unwrap_err())
    }

    #[test]
    fn models_for_cpus_alone_are_refused_by_name() {
        let rotated =
            refused(include_bytes!("../../tests/fixtures/qwen3-rotated.gguf"), |config| config.head_dim = 32);
        assert!(rotated.contains("rotations (prism.hadamard.*)"), "{rotated}");
        let factors = refused(include_bytes!("../../tests/fixtures/qwen3-untied.gguf"), |config| {
            (config.head_dim, config.factors) = (32, vec!["blk.0.attn_q.scale".into()]);
        });
        assert!(factors.contains("factors of single matrices"), "{factors}");
        let clamped = refused(include_bytes!("../../tests/fixtures/qwen3moe.gguf"), |config| {
            config.head_dim = 32;
            config.experts.as_mut().unwrap().clamp = Some(7.0);
        });
        assert!(clamped.contains("experts with clamped activations"), "{clamped}");
    }
}
