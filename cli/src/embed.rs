//! `shohin embed`: texts as vectors.

use crate::args::EngineArgs;
use crate::engine::{Engine, open};
use crate::failure::{Failure, Outcome};
use crate::terminal::read_text;
use crate::tokenize::texts_from_json;
use clap::{Args, ValueEnum};
use shohin_core::model::{Embedding, Pooling};
use shohin_core::tokenizer::Special;
use shohin_core::{Session, SessionOptions};
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Turn texts into vectors, for search and comparison
///
/// A text's vector is the mean of the model's final hidden states at its tokens, or the state at the last
/// one, scaled to length 1. Vectors of like texts point in like directions: their dot product is the cosine.
/// Prints one JSON array of numbers a line for each argument, or for each line of standard input.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  shohin embed \"The fox ran home.\" \"A bird sang.\"
  shohin embed -m Bonsai-1.7B.gguf < sentences.txt > vectors.jsonl
  echo '[\"a text\\nof two lines\"]' | shohin embed --json --pooling last")]
pub(crate) struct EmbedArgs {
    /// The texts; nothing reads standard input, one text a line
    texts: Vec<String>,
    /// What of the hidden states is taken
    #[arg(long, value_name = "HOW", default_value = "mean")]
    pooling: Pool,
    /// Leave the vector's length as it is
    #[arg(long)]
    no_normalize: bool,
    /// Standard input is a JSON array of strings
    #[arg(long, conflicts_with = "texts")]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Pool {
    /// Their mean
    Mean,
    /// That of the last token, which alone has seen all of the text
    Last,
}

pub(crate) fn embed(args: &EmbedArgs, engine_args: &EngineArgs) -> Outcome {
    let texts = texts(args)?;
    let file = open(engine_args)?;
    let engine = Engine::load(&file, engine_args)?;
    let most = engine.model().config().max_context_length;
    let mut all = Vec::new();
    for (i, text) in texts.iter().enumerate() {
        let tokens = engine.encode_plain(text, Special::UserDefined);
        let (n, len) = (i + 1, tokens.len());
        if len == 0 {
            return Err(Failure::new(format_args!("text {n} is empty")));
        }
        if len > most {
            let problem = format_args!("text {n} has {len} tokens, the model sees {most} at once");
            return Err(Failure::new(problem));
        }
        all.push(tokens);
    }
    let Some(context) = all.iter().map(Vec::len).max() else { return Ok(()) };
    let pooling = match args.pooling {
        Pool::Mean => Pooling::Mean,
        Pool::Last => Pooling::Last,
    };
    let mut device = engine.device(context, 1)?;
    let mut session = Session::new(&mut device, &SessionOptions { context, kv: engine.kv })?;
    let mut out = BufWriter::new(io::stdout().lock());
    for tokens in all {
        session.truncate(0)?;
        let mut embedding = Embedding::new(engine.model().config().hidden_size, pooling);
        session.forward_hidden(&mut device, &tokens, &mut |_, hidden| embedding.push(hidden))?;
        let vector = embedding.finish(!args.no_normalize);
        if !vector.iter().all(|x| x.is_finite()) {
            return Err(Failure::new("the model's hidden states are not all finite"));
        }
        // One by one: whoever reads them need not wait for the last.
        writeln!(out, "{}", serde_json::to_string(&vector).map_err(io::Error::from)?)?;
        out.flush()?;
    }
    Ok(())
}

/// The arguments, or standard input: one text a line, or a JSON array.
fn texts(args: &EmbedArgs) -> Outcome<Vec<String>> {
    if !args.texts.is_empty() {
        return Ok(args.texts.clone());
    }
    let input = read_text(Path::new("-"))?;
    if args.json {
        return texts_from_json(&input);
    }
    // A line left out would shift the vectors of all that follow.
    let input = input.trim_end_matches(['\n', '\r']);
    if input.is_empty() {
        return Err(Failure::new("standard input: expected a text a line, found none"));
    }
    if let Some(empty) = input.lines().position(str::is_empty) {
        return Err(Failure::new(format_args!("standard input: line {} is empty", empty + 1)));
    }
    Ok(input.lines().map(String::from).collect())
}
