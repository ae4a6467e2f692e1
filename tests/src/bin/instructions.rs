//! Work whose processor instructions `cargo xtask instructions` counts: one token, and a prompt, with a model of a few
//! million weights in each format, and with the built-in model; weights interleaved, as programs do at load, and of some
//! formats as they are in the file.
//!
//! Prints a line for each call of `measured`, in order: its name and how many tokens it is. Only what happens inside
//! `measured` is counted.

use std::error::Error;
use std::process::ExitCode;

use shohin_core::gguf::{self, ReadOptions};
use shohin_core::kernel::Isa;
use shohin_core::quant::Layout;
use shohin_core::{BonsaiModel, Format, Gguf, Serial, Session, SessionOptions};
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

/// What is counted without being interleaved too.
const FROM_FILE: &[Format] = &[Format::Q1_0, Format::Pq2_0];

/// Enough for a full batch.
const PROMPT: usize = 64;

/// Its calls are what the instruction counter sees; the name is known to xtask.
#[inline(never)]
fn measured(work: &mut dyn FnMut()) {
    work();
}

fn count(
    name: &str,
    mut file: Vec<u8>,
    layout: impl Fn(Format) -> Layout,
    isa: Isa,
) -> Result<(), Box<dyn Error>> {
    gguf::interleave(&mut file, &ReadOptions::default(), layout, &Serial)?;
    let gguf = Gguf::parse(&file)?;
    let model = BonsaiModel::from_gguf(&gguf)?;
    let options = SessionOptions { context: 2 * PROMPT, isa, ..SessionOptions::default() };
    let mut session = Session::new(&model, &options)?;
    let tokens: Vec<u32> = (0..PROMPT).map(|i| (i * 7919 % model.config().vocab_size) as u32).collect();
    let mut outcome = Ok(());
    measured(&mut || outcome = session.forward_prefill(&tokens, &Serial).map(|_| ()));
    outcome?;
    println!("{name} prefill {PROMPT}");
    let mut outcome = Ok(());
    measured(&mut || outcome = session.forward(tokens[1], &Serial).map(|_| ()));
    outcome?;
    println!("{name} decode 1");
    Ok(())
}

fn run() -> Result<(), Box<dyn Error>> {
    // What every instruction counter knows.
    let isa = Isa::named("avx2")?;
    let shape = Shape { hidden: 512, ffn: 1536, vocab: 4096, ..Shape::tiny() };
    for &format in FORMATS {
        let name = format.name().to_lowercase();
        let file = Model::new(shape.clone(), Stored::new(format), 1).to_vec()?;
        if FROM_FILE.contains(&format) {
            count(&format!("{name} rows"), file.clone(), |_| Layout::Rows, isa)?;
        }
        count(&name, file, |format| isa.layout(format), isa)?;
    }
    count("sprout", include_bytes!("../../../models/sprout.gguf").to_vec(), |format| isa.layout(format), isa)
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
