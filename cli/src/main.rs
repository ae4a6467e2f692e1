//! `shohin`: chat with Bonsai models in the terminal, and inspect them.

mod args;
#[cfg(not(target_os = "wasi"))]
mod bandwidth;
mod beams;
#[cfg(not(target_os = "wasi"))]
mod bench;
mod calibrate;
mod chat;
mod check;
#[cfg(not(target_os = "wasi"))]
mod compress;
mod convert;
mod defaults;
mod editor;
mod embed;
mod error;
mod eval;
mod help;
#[cfg(not(target_os = "wasi"))]
mod hub;
mod input;
mod inspect;
mod logits;
mod merge;
mod message;
mod model;
#[cfg(not(target_os = "wasi"))]
mod nearest;
#[cfg(not(target_os = "wasi"))]
mod peak_compute;
#[cfg(not(target_os = "wasi"))]
mod profile;
mod progress;
#[cfg(not(target_os = "wasi"))]
mod prune;
mod quantize;
mod reply;
mod rerank;
mod run;
mod sampling;
#[cfg(not(target_os = "wasi"))]
mod serve;
mod session;
mod settings;
mod smooth;
#[cfg(not(target_os = "wasi"))]
mod teach;
mod terminal;
mod tokenize;
mod tools;
#[cfg(not(target_os = "wasi"))]
mod train;
mod transcript;
mod turn;
mod wrap;

#[cfg(not(target_os = "wasi"))]
use bench::BenchArgs;
use calibrate::CalibrateArgs;
use chat::ChatArgs;
use check::CheckArgs;
use clap::builder::styling::{AnsiColor, Styles};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
#[cfg(not(target_os = "wasi"))]
use compress::CompressArgs;
use convert::ConvertArgs;
use embed::EmbedArgs;
use eval::EvalArgs;
use help::{CompletionsArgs, ManArgs};
#[cfg(not(target_os = "wasi"))]
use hub::{ListArgs, PullArgs, RmArgs};
use inspect::InspectArgs;
use logits::LogitsArgs;
use merge::MergeArgs;
use model::{DeviceArgs, FileArgs, ModelArgs};
#[cfg(not(target_os = "wasi"))]
use prune::PruneArgs;
use quantize::QuantizeArgs;
use rerank::RerankArgs;
use run::RunArgs;
#[cfg(not(target_os = "wasi"))]
use serve::ServeArgs;
use smooth::SmoothArgs;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
#[cfg(not(target_os = "wasi"))]
use teach::TeachArgs;
use tokenize::TokenizeArgs;
#[cfg(not(target_os = "wasi"))]
use train::TrainArgs;

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

/// Run small language models, 1-bit and ternary Bonsai above all, on the CPU or a GPU.
#[derive(Debug, Parser)]
#[command(
    name = "shohin",
    version = env!("SHOHIN_VERSION"),
    styles = STYLES,
    override_usage = "shohin chat\n       shohin <COMMAND> [OPTIONS]",
    after_help = "\
A small model is built in, so `shohin chat` needs no download. It only knows short stories and
simple questions; for more, pass the name of a published model or any Bonsai GGUF file:

  shohin chat bonsai-1.7b
  shohin run -m bonsai-1.7b \"Tell me a story about a fox.\"

`shohin help COMMAND` explains a command with examples, and `shohin COMMAND -h` lists its common
options. SHOHIN_MODEL names a model for all; config.toml in the folder shohin of the user's
configuration has defaults of any options, such as threads = 4 (SHOHIN_CONFIG names another file).
Exit codes: 0 success, 1 failure, 2 invalid options or a missing --force, 3 incomplete
reply in a required format, 130 interrupted, 141 output closed."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Chat(ChatArgs),
    Run(RunArgs),
    #[cfg(not(target_os = "wasi"))]
    Serve(ServeArgs),
    Inspect(InspectArgs),
    Tokenize(TokenizeArgs),
    Logits(LogitsArgs),
    Eval(EvalArgs),
    Embed(EmbedArgs),
    Rerank(RerankArgs),
    #[cfg(not(target_os = "wasi"))]
    Bench(BenchArgs),
    Check(CheckArgs),
    Convert(ConvertArgs),
    Quantize(QuantizeArgs),
    Merge(MergeArgs),
    Calibrate(CalibrateArgs),
    Smooth(SmoothArgs),
    #[cfg(not(target_os = "wasi"))]
    Prune(PruneArgs),
    #[cfg(not(target_os = "wasi"))]
    Compress(CompressArgs),
    #[cfg(not(target_os = "wasi"))]
    Train(Box<TrainArgs>),
    #[cfg(not(target_os = "wasi"))]
    Teach(Box<TeachArgs>),
    #[cfg(not(target_os = "wasi"))]
    Pull(PullArgs),
    #[cfg(not(target_os = "wasi"))]
    List(ListArgs),
    #[cfg(not(target_os = "wasi"))]
    Rm(RmArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
    /// Print the version, and the commit that it was built from
    Version,
}

impl Command {
    /// The model of a command that ranks that are processes can run: it loads one model once, and ends by itself.
    fn in_ranks(&mut self) -> Option<&mut ModelArgs> {
        match self {
            Command::Chat(args) => Some(&mut args.model),
            Command::Run(args) => Some(&mut args.model),
            Command::Logits(args) => Some(&mut args.model),
            Command::Eval(args) => Some(&mut args.model),
            Command::Embed(args) => Some(&mut args.model),
            Command::Rerank(args) => Some(&mut args.model),
            Command::Check(_) | Command::Inspect(_) | Command::Tokenize(_) => None,
            Command::Convert(_) | Command::Quantize(_) | Command::Merge(_) => None,
            Command::Calibrate(_) | Command::Smooth(_) => None,
            Command::Completions(_) | Command::Man(_) | Command::Version => None,
            #[cfg(not(target_os = "wasi"))]
            Command::Train(_) | Command::Teach(_) | Command::Prune(_) | Command::Compress(_) => None,
            #[cfg(not(target_os = "wasi"))]
            Command::Bench(args) => Some(&mut args.model),
            #[cfg(not(target_os = "wasi"))]
            Command::Serve(_) | Command::Pull(_) | Command::List(_) | Command::Rm(_) => None,
        }
    }

    /// The device of a command that runs a model.
    fn device(&mut self) -> Option<&mut DeviceArgs> {
        match self {
            Command::Check(args) => Some(&mut args.device),
            #[cfg(not(target_os = "wasi"))]
            Command::Serve(args) => Some(&mut args.model.device),
            other => other.in_ranks().map(|model| &mut model.device),
        }
    }

    /// Takes a model that is a bare argument as that of `--model`.
    fn take_model(&mut self) {
        let (bare, file): (&mut Option<PathBuf>, &mut FileArgs) = match self {
            Command::Chat(args) => (&mut args.bare.model, &mut args.model.file),
            Command::Inspect(args) => (&mut args.bare.model, &mut args.file),
            Command::Check(args) => (&mut args.bare.model, &mut args.file),
            Command::Eval(args) => (&mut args.bare, &mut args.model.file),
            #[cfg(not(target_os = "wasi"))]
            Command::Bench(args) => (&mut args.bare.model, &mut args.model.file),
            #[cfg(not(target_os = "wasi"))]
            Command::Serve(args) => (&mut args.bare.model, &mut args.model.file),
            _ => return,
        };
        if let Some(model) = bare.take() {
            file.model = Some(model);
        }
    }

    /// Joins the ranks that mpirun has started. Returns whether this one has followed rank 0, to its end.
    fn join(&mut self) -> error::Result<bool> {
        let can_run = self.in_ranks().is_some();
        let Some(device) = self.device() else { return Ok(false) };
        let follows = device.join_ranks(can_run)?;
        #[cfg(feature = "mpi")]
        if follows && let Some(model) = self.in_ranks() {
            model.follow()?;
        }
        Ok(follows)
    }

    fn run(&self) -> error::Result {
        match self {
            Command::Chat(args) => chat::chat(args),
            Command::Run(args) => run::run(args),
            #[cfg(not(target_os = "wasi"))]
            Command::Serve(args) => serve::run(args),
            Command::Inspect(args) => inspect::inspect(args),
            Command::Tokenize(args) => tokenize::tokenize(args),
            Command::Logits(args) => logits::logits(args),
            Command::Eval(args) => eval::eval(args),
            Command::Embed(args) => embed::embed(args),
            Command::Rerank(args) => rerank::rerank(args),
            #[cfg(not(target_os = "wasi"))]
            Command::Bench(args) => bench::bench(args),
            Command::Check(args) => check::check(args),
            Command::Convert(args) => convert::run(args),
            Command::Quantize(args) => quantize::run(args),
            Command::Merge(args) => merge::run(args),
            Command::Calibrate(args) => calibrate::run(args),
            Command::Smooth(args) => smooth::run(args),
            #[cfg(not(target_os = "wasi"))]
            Command::Prune(args) => prune::run(args),
            #[cfg(not(target_os = "wasi"))]
            Command::Compress(args) => compress::run(args),
            #[cfg(not(target_os = "wasi"))]
            Command::Train(args) => train::run(args),
            #[cfg(not(target_os = "wasi"))]
            Command::Teach(args) => teach::run(args),
            #[cfg(not(target_os = "wasi"))]
            Command::Pull(args) => hub::pull(args),
            #[cfg(not(target_os = "wasi"))]
            Command::List(args) => hub::list(args),
            #[cfg(not(target_os = "wasi"))]
            Command::Rm(args) => hub::rm(args),
            Command::Completions(args) => help::completions::<Cli>(args),
            Command::Man(args) => help::manual::<Cli>(args),
            Command::Version => Ok(writeln!(std::io::stdout(), "shohin {}", env!("SHOHIN_VERSION"))?),
        }
    }
}

fn main() -> ExitCode {
    if std::env::args_os().len() <= 1 {
        // Without a command, print the help.
        return match help::one_screen(Cli::command()).print_help() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => error::CliError::from(error).report(),
        };
    }
    let matches = match defaults::read(help::one_screen(Cli::command())) {
        Ok(matches) => matches,
        Err(code) => return code,
    };
    let mut command = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli.command,
        Err(error) => return error::report_usage(error),
    };
    command.take_model();
    // With MPI, ranks end here: what is to be said must be said.
    match command.join().and_then(|followed| if followed { Ok(()) } else { command.run() }) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::help::one_screen(super::Cli::command()).debug_assert();
    }
}
