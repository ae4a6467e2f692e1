//! `cargo xtask bench`: how fast a 1.7B model runs here, and beside it other engines from their registries, in turn and in
//! the same run, as only ratios of such numbers mean anything on a machine that others use too.

mod browser;
mod native;
mod peers;
mod sample;
mod table;

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::command::Result;
use crate::machine::{Machine, Need};
use sample::Sample;

/// The formats measured, and those of other engines they are compared with where these cannot read the format itself:
/// the fastest ternary.
const FORMATS: &[(&str, &str)] = &[
    ("q1_0", "q1_0"),
    ("pq2_0", "tq2_0"),
    ("tq2_0", "tq2_0"),
    ("ptq1_0", "tq2_0"),
    ("tq1_0", "tq1_0"),
    ("q2_0", "q2_0"),
];

/// Formats of ours, and what each is compared with.
type Pairs = Vec<(&'static str, &'static str)>;

pub(crate) struct Options {
    /// Measure other engines too.
    pub(crate) peers: bool,
    /// A few minutes instead of half an hour.
    pub(crate) quick: bool,
    /// Measure native programs, and pages in the browser.
    pub(crate) native: bool,
    pub(crate) browser: bool,
    /// Only these formats; empty for all.
    pub(crate) formats: Vec<String>,
    /// How often everything is measured.
    pub(crate) rounds: Option<usize>,
}

impl Default for Options {
    fn default() -> Options {
        Options { peers: false, quick: false, native: true, browser: true, formats: Vec::new(), rounds: None }
    }
}

/// What is measured how often.
struct Plan {
    formats: Pairs,
    rounds: usize,
    /// Prompt lengths.
    prefill: &'static [usize],
    /// Tokens of a reply.
    decode: usize,
    threads: &'static [usize],
    /// Prompt and reply in the browser, where a token takes long.
    page: (usize, usize),
}

impl Plan {
    fn new(options: &Options) -> Result<Plan> {
        let quick = options.quick;
        let known = |name: &&String| FORMATS.iter().all(|(format, _)| format != name);
        if let Some(name) = options.formats.iter().find(known) {
            let names: Vec<&str> = FORMATS.iter().map(|(format, _)| *format).collect();
            return Err(format!("no format {name} is measured; there are {}", names.join(", ")));
        }
        let asked = |format: &str| match options.formats.as_slice() {
            [] => !quick || ["q1_0", "pq2_0", "tq2_0"].contains(&format),
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

/// Where the files are.
struct Models {
    dir: PathBuf,
}

impl Models {
    fn file(&self, format: &str) -> PathBuf {
        self.dir.join(format!("{format}.gguf"))
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
    prepare(machine, &needs)?;
    machine.cargo().args("build --release --package shohin-cli --package shohin-tests --bins").run()?;
    let models = Models { dir: machine.target.join("bench") };
    write_models(machine, &models, &plan)?;

    let mut samples: Vec<Sample> = Vec::new();
    let mut notes: Vec<String> = Vec::new();
    let (mut native, mut pages) = (Pairs::new(), Pairs::new());
    if options.native {
        let llama = options.peers.then(|| peers::llama(machine)).transpose()?;
        native = native::measure(machine, &models, &plan, llama.as_ref(), &mut samples, &mut notes)?;
    }
    if options.browser {
        pages = browser::measure(machine, &models, &plan, options.peers, &mut samples, &mut notes)?;
    }
    let report = table::report(&samples, &native, &pages, &notes);
    println!("\n{report}");
    write(&models.dir.join("report.md"), &report)?;
    write(&models.dir.join("samples.txt"), &sample::lines(&samples))?;
    let minutes = started.elapsed().as_secs_f64() / 60.0;
    println!("{minutes:.0} minutes. The report and every single number are in {}", models.dir.display());
    Ok(())
}

fn prepare(machine: &mut Machine, needs: &[Need]) -> Result<()> {
    machine.prepare(needs);
    match needs.iter().find_map(|need| machine.absent(*need)) {
        Some(why) => Err(format!("the benchmark cannot run: {why}")),
        None => Ok(()),
    }
}

/// Random weights in the published shape: speed does not depend on what a model has learnt.
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
