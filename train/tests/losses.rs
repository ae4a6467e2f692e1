//! Losses of rows and their gradients, beside those of PyTorch in float64 (`tests/oracle/losses.py`, whose comments define the
//! fixture).

use shohin_core::Error;
use shohin_core::cpu::Isa;
use shohin_train::loss::{Loss, Target, contrastive};

const FIXTURE: &str = include_str!("fixtures/losses.txt");

fn numbers<T: std::str::FromStr>(words: &str) -> Vec<T> {
    words.split(' ').map(|word| word.parse().ok().unwrap()).collect()
}

/// The numbers after `key`.
fn line<T: std::str::FromStr>(lines: &mut impl Iterator<Item = &'static str>, key: &str) -> Vec<T> {
    let (found, words) = lines.next().unwrap().split_once(' ').unwrap();
    assert_eq!(found, key);
    numbers(words)
}

#[track_caller]
fn check_value(name: &str, found: f64, expected: f64) {
    // PyTorch's own rounding, where a loss is 0.
    let limit = 1e-6 * expected.abs() + 1e-14;
    assert!((found - expected).abs() <= limit, "{name}: {found} instead of {expected}");
}

#[track_caller]
fn check_gradient(name: &str, found: &[f32], expected: &[f64], scale: f64) {
    assert_eq!(found.len(), expected.len(), "{name}");
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    let off =
        norm(&mut found.iter().zip(expected).map(|(found, expected)| f64::from(*found) - expected * scale));
    let size = norm(&mut expected.iter().map(|x| x * scale));
    assert!(off <= 2e-5 * size + 1e-14, "{name}: the gradient is off by {off} of {size}");
}

/// A row of the fixture, and the losses and gradients that are expected of it.
struct Row {
    name: &'static str,
    token: u32,
    logits: Vec<f32>,
    teacher: Vec<f32>,
    losses: Vec<(&'static str, f64, Vec<f64>)>,
}

impl Row {
    fn target(&self) -> Target<'_> {
        Target { token: self.token, teacher: &self.teacher }
    }
}

fn rows() -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    let mut lines = FIXTURE.lines().take_while(|line| !line.starts_with("contrastive "));
    while let Some(line) = lines.next() {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words[..] {
            ["row", name, token] => {
                let logits = self::line(&mut lines, "logits");
                let teacher = self::line(&mut lines, "teacher");
                rows.push(Row { name, token: token.parse().unwrap(), logits, teacher, losses: Vec::new() });
            }
            ["loss", loss, value, gradient] => {
                let expected = (loss, value.parse().unwrap(), numbers(gradient));
                rows.last_mut().unwrap().losses.push(expected);
            }
            _ => panic!("{line}"),
        }
    }
    rows
}

#[test]
fn losses_are_those_of_pytorch() {
    let rows = rows();
    assert!(rows.len() > 10);
    for row in &rows {
        for (text, value, gradient) in &row.losses {
            let name = format!("{text} of {}", row.name);
            let loss: Loss = text.parse().unwrap();
            for scale in [1.0, -0.25] {
                let mut found = row.logits.clone();
                check_value(&name, loss.row(Isa::detect(), &mut found, &row.target(), scale), *value);
                check_gradient(&name, &found, gradient, f64::from(scale));
            }
        }
    }
}

#[test]
fn instruction_sets_agree() {
    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    for row in rows() {
        for (text, ..) in &row.losses {
            let loss: Loss = text.parse().unwrap();
            let mut expected = row.logits.clone();
            let value = loss.row(Isa::SCALAR, &mut expected, &row.target(), 0.3);
            for isa in Isa::available() {
                let mut found = row.logits.clone();
                let of_isa = loss.row(isa, &mut found, &row.target(), 0.3);
                assert_eq!(of_isa.to_bits(), value.to_bits(), "{text} of {} with {isa:?}", row.name);
                assert_eq!(bits(&found), bits(&expected), "{text} of {} with {isa:?}", row.name);
            }
        }
    }
}

#[test]
fn nan_stays_nan() {
    for row in &rows() {
        for (text, ..) in &row.losses {
            let loss: Loss = text.parse().unwrap();
            for at in 0..row.logits.len() {
                let mut logits = row.logits.clone();
                logits[at] = f32::NAN;
                assert!(
                    loss.row(Isa::detect(), &mut logits, &row.target(), 1.0).is_nan(),
                    "{text} of {}",
                    row.name
                );
                assert!(logits[at].is_nan(), "{text} of {}", row.name);
                if loss.needs_teacher() && *text != "distillation:1:1" {
                    let mut teacher = row.teacher.clone();
                    teacher[at] = f32::NAN;
                    let target = Target { token: row.token, teacher: &teacher };
                    let value = loss.row(Isa::detect(), &mut row.logits.clone(), &target, 1.0);
                    assert!(value.is_nan(), "{text} of {}, teacher", row.name);
                }
            }
        }
    }
}

/// Tokens that a grammar excludes have logits of negative infinity.
#[test]
fn excluded_tokens_have_no_gradient() {
    const NONE: f32 = f32::NEG_INFINITY;
    for loss in ["cross-entropy", "focal:2", "kl", "distillation:2:0.5"] {
        let loss: Loss = loss.parse().unwrap();
        let run = |logits: &[f32], teacher: &[f32]| {
            let mut gradient = logits.to_vec();
            let value = loss.row(Isa::detect(), &mut gradient, &Target { token: 0, teacher }, 1.0);
            (value, gradient)
        };
        let (value, gradient) = run(&[0.5, NONE, -1.0, NONE], &[1.0, NONE, 0.25, NONE]);
        let (expected, mut of_two) = run(&[0.5, -1.0], &[1.0, 0.25]);
        assert_eq!(value, expected, "{loss}");
        of_two.insert(1, 0.0);
        of_two.push(0.0);
        assert_eq!(gradient, of_two, "{loss}");
    }
}

#[test]
fn contrastive_losses_are_those_of_pytorch() {
    let mut lines = FIXTURE.lines().skip_while(|line| !line.starts_with("contrastive "));
    let mut count = 0;
    while let Some(line) = lines.next() {
        let words: Vec<&str> = line.split(' ').collect();
        let ["contrastive", name, rows, cols, temperature, value] = words[..] else { panic!("{line}") };
        let (rows, cols): (usize, usize) = (rows.parse().unwrap(), cols.parse().unwrap());
        let mut matrix = |key| self::line::<f64>(&mut lines, key);
        let [a, b, da, db] = ["anchors", "positives", "d_anchors", "d_positives"].map(&mut matrix);
        assert_eq!(a.len(), rows * cols);
        let [a, b] = [a, b].map(|x| x.into_iter().map(|x| x as f32).collect::<Vec<_>>());
        let mut found = [vec![f32::NAN; a.len()], vec![f32::NAN; a.len()]];
        let [to_a, to_b] = &mut found;
        let loss = contrastive(&a, &b, cols, temperature.parse().unwrap(), to_a, to_b);
        check_value(name, loss, value.parse().unwrap());
        check_gradient(name, to_a, &da, 1.0);
        check_gradient(name, to_b, &db, 1.0);
        count += 1;
    }
    assert!(count > 3);
}

#[test]
fn contrastive_of_zeros_and_nan() {
    let [mut da, mut db] = [[1.0; 4]; 2];
    let loss = contrastive(&[0.0, 0.0, 1.0, 2.0], &[3.0, 4.0, 0.0, 0.0], 2, 0.5, &mut da, &mut db);
    assert!(loss.is_finite() && da.iter().chain(&db).all(|x| x.is_finite()));
    assert_eq!((&da[..2], &db[2..]), (&[0.0; 2][..], &[0.0; 2][..]));
    let loss = contrastive(&[f32::NAN, 0.0, 1.0, 2.0], &[3.0, 4.0, 1.0, 0.0], 2, 0.5, &mut da, &mut db);
    assert!(loss.is_nan() && da[0].is_nan());
    assert_eq!(contrastive(&[], &[], 2, 0.5, &mut [], &mut []), 0.0);
}

#[test]
fn losses_are_parsed_and_printed() {
    let losses = [
        ("cross-entropy", Loss::CrossEntropy { smoothing: 0.0 }, false),
        ("cross-entropy:0.1", Loss::CrossEntropy { smoothing: 0.1 }, false),
        ("focal:2", Loss::Focal { gamma: 2.0 }, false),
        ("focal:0", Loss::Focal { gamma: 0.0 }, false),
        ("kl", Loss::Kl, true),
        ("distillation:2:0.5", Loss::Distillation { temperature: 2.0, hard: 0.5 }, true),
        ("distillation:0.3:1", Loss::Distillation { temperature: 0.3, hard: 1.0 }, true),
        ("mse", Loss::Mse, true),
        ("huber:1", Loss::Huber { delta: 1.0 }, true),
    ];
    for (text, loss, needs_teacher) in losses {
        assert_eq!(text.parse(), Ok(loss));
        assert_eq!(loss.to_string(), text);
        assert_eq!(loss.needs_teacher(), needs_teacher, "{text}");
    }
    assert_eq!("cross-entropy:0".parse(), Ok(Loss::default()));
}

#[test]
fn wrong_losses_are_refused() {
    let wrong = "|ce|Kl|kl:1|mse:|huber|huber:0|huber:-1|huber:inf|huber:1:1|focal|focal:-1|focal:NaN|focal:2:1|\
        cross-entropy:|cross-entropy:1|cross-entropy:-0.1|cross-entropy:0.1:0|cross-entropy:NaN|distillation|\
        distillation:2|distillation:0:0.5|distillation:2:1.5|distillation:2:-0.5|distillation:2:0.5:1|distillation:x:0";
    for text in wrong.split('|') {
        let error = text.parse::<Loss>().unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{text}");
        assert!(error.to_string().contains("distillation:T:H with T > 0"), "{error}");
    }
}

#[test]
#[should_panic(expected = "as many logits of a teacher")]
fn a_teacher_is_needed() {
    Loss::Kl.row(Isa::detect(), &mut [0.0; 4], &Target { token: 0, teacher: &[] }, 1.0);
}
