//! Ways to compute that must agree: to the bit, or for cache formats within bounds.

use shohin_core::cpu::{Cpu, CpuWeights, Isa};
use shohin_core::device::BlockingDevice;
use shohin_core::model::ModelBytes;
use shohin_core::{Activations, CpuOptions, KvFormat, Serial, Session, SessionOptions};
use shohin_tests::case::{Case, Choices};
use shohin_tests::cpu::{all_logits, device, repacked};
use std::sync::Arc;

pub(super) fn agree_seeds() -> Vec<Vec<u8>> {
    (0..8u8).map(|i| vec![i; 3]).chain([Vec::new()]).collect()
}

/// A case, and the file of its model.
struct Ways {
    case: Case,
    file: Vec<u8>,
}

impl Ways {
    fn new(mut choices: Choices<'_>) -> Ways {
        let case = Case::new(&mut choices);
        Ways { file: case.model.to_vec().expect("a valid shape"), case }
    }

    fn has_experts(&self) -> bool {
        self.case.model.shape.experts.is_some()
    }

    fn session(&self, kv: KvFormat) -> SessionOptions {
        SessionOptions { kv, context: 48, ..SessionOptions::default() }
    }

    /// The logits after the last token, fed in two pieces.
    fn in_pieces<B: ModelBytes>(&self, device: &mut Cpu<'_, B>) -> Vec<f32> {
        let mut session = Session::new(device, &self.session(self.case.kv)).expect("memory");
        let (first, second) = self.case.tokens.split_at(self.case.cut);
        session.forward_prefill(device, first).expect("valid tokens");
        session.forward_prefill(device, second).expect("valid tokens").to_vec()
    }

    /// The same, kept in between.
    fn kept(&self, device: &mut Cpu<'_, &[u8]>) -> Vec<f32> {
        let mut session = Session::new(device, &self.session(self.case.kv)).expect("memory");
        let (first, second) = self.case.tokens.split_at(self.case.cut);
        session.forward_prefill(device, first).expect("valid tokens");
        let mut bytes = Vec::new();
        Cpu::<&[u8]>::wait(session.export(device, &mut bytes)).expect("memory");
        let mut other = Session::new(device, &self.session(self.case.kv)).expect("memory");
        other.import(device, first.len(), &bytes).expect("as exported");
        other.forward_prefill(device, second).expect("valid tokens").to_vec()
    }

    /// What each of these cache formats changes, see [`bound`].
    fn noise(&self, formats: &[KvFormat]) -> Vec<f64> {
        let options = CpuOptions { activations: Activations::F32, ..CpuOptions::default() };
        let mut device = device(&self.file, &options).expect("a valid model");
        let mut logits =
            |kv| all_logits(&mut device, &self.case.tokens, &self.session(kv)).expect("valid tokens");
        let exact = logits(KvFormat::F32);
        formats.iter().map(|kv| noise(&logits(*kv), &exact)).collect()
    }
}

/// The largest root mean square of the differences that a cache format makes to logits, relative to theirs, in models without
/// experts and with f32 activations: twice the largest of 1475 random models (`noise_of_2000_random_models`).
///
/// Noise stays below 0.001 (f16), 0.02 (q8), 0.3 (q4), 0.07 (E4M3) and 0.2 (E5M2) in 99 % of them. Floats have a range as
/// well: f16 found 0.1 and E4M3 1.12 in models where q8, and E5M2 with its larger range, found nothing unusual. So their bound
/// only excludes logits that have nothing to do with the exact ones; `cache_formats_round_as_measured` is the narrow one.
fn bound(kv: KvFormat) -> f64 {
    match kv {
        KvFormat::F32 => 0.0,
        KvFormat::Q8 => 0.036,
        KvFormat::Q4 => 0.57,
        KvFormat::F16 | KvFormat::Fp8E4M3 | KvFormat::Fp8E5M2 => 2.25,
    }
}

fn noise(found: &[f32], exact: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let sum: f64 = found.iter().zip(exact).map(|(a, b)| square(f64::from(a - b))).sum();
    (sum / exact.iter().map(|x| square(f64::from(*x))).sum::<f64>()).sqrt()
}

pub(super) fn agree(input: &[u8]) {
    let ways = Ways::new(Choices::new(input));
    let case = &ways.case;
    let options = CpuOptions { batch: case.batch, ..CpuOptions::default() };
    let mut reference = device(&ways.file, &options).expect("a valid model");
    let all = all_logits(&mut reference, &case.tokens, &ways.session(case.kv)).expect("valid tokens");
    let vocab = all.len() / case.tokens.len();
    let last = &all[all.len() - vocab..];
    assert!(ways.in_pieces(&mut reference) == last, "a prompt in two pieces");
    assert!(ways.kept(&mut reference) == last, "a session that was kept");
    let mut one =
        device(&ways.file, &CpuOptions { batch: 1, ..CpuOptions::default() }).expect("a valid model");
    assert!(
        all_logits(&mut one, &case.tokens, &ways.session(case.kv)).expect("valid tokens") == all,
        "one by one"
    );
    let mut repacked = repacked(&ways.file, &options).expect("a valid model");
    assert!(ways.in_pieces(&mut repacked) == last, "repacked weights");
    let weights: Arc<CpuWeights<&[u8]>> = Arc::clone(reference.weights());
    for isa in Isa::available() {
        let options = CpuOptions { isa, ..options };
        let mut device = Cpu::with_weights(Arc::clone(&weights), &options, Serial).expect("memory");
        assert!(ways.in_pieces(&mut device) == last, "{isa:?}");
    }
    // A rounding error that sends a token to another expert, or an activation to another integer, is not the cache's.
    if !ways.has_experts() {
        let noise = ways.noise(&[case.kv])[0];
        assert!(noise <= bound(case.kv), "{:?} changes logits by {noise}", case.kv);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shohin_tests::Random;

    /// Formats, and the noise of each in all models with a seed below this and without experts, sorted.
    fn measured(seeds: u64) -> Vec<(KvFormat, Vec<f64>)> {
        let mut found = KvFormat::ALL.map(|kv| (kv, Vec::new()));
        for seed in 0..seeds {
            let ways = Ways::new(Random::new(seed).into());
            if !ways.has_experts() {
                let noise = ways.noise(&KvFormat::ALL);
                found.iter_mut().zip(noise).for_each(|((_, all), noise)| all.push(noise));
            }
        }
        found.iter_mut().for_each(|(_, all)| all.sort_by(f64::total_cmp));
        found.into()
    }

    fn quantile(sorted: &[f64], share: f64) -> f64 {
        sorted[((sorted.len() - 1) as f64 * share) as usize]
    }

    /// The medians of 1475 models are 0.0004, 0.0102, 0.1653, 0.0449 and 0.0893: half as much again for chance.
    /// `SHOHIN_MODELS=2000 cargo test -p shohin-fuzz cache_formats -- --nocapture` prints what [`bound`] follows from.
    #[test]
    fn cache_formats_round_as_measured() {
        let models = std::env::var("SHOHIN_MODELS").ok().and_then(|number| number.parse().ok());
        for (kv, found) in measured(models.unwrap_or(40)) {
            let most = match kv {
                KvFormat::F32 => 0.0,
                KvFormat::F16 => 0.0006,
                KvFormat::Q8 => 0.015,
                KvFormat::Q4 => 0.25,
                KvFormat::Fp8E4M3 => 0.067,
                KvFormat::Fp8E5M2 => 0.134,
            };
            let [median, nearly, largest] = [0.5, 0.99, 1.0].map(|share| quantile(&found, share));
            println!(
                "{kv:?}: {} models, median {median:.4}, 99 % {nearly:.4}, largest {largest:.4}",
                found.len()
            );
            assert!(median <= most, "{kv:?} changes logits by {median}");
            assert!(largest <= bound(kv), "{kv:?} changes logits by up to {largest}");
        }
    }
}
