//! `shohin embed`: text embeddings.

use crate::error::{CliError, Result};
use crate::input::read_text;
use crate::model::ModelArgs;
use crate::tokenize::texts_from_json;
use clap::{Args, ValueEnum};
use shohin::core::model::Pooling;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Compute embeddings of texts, for search and comparison
///
/// The embedding is the mean of the final hidden states over all tokens, or that of the last token, as the model's file
/// says (the mean if it does not), scaled to length 1, so that the dot product of two embeddings is their cosine
/// similarity. Prints one JSON array of numbers per argument, or per line of standard input.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  shohin embed \"The fox ran home.\" \"A bird sang.\"
  shohin embed -m bonsai-1.7b < sentences.txt > vectors.jsonl
  echo '[\"a text\\nof two lines\"]' | shohin embed --json --pooling last")]
pub(crate) struct EmbedArgs {
    /// The texts [default: standard input, one text per line]
    texts: Vec<String>,
    /// Pooling of the hidden states [default: that of the file, or mean]
    #[arg(long, value_name = "HOW")]
    pooling: Option<Pool>,
    /// Do not scale the embedding to length 1
    #[arg(long)]
    no_normalize: bool,
    /// Read a JSON array of strings from standard input
    #[arg(long, conflicts_with = "texts")]
    json: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Pool {
    /// Mean over all tokens
    Mean,
    /// Last token, the only one that attends to the whole text
    Last,
}

pub(crate) fn embed(args: &EmbedArgs) -> Result {
    let model = &args.model;
    let texts = texts(args)?;
    let (options, model) = (model, model.load()?);
    let pooling = match args.pooling {
        None => model.pooling()?,
        Some(Pool::Mean) => Pooling::Mean,
        Some(Pool::Last) => Pooling::Last,
    };
    let mut out = BufWriter::new(io::stdout().lock());
    let texts: Vec<_> = texts.iter().map(|text| model.tokenize_whole(text)).collect();
    for (number, tokens) in (1..).zip(&texts) {
        options.check_length(&model, format_args!("text {number}"), tokens.len())?;
    }
    for vector in model.token_embeddings(texts, pooling, !args.no_normalize)? {
        // One by one, so that a reader need not wait for the last.
        writeln!(out, "{}", serde_json::to_string(&vector?).map_err(io::Error::from)?)?;
        out.flush()?;
    }
    Ok(())
}

/// The arguments, or standard input: one text per line, or a JSON array.
fn texts(args: &EmbedArgs) -> Result<Vec<String>> {
    if !args.texts.is_empty() {
        return Ok(args.texts.clone());
    }
    let input = read_text(Path::new("-"))?;
    if args.json {
        return texts_from_json(&input);
    }
    // Skipping a line would shift the vectors of all that follow.
    let input = input.trim_end_matches(['\n', '\r']);
    if input.is_empty() {
        return Err(CliError::new("standard input: expected one text per line, found none"));
    }
    if let Some(empty) = input.lines().position(str::is_empty) {
        return Err(CliError::new(format_args!("standard input: line {} is empty", empty + 1)));
    }
    Ok(input.lines().map(String::from).collect())
}
