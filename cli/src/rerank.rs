//! `shohin rerank`: documents by how well they answer a query.

use crate::error::{CliError, Result};
use crate::input::read_text;
use crate::model::ModelArgs;
use crate::terminal;
use clap::Args;
use serde_json::json;
use std::io::{self, Write};
use std::path::Path;

/// Order documents by how well they answer a query
///
/// With a reranker (Qwen3-Reranker), the score is how likely it finds that a document does, from 0 to 1; with an embedding model, it
/// is the cosine of the two embeddings, from -1 to 1. Other models are refused.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  shohin rerank -m Qwen3-Reranker-0.6B \"What do foxes eat?\" \"Foxes eat mice.\" \"Cows eat grass.\"
  shohin rerank -m Qwen3-Embedding-0.6B \"What do foxes eat?\" --top 3 --json < lines.txt")]
pub(crate) struct RerankArgs {
    /// The query
    query: String,
    /// The documents [default: standard input, one per line]
    documents: Vec<String>,
    /// What the query is for [default: web search]
    #[arg(long, value_name = "TEXT")]
    instruction: Option<String>,
    /// Print the N best only
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

pub(crate) fn rerank(args: &RerankArgs) -> Result {
    let documents = match &args.documents[..] {
        [] => read_text(Path::new("-"))?.lines().filter(|line| !line.is_empty()).map(String::from).collect(),
        given => given.to_vec(),
    };
    if documents.is_empty() {
        return Err(CliError::new("expected documents as arguments or on standard input, found none"));
    }
    let model = args.model.load()?;
    let scores = model.rerank(&args.query, &documents, args.instruction.as_deref())?;
    let scores: Vec<f32> = scores.collect::<shohin::Result<_>>()?;
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    order.truncate(args.top.unwrap_or(usize::MAX));
    let mut out = io::stdout().lock();
    if args.json {
        let result =
            |index: usize| json!({ "index": index, "score": scores[index], "document": documents[index] });
        let results: Vec<_> = order.into_iter().map(result).collect();
        writeln!(out, "{:#}", json!({ "model": model.name(), "results": results }))?;
        return Ok(());
    }
    let row = |index: usize| vec![format!("{:.4}", scores[index]), documents[index].clone()];
    terminal::table(&mut out, &order.into_iter().map(row).collect::<Vec<_>>(), &[])?;
    Ok(())
}
