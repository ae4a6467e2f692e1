//! Help that `-h` shows on one screen, and what is made of the same descriptions: completions and the manual.

use crate::error::{CliError, Result, file_error};
use crate::terminal::remark;
use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

/// The options that `-h` shows of commands with many; of other commands it shows all.
const SHOWN: [(&str, &[&str]); 5] = [
    (
        "chat",
        &[
            "system",
            "session",
            "think",
            "max_tokens",
            "no_history",
            "tools",
            "json_schema",
            "temperature",
            "seed",
            "model",
            "threads",
            "context",
            "device",
        ],
    ),
    (
        "run",
        &[
            "file",
            "raw",
            "system",
            "session",
            "think",
            "max_tokens",
            "json",
            "stats",
            "tools",
            "json_schema",
            "temperature",
            "seed",
            "model",
            "threads",
            "context",
            "device",
        ],
    ),
    (
        "serve",
        &[
            "host",
            "port",
            "api_key",
            "api_key_file",
            "name",
            "parallel",
            "also",
            "log",
            "model",
            "threads",
            "context",
            "device",
        ],
    ),
    (
        "train",
        &[
            "text",
            "chats",
            "valid",
            "out",
            "force",
            "method",
            "weights",
            "new",
            "tokenizer",
            "steps",
            "lr",
            "model",
            "threads",
        ],
    ),
    ("merge", &["method", "weights", "base", "lora", "type", "out", "force", "json"]),
];

/// Leaves examples and rare options to `--help`.
pub(crate) fn one_screen(command: Command) -> Command {
    command.mut_subcommands(|command| {
        let name = command.get_name().to_owned();
        let Some(examples) = command.get_after_help().cloned() else { return command };
        let more = format!("`shohin {name} --help` explains all options, with examples.\n");
        let command = command.after_help(more).after_long_help(examples);
        let Some((_, shown)) = SHOWN.iter().find(|(of, _)| *of == name) else { return command };
        command.mut_args(|arg| {
            let is_shown = arg.is_positional() || shown.contains(&arg.get_id().as_str());
            if is_shown { arg } else { arg.hide_short_help(true) }
        })
    })
}

/// Print a script that completes commands and options in a shell
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  shohin completions bash > ~/.local/share/bash-completion/completions/shohin
  shohin completions zsh > \"${fpath[1]}/_shohin\"
  shohin completions fish > ~/.config/fish/completions/shohin.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Print the manual page, or write those of all commands
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  shohin man | man -l -
  shohin man --out ~/.local/share/man/man1")]
pub(crate) struct ManArgs {
    /// Folder to write shohin.1 and a page for each command to
    #[arg(short, long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(crate) fn completions<C: CommandFactory>(args: &CompletionsArgs) -> Result {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut C::command(), "shohin", &mut script);
    Ok(io::stdout().write_all(&script)?)
}

pub(crate) fn manual<C: CommandFactory>(args: &ManArgs) -> Result {
    let command = C::command();
    let Some(folder) = &args.out else { return Ok(io::stdout().write_all(&page(command)?)?) };
    fs::create_dir_all(folder).map_err(|error| file_error("create", folder, &error))?;
    let mut pages = vec![("shohin".to_owned(), command.clone())];
    for sub in command.get_subcommands() {
        let name = format!("shohin-{}", sub.get_name());
        // Arguments are described there as they are typed.
        pages.push((name.clone(), sub.clone().name(name).bin_name(format!("shohin {}", sub.get_name()))));
    }
    let count = pages.len();
    for (name, command) in pages {
        let path = folder.join(format!("{name}.1"));
        fs::write(&path, page(command)?).map_err(|error| file_error("write", &path, &error))?;
    }
    remark(format_args!("{count} pages in {}", folder.display()));
    Ok(())
}

fn page(command: Command) -> Result<Vec<u8>> {
    let mut page = Vec::new();
    Man::new(command).render(&mut page).map_err(CliError::new)?;
    Ok(page)
}
