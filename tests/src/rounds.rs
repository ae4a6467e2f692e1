//! How many random cases a test makes: few, unless the environment asks for more.

use crate::Random;
use std::str::FromStr;
use std::time::Instant;

fn variable<T: FromStr>(name: &str) -> Option<T> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is {value}, expected a number")))
}

/// Whether the sweeps run that repeat what a smaller sample finds (`cargo xtask test --thorough`).
pub fn is_thorough() -> bool {
    std::env::var_os("SHOHIN_THOROUGH").is_some()
}

/// Calls `round` with one random source `quick` times, at least once, and returns how often it did. `SHOHIN_FUZZ_TIMES=20` makes twenty times
/// as many calls, `SHOHIN_FUZZ_SECONDS=60` goes on for a minute, and `SHOHIN_FUZZ_SEED=N` takes another sequence.
pub fn repeat(quick: usize, mut round: impl FnMut(&mut Random)) -> usize {
    let most = (quick as f64 * variable("SHOHIN_FUZZ_TIMES").unwrap_or(1.0)) as usize;
    let time: Option<f64> = variable("SHOHIN_FUZZ_SECONDS");
    let mut random = Random::new(variable("SHOHIN_FUZZ_SEED").unwrap_or(17));
    let (start, mut count) = (Instant::now(), 0);
    while count == 0 || time.map_or(count < most, |time| start.elapsed().as_secs_f64() < time) {
        count += 1;
        round(&mut random);
    }
    count
}
