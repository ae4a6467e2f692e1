//! Writes a model of a published shape with random weights, to measure with.
//!
//! `cargo run -r -p shohin-tests --bin synth -- --shape 1.7b --format q1_0 OUT.gguf`

use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::process::ExitCode;

use shohin_core::gguf::Gguf;
use shohin_tests::model::{Model, Shape, Stored};
use shohin_tests::vocabulary::Vocabulary;

const HELP: &str = "\
synth [--shape 1.7b] [--format q1_0] [--vocab FILE.gguf] [--layers N] [--untied] [--seed N] OUT.gguf

Writes a Qwen3, Qwen3MoE or Maple model with random weights. Its text is noise; its size and speed are those of a real one.

  --shape    0.6b, 1.7b, 4b, 8b, 30b-a3b, maple (vocabulary of 151669), or tiny, tiny-experts (320 tokens)
  --format   one format for all matrices, or several with commas between, taken in turn:
             f32 f16 bf16 q8_0 q4_0 q4_1 q5_0 q5_1 q2_k q3_k q4_k q5_k q6_k q8_k iq4_nl iq4_xs iq1_s
             iq1_m iq2_xxs iq2_xs iq2_s iq3_xxs iq3_s
             mxfp4 nvfp4 q1_0 q2_0 (groups of 64) q2_0_legacy (128) pq2_0 tq2_0_g128 ptq1_0
             tq1_0 tq2_0
  --vocab    take tokens and merges from this file, which holds Qwen2's or Qwen3's;
             otherwise a synthetic vocabulary of the same size is made up
  --layers   another number of layers
  --untied   a head that is not the embedding
  --seed     other weights
";

fn run(mut args: impl Iterator<Item = String>) -> Result<(), Box<dyn Error>> {
    let (mut shape_name, mut format, mut out) = (String::from("1.7b"), String::from("q1_0"), None);
    let (mut vocab, mut layers, mut untied, mut seed) = (None, None, false, 1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            "--shape" => shape_name = value()?,
            "--format" => format = value()?,
            "--vocab" => vocab = Some(value()?),
            "--layers" => layers = Some(value()?.parse()?),
            "--untied" => untied = true,
            "--seed" => seed = value()?.parse()?,
            "-h" | "--help" => {
                print!("{HELP}");
                return Ok(());
            }
            other if other.starts_with('-') || out.is_some() => {
                return Err(format!("what is {other}?\n{HELP}").into());
            }
            path => out = Some(path.to_owned()),
        }
    }
    let out = out.ok_or(HELP)?;
    let shape = match shape_name.as_str() {
        "tiny" => Some(Shape::tiny()),
        "tiny-experts" => Some(Shape::tiny_experts()),
        name => Shape::published(name),
    };
    let mut shape = shape.ok_or(format!("no shape {shape_name}\n{HELP}"))?;
    shape.layers = layers.unwrap_or(shape.layers);
    shape.tied &= !untied;
    let formats: Option<Vec<Stored>> = format.split(',').map(Stored::named).collect();
    let formats = formats.ok_or(format!("no format {format}\n{HELP}"))?;
    let vocabulary = match vocab {
        Some(path) => Vocabulary::qwen3(&Gguf::parse(&std::fs::read(path)?)?)?,
        None => Vocabulary::synthetic(shape.vocab, seed),
    };
    let model = Model { shape, formats, seed, name: format!("random-{shape_name}-{format}") };
    let mut file = BufWriter::new(File::create(&out)?);
    let size = model.write(&vocabulary, |bytes| file.write_all(bytes).map_err(Box::<dyn Error>::from))?;
    file.flush()?;
    println!("{out}: {size} bytes");
    Ok(())
}

fn main() -> ExitCode {
    match run(std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
