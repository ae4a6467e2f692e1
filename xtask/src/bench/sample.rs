//! Samples, and the lines in which programs report them.

use std::fmt::{self, Write};

/// The measured operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Test {
    /// Processing a prompt of this many tokens.
    Prefill(usize),
    /// Generating a reply.
    Decode,
    /// Everything up to the first token, with the model on disk.
    First,
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Test::Prefill(n) => write!(f, "prefill {n}"),
            Test::Decode => f.write_str("decode"),
            Test::First => f.write_str("first token"),
        }
    }
}

/// The engine, and where it ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Engine {
    Shohin,
    ShohinAvx2,
    Llama,
    LlamaAvx2,
    Page,
    Wllama,
    Transformers,
}

/// One measurement, in seconds per token.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sample {
    pub(super) engine: Engine,
    pub(super) format: &'static str,
    pub(super) threads: usize,
    pub(super) round: usize,
    pub(super) test: Test,
    /// Wall time.
    pub(super) wall: f64,
    /// CPU time of all cores.
    pub(super) cpu: f64,
    /// Natively, the peak rate per second of as many threads, and the amount per token: bytes read when decoding, int8
    /// multiply-adds when processing a prompt.
    pub(super) bound: Option<(f64, f64)>,
}

/// Parses `prefill 64 1.5 2.9`: operation, tokens, wall time and CPU time of all tokens together in seconds.
pub(super) fn read(line: &str) -> Option<(Test, f64, f64)> {
    let mut words = line.split_whitespace();
    let what = words.next()?;
    let tokens: usize = words.next()?.parse().ok().filter(|n| *n > 0)?;
    let test = match what {
        "prefill" => Test::Prefill(tokens),
        "decode" => Test::Decode,
        "first" => Test::First,
        _ => return None,
    };
    let mut seconds = || words.next()?.parse::<f64>().ok().filter(|s| *s > 0.0);
    let (wall, cpu) = (seconds()?, seconds()?);
    Some((test, wall / tokens as f64, cpu / tokens as f64))
}

/// All samples, one per line.
pub(super) fn lines(samples: &[Sample]) -> String {
    let mut text = String::from(
        "# engine format threads round test, ms per token: wall, CPU; peak G/s of bytes read or int8 multiply-adds\n",
    );
    for s in samples {
        let (wall, cpu) = (1e3 * s.wall, 1e3 * s.cpu);
        let _ = write!(
            text,
            "{:?} {} {} {} {}: {wall:.3} {cpu:.3}",
            s.engine, s.format, s.threads, s.round, s.test
        );
        if let Some((most, _)) = s.bound {
            let _ = write!(text, " {:.1}", most / 1e9);
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_drivers_are_read_and_others_are_not() {
        assert_eq!(read("prefill 64 1.6 3.2"), Some((Test::Prefill(64), 0.025, 0.05)));
        assert_eq!(read("decode 16 0.8 1.6"), Some((Test::Decode, 0.05, 0.1)));
        assert_eq!(read("first 1 0.5 0.25"), Some((Test::First, 0.5, 0.25)));
        for line in [
            "",
            "version 0.3",
            "payload 5 3",
            "decode",
            "decode 0 1 1",
            "decode 4 1",
            "decode 4 1 x",
            "cannot 1 2 3",
        ] {
            assert_eq!(read(line), None, "{line}");
        }
    }
}
