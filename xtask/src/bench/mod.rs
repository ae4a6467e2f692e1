//! `cargo xtask bench`: the speed of a 1.7B model, and of other engines from package registries. They are measured in turn
//! in the same run, as only ratios are meaningful on a shared machine.

mod browser;
mod native;
mod peers;
mod sample;
mod surgery;
mod table;
mod train;

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::command::Result;
use crate::machine::{Machine, Need};
use crate::package;
use sample::Sample;
pub(crate) use surgery::surgery;
pub(crate) use train::train;

/// The measured formats, each with the formats that other engines are measured with if they cannot read it: their fastest
/// ternary formats.
const FORMATS: &[(&str, &str)] = &[
    ("q1_0", "q1_0"),
    ("pq2_0", "tq2_0"),
    ("tq2_0", "tq2_0"),
    ("ptq1_0", "tq2_0"),
    ("tq1_0", "tq1_0"),
    ("q2_0", "q2_0"),
    (SMOLLM2, SMOLLM2),
];

/// A trained model instead of random weights, measured only on request.
const SMOLLM2: &str = "smollm2";

/// Our formats, each with the formats it is compared with.
type Pairs = Vec<(&'static str, &'static str)>;

pub(crate) struct Options {
    /// Also measure other engines.
    pub(crate) peers: bool,
    /// A few minutes instead of half an hour.
    pub(crate) quick: bool,
    /// Measure native programs, and pages in the browser.
    pub(crate) native: bool,
    pub(crate) browser: bool,
    /// Only these formats; empty for all.
    pub(crate) formats: Vec<String>,
    /// The number of times everything is measured.
    pub(crate) rounds: Option<usize>,
}

impl Default for Options {
    fn default() -> Options {
        Options { peers: false, quick: false, native: true, browser: true, formats: Vec::new(), rounds: None }
    }
}

/// The measurements of a run.
struct Plan {
    formats: Pairs,
    rounds: usize,
    /// Prompt lengths.
    prefill: &'static [usize],
    /// Tokens per reply.
    decode: usize,
    threads: &'static [usize],
    /// Lengths of prompt and reply in the browser, which is slower.
    page: (usize, usize),
}

impl Plan {
    fn new(options: &Options) -> Result<Plan> {
        let quick = options.quick;
        let known = |name: &&String| FORMATS.iter().all(|(format, _)| format != name);
        if let Some(name) = options.formats.iter().find(known) {
            let names: Vec<&str> = FORMATS.iter().map(|(format, _)| *format).collect();
            return Err(format!("unknown format {name}; expected one of {}", names.join(", ")));
        }
        let asked = |format: &str| match options.formats.as_slice() {
            [] if quick => ["q1_0", "pq2_0", "tq2_0"].contains(&format),
            [] => format != SMOLLM2,
            some => some.iter().any(|name| name == format),
        };
        Ok(Plan {
            formats: FORMATS.iter().copied().filter(|(format, _)| asked(format)).collect(),
            rounds: options.rounds.unwrap_or(if quick { 1 } else { 3 }),
            prefill: if quick { &[64] } else { &[64, 128, 512] },
            decode: if quick { 16 } else { 32 },
            threads: &[1, 2],
            page: if quick { (16, 4) } else { (64, 8) },
        })
    }
}

/// The directory of the model files.
struct Models {
    dir: PathBuf,
    smollm2: PathBuf,
}

impl Models {
    fn file(&self, format: &str) -> PathBuf {
        match format {
            SMOLLM2 => self.smollm2.clone(),
            _ => self.dir.join(format!("{format}.gguf")),
        }
    }

    /// The samples of a run that has not ended.
    fn part(&self) -> PathBuf {
        self.dir.join("samples.part.txt")
    }
}

pub(crate) fn bench(machine: &mut Machine, options: &Options) -> Result<()> {
    let plan = Plan::new(options)?;
    let started = Instant::now();
    let mut needs = Vec::new();
    if options.peers && options.native {
        needs.extend_from_slice(peers::LLAMA_NEEDS);
    }
    if options.browser {
        needs.extend_from_slice(browser::NEEDS);
        needs.extend_from_slice(if options.peers { peers::TRANSFORMERS_NEEDS } else { &[] });
    }
    if plan.formats.iter().any(|(format, _)| *format == SMOLLM2) {
        needs.push(Need::SmolLm2);
    }
    prepare(machine, &needs)?;
    machine.cargo().args("build --release --bins").packages(&[package::CLI, package::TESTS]).run()?;
    let models = Models { dir: machine.target.join("bench"), smollm2: machine.smollm2() };
    write_models(machine, &models, &plan)?;

    let mut samples: Vec<Sample> = Vec::new();
    let mut notes: Vec<String> = Vec::new();
    let (mut native, mut pages) = (Pairs::new(), Pairs::new());
    if options.native {
        let llama = options.peers.then(|| peers::llama(machine)).transpose()?;
        native = native::measure(machine, &models, &plan, llama.as_ref(), &mut samples, &mut notes)?;
        // Should the browser fail, half of the measurements are not lost.
        report(&models, &samples, &native, &pages, &notes)?;
    }
    if options.browser {
        pages = browser::measure(machine, &models, &plan, options.peers, &mut samples, &mut notes)?;
        report(&models, &samples, &native, &pages, &notes)?;
    }
    let minutes = started.elapsed().as_secs_f64() / 60.0;
    println!("{minutes:.0} minutes. The report and all samples are in {}", models.dir.display());
    Ok(())
}

/// Prints the tables, and writes them and the samples to files.
fn report(
    models: &Models,
    samples: &[Sample],
    native: &Pairs,
    pages: &Pairs,
    notes: &[String],
) -> Result<()> {
    let report = table::report(samples, native, pages, notes);
    println!("\n{report}");
    write(&models.dir.join("report.md"), &report)?;
    write(&models.dir.join("samples.txt"), &sample::lines(samples))?;
    let _ = std::fs::remove_file(models.part());
    Ok(())
}

fn prepare(machine: &mut Machine, needs: &[Need]) -> Result<()> {
    machine.prepare(needs);
    match needs.iter().find_map(|need| machine.absent(*need)) {
        Some(why) => Err(format!("the benchmark cannot run: {why}")),
        None => Ok(()),
    }
}

/// Writes models with random weights in the published shape; speed does not depend on the values.
fn write_models(machine: &Machine, models: &Models, plan: &Plan) -> Result<()> {
    std::fs::create_dir_all(&models.dir).map_err(|e| format!("{}: {e}", models.dir.display()))?;
    let peers = plan.formats.iter().map(|(_, peer)| *peer);
    for format in plan.formats.iter().map(|(format, _)| *format).chain(peers) {
        let file = models.file(format);
        if !file.is_file() {
            let part = file.with_extension("part");
            let synth = machine.cmd(&machine.target.join("release/synth").to_string_lossy());
            synth.args("--shape 1.7b --format").arg(format).arg(&part).run()?;
            std::fs::rename(&part, &file).map_err(|e| format!("{}: {e}", file.display()))?;
        }
    }
    Ok(())
}

fn write(file: &Path, text: &str) -> Result<()> {
    std::fs::write(file, text).map_err(|e| format!("{}: {e}", file.display()))
}
