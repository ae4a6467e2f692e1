//! Which models, and which contexts, fit into a given amount of memory.
#![forbid(unsafe_code)]

use super::options::{CpuOptions, MemoryPlan};
use crate::cache::KvFormat;
use crate::device::SessionOptions;
use crate::error::Result;
use crate::model::{ModelSpec, all_specs};

/// Maximum number of bytes of a process besides the weights and [`MemoryPlan`]: code, tokenizer, stacks.
pub const PROCESS_BYTES: u64 = 16 << 20;

/// Maximum number of bytes of a published file besides its matrices: vocabulary and norms.
const FILE_BYTES: u64 = 8 << 20;

/// The longest context of at most `max` tokens such that weights of `weights` bytes, the process and
/// `plan(context)` together take at most `bytes`; `None` if not even one token fits. `plan` must not shrink
/// as the context grows.
pub fn longest_context(
    max: usize,
    bytes: u64,
    weights: u64,
    plan: impl Fn(usize) -> Result<MemoryPlan>,
) -> Option<usize> {
    let left = bytes.checked_sub(weights)?.checked_sub(PROCESS_BYTES)?;
    // A context larger than the address space does not fit either.
    let fits = |context: usize| plan(context).is_ok_and(|plan| plan.total as u64 <= left);
    if !fits(1) {
        return None;
    }
    let (mut low, mut high) = (1, max);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle) { low = middle } else { high = middle - 1 }
    }
    Some(low)
}

/// Every published model with the longest context that fits into `bytes` on the CPU, with a `kv` cache.
pub fn published_within(bytes: u64, kv: KvFormat) -> impl Iterator<Item = (ModelSpec, Option<usize>)> {
    all_specs().map(move |spec| {
        let plan = |context| {
            let options = CpuOptions { context, ..CpuOptions::default() };
            MemoryPlan::for_config(
                &spec.config,
                &options,
                &SessionOptions { context, kv, ..SessionOptions::default() },
            )
        };
        let weights = spec.capabilities.weight_bytes + FILE_BYTES;
        let context = longest_context(spec.capabilities.max_context_length, bytes, weights, plan);
        (spec, context)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ModelVariant;

    /// Computed by hand for Bonsai-1.7B, whose file has 248,302,272 bytes: a token takes 28 layers x 2 x 8
    /// heads x 128 elements, 114,688 bytes in f16.
    #[test]
    fn the_context_is_what_is_left_by_weights_and_process() {
        // Most of these plans exceed 32 bits.
        if usize::BITS < 64 {
            return;
        }
        let context = |bytes: u64, kv| {
            let found =
                published_within(bytes, kv).find(|(spec, _)| spec.variant == ModelVariant::Bonsai1_7B);
            found.and_then(|(_, context)| context)
        };
        assert_eq!(context(240 << 20, KvFormat::F16), None);
        let (less, more) =
            (context(512 << 20, KvFormat::F16).unwrap(), context(768 << 20, KvFormat::F16).unwrap());
        let grown = (256 << 20) as f64 / (more - less) as f64;
        assert!((114_688.0..116_000.0).contains(&grown), "{grown}");
        // Scratch memory and logits of a batch take less than 16 MiB.
        let room = (512u64 << 20) - 248_302_272 - PROCESS_BYTES;
        let most = (room / 114_688) as usize;
        assert!((most - 200..=most).contains(&less), "{less} of {most}");
        assert!(context(512 << 20, KvFormat::Q8).unwrap() > 18 * less / 10);
        assert_eq!(context(u64::MAX, KvFormat::F32), Some(32768));
    }

    #[test]
    fn the_longest_context_is_the_last_that_fits() {
        let plan = |context| {
            Ok(MemoryPlan {
                kv: 10 * context,
                scratch: 5,
                logits: 0,
                total: 10 * context + 5,
                device: 5,
                session: 0,
            })
        };
        let left = |left: u64| longest_context(100, PROCESS_BYTES + 1000 + left, 1000, plan);
        assert_eq!(
            [14, 15, 24, 25, 999, 5000].map(left),
            [None, Some(1), Some(1), Some(2), Some(99), Some(100)]
        );
        assert_eq!(longest_context(100, 10, 1000, plan), None);
    }
}
