//! `shohin`: chat with Bonsai models in the terminal, and inspect them.

mod args;
#[cfg(not(target_os = "wasi"))]
mod bandwidth;
mod beams;
#[cfg(not(target_os = "wasi"))]
mod bench;
mod chat;
mod check;
mod convert;
mod editor;
mod embed;
mod error;
mod eval;
#[cfg(not(target_os = "wasi"))]
mod hub;
mod inspect;
mod logits;
mod model;
#[cfg(not(target_os = "wasi"))]
mod peak_compute;
mod progress;
mod quantize;
mod reply;
mod run;
mod sampling;
#[cfg(not(target_os = "wasi"))]
mod serve;
mod session;
mod terminal;
mod tokenize;
mod tools;
mod turn;

#[cfg(not(target_os = "wasi"))]
use bench::BenchArgs;
use chat::ChatArgs;
use check::CheckArgs;
use clap::builder::styling::{AnsiColor, Styles};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, CommandFactory, FromArgMatches, Parser, Subcommand};
use convert::ConvertArgs;
use embed::EmbedArgs;
use eval::EvalArgs;
#[cfg(not(target_os = "wasi"))]
use hub::{ListArgs, PullArgs, RmArgs};
use inspect::InspectArgs;
use logits::LogitsArgs;
use model::ModelArgs;
use quantize::QuantizeArgs;
use run::RunArgs;
#[cfg(not(target_os = "wasi"))]
use serve::ServeArgs;
use std::process::ExitCode;
use tokenize::TokenizeArgs;

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

/// Run small language models, 1-bit and ternary Bonsai above all, on the CPU or a GPU.
#[derive(Debug, Parser)]
#[command(
    name = "shohin",
    version,
    styles = STYLES,
    disable_help_subcommand = true,
    override_usage = "shohin chat\n       shohin <COMMAND> [OPTIONS]",
    after_help = "\
A small model is built in, so `shohin chat` needs no download. It only knows short stories and
simple questions; for more, pass the name of a published model or any Bonsai GGUF file:

  shohin chat -m bonsai-1.7b
  shohin chat -m ternary-bonsai-1.7b
  shohin run \"Tell me a story about a fox.\"
  shohin run -m bonsai-8b --file question.txt --json > answer.json
  shohin bench -m bonsai-1.7b

`shohin <COMMAND> --help` explains a command with examples.
Exit codes: 0 success, 1 failure, 2 invalid options or a missing --force, 3 incomplete
reply in a required format, 130 interrupted, 141 output closed."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    model: ModelArgs,
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
    #[cfg(not(target_os = "wasi"))]
    Bench(BenchArgs),
    Check(CheckArgs),
    Convert(ConvertArgs),
    Quantize(QuantizeArgs),
    #[cfg(not(target_os = "wasi"))]
    Pull(PullArgs),
    #[cfg(not(target_os = "wasi"))]
    List(ListArgs),
    #[cfg(not(target_os = "wasi"))]
    Rm(RmArgs),
}

impl Command {
    /// Whether it runs the model that `--model` names.
    fn runs_model(&self) -> bool {
        match self {
            Command::Inspect(_) | Command::Tokenize(_) | Command::Convert(_) | Command::Quantize(_) => false,
            #[cfg(not(target_os = "wasi"))]
            Command::Pull(_) | Command::List(_) | Command::Rm(_) => false,
            _ => true,
        }
    }

    /// Whether ranks that are processes can run it: it loads one model once, and ends by itself.
    fn runs_in_ranks(&self) -> bool {
        match self {
            Command::Check(_) => false,
            #[cfg(not(target_os = "wasi"))]
            Command::Serve(_) => false,
            _ => true,
        }
    }
}

/// Whether the command takes the option of a model.
fn takes(command: &str, option: &str) -> bool {
    match command {
        "pull" | "list" | "rm" => false,
        // These read a file of their own, whose layout it names.
        "convert" | "quantize" => option == "id42",
        "tokenize" => matches!(option, "model" | "id42"),
        // Its published results are those of models without adapters.
        "check" => option != "lora",
        "inspect" => !matches!(option, "gpu" | "device" | "split"),
        _ => true,
    }
}

/// The command line. Commands refuse the options of a model that do nothing for them, and their help leaves them out.
fn parse() -> Result<Cli, clap::Error> {
    let mut command = Cli::command();
    // Afterwards subcommands have the options that all of them take.
    command.build();
    let is_refused = |name: &str, arg: &Arg| {
        arg.get_help_heading() == Some(model::HEADING) && !takes(name, arg.get_id().as_str())
    };
    for subcommand in command.get_subcommands_mut() {
        let name = String::from(subcommand.get_name());
        let hidden = |arg: Arg| {
            let is_hidden = arg.is_hide_set() || is_refused(&name, &arg);
            arg.hide(is_hidden)
        };
        *subcommand = core::mem::take(subcommand).mut_args(hidden);
    }
    let mut matches = command.try_get_matches_from_mut(std::env::args_os())?;
    let unused = matches.subcommand().and_then(|(name, of)| {
        let mut arguments = command.find_subcommand(name)?.get_arguments();
        arguments.find_map(|arg| {
            let is_given = of.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
            arg.get_long().filter(|_| is_given && is_refused(name, arg)).map(|option| (name, option))
        })
    });
    if let Some((name, option)) = unused {
        let problem = format!("--{option} has no use in `shohin {name}`");
        return Err(command.error(ErrorKind::ArgumentConflict, problem));
    }
    Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
}

fn main() -> ExitCode {
    if std::env::args_os().len() <= 1 {
        // Without a command, print the help.
        return match Cli::command().print_help() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => error::CliError::from(error).report(),
        };
    }
    let mut cli = match parse() {
        Ok(cli) => cli,
        Err(error) => return error::report_usage(error),
    };
    if cli.command.runs_model()
        && let Err(error) = cli.model.take_environment()
    {
        return error.report();
    }
    let joined = match &cli.command {
        command if !command.runs_model() => Ok(None),
        command => cli.model.join_ranks(command.runs_in_ranks()),
    };
    let outcome = match joined {
        Ok(None) => command(&cli),
        Ok(Some(followed)) => followed,
        Err(error) => Err(error),
    };
    // With MPI, ranks end here: what is to be said must be said.
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn command(cli: &Cli) -> error::Result {
    let model = &cli.model;
    match &cli.command {
        Command::Chat(args) => chat::chat(args, model),
        Command::Run(args) => run::run(args, model),
        #[cfg(not(target_os = "wasi"))]
        Command::Serve(args) => serve::run(args, model),
        Command::Inspect(args) => inspect::inspect(args, model),
        Command::Tokenize(args) => tokenize::tokenize(args, model),
        Command::Logits(args) => logits::logits(args, model),
        Command::Eval(args) => eval::eval(args, model),
        Command::Embed(args) => embed::embed(args, model),
        #[cfg(not(target_os = "wasi"))]
        Command::Bench(args) => bench::bench(args, model),
        Command::Check(args) => check::check(args, model),
        Command::Convert(args) => convert::run(args, model),
        Command::Quantize(args) => quantize::run(args, model),
        #[cfg(not(target_os = "wasi"))]
        Command::Pull(args) => hub::pull(args),
        #[cfg(not(target_os = "wasi"))]
        Command::List(args) => hub::list(args),
        #[cfg(not(target_os = "wasi"))]
        Command::Rm(args) => hub::rm(args),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
