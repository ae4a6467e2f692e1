//! The workload of `cargo xtask instructions`, which counts its instructions: one token, and a prompt, with a
//! model of a few million weights in each format, and with the built-in model; weights are repacked, as
//! programs do at load, and for some formats also row-major.
//!
//! Prints a line for each call of `measured`, in order: its name and its number of tokens. Only instructions
//! inside `measured` are counted.

use std::error::Error;
use std::process::ExitCode;

use shohin_core::cpu::{Cpu, Isa};
use shohin_core::model::ModelBytes;
use shohin_core::{CpuOptions, Format, Session, SessionOptions};
use shohin_tests::cpu::{device, repacked};
use shohin_tests::model::{Model, Shape, Stored};

const FORMATS: &[Format] = &[
    Format::Q1_0,
    Format::Pq2_0,
    Format::Q2_0,
    Format::Tq2_0,
    Format::Ptq1_0,
    Format::Tq1_0,
    Format::Q8_0,
    Format::Q4_0,
    Format::F16,
];

/// Formats that are also counted without repacking.
const FROM_FILE: &[Format] = &[Format::Q1_0, Format::Pq2_0];

/// Enough for a full batch.
const PROMPT: usize = 64;

/// The instruction counter counts calls of this function, whose name is known to xtask.
#[inline(never)]
fn measured(work: &mut dyn FnMut()) {
    work();
}

fn count<B: ModelBytes>(name: &str, mut device: Cpu<'_, B>) -> Result<(), Box<dyn Error>> {
    let mut session = Session::new(&mut device, &SessionOptions::default())?;
    let vocab = device.model().config().vocab_size;
    let tokens: Vec<u32> = (0..PROMPT).map(|i| (i * 7919 % vocab) as u32).collect();
    let mut outcome = Ok(());
    measured(&mut || outcome = session.forward_prefill(&mut device, &tokens).map(|_| ()));
    outcome?;
    println!("{name} prefill {PROMPT}");
    let mut outcome = Ok(());
    measured(&mut || outcome = session.forward(&mut device, tokens[1]).map(|_| ()));
    outcome?;
    println!("{name} decode 1");
    Ok(())
}

fn run() -> Result<(), Box<dyn Error>> {
    // The instruction set that every instruction counter supports.
    let isa = Isa::named("avx2")?;
    let options = CpuOptions { context: 2 * PROMPT, isa, ..CpuOptions::default() };
    let shape = Shape { hidden: 512, ffn: 1536, vocab: 4096, ..Shape::tiny() };
    for &format in FORMATS {
        let name = format.name().to_lowercase();
        let file = Model::new(shape.clone(), Stored::new(format), 1).to_vec()?;
        if FROM_FILE.contains(&format) {
            count(&format!("{name} rows"), device(&file, &options)?)?;
        }
        count(&name, repacked(&file, &options)?)?;
    }
    count("sprout", repacked(include_bytes!("../../../models/sprout.gguf"), &options)?)
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
