//! `shohin`: chat with Bonsai models in the terminal, and look into them.

mod args;
mod bandwidth;
mod bench;
mod chat;
mod constraint;
mod embed;
mod engine;
mod eval;
mod failure;
mod inspect;
mod logits;
mod products;
mod run;
mod terminal;
mod tokenize;

use args::{Cli, Command};
use clap::{CommandFactory, Parser};
use std::process::ExitCode;

fn main() -> ExitCode {
    if std::env::args_os().len() <= 1 {
        // Asking for nothing is asking what there is.
        return match Cli::command().print_help() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failure::Failure::from(error).report(),
        };
    }
    let cli = Cli::parse();
    let engine = &cli.engine;
    let on_gpu = matches!(cli.command, Command::Chat(_) | Command::Run(_) | Command::Bench(_));
    if engine.gpu.is_some() && !on_gpu {
        return failure::Failure::usage("--gpu is for chat, run and bench").report();
    }
    let outcome = match &cli.command {
        Command::Chat(args) => chat::chat(args, engine),
        Command::Run(args) => run::run(args, engine),
        Command::Inspect(args) => inspect::inspect(args, engine),
        Command::Tokenize(args) => tokenize::tokenize(args, engine),
        Command::Logits(args) => logits::logits(args, engine),
        Command::Eval(args) => eval::eval(args, engine),
        Command::Embed(args) => embed::embed(args, engine),
        Command::Bench(args) => bench::bench(args, engine),
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
