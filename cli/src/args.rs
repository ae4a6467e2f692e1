//! The command line. The options of each command are beside it.

use crate::bench::BenchArgs;
use crate::chat::ChatArgs;
use crate::embed::EmbedArgs;
use crate::eval::EvalArgs;
use crate::inspect::InspectArgs;
use crate::logits::LogitsArgs;
use crate::model::ModelArgs;
use crate::run::RunArgs;
use crate::tokenize::TokenizeArgs;
use clap::builder::styling::{AnsiColor, Styles};
use clap::{Parser, Subcommand};

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

/// Chat with 1-bit and ternary Bonsai language models, on any CPU.
#[derive(Debug, Parser)]
#[command(
    name = "shohin",
    version,
    styles = STYLES,
    disable_help_subcommand = true,
    override_usage = "shohin chat\n       shohin <COMMAND> [OPTIONS]",
    after_help = "\
A small model is built in, so `shohin chat` needs no download. It only knows short stories and
simple questions; for more, pass any Bonsai GGUF file:

  shohin chat -m Ternary-Bonsai-1.7B-PQ2_0.gguf
  shohin run \"Tell me a story about a fox.\"
  shohin run -m Bonsai-8B.gguf --file question.txt --json > answer.json
  shohin bench -m Bonsai-1.7B.gguf

`shohin <COMMAND> --help` explains a command with examples.
Exit codes: 0 success, 1 failure, 2 invalid options, 130 interrupted, 141 output closed."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Chat(ChatArgs),
    Run(RunArgs),
    Inspect(InspectArgs),
    Tokenize(TokenizeArgs),
    Logits(LogitsArgs),
    Eval(EvalArgs),
    Embed(EmbedArgs),
    Bench(BenchArgs),
}

/// Parses a count.
pub(crate) fn whole<T: std::str::FromStr>(text: &str) -> Result<T, &'static str> {
    text.parse().map_err(|_| "expected a whole number, 0 or more")
}
