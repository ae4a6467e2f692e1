//! Schedules beside those of PyTorch and transformers (`tests/oracle/optimizers.py`, whose comments define the fixture).

use shohin_train::schedule::{Anneal, CyclicMode, Plateau, Schedule};

const FIXTURE: &str = include_str!("fixtures/schedules.txt");

fn numbers(words: &str) -> Vec<f64> {
    words.split(' ').map(|word| word.parse().unwrap()).collect()
}

fn assert_near(found: f64, expected: f64, what: &str, step: usize) {
    let apart = (found - expected).abs();
    assert!(apart <= 1e-12 * expected.abs(), "{what} {step}: {found:e}, expected {expected:e}");
}

#[test]
fn rates_are_those_of_pytorch_and_transformers() {
    let (mut lines, mut schedules, mut plateaus) = (FIXTURE.lines(), 0, 0);
    let mut losses = Vec::new();
    while let Some((key, words)) = lines.next().and_then(|line| line.split_once(' ')) {
        if key == "losses" {
            losses = numbers(words);
            continue;
        }
        let words: Vec<&str> = words.split(' ').collect();
        let (text, base): (_, f64) = (words[0], words[1].parse().unwrap());
        let schedule: Schedule = text.parse().unwrap();
        let rates = numbers(lines.next().unwrap().strip_prefix("rates ").unwrap());
        if key == "schedule" {
            schedules += 1;
            let total = words[2].parse().unwrap();
            for (step, expected) in rates.into_iter().enumerate() {
                assert_near(schedule.rate(step as u64, base, total), expected, text, step);
            }
            continue;
        }
        plateaus += 1;
        assert_eq!(rates.len(), losses.len() + 1);
        assert!(rates[losses.len()] < 0.5 * base, "{text}");
        let mut plateau = Plateau::default();
        for (step, expected) in rates.into_iter().enumerate() {
            if step > 0 {
                plateau.observe(&schedule, losses[step - 1]);
            }
            assert_near(schedule.rate(step as u64, base, 150) * plateau.factor(), expected, text, step);
            // As a training that is interrupted after each step.
            plateau = plateau.to_string().parse().unwrap();
        }
    }
    assert_eq!((schedules, plateaus), (21, 4));
}

#[test]
fn rates_stay_after_the_last_step() {
    for text in
        ["cosine:10:0.1", "linear:10:0.1", "hold:10:0.3:0.1", "polynomial:10:2:0.1", "onecycle:0.3:2:5"]
    {
        let schedule: Schedule = text.parse().unwrap();
        for step in [100, 101, 150, u64::MAX] {
            assert_near(schedule.rate(step, 2.0, 100), 0.2, text, step as usize);
        }
    }
}

#[test]
fn trainings_of_few_steps_have_rates() {
    let texts = "constant:5 cosine:5 linear:5 hold:5:1 onecycle onecycle:0 onecycle:1 onecycle:0.5 plateau \
                 polynomial:5:0.5 cyclic:1 cyclic:1:1:0:triangular2 cyclic:3:1:0:exp_range:0.5";
    for text in texts.split_ascii_whitespace() {
        let schedule: Schedule = text.parse().unwrap();
        for total in 0..8 {
            for step in 0..10 {
                let rate = schedule.rate(step, 1.0, total);
                assert!((0.0..=1.0).contains(&rate), "{text} {total} {step}: {rate}");
            }
        }
    }
}

#[test]
fn losses_that_are_not_numbers_are_no_better() {
    let schedule: Schedule = "plateau:0.5:1".parse().unwrap();
    let mut plateau = Plateau::default();
    for loss in [f64::NAN, f64::NAN, 2.0, f64::NAN, f64::INFINITY] {
        plateau.observe(&schedule, loss);
    }
    assert_eq!(plateau.factor(), 0.25);
    let before = plateau;
    plateau.observe(&Schedule::default(), 1.0);
    assert_eq!(plateau, before);
}

#[test]
fn the_state_of_a_plateau_is_text() {
    assert_eq!(Plateau::default().to_string(), "3ff0000000000000:7ff0000000000000:0:0");
    for text in [
        "",
        "1",
        "3ff0000000000000:7ff0000000000000:0",
        "3ff0000000000000:7ff0000000000000:0:0:0",
        "3ff0000000000000:7ff8000000000000:0:0",
        "4000000000000000:7ff0000000000000:0:0",
        "3ff0000000000000:7ff0000000000000:-1:0",
    ] {
        let error = text.parse::<Plateau>().unwrap_err();
        assert!(error.to_string().contains("expected FACTOR:BEST:BAD:COOLDOWN"), "{error}");
    }
}

#[test]
fn texts_of_schedules_parse_to_the_same() {
    let texts = [
        ("constant", "constant:0"),
        ("constant:100", "constant:100"),
        ("cosine", "cosine:0:0"),
        ("cosine:100:0.1", "cosine:100:0.1"),
        ("linear:100", "linear:100:0"),
        ("hold", "hold:0:0.2:0"),
        ("hold:100:0.4", "hold:100:0.4:0"),
        ("onecycle", "onecycle:0.3:25:10000:cosine"),
        ("onecycle:0.2:10:1e12:linear", "onecycle:0.2:10:1e12:linear"),
        ("plateau", "plateau:0.1:10:0.0001:0:0"),
        ("plateau:0.5:3", "plateau:0.5:3:0.0001:0:0"),
        ("plateau:0.5:3:1e-9:2:0.01", "plateau:0.5:3:1e-9:2:0.01"),
        ("polynomial:100:2", "polynomial:100:2:0"),
        ("cyclic", "cyclic:2000:2000:0.25:triangular"),
        ("cyclic:50", "cyclic:50:50:0.25:triangular"),
        ("cyclic:50:25:0:triangular2", "cyclic:50:25:0:triangular2"),
        ("cyclic:50:25:0.1:exp_range:0.999", "cyclic:50:25:0.1:exp_range:0.999"),
    ];
    for (text, whole) in texts {
        let schedule: Schedule = text.parse().unwrap();
        assert_eq!(schedule.to_string(), whole);
        assert_eq!(whole.parse(), Ok(schedule), "{text}");
    }
    assert_eq!("constant".parse(), Ok(Schedule::default()));
    let exact = 1.0 / 3.0;
    let schedules = [
        Schedule::OneCycle { start: exact, div: 1e300, final_div: 1e-300, anneal: Anneal::Linear },
        Schedule::Cyclic { up: u64::MAX, down: 1, base: exact, mode: CyclicMode::ExpRange { gamma: exact } },
    ];
    for schedule in schedules {
        assert_eq!(schedule.to_string().parse(), Ok(schedule));
    }
}

#[test]
fn other_schedules_are_refused() {
    for (text, expected) in [
        ("", "expected constant, cosine, linear, hold, onecycle, plateau, polynomial or cyclic"),
        ("step", "expected constant, cosine,"),
        ("constant:", "expected constant[:WARMUP]"),
        ("constant:-1", "expected constant[:WARMUP]"),
        ("constant:1:1", "expected constant[:WARMUP]"),
        ("cosine:0.5", "expected cosine[:WARMUP[:MIN]]"),
        ("cosine:0:1.5", "min of the schedule is \"1.5\""),
        ("linear:0:NaN", "min of the schedule is \"NaN\""),
        ("hold:0:2", "decay of the schedule is \"2\""),
        ("onecycle:-0.1", "start of the schedule is \"-0.1\""),
        ("onecycle:0.3:0.5", "div of the schedule is \"0.5\""),
        ("onecycle:0.3:25:0", "final div of the schedule is \"0\""),
        ("onecycle:0.3:25:100:cubic", "expected onecycle["),
        ("plateau:1", "factor of the schedule is \"1\""),
        ("plateau:0.5:1:1", "threshold of the schedule is \"1\""),
        ("plateau:0.5:1:0:0:2", "min of the schedule is \"2\""),
        ("polynomial:0:0", "power of the schedule is \"0\""),
        ("polynomial:0:1:-1", "end of the schedule is \"-1\""),
        ("cyclic:0:1", "up of the schedule is \"0\""),
        ("cyclic:1:0", "down of the schedule is \"0\""),
        ("cyclic:1:1:2", "base of the schedule is \"2\""),
        ("cyclic:1:1:0:exp_range", "expected cyclic["),
        ("cyclic:1:1:0:exp_range:1.1", "gamma of the schedule is \"1.1\""),
    ] {
        let error = text.parse::<Schedule>().unwrap_err();
        assert_eq!(error.code(), "unsupported");
        assert!(error.to_string().contains(expected), "{text}: {error}");
    }
}
