//! `shohin`: chat with Bonsai models in the terminal, and look into them.

mod args;
mod bandwidth;
mod bench;
mod chat;
mod embed;
mod error;
mod eval;
mod inspect;
mod logits;
mod model;
mod peak_compute;
mod reply;
mod run;
mod sampling;
mod terminal;
mod tokenize;
mod turn;

use args::{Cli, Command};
use clap::{CommandFactory, Parser};
use std::process::ExitCode;

fn main() -> ExitCode {
    if std::env::args_os().len() <= 1 {
        // Asking for nothing is asking what there is.
        return match Cli::command().print_help() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => error::CliError::from(error).report(),
        };
    }
    let cli = Cli::parse();
    let model = &cli.model;
    let on_gpu = matches!(cli.command, Command::Chat(_) | Command::Run(_) | Command::Bench(_));
    if model.gpu.is_some() && !on_gpu {
        return error::CliError::usage("--gpu is for chat, run and bench").report();
    }
    let outcome = match &cli.command {
        Command::Chat(args) => chat::chat(args, model),
        Command::Run(args) => run::run(args, model),
        Command::Inspect(args) => inspect::inspect(args, model),
        Command::Tokenize(args) => tokenize::tokenize(args, model),
        Command::Logits(args) => logits::logits(args, model),
        Command::Eval(args) => eval::eval(args, model),
        Command::Embed(args) => embed::embed(args, model),
        Command::Bench(args) => bench::bench(args, model),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
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
