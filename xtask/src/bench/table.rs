//! Tables of samples. A speed is the median of all samples; a ratio is the median of the ratios of each round.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::Pairs;
use super::sample::{Engine, Sample, Test};

/// The report, in Markdown. The pairs are the compared formats, natively and in the browser.
pub(super) fn report(
    samples: &[Sample],
    native_pairs: &Pairs,
    page_pairs: &Pairs,
    notes: &[String],
) -> String {
    let all = Samples { samples, formats: native_pairs };
    let mut text = String::new();
    let native = [Engine::Shohin, Engine::ShohinAvx2, Engine::Llama, Engine::LlamaAvx2];
    let pages = [Engine::Page, Engine::Wllama, Engine::Transformers];
    if samples.iter().any(|s| native.contains(&s.engine)) {
        text += "Native, tokens/s; ms: CPU time per token. Percentages are of memory bandwidth for decode, of peak int8\n\
            throughput for prefill, with the same number of threads: by wall time, and for one thread (by CPU time).\n\n";
        all.speeds(&mut text, &native);
        all.bounds(&mut text);
    }
    if samples.iter().any(|s| s.engine == Engine::Llama) {
        text += "\nTimes as fast as llama.cpp, by wall time (by CPU time)\n\n";
        let own = |engine| samples.iter().any(|s| s.engine == engine);
        let avx2 = if own(Engine::LlamaAvx2) { Engine::LlamaAvx2 } else { Engine::Llama };
        all.ratios(&mut text, &[(Engine::Shohin, Engine::Llama), (Engine::ShohinAvx2, avx2)]);
    }
    let all = Samples { samples, formats: page_pairs };
    if samples.iter().any(|s| pages.contains(&s.engine)) {
        text += "\nIn Chromium, tokens/s; ms: CPU time of the page's process per token\n\n";
        all.speeds(&mut text, &pages);
        all.firsts(&mut text, &pages);
    }
    for (peer, name) in [(Engine::Wllama, "wllama"), (Engine::Transformers, "transformers.js")] {
        if samples.iter().any(|s| s.engine == peer) {
            let _ = write!(text, "\nTimes as fast as {name}, by wall time (by CPU time)\n\n");
            all.ratios(&mut text, &[(Engine::Page, peer)]);
        }
    }
    all.scaling(&mut text, Engine::Page);
    if !notes.is_empty() {
        text += "\n";
        notes.iter().for_each(|note| {
            let _ = writeln!(text, "- {note}");
        });
    }
    text
}

struct Samples<'s> {
    samples: &'s [Sample],
    formats: &'s Pairs,
}

impl Samples<'_> {
    /// The median of a number in each round.
    fn rounds(
        &self,
        (engine, format, threads, test): (Engine, &str, usize, Test),
        number: impl Fn(&Sample) -> Option<f64>,
    ) -> BTreeMap<usize, f64> {
        let mut rounds: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
        for s in self.samples {
            if (s.engine, s.format, s.threads, s.test) == (engine, format, threads, test)
                && let Some(number) = number(s)
            {
                rounds.entry(s.round).or_default().push(number);
            }
        }
        rounds.into_iter().filter_map(|(round, numbers)| Some((round, median(numbers)?))).collect()
    }

    fn typical(
        &self,
        what: (Engine, &str, usize, Test),
        number: impl Fn(&Sample) -> Option<f64>,
    ) -> Option<f64> {
        median(self.rounds(what, number).into_values().collect())
    }

    /// How many times longer `theirs` takes than `ours`.
    fn ratio(
        &self,
        ours: (Engine, &str, usize, Test),
        theirs: (Engine, &str, usize, Test),
        number: fn(&Sample) -> f64,
    ) -> Option<f64> {
        let theirs = self.rounds(theirs, |s| Some(number(s)));
        let ours = self.rounds(ours, |s| Some(number(s)));
        median(ours.iter().filter_map(|(round, own)| Some(theirs.get(round)? / own)).collect())
    }

    fn tests(&self, engines: &[Engine]) -> BTreeSet<Test> {
        self.samples.iter().filter(|s| engines.contains(&s.engine)).map(|s| s.test).collect()
    }

    fn threads(&self, engines: &[Engine]) -> BTreeSet<usize> {
        self.samples.iter().filter(|s| engines.contains(&s.engine)).map(|s| s.threads).collect()
    }

    /// The peak rates of the machine.
    fn bounds(&self, text: &mut String) {
        for (what, unit, prefill) in
            [("Memory bandwidth", "GB/s", false), ("Peak int8 throughput", "G/s", true)]
        {
            let mut words = Vec::new();
            for (engine, rest) in [(Engine::Shohin, ""), (Engine::ShohinAvx2, ", AVX2 only")] {
                for threads in self.threads(&[engine]) {
                    let of = |s: &&Sample| {
                        s.engine == engine
                            && s.threads == threads
                            && matches!(s.test, Test::Prefill(_)) == prefill
                    };
                    if let Some(most) =
                        median(self.samples.iter().filter(of).filter_map(|s| Some(s.bound?.0)).collect())
                    {
                        words.push(format!("{:.1} {unit}, threads: {threads}{rest}", most / 1e9));
                    }
                }
            }
            if !words.is_empty() {
                let _ = writeln!(text, "\n{what}: {}.", words.join("; "));
            }
        }
    }

    /// The time to the first token with the model on disk.
    fn firsts(&self, text: &mut String, engines: &[Engine]) {
        if !self.tests(engines).contains(&Test::First) {
            return;
        }
        text.push_str("\nTime to first token in a new page, with the model in the browser's cache and a prompt of eight tokens\n\n");
        row(text, &["format", "engine", "threads", "wall s", "CPU s"].map(String::from));
        row(text, &rule(5, 2));
        for format in self.formats_of_both() {
            for threads in self.threads(engines) {
                for &engine in engines {
                    let at = (engine, format, threads, Test::First);
                    if let (Some(wall), Some(cpu)) =
                        (self.typical(at, |s| Some(s.wall)), self.typical(at, |s| Some(s.cpu)))
                    {
                        let words = [format.to_uppercase(), name(engine).into(), threads.to_string()];
                        row(text, &[&words[..], &[number(wall), number(cpu)]].concat());
                    }
                }
            }
        }
    }

    /// The formats of all pairs, without duplicates.
    fn formats_of_both(&self) -> Vec<&str> {
        let mut formats: Vec<&str> = Vec::new();
        for name in self.formats.iter().flat_map(|(format, peer)| [*format, *peer]) {
            if !formats.contains(&name) {
                formats.push(name);
            }
        }
        formats
    }

    fn speeds(&self, text: &mut String, engines: &[Engine]) {
        let mut tests = self.tests(engines);
        tests.remove(&Test::First);
        let bounded = |test: &Test| {
            let of = |s: &Sample| engines.contains(&s.engine) && s.test == *test && s.bound.is_some();
            self.samples.iter().any(of)
        };
        let mut head: Vec<String> = ["format", "engine", "threads"].map(String::from).into();
        for test in &tests {
            head.push(test.to_string());
            head.push("ms".into());
            if bounded(test) {
                head.push("of the bound".into());
            }
        }
        row(text, &head);
        row(text, &rule(head.len(), 2));
        for format in self.formats_of_both() {
            for threads in self.threads(engines) {
                for &engine in engines {
                    let at = |test| (engine, format, threads, test);
                    let speed = |test| self.typical(at(test), |s| Some(1.0 / s.wall));
                    if tests.iter().all(|&test| speed(test).is_none()) {
                        continue;
                    }
                    let mut cells = vec![format.to_uppercase(), name(engine).into(), threads.to_string()];
                    for &test in &tests {
                        cells.push(speed(test).map_or("-".into(), number));
                        let cpu = self.typical(at(test), |s| Some(1e3 * s.cpu));
                        cells.push(cpu.map_or("-".into(), number));
                        if bounded(&test) {
                            cells.push(self.share(at(test)));
                        }
                    }
                    row(text, &cells);
                }
            }
        }
    }

    /// A speed as a percentage of its bound.
    fn share(&self, at: (Engine, &str, usize, Test)) -> String {
        let share = |s: &Sample, seconds: f64| s.bound.map(|(most, each)| each / most / seconds);
        let wall = self.typical(at, |s| share(s, s.wall));
        // Threads that wait for each other do not use all of their CPU time.
        let cpu = self.typical(at, |s| share(s, s.cpu)).filter(|_| at.2 == 1);
        match (wall, cpu) {
            (Some(wall), Some(cpu)) => format!("{:.0} ({:.0}) %", 100.0 * wall, 100.0 * cpu),
            (Some(wall), None) => format!("{:.0} %", 100.0 * wall),
            _ => "-".into(),
        }
    }

    /// The speedup of several threads over one.
    fn scaling(&self, text: &mut String, engine: Engine) {
        let more: Vec<usize> = self.threads(&[engine]).into_iter().filter(|n| *n > 1).collect();
        if more.is_empty() {
            return;
        }
        let tests = self.tests(&[engine]);
        text.push_str("\nTimes as fast as one thread, by wall time\n\n");
        let mut head: Vec<String> = ["format", "threads"].map(String::from).into();
        head.extend(tests.iter().map(Test::to_string));
        row(text, &head);
        row(text, &rule(head.len(), 1));
        for (format, _) in self.formats {
            for &threads in &more {
                let ratio = |&test: &Test| {
                    self.ratio((engine, *format, threads, test), (engine, *format, 1, test), |s| s.wall)
                };
                let cells: Vec<Option<f64>> = tests.iter().map(ratio).collect();
                if cells.iter().any(Option::is_some) {
                    let mut line = vec![format.to_uppercase(), threads.to_string()];
                    line.extend(cells.into_iter().map(|cell| cell.map_or("-".into(), |x| format!("{x:.2}"))));
                    row(text, &line);
                }
            }
        }
    }

    /// A row per engine and peer.
    fn ratios(&self, text: &mut String, pairs: &[(Engine, Engine)]) {
        let peers: Vec<Engine> = pairs.iter().map(|(_, peer)| *peer).collect();
        let tests = self.tests(&peers);
        let mut head: Vec<String> = ["format", "compared with", "engine", "threads"].map(String::from).into();
        head.extend(tests.iter().map(Test::to_string));
        row(text, &head);
        row(text, &rule(head.len(), 3));
        for (format, peer_format) in self.formats {
            for threads in self.threads(&peers) {
                for &(engine, peer) in pairs {
                    let ratio = |test, number| {
                        let theirs = (peer, *peer_format, threads, test);
                        self.ratio((engine, *format, threads, test), theirs, number)
                    };
                    let cells: Vec<Option<(f64, f64)>> = tests
                        .iter()
                        .map(|&test| Some((ratio(test, |s| s.wall)?, ratio(test, |s| s.cpu)?)))
                        .collect();
                    if cells.iter().all(Option::is_none) {
                        continue;
                    }
                    let only = if peer == Engine::LlamaAvx2 { ", AVX2 only" } else { "" };
                    let compared = peer_format.to_uppercase() + only;
                    let names = [format.to_uppercase(), compared, name(engine).into()];
                    let mut line = Vec::from(names);
                    line.push(threads.to_string());
                    line.extend(cells.into_iter().map(|cell| match cell {
                        Some((wall, cpu)) => format!("{} ({})", number(wall), number(cpu)),
                        None => "-".into(),
                    }));
                    row(text, &line);
                }
            }
        }
    }
}

fn name(engine: Engine) -> &'static str {
    match engine {
        Engine::Shohin | Engine::Page => "Shohin",
        Engine::ShohinAvx2 => "Shohin, AVX2 only",
        Engine::Llama => "llama.cpp",
        Engine::LlamaAvx2 => "llama.cpp, AVX2 only",
        Engine::Wllama => "wllama",
        Engine::Transformers => "transformers.js",
    }
}

fn row(text: &mut String, cells: &[String]) {
    let _ = writeln!(text, "| {} |", cells.join(" | "));
}

/// The line below the header: the first `words` columns are text, the others numbers.
fn rule(columns: usize, words: usize) -> Vec<String> {
    (0..columns).map(|i| if i < words { "---".into() } else { "---:".into() }).collect()
}

/// A number with at most three digits.
fn number(x: f64) -> String {
    match x {
        x if x < 10.0 => format!("{x:.1}"),
        x => format!("{x:.0}"),
    }
}

fn median(mut numbers: Vec<f64>) -> Option<f64> {
    numbers.sort_by(f64::total_cmp);
    let n = numbers.len();
    Some((numbers.get(n.checked_sub(1)? / 2)? + numbers[n / 2]) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(engine: Engine, format: &'static str, round: usize, test: Test, wall: f64) -> Sample {
        let bound = (engine == Engine::Shohin && test == Test::Decode).then_some((1e9, 1e6));
        Sample { engine, format, threads: 1, round, test, wall, cpu: 2.0 * wall, bound }
    }

    #[test]
    fn ratios_are_formed_within_rounds() {
        let decode = Test::Decode;
        // The machine slows down from round to round; the last round of theirs is missing.
        let samples = [
            sample(Engine::Shohin, "pq2_0", 0, decode, 0.002),
            sample(Engine::Llama, "tq2_0", 0, decode, 0.010),
            sample(Engine::Shohin, "pq2_0", 1, decode, 0.020),
            sample(Engine::Llama, "tq2_0", 1, decode, 0.100),
            sample(Engine::Shohin, "pq2_0", 2, decode, 0.900),
            sample(Engine::Llama, "tq2_0", 0, Test::Prefill(64), 0.010),
        ];
        let pairs = vec![("pq2_0", "tq2_0")];
        let text = report(&samples, &pairs, &Pairs::new(), &["A note.".into()]);
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).collect();
        assert_eq!(
            lines,
            [
                "| format | engine | threads | prefill 64 | ms | decode | ms | of the bound |",
                "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
                "| PQ2_0 | Shohin | 1 | - | - | 50 | 40 | 5 (2) % |",
                "| TQ2_0 | llama.cpp | 1 | 100 | 20 | 55 | 110 | - |",
                "| format | compared with | engine | threads | prefill 64 | decode |",
                "| --- | --- | --- | ---: | ---: | ---: |",
                "| PQ2_0 | TQ2_0 | Shohin | 1 | - | 5.0 (5.0) |",
            ]
        );
        assert!(text.contains("\nMemory bandwidth: 1.0 GB/s, threads: 1.\n"), "{text}");
        assert!(text.ends_with("\n- A note.\n"), "{text}");
    }

    #[test]
    fn pages_are_compared_with_each_peer_and_with_themselves() {
        let (decode, format) = (Test::Decode, "q1_0");
        let samples = [
            sample(Engine::Page, format, 0, decode, 0.1),
            Sample { threads: 2, ..sample(Engine::Page, format, 0, decode, 0.0625) },
            sample(Engine::Wllama, format, 0, decode, 1.0),
            sample(Engine::Wllama, format, 0, Test::First, 9.0),
            sample(Engine::Page, format, 0, Test::First, 2.0),
            sample(Engine::Transformers, format, 0, decode, 0.5),
        ];
        let text = report(&samples, &Pairs::new(), &vec![(format, format)], &[]);
        let after =
            |title: &str| text.split(title).nth(1).and_then(|rest| rest.lines().nth(4)).map(String::from);
        let row = |cells: &str| Some(format!("| Q1_0 | Q1_0 | Shohin | 1 | {cells} |"));
        assert_eq!(after("as fast as wllama"), row("10 (10) | 4.5 (4.5)"), "{text}");
        assert_eq!(after("as fast as transformers.js"), row("5.0 (5.0)"), "{text}");
        assert_eq!(after("as fast as one thread"), Some("| Q1_0 | 2 | 1.60 | - |".into()), "{text}");
    }

    #[test]
    fn medians() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }
}
