//! What rank 0 tells the other ranks to do, as a line of words: they may run on other machines.

use shohin_core::device::{Readout, Run, SessionOptions, Wants};
use std::fmt::Write;
use std::str::SplitAsciiWhitespace;

/// An order.
#[derive(Debug, PartialEq)]
pub(super) enum Order {
    /// Make a cache.
    Cache { id: u32, options: SessionOptions },
    /// Forget caches.
    Forget(Vec<u32>),
    /// Compute a batch: cache, position, tokens and what is read out of each run.
    Run(Vec<(u32, usize, Wants, Vec<u32>)>),
    /// Move keys.
    Shift { id: u32, len: usize, keep: usize, drop: usize },
    /// Send keys and values.
    Export { id: u32, len: usize },
    /// Receive keys and values.
    Import { id: u32, len: usize },
}

fn readout(readout: Readout) -> &'static str {
    match readout {
        // The CPU has all logits.
        Readout::Logits | Readout::Top(_) => "logits",
        Readout::Best => "best",
        Readout::Hidden => "hidden",
    }
}

/// The line of [`Order::Run`].
pub(super) fn run<'r>(runs: impl Iterator<Item = (u32, &'r Run<'r>)>) -> String {
    let mut line = String::from("run");
    for (id, Run { tokens, position, wants }) in runs {
        let (which, what) = match *wants {
            Wants::Nothing => ("nothing", "logits"),
            Wants::Last(what) => ("last", readout(what)),
            Wants::Each(what) => ("each", readout(what)),
        };
        // Writing to a string does not fail.
        let _ = write!(line, " {id} {position} {which} {what} {}", tokens.len());
        for token in *tokens {
            let _ = write!(line, " {token}");
        }
    }
    line
}

/// The line of [`Order::Cache`].
pub(super) fn cache(id: u32, options: &SessionOptions) -> String {
    format!("cache {id} {} {} {}", options.context, options.kv.name(), options.attention)
}

fn number<T: std::str::FromStr>(words: &mut SplitAsciiWhitespace<'_>) -> Option<T> {
    words.next()?.parse().ok()
}

impl Order {
    /// Reads a line; `None` if it is not an order.
    pub(super) fn parse(line: &str) -> Option<Order> {
        let mut words = line.split_ascii_whitespace();
        let name = words.next()?;
        let w = &mut words;
        Some(match name {
            "cache" => {
                let (id, context) = (number(w)?, number(w)?);
                let kv = shohin_core::KvFormat::named(w.next()?)?;
                Order::Cache {
                    id,
                    options: SessionOptions { context, kv, attention: w.next()?.parse().ok()? },
                }
            }
            "forget" => Order::Forget(w.map(|id| id.parse().ok()).collect::<Option<_>>()?),
            "run" => {
                let mut runs = Vec::new();
                while let Some(id) = w.next() {
                    let (id, position, which, what) = (id.parse().ok()?, number(w)?, w.next()?, w.next()?);
                    let what = match what {
                        "logits" => Readout::Logits,
                        "best" => Readout::Best,
                        "hidden" => Readout::Hidden,
                        _ => return None,
                    };
                    let wants = match which {
                        "nothing" => Wants::Nothing,
                        "last" => Wants::Last(what),
                        "each" => Wants::Each(what),
                        _ => return None,
                    };
                    let count: usize = number(w)?;
                    runs.push((id, position, wants, (0..count).map(|_| number(w)).collect::<Option<_>>()?));
                }
                Order::Run(runs)
            }
            "shift" => Order::Shift { id: number(w)?, len: number(w)?, keep: number(w)?, drop: number(w)? },
            "export" => Order::Export { id: number(w)?, len: number(w)? },
            "import" => Order::Import { id: number(w)?, len: number(w)? },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shohin_core::KvFormat;

    #[test]
    fn orders_are_read_as_they_are_written() {
        let wants = [Wants::Nothing, Wants::Last(Readout::Best), Wants::Each(Readout::Hidden)];
        let runs = wants.map(|wants| Run { tokens: &[5, 70_000], position: 9, wants });
        let line = run((3..).zip(&runs));
        let want = (3..).zip(&runs).map(|(id, run)| (id, run.position, run.wants, run.tokens.to_vec()));
        let want = want.collect();
        assert_eq!(Order::parse(&line), Some(Order::Run(want)));
        let options =
            SessionOptions { context: 77, kv: KvFormat::Q8, attention: "window:40:2".parse().unwrap() };
        assert_eq!(Order::parse(&cache(8, &options)), Some(Order::Cache { id: 8, options }));
        for wrong in ["", "run 1", "run 1 2 last logits 3 1 2", "cache 1 2 q9 full", "stop"] {
            assert_eq!(Order::parse(wrong), None, "{wrong}");
        }
    }
}
