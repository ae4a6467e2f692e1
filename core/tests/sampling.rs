//! The sampler against transformers' logits processors: `tests/oracle/sampling.txt`, written by
//! `tests/oracle/sampling.py`.

use shohin_core::Error;
use shohin_core::sample::{Logprobs, Pcg32, Sampler, SamplerConfig, log_sum_exp};
use std::str::FromStr;

const ORACLE: &str = include_str!("../../tests/oracle/sampling.txt");

struct Case {
    name: String,
    config: SamplerConfig,
    history: Vec<u32>,
    breakers: Vec<u32>,
    logits: Vec<f32>,
    probabilities: Vec<(u32, f64)>,
    draws: (u64, Vec<u32>),
}

impl Case {
    fn sampler(&self) -> Sampler {
        let config = SamplerConfig { seed: self.draws.0, ..self.config };
        let mut sampler = Sampler::new(&config, self.logits.len()).unwrap();
        self.breakers.iter().for_each(|&token| sampler.break_at(token));
        self.history.iter().for_each(|&token| sampler.accept(token));
        sampler
    }
}

fn list<T: FromStr<Err: std::fmt::Debug>>(line: &str) -> Vec<T> {
    line.split_whitespace().map(|word| word.parse().unwrap()).collect()
}

fn config(line: &str) -> SamplerConfig {
    let mut c = SamplerConfig::greedy();
    for pair in line.split_whitespace() {
        let (key, value) = pair.split_once('=').unwrap();
        let (f, n) = (value.parse::<f32>().unwrap(), value.parse::<usize>().unwrap_or(0));
        match key {
            "temperature" => c.temperature = f,
            "top_k" => c.top_k = n,
            "top_p" => c.top_p = f,
            "min_p" => c.min_p = f,
            "typical_p" => c.typical_p = f,
            "repetition_penalty" => c.repetition_penalty = f,
            "presence_penalty" => c.presence_penalty = f,
            "frequency_penalty" => c.frequency_penalty = f,
            "penalty_last_n" => c.penalty_last_n = n,
            "dry_multiplier" => c.dry_multiplier = f,
            "dry_base" => c.dry_base = f,
            "dry_allowed_length" => c.dry_allowed_length = n,
            "dry_last_n" => c.dry_last_n = n,
            other => panic!("unknown option {other}"),
        }
    }
    c
}

fn cases() -> Vec<Case> {
    let mut lines = ORACLE.lines();
    let mut cases = Vec::new();
    while let Some(line) = lines.next() {
        let name = line.strip_prefix("case ").unwrap().to_string();
        let mut next = |key: &str| lines.next().unwrap().strip_prefix(key).unwrap();
        let pair = |word: &str| {
            let (id, p) = word.split_once(':').unwrap();
            (id.parse().unwrap(), p.parse().unwrap())
        };
        cases.push(Case {
            name,
            config: config(next("config ")),
            history: list(next("history")),
            breakers: list(next("breakers")),
            logits: list(next("logits ")),
            probabilities: next("probs ").split_whitespace().map(pair).collect(),
            draws: {
                let mut all: Vec<u64> = list(next("draws "));
                (all.remove(0), all.iter().map(|&t| t as u32).collect())
            },
        });
    }
    cases
}

fn case(name: &str) -> Case {
    cases().into_iter().find(|case| case.name == name).unwrap()
}

#[test]
fn distributions_equal_transformers() {
    for case in cases() {
        let mut sampler = case.sampler();
        let mut found: Vec<(u32, f64)> = sampler
            .distribution(&case.logits)
            .unwrap()
            .iter()
            .filter(|c| c.probability > 0.0)
            .map(|c| (c.token, f64::from(c.probability)))
            .collect();
        found.sort_by_key(|&(token, _)| token);
        // exp underflows earlier in f32 than in f64.
        let expected: Vec<_> = case.probabilities.iter().filter(|&&(_, p)| p > 1e-35).collect();
        found.retain(|&(_, p)| p > 1e-35);
        assert_eq!(found.len(), expected.len(), "{}: number of candidates", case.name);
        for (&(token, p), &&(expected_token, expected_p)) in found.iter().zip(&expected) {
            assert_eq!(token, expected_token, "{}", case.name);
            let error = (p - expected_p).abs();
            assert!(error < 2e-6 * expected_p + 1e-9, "{}: token {token} {p} {expected_p}", case.name);
        }
    }
}

#[test]
fn draws_equal_an_independent_generator() {
    let mut compared = 0;
    for case in cases() {
        let mut sampler = case.sampler();
        // The history stays the same: the oracle draws from one distribution.
        for &expected in &case.draws.1 {
            assert_eq!(sampler.sample(&case.logits).unwrap(), expected, "{}", case.name);
            compared += 1;
        }
        sampler.restart(case.draws.0);
        case.history.iter().for_each(|&token| sampler.accept(token));
        for &expected in &case.draws.1 {
            assert_eq!(sampler.sample(&case.logits).unwrap(), expected, "{} restarted", case.name);
        }
    }
    assert!(compared >= 256);
}

#[test]
fn draws_follow_the_distribution() {
    // Chi-squared over the candidates, summed over presets and fixed seeds.
    let (mut chi, mut freedom) = (0.0, 0.0_f64);
    for name in ["bonsai", "balanced", "creative", "code", "plain softmax", "top-p 0.85"] {
        let case = case(name);
        for seed in 0..8 {
            let mut sampler = case.sampler();
            sampler.restart(seed);
            case.history.iter().for_each(|&token| sampler.accept(token));
            let n = 20_000.0;
            let mut count = vec![0.0; case.logits.len()];
            for _ in 0..n as usize {
                count[sampler.sample(&case.logits).unwrap() as usize] += 1.0;
            }
            let (mut rare, mut rare_count) = (0.0, 0.0);
            for &(token, p) in &case.probabilities {
                if p * n < 5.0 {
                    rare += p * n;
                    rare_count += count[token as usize];
                } else {
                    chi += (count[token as usize] - p * n).powi(2) / (p * n);
                    freedom += 1.0;
                }
                count[token as usize] = 0.0;
            }
            assert!(count.iter().all(|&c| c == 0.0), "{name}: drew what has no probability");
            if rare > 5.0 {
                chi += (rare_count - rare).powi(2) / rare;
                freedom += 1.0;
            }
            freedom -= 1.0;
        }
    }
    assert!(freedom > 500.0);
    let deviation = (2.0 * freedom).sqrt();
    assert!((chi - freedom).abs() < 4.0 * deviation, "chi-squared {chi} of {freedom}");
}

#[test]
fn ties_go_to_the_lower_id() {
    let logits = [1.0, 3.0, 3.0, 0.0, 3.0];
    let mut sampler = Sampler::new(&SamplerConfig::greedy(), 5).unwrap();
    assert_eq!(sampler.sample(&logits).unwrap(), 1);
    let config = SamplerConfig { temperature: 1.0, top_k: 2, ..SamplerConfig::greedy() };
    let mut sampler = Sampler::new(&config, 5).unwrap();
    let kept: Vec<u32> = sampler.distribution(&logits).unwrap().iter().map(|c| c.token).collect();
    assert_eq!(kept, [1, 2]);
    // More equal tokens than the selection buffer holds.
    let mut sampler = Sampler::new(&config, 5000).unwrap();
    let kept: Vec<u32> = sampler.distribution(&[7.0; 5000]).unwrap().iter().map(|c| c.token).collect();
    assert_eq!(kept, [0, 1]);
}

#[test]
fn no_probability_is_that_of_the_likeliest_token() {
    for config in [
        SamplerConfig::bonsai(),
        SamplerConfig { temperature: 100.0, min_p: 1.0, typical_p: 0.01, ..SamplerConfig::greedy() },
    ] {
        let mut sampler = Sampler::new(&SamplerConfig { top_p: 0.0, ..config }, 5).unwrap();
        for _ in 0..20 {
            assert_eq!(sampler.sample(&[1.0, 2.9, 3.0, 0.0, 3.0]).unwrap(), 2);
        }
        assert_eq!(sampler.distribution(&[0.0; 5]).unwrap().len(), 1);
    }
}

#[test]
fn top_k_of_a_rising_row_selects_again_and_again() {
    let logits: Vec<f32> = (0..10_000).map(|i| i as f32 * 1e-3).collect();
    let config = SamplerConfig { temperature: 1.0, top_k: 20, ..SamplerConfig::greedy() };
    let mut sampler = Sampler::new(&config, logits.len()).unwrap();
    let kept: Vec<u32> = sampler.distribution(&logits).unwrap().iter().map(|c| c.token).collect();
    assert_eq!(kept, (9_980..10_000).rev().collect::<Vec<_>>());
}

#[test]
fn odd_logits_are_errors_or_defined() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let everything = SamplerConfig {
        min_p: 0.05,
        typical_p: 0.9,
        repetition_penalty: 1.2,
        dry_multiplier: 1.0,
        ..SamplerConfig::balanced()
    };
    let unfiltered = SamplerConfig { temperature: 1.0, ..SamplerConfig::greedy() };
    for config in [SamplerConfig::greedy(), SamplerConfig::bonsai(), unfiltered, everything] {
        let mut sampler = Sampler::new(&config, 3).unwrap();
        [0, 1, 0, 1, 0].iter().for_each(|&t| sampler.accept(t));
        for bad in [[nan; 3], [-inf; 3], [nan, -inf, nan]] {
            assert!(matches!(sampler.sample(&bad), Err(Error::Logits { .. })), "{bad:?}");
        }
        // NaN and -inf are never drawn, +inf always, extremes do not overflow into NaN.
        assert_eq!(sampler.sample(&[nan, 1.0, -inf]).unwrap(), 1);
        assert_eq!(sampler.sample(&[-3e38, nan, -inf]).unwrap(), 0);
        assert_eq!(sampler.sample(&[3e38, -3e38, inf]).unwrap(), 2);
        assert!(matches!(sampler.sample(&[0.0; 4]), Err(Error::Length { expected: 3, found: 4, .. })));
    }
}

/// Presence and frequency are those of the reply, as with OpenAI; repetition is that of the prompt, too, as in transformers.
#[test]
fn only_repetition_is_measured_against_the_prompt() {
    let logits = [4.0, 3.0, 2.0];
    let set = [
        SamplerConfig { presence_penalty: 1.5, ..SamplerConfig::greedy() },
        SamplerConfig { frequency_penalty: 1.5, ..SamplerConfig::greedy() },
        SamplerConfig { repetition_penalty: 2.0, ..SamplerConfig::greedy() },
    ];
    for (config, of_prompt) in set.iter().zip([false, false, true]) {
        let mut sampler = Sampler::new(config, 3).unwrap();
        [0, 2, 0].iter().for_each(|&token| sampler.accept_prompt(token));
        assert_eq!(sampler.sample(&logits).unwrap(), u32::from(of_prompt), "{config:?}");
        sampler.accept(0);
        assert_eq!(sampler.clone().sample(&logits).unwrap(), 1, "{config:?}");
        // The next prompt has that reply.
        sampler.accept_prompt(2);
        assert_eq!(sampler.sample(&logits).unwrap(), u32::from(of_prompt), "{config:?}");
    }
    // Within the window, each time in the reply counts.
    let config = SamplerConfig { frequency_penalty: 0.6, penalty_last_n: 3, ..SamplerConfig::greedy() };
    let mut sampler = Sampler::new(&config, 3).unwrap();
    [0, 0].iter().for_each(|&token| sampler.accept_prompt(token));
    sampler.accept(0);
    assert_eq!(sampler.sample(&logits).unwrap(), 0);
    sampler.accept(0);
    assert_eq!(sampler.sample(&logits).unwrap(), 1);
}

#[test]
fn options_out_of_range_are_named() {
    let base = SamplerConfig::bonsai();
    let bad = [
        ("temperature", SamplerConfig { temperature: -0.1, ..base }),
        ("temperature", SamplerConfig { temperature: f32::NAN, ..base }),
        ("temperature", SamplerConfig { temperature: f32::INFINITY, ..base }),
        ("top_p", SamplerConfig { top_p: -0.01, ..base }),
        ("top_p", SamplerConfig { top_p: f32::NAN, ..base }),
        ("top_p", SamplerConfig { top_p: 1.01, ..base }),
        ("min_p", SamplerConfig { min_p: -1.0, ..base }),
        ("typical_p", SamplerConfig { typical_p: f32::NAN, ..base }),
        ("repetition_penalty", SamplerConfig { repetition_penalty: 0.0, ..base }),
        ("presence_penalty", SamplerConfig { presence_penalty: f32::INFINITY, ..base }),
        ("frequency_penalty", SamplerConfig { frequency_penalty: 101.0, ..base }),
        ("penalty_last_n", SamplerConfig { penalty_last_n: usize::MAX, ..base }),
        ("dry_multiplier", SamplerConfig { dry_multiplier: -1.0, ..base }),
        ("dry_base", SamplerConfig { dry_base: 0.5, ..base }),
        ("dry_allowed_length", SamplerConfig { dry_allowed_length: 0, ..base }),
        ("dry_last_n", SamplerConfig { dry_last_n: 1 << 21, ..base }),
    ];
    for (name, config) in bad {
        match Sampler::new(&config, 10) {
            Err(Error::Option { what, .. }) => assert_eq!(what, name),
            other => panic!("{name}: {:?}", other.map(|_| ())),
        }
    }
    assert!(Sampler::new(&base, 0).is_err());
    for name in SamplerConfig::PRESETS {
        SamplerConfig::preset(name).unwrap().check().unwrap();
    }
    assert_eq!(SamplerConfig::preset("Greedy"), None);
    assert_eq!(SamplerConfig::default(), SamplerConfig::bonsai());
}

#[test]
fn logprobs_are_the_log_softmax_of_the_raw_logits() {
    let case = case("bonsai");
    let exact: Vec<f64> = case.logits.iter().map(|&l| f64::from(l).exp()).collect();
    let sum: f64 = exact.iter().sum();
    assert!((log_sum_exp(&case.logits) - sum.ln()).abs() < 1e-6);
    let mut order: Vec<u32> = (0..case.logits.len() as u32).collect();
    order.sort_by(|&a, &b| exact[b as usize].total_cmp(&exact[a as usize]));
    let mut logprobs = Logprobs::new(5);
    for chosen in [0, order[0], 499] {
        let found = logprobs.measure(&case.logits, chosen);
        assert!((f64::from(found) - (exact[chosen as usize] / sum).ln()).abs() < 1e-5);
        for (top, &expected) in logprobs.top().iter().zip(&order) {
            assert_eq!(top.token, expected);
            assert!((f64::from(top.logprob) - (exact[expected as usize] / sum).ln()).abs() < 1e-5);
        }
        assert_eq!(logprobs.top().len(), 5);
    }
    let inf = f32::INFINITY;
    assert_eq!(logprobs.measure(&[f32::NAN, 0.0, -inf], 1), 0.0);
    assert_eq!(logprobs.measure(&[f32::NAN, 0.0, -inf], 0), -inf);
    assert_eq!(logprobs.measure(&[f32::NAN, -inf], 1), -inf);
    assert_eq!(logprobs.measure(&[inf, 0.0], 0), 0.0);
    assert_eq!(logprobs.measure(&[0.0], 9), -inf);
    assert_eq!(Logprobs::new(0).measure(&[0.0, 0.0], 1), -std::f32::consts::LN_2);
}

#[test]
fn any_options_and_any_logits_give_a_possible_token_or_an_error() {
    let mut rng = Pcg32::new(77);
    for round in 0..6000 {
        let config = any_config(&mut rng);
        let vocab = 1 + rng.next_u32() as usize % 40;
        let mut sampler = Sampler::new(&config, vocab).unwrap();
        for token in 0..vocab as u32 {
            if rng.next_u32().is_multiple_of(8) {
                sampler.break_at(token);
            }
        }
        for _ in 0..4 {
            let logits: Vec<f32> = (0..vocab).map(|_| any_logit(&mut rng)).collect();
            let possible = |token: u32| logits[token as usize] > f32::NEG_INFINITY;
            match sampler.distribution(&logits) {
                Ok(candidates) => {
                    let total: f64 = candidates.iter().map(|c| f64::from(c.probability)).sum();
                    assert!((total - 1.0).abs() < 1e-5, "{round} {config:?} {logits:?}: {total}");
                    assert!(candidates.iter().all(|c| possible(c.token)));
                    let token = sampler.sample(&logits).unwrap();
                    assert!(possible(token), "{round} {config:?} {logits:?}: {token}");
                    sampler.accept(token);
                }
                Err(error) => {
                    assert_eq!(error.code(), "logits");
                    assert!((0..vocab as u32).all(|token| !possible(token)));
                }
            }
            // Tokens outside the vocabulary do not occur in any model's text, but a host may pass them.
            sampler.accept(rng.next_u32() % 64);
        }
    }
}

fn any_logit(rng: &mut Pcg32) -> f32 {
    match rng.next_u32() % 6 {
        0 => f32::from_bits(rng.next_u32()),
        1 => [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, 0.0, -0.0, 1e-45]
            [rng.next_u32() as usize % 8],
        _ => rng.next_f64() as f32 * 20.0 - 10.0,
    }
}

/// Options within their ranges, often at one of their bounds.
fn any_config(rng: &mut Pcg32) -> SamplerConfig {
    let mut within = |low: f32, high: f32| match rng.next_u32() % 6 {
        0 => low,
        1 => high,
        _ => low + (high - low) * rng.next_f64() as f32,
    };
    let tiny = f32::MIN_POSITIVE;
    let config = SamplerConfig {
        temperature: within(0.0, 2.0) * within(tiny, 50.0),
        top_p: within(tiny, 1.0),
        min_p: within(0.0, 1.0),
        typical_p: within(tiny, 1.0),
        repetition_penalty: within(tiny, 100.0),
        presence_penalty: within(-100.0, 100.0),
        frequency_penalty: within(-100.0, 100.0),
        dry_multiplier: within(0.0, 100.0),
        dry_base: within(1.0, 100.0),
        ..SamplerConfig::greedy()
    };
    let mut count = |n: u32| (rng.next_u32() % n) as usize;
    SamplerConfig {
        top_k: count(50),
        penalty_last_n: count(9),
        dry_last_n: count(30),
        dry_allowed_length: 1 + count(3),
        seed: count(1000) as u64,
        ..config
    }
}
