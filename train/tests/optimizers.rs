//! Optimizers and clipping beside PyTorch's (`tests/oracle/optimizers.py`, whose comments define the fixture).

use shohin_core::cpu::Isa;
use shohin_train::optimizer::{Moments, Optimizer, clip_by_norm, clip_by_value};

const FIXTURE: &str = include_str!("fixtures/optimizers.txt");

fn numbers<T: std::str::FromStr>(words: &str) -> Vec<T> {
    words.split(' ').map(|word| word.parse().ok().unwrap()).collect()
}

/// What is the same for all cases.
#[derive(Default)]
struct Problem {
    tensors: Vec<usize>,
    weights: Vec<f32>,
    gradients: Vec<Vec<f32>>,
}

#[derive(Clone, Copy)]
enum Clip {
    None,
    Norm(f64),
    Value(f32),
}

struct Case {
    optimizer: Optimizer,
    rate: f64,
    decay: bool,
    clip: Clip,
    norms: Vec<f64>,
    after: Vec<(usize, Vec<f32>)>,
    moments: Vec<Vec<f32>>,
}

impl Case {
    fn new(words: &str) -> Case {
        let words: Vec<&str> = words.split(' ').collect();
        let clip = match words[3].split_once(':') {
            None => Clip::None,
            Some(("norm", max)) => Clip::Norm(max.parse().unwrap()),
            Some((_, limit)) => Clip::Value(limit.parse().unwrap()),
        };
        Case {
            optimizer: words[0].parse().unwrap(),
            rate: words[1].parse().unwrap(),
            decay: words[2] == "1",
            clip,
            norms: Vec::new(),
            after: Vec::new(),
            moments: Vec::new(),
        }
    }
}

fn read() -> (Problem, Vec<Case>) {
    let (mut problem, mut cases) = (Problem::default(), Vec::<Case>::new());
    for line in FIXTURE.lines() {
        let (key, words) = line.split_once(' ').unwrap();
        match key {
            "tensors" => problem.tensors = numbers(words),
            "weights" => problem.weights = numbers(words),
            "gradients" => problem.gradients.push(numbers(words)),
            "case" => cases.push(Case::new(words)),
            _ => {
                let case = cases.last_mut().unwrap();
                match key {
                    "norm" => case.norms = numbers(words),
                    "after" => {
                        let (step, words) = words.split_once(' ').unwrap();
                        case.after.push((step.parse().unwrap(), numbers(words)));
                    }
                    "m" | "v" => case.moments.push(numbers(words)),
                    other => panic!("{other}"),
                }
            }
        }
    }
    (problem, cases)
}

/// A training: the weights, moments and norm of the gradients after each step.
struct Run {
    weights: Vec<f32>,
    moments: [Vec<f32>; 2],
    norm: f64,
}

fn train(isa: Isa, problem: &Problem, case: &Case, mut each: impl FnMut(usize, &Run)) {
    let n = problem.weights.len();
    let moment = |i: usize| vec![0.0; if i < case.optimizer.moments() { n } else { 0 }];
    let mut run = Run { weights: problem.weights.clone(), moments: [moment(0), moment(1)], norm: 0.0 };
    for (t, gradients) in problem.gradients.iter().enumerate() {
        let mut gradients = gradients.clone();
        match case.clip {
            Clip::None => {}
            Clip::Norm(max) => {
                let (a, b) = gradients.split_at_mut(problem.tensors[0]);
                run.norm = clip_by_norm(&mut [a, b], max);
            }
            Clip::Value(limit) => clip_by_value(&mut gradients, limit),
        }
        let rate = case.rate * (1.0 - t as f64 / 200.0);
        let mut start = 0;
        for len in &problem.tensors {
            let range = start..start + len;
            start = range.end;
            let [m, v] = &mut run.moments;
            let moments = Moments {
                m: m.get_mut(range.clone()).unwrap_or(&mut []),
                v: v.get_mut(range.clone()).unwrap_or(&mut []),
            };
            let (weights, gradients) = (&mut run.weights[range.clone()], &gradients[range]);
            case.optimizer.step(isa, weights, gradients, moments, t as u64 + 1, rate, case.decay);
        }
        each(t + 1, &run);
    }
}

/// The norm of the difference, as a share of that of `expected`.
fn distance(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let norm = |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|x| x * x).sum::<f64>().sqrt();
    let pairs = found.iter().zip(expected);
    norm(&mut pairs.map(|(a, b)| f64::from(*a) - f64::from(*b)))
        / norm(&mut expected.iter().map(|x| f64::from(*x)))
}

#[test]
fn weights_are_pytorchs() {
    let (problem, cases) = read();
    assert_eq!((problem.gradients.len(), cases.len()), (100, 15));
    for case in &cases {
        let (optimizer, mut worst, mut steps) = (case.optimizer, 0.0f64, 0);
        train(Isa::detect(), &problem, case, |step, run| {
            let Some((_, expected)) = case.after.iter().find(|(at, _)| *at == step) else { return };
            steps += 1;
            worst = worst.max(distance(&run.weights, expected));
            for (i, (w, expected)) in run.weights.iter().zip(expected).enumerate() {
                // A weight that has become small was rounded when it was not.
                let largest = expected.abs().max(problem.weights[i].abs()).max(0.1);
                let apart = (w - expected).abs();
                assert!(apart <= 1e-6 * largest, "{optimizer} {step} {i}: {w}, expected {expected}");
            }
            if let Clip::Norm(_) = case.clip {
                let expected = case.norms[steps - 1];
                assert!((run.norm - expected).abs() <= 1e-6 * expected, "{optimizer} {step}: {}", run.norm);
            }
            if step == 100 {
                assert_eq!(case.moments.len(), optimizer.moments());
                for (found, expected) in run.moments.iter().zip(&case.moments) {
                    worst = worst.max(distance(found, expected));
                }
            }
        });
        println!("{optimizer}: {worst:.1e}");
        assert_eq!(steps, 10);
        assert!(worst <= 1e-6, "{optimizer}: {worst:e}");
    }
}

#[test]
fn every_instruction_set_has_the_same_bits() {
    let (problem, cases) = read();
    for case in &cases {
        let mut scalar = Vec::new();
        train(Isa::SCALAR, &problem, case, |_, run| scalar = run.weights.clone());
        for isa in Isa::available() {
            train(isa, &problem, case, |step, run| {
                let same = run.weights.iter().zip(&scalar).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(step < 100 || same, "{} {}", case.optimizer, isa.name());
            });
        }
    }
}

/// Without a gradient, and late enough for the moments to have no bias, `w = -m / sqrt(v)`.
#[test]
fn square_roots_are_rounded_correctly() {
    let around = |bits: u32| bits.saturating_sub(500)..bits + 500;
    let ends = around(0).chain(around(1 << 23)).chain(around(32 << 23)).chain(0x7eff_fe00..0x7f00_0000);
    let squares: Vec<f32> = ends.chain((0..0x7f00_0000).step_by(9973)).map(f32::from_bits).collect();
    let optimizer = Optimizer::Adam { betas: [0.5; 2], eps: 0.0, weight_decay: 0.0 };
    for isa in Isa::available() {
        let (mut w, mut m) = (vec![0.0; squares.len()], vec![2.0; squares.len()]);
        let mut v: Vec<f32> = squares.iter().map(|x| 2.0 * x).collect();
        let moments = Moments { m: &mut m, v: &mut v };
        optimizer.step(isa, &mut w, &vec![0.0; squares.len()], moments, 1000, 1.0, true);
        for (w, x) in w.iter().zip(&squares) {
            assert_eq!(*w, -1.0 / x.sqrt(), "{} {x:e}", isa.name());
        }
    }
}

#[test]
fn clipping_leaves_small_gradients_as_they_are() {
    let gradients: Vec<f32> = (0..53).map(|i| if i % 3 == 0 { -0.0 } else { 1e30 / i as f32 }).collect();
    let bits = |numbers: &[f32]| numbers.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let mut clipped = gradients.clone();
    let norm = clip_by_norm(&mut [&mut clipped], f64::INFINITY);
    assert!(norm > 1e29);
    assert_eq!(bits(&clipped), bits(&gradients));
    clip_by_norm(&mut [&mut clipped], 2.0 * norm);
    assert_eq!(bits(&clipped), bits(&gradients));
    assert_eq!(clip_by_norm(&mut [&mut clipped], 1.0), norm);
    assert!((clip_by_norm(&mut [&mut clipped], f64::INFINITY) - 1.0).abs() < 1e-6);

    let mut infinite = [f32::INFINITY, 1.0];
    assert_eq!(clip_by_norm(&mut [&mut infinite], f64::INFINITY), f64::INFINITY);
    assert_eq!(infinite, [f32::INFINITY, 1.0]);
    assert_eq!(clip_by_norm(&mut [], 1.0), 0.0);

    let mut values = [-3.0, -0.5, 0.0, 2.0];
    clip_by_value(&mut values, 1.0);
    assert_eq!(values, [-1.0, -0.5, 0.0, 1.0]);
}

#[test]
fn texts_of_optimizers_parse_to_the_same() {
    assert_eq!("adamw".parse(), Ok(Optimizer::default()));
    let texts = [
        ("sgd", "sgd:0:0"),
        ("sgd:0.9", "sgd:0.9:0"),
        ("sgd:0.9:nesterov", "sgd:0.9:nesterov:0"),
        ("sgd:0.9:1e-12", "sgd:0.9:1e-12"),
        ("sgd:0.9:nesterov:0.01", "sgd:0.9:nesterov:0.01"),
        ("adam", "adam:0.9:0.999:1e-8:0"),
        ("adam:0.8", "adam:0.8:0.999:1e-8:0"),
        ("adamw", "adamw:0.9:0.95:1e-8:0.1"),
        ("adamw:0.8:0.99:0:0.25", "adamw:0.8:0.99:0:0.25"),
    ];
    for (text, whole) in texts {
        let optimizer: Optimizer = text.parse().unwrap();
        assert_eq!(optimizer.to_string(), whole);
        assert_eq!(whole.parse(), Ok(optimizer), "{text}");
    }
    let share = 1.0 / 3.0;
    let optimizer = Optimizer::Adam { betas: [share, 1e-17], eps: 1e-300, weight_decay: 1e20 * share };
    assert_eq!(optimizer.to_string().parse(), Ok(optimizer));
}

#[test]
fn other_optimizers_are_refused() {
    for (text, expected) in [
        ("", "expected sgd[:MOMENTUM"),
        ("lion", "expected sgd[:MOMENTUM"),
        ("adamw:", "expected sgd[:MOMENTUM"),
        ("adamw:0.9:0.95:1e-8:0.1:1", "expected sgd[:MOMENTUM"),
        ("adam:nesterov", "expected sgd[:MOMENTUM"),
        ("sgd:1", "momentum is \"1\""),
        ("sgd:NaN", "momentum is \"NaN\""),
        ("sgd:0:nesterov", "more than 0 for Nesterov's momentum"),
        ("sgd:0.9:-1", "weight decay is \"-1\""),
        ("adam:1.5", "beta1 is \"1.5\""),
        ("adamw:0.9:1", "beta2 is \"1\""),
        ("adamw:0.9:0.9:inf", "eps is \"inf\""),
        ("adamw:0.9:0.9:1e-8:-0.1", "weight decay is \"-0.1\""),
    ] {
        let error = text.parse::<Optimizer>().unwrap_err();
        assert_eq!(error.code(), "unsupported");
        assert!(error.to_string().contains(expected), "{text}: {error}");
    }
}
