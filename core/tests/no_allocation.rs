//! Sampling and generating allocate nothing per token, at the vocabulary size of the real models.

use shohin_core::generate::{Action, Detokenizer, Generation, GenerationOptions};
use shohin_core::sample::{Logprobs, Pcg32, Sampler, SamplerConfig};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local!(static ALLOCATIONS: Cell<usize> = const { Cell::new(0) });

// SAFETY: forwards to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn sampling_allocates_nothing() {
    const VOCAB: usize = 151_669;
    let mut rng = Pcg32::new(5);
    // Sums of uniforms: bell-shaped, as logits are.
    let mut row = || (0..VOCAB).map(|_| (0..6).map(|_| rng.next_f64()).sum::<f64>() as f32 * 4.0).collect();
    let rows: Vec<Vec<f32>> = (0..4).map(|_| row()).collect();
    let plain = SamplerConfig { temperature: 1.0, ..SamplerConfig::greedy() };
    let everything = SamplerConfig {
        min_p: 0.01,
        typical_p: 0.95,
        frequency_penalty: 0.1,
        dry_multiplier: 0.8,
        ..SamplerConfig::balanced()
    };
    for (name, config) in [
        ("greedy", SamplerConfig::greedy()),
        ("bonsai", SamplerConfig::bonsai()),
        ("creative", SamplerConfig::creative()),
        ("everything", everything),
        ("temperature only", plain),
        ("top-p only", SamplerConfig { top_p: 0.9, ..plain }),
        ("min-p only", SamplerConfig { min_p: 0.05, ..plain }),
        ("typical only", SamplerConfig { typical_p: 0.9, ..plain }),
    ] {
        // A clone, as hosts make one for each reply, is no different.
        let mut sampler = Sampler::new(&config, VOCAB).unwrap().clone();
        let mut logprobs = Logprobs::new(5);
        let before = ALLOCATIONS.get();
        let start = std::time::Instant::now();
        let n = 3000 / if config.top_k == 0 { 100 } else { 1 };
        for i in 0..n {
            let token = sampler.sample(&rows[i % 4]).unwrap();
            sampler.accept(token);
        }
        let elapsed = start.elapsed().as_secs_f64();
        logprobs.measure(&rows[0], 7);
        assert_eq!(ALLOCATIONS.get() - before, 0, "{name}");
        println!("{name:18} {:8.1} us a token", elapsed * 1e6 / n as f64);
    }
}

/// Every token has the same text.
struct Same(&'static str);

impl Detokenizer for Same {
    fn append_text(&self, _: u32, text: &mut Vec<u8>) {
        text.extend_from_slice(self.0.as_bytes());
    }

    fn is_end(&self, _: u32) -> bool {
        false
    }
}

#[test]
fn generating_allocates_nothing() {
    let options = GenerationOptions {
        stop_strings: vec!["nevermore".into(), "never ever".into()],
        logprobs: Some(3),
        ..GenerationOptions::default()
    };
    let sampler = Sampler::new(&SamplerConfig::balanced(), 500).unwrap();
    let mut generation = Generation::new(&[1, 2, 3], 0, 4000, sampler, options).unwrap();
    let logits: Vec<f32> = (0..500).map(|i| (i as f32 * 0.7).sin()).collect();
    let before = ALLOCATIONS.get();
    let (mut tokens, mut bytes) = (0, 0);
    while let Action::Decode(_) = generation.next() {
        if let Some(event) = generation.logits(&Same("ünever "), &logits).unwrap() {
            tokens += 1;
            bytes += event.text.len();
        }
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
    assert_eq!((tokens, bytes), (3998, 3998 * 8));
}
