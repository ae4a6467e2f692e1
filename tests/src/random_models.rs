//! Random models on a device against the CPU: any formats, shapes, patterns of attention and caches, and tokens in any pieces.

use crate::case::{Case, Choices};
use crate::device::{On, error, on_cpu};
use crate::model::{Model, Shape, Stored};
use crate::{Random, rounds};
use core::fmt::{Debug, Display};
use shohin_core::device::{BlockingDevice, ScratchOptions, SessionOptions};
use shohin_core::model::{alibi, depths};
use shohin_core::quant::packed::PackedFormat;
use shohin_core::{Activations, AttentionPattern, Format, KvFormat};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// How far the order of additions moves the logits of a token, relative to their spread: four times the most in
/// 442 models.
const ORDER: f64 = 1e-5;

/// What a device does not compute, by a part of its error.
#[derive(Clone, Copy, Debug)]
pub struct Refused {
    /// Mixtures of experts.
    pub experts: Option<&'static str>,
    /// Gate and up matrices of which one holds floats and the other integers.
    pub floats_beside_integers: &'static str,
}

impl Refused {
    /// Parts of errors, of which a device gives one for this model; none if it computes it.
    fn of(&self, model: &Model) -> Vec<&'static str> {
        let end = if model.shape.experts.is_some() { "_exps.weight" } else { ".weight" };
        let is_float = |layer: usize, what: &str| {
            let format = model.format(&format!("blk.{layer}.{what}{end}")).expect("a matrix of the model");
            PackedFormat::of(format).is_some_and(PackedFormat::is_float)
        };
        let differs = |layer| is_float(layer, "ffn_gate") != is_float(layer, "ffn_up");
        let reasons = [
            (model.shape.max_alibi_bias > 0.0).then_some(alibi::REFUSED),
            (model.shape.depth_routers && model.shape.layers > 1).then_some(depths::REFUSED),
            self.experts.filter(|_| model.shape.experts.is_some()),
            (0..model.shape.layers).any(differs).then_some(self.floats_beside_integers),
        ];
        reasons.into_iter().flatten().collect()
    }
}

/// A model, options of a device and of a sequence, and the tokens in pieces.
#[derive(Debug)]
struct Plan {
    model: Model,
    device: ScratchOptions,
    session: SessionOptions,
    pieces: Vec<Vec<u32>>,
}

impl Plan {
    fn new(choices: &mut Choices<'_>) -> Plan {
        let Case { mut model, mut tokens, kv, batch, .. } = Case::new(choices);
        model.shape.context = 256;
        // Threads that a CPU runs in turn take seconds for what a GPU does in a millisecond.
        tokens.truncate(2 + choices.below(11));
        // More positions than a part of flash decoding holds, and several blocks of the patterns.
        let is_long = choices.below(12) == 0;
        if is_long {
            model.shape = Shape { layers: 1, hidden: 256, ffn: 256, ..model.shape };
            tokens.extend((0..130).map(|_| choices.below(model.shape.vocab) as u32));
        }
        match choices.below(24) {
            0 => model.shape.max_alibi_bias = 8.0,
            1 => model.shape = Shape { depth_routers: true, layers: 2, ..model.shape },
            _ => (),
        }
        if choices.below(4) == 0 {
            model.formats.push(Stored::new(choices.of(&Format::ALL)));
        }
        let few = |choices: &mut Choices<'_>| 1 + choices.below(3) as u32;
        let window = 1 + choices.below(if is_long { 40 } else { 8 }) as u32;
        let attention = match choices.below(6) {
            0 | 1 => AttentionPattern::Window { window, sinks: few(choices) - 1 },
            2 if is_long => AttentionPattern::Dilated { blocks: few(choices), step: few(choices) },
            3 if is_long => AttentionPattern::Strided { blocks: few(choices), stride: few(choices) },
            4 if is_long => {
                AttentionPattern::BigBird { blocks: 1, global: few(choices) - 1, random: few(choices) - 1 }
            }
            _ => AttentionPattern::Full,
        };
        // A rounding error that sends a token to another expert is no fault: with experts only the order of additions differs.
        let exact = model.shape.experts.is_some() || choices.below(2) == 0;
        let kv = if exact { KvFormat::F32 } else { kv };
        let activations =
            if exact { Activations::F32 } else { choices.of(&[Activations::F32, Activations::Int8]) };
        let mut pieces = Vec::new();
        while !tokens.is_empty() {
            let most = choices.of(&[1, 3, 60]).min(tokens.len());
            pieces.push(tokens.drain(..1 + choices.below(most)).collect());
        }
        Plan {
            model,
            device: ScratchOptions {
                activations,
                batch,
                logit_rows: 1 + choices.below(9),
                ..ScratchOptions::default()
            },
            session: SessionOptions { kv, attention, context: 192 },
            pieces,
        }
    }

    fn is_exact(&self) -> bool {
        self.device.activations == Activations::F32 && self.session.kv == KvFormat::F32
    }

    /// Compares a device, or its refusal.
    fn check<D>(&self, on: Result<On<D>, String>, file: &[u8], refused: &Refused)
    where
        D: BlockingDevice<Error: Debug>,
    {
        let reasons = refused.of(&self.model);
        let mut on = match on {
            Ok(_) if !reasons.is_empty() => panic!("computed, expected an error about {reasons:?}"),
            Ok(on) => on,
            Err(why) => {
                assert!(
                    reasons.iter().any(|reason| why.contains(reason)),
                    "refused: {why}, expected {reasons:?}"
                );
                return;
            }
        };
        let tokens = self.pieces.concat();
        let cpu = |activations, kv| {
            on_cpu(file, activations, &SessionOptions { kv, ..self.session }).logits(&tokens, true)
        };
        let mut got = Vec::new();
        for piece in &self.pieces {
            got.extend(on.logits(piece, piece.len() > 1));
        }
        let exact = cpu(Activations::F32, KvFormat::F32);
        if self.is_exact() {
            let vocab = self.model.shape.vocab;
            let rows = got.chunks(vocab).zip(exact.chunks(vocab));
            let errors: Vec<f64> = rows.map(|(got, exact)| error(got, exact)).collect();
            println!("exact: {:.1e}", errors.iter().fold(0.0, |most: f64, error| most.max(*error)));
            assert!(
                errors.iter().all(|error| *error < ORDER),
                "the order of additions changes logits: {errors:?}"
            );
            return;
        }
        let same = cpu(self.device.activations, self.session.kv);
        let [noise, got_noise, between] = [error(&same, &exact), error(&got, &exact), error(&got, &same)];
        println!(
            "{:?} {:?}: {noise:.1e} {got_noise:.1e} {between:.1e}",
            self.device.activations, self.session.kv
        );
        assert!(
            got_noise < 1.5 * noise + ORDER,
            "rounding changes logits by {got_noise}, the CPU's by {noise}"
        );
        assert!(
            between < 2.0 * noise + ORDER,
            "{between} from the CPU, whose rounding changes logits by {noise}"
        );
    }
}

/// Compares `quick` random models, or as many as the environment says (see [`rounds::repeat`]), on a device with their logits on
/// the CPU. What the device does not compute it must refuse by name.
///
/// # Panics
/// If logits differ by more than rounding.
pub fn check_random_models<D, E>(
    name: &str,
    quick: usize,
    refused: &Refused,
    mut on: impl FnMut(&[u8], &ScratchOptions, &SessionOptions) -> Result<On<D>, E>,
) where
    D: BlockingDevice<Error: Debug>,
    E: Display,
{
    let start = std::time::Instant::now();
    let count = rounds::repeat(quick, |random| {
        let plan = Plan::new(&mut Random::new(random.next()).into());
        let file = plan.model.to_vec().expect("a valid shape");
        let compare = || {
            let on = on(&file, &plan.device, &plan.session).map_err(|e| e.to_string());
            plan.check(on, &file, refused);
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(compare)) {
            eprintln!("{name} failed with {plan:?}");
            resume_unwind(panic);
        }
    });
    println!("{name}: {count} models in {:.1} s", start.elapsed().as_secs_f64());
}
