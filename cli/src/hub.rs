//! `shohin pull`, `list` and `rm`: models of the Hugging Face Hub. `--model` takes their names, too.

use crate::error::{CliError, Result};
use crate::nearest::nearest;
use crate::progress::{ProgressBar, transfer_from};
use crate::terminal::{CtrlC, bytes, remark, table};
use clap::Args;
use shohin::hub::{Download, Hub, HubModel, published, published_names};
use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// Download a model
///
/// MODEL is the name of a published model (`shohin list --published`), hf:OWNER/REPOSITORY/FILE or hf:OWNER/REPOSITORY:FORMAT for
/// any GGUF file on the Hugging Face Hub, hf:OWNER/REPOSITORY for the only one or for a folder of safetensors, or the address
/// of a page there. An interrupted download continues where it ended, and the SHA-256 is checked.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  shohin pull bonsai-1.7b
  shohin chat -m bonsai-1.7b
  shohin pull hf:prism-ml/Bonsai-4B-gguf/Bonsai-4B-Q1_0.gguf
  shohin pull hf:OWNER/REPOSITORY@REVISION/FILE
  shohin pull hf:OWNER/REPOSITORY:Q4_K_M
  shohin pull https://huggingface.co/OWNER/REPOSITORY/blob/main/FILE

Files are kept in the cache of the Hub's own tools, ~/.cache/huggingface/hub.
Environment: HF_ENDPOINT (a mirror), HF_TOKEN, HF_TOKEN_PATH, HF_HUB_CACHE, HF_HOME,
XDG_CACHE_HOME, HF_HUB_OFFLINE (use only what is kept), and HTTPS_PROXY, ALL_PROXY, NO_PROXY.")]
pub(crate) struct PullArgs {
    /// The model
    #[arg(id = "wanted", value_name = "MODEL", value_parser = wanted)]
    model: HubModel,
    /// Do not ask before a large download
    #[arg(short, long)]
    yes: bool,
}

/// List the downloaded models
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  shohin list
  shohin list --published")]
pub(crate) struct ListArgs {
    /// List the models that are known by name instead
    #[arg(long)]
    published: bool,
}

/// Delete a downloaded model
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  shohin rm bonsai-1.7b
  shohin rm hf:prism-ml/Bonsai-4B-gguf/Bonsai-4B-Q1_0.gguf
  shohin rm hf:OWNER/REPOSITORY")]
pub(crate) struct RmArgs {
    /// The model, as for `pull`; without a file all of its repository, without a revision or with `main` all revisions
    #[arg(id = "wanted", value_name = "MODEL", value_parser = wanted)]
    model: HubModel,
}

/// The model that a name is of.
fn wanted(text: &str) -> std::result::Result<HubModel, String> {
    text.parse::<HubModel>().map_err(|error| {
        match nearest(text, published().iter().map(|model| model.name)).filter(|_| is_bare_name(text)) {
            Some(name) => format!("{error}; did you mean {name}?"),
            None => error.to_string(),
        }
    })
}

/// Downloads from this size on are asked for.
const LARGE: u64 = 100 << 20;

pub(crate) fn pull(args: &PullArgs) -> Result {
    let hub = Hub::from_env()?;
    if !args.yes && !hub.is_offline() {
        ask(&hub, &args.model)?;
    }
    let path = download(&hub, &args.model)?;
    writeln!(io::stdout(), "{}", path.display())?;
    Ok(())
}

pub(crate) fn list(args: &ListArgs) -> Result {
    let mut out = io::stdout().lock();
    if args.published {
        let row = |model: &shohin::hub::PublishedModel| {
            vec![model.name.into(), bytes(model.bytes), format!("hf:{}/{}", model.repository, model.file)]
        };
        let rows: Vec<Vec<String>> = published().iter().map(row).collect();
        table(&mut out, &rows, &[false, true])?;
        return Ok(());
    }
    let hub = Hub::from_env()?;
    let row = |kept: &shohin::hub::KeptFile| {
        vec![
            format!("hf:{}/{}", kept.repository, kept.file),
            bytes(kept.bytes),
            kept.path.display().to_string(),
        ]
    };
    let rows: Vec<Vec<String>> = hub.list().iter().map(row).collect();
    if rows.is_empty() {
        remark(format_args!(
            "(no models in {}; `shohin pull bonsai-1.7b` downloads one)",
            hub.cache().display()
        ));
    }
    table(&mut out, &rows, &[false, true])?;
    Ok(())
}

pub(crate) fn rm(args: &RmArgs) -> Result {
    let hub = Hub::from_env()?;
    if hub.kept(&args.model).is_empty() {
        return Err(CliError::new(format_args!("{} is not in {}", args.model, hub.cache().display())));
    }
    let freed = hub.remove(&args.model)?;
    remark(format_args!("(deleted {}: {} freed)", args.model, bytes(freed)));
    Ok(())
}

/// The file that `--model` names. What it names on the Hub is downloaded unless it is kept.
pub(crate) fn located(named: &Path) -> Result<PathBuf> {
    let text = named.to_str().unwrap_or_default();
    if !HubModel::is_named_by(text) || named.exists() {
        if is_bare_name(text) && !named.exists() {
            let names = published_names();
            let expected = format!("expected a file, a folder, one of {names}, or hf:owner/repository/file");
            return Err(CliError::new(match nearest(text, published().iter().map(|model| model.name)) {
                Some(name) => format!("there is no model {text:?}; did you mean {name}? {expected}"),
                None => format!("there is no model {text:?}; {expected}"),
            }));
        }
        return Ok(named.to_path_buf());
    }
    let (hub, model) = (Hub::from_env()?, text.parse::<HubModel>()?);
    if let Some(path) = hub.find(&model) {
        return Ok(path);
    }
    if !hub.is_offline() {
        ask(&hub, &model)?;
    }
    download(&hub, &model)
}

/// Whether `text` could be a name, and nothing suggests that it is a path.
fn is_bare_name(text: &str) -> bool {
    (1..=100).contains(&text.len())
        && !text.contains(['/', '\\'])
        && !text.ends_with(".gguf")
        && !text.ends_with(".onnx")
}

/// Asks on a terminal before a large download.
fn ask(hub: &Hub, model: &HubModel) -> Result {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Ok(());
    }
    let Some(missing) = hub.missing(model)?.filter(|missing| *missing >= LARGE) else { return Ok(()) };
    let mut stderr = io::stderr();
    write!(stderr, "Download {} from {}? [Y/n] ", bytes(missing), hub.endpoint())?;
    stderr.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    match answer.trim().to_lowercase().as_str() {
        "" | "y" | "yes" if !answer.is_empty() => Ok(()),
        _ => Err(CliError::new("nothing was downloaded")),
    }
}

fn download(hub: &Hub, model: &HubModel) -> Result<PathBuf> {
    let interrupt = CtrlC::listen();
    let mut bar: Option<(String, ProgressBar)> = None;
    let outcome = hub.pull(model, &mut |Download { file, have, total }| {
        if interrupt.pressed() {
            return ControlFlow::Break(());
        }
        if !file.is_empty() {
            if bar.as_ref().is_none_or(|(of, _)| of != file) {
                let message = file.rsplit('/').next().unwrap_or(file).to_string();
                bar = Some((file.into(), transfer_from(have, message, total)));
            }
            bar.iter().for_each(|(_, bar)| bar.set_position(have));
        }
        ControlFlow::Continue(())
    });
    bar.iter().for_each(|(_, bar)| bar.finish_and_clear());
    match outcome {
        Err(_) if interrupt.pressed() => Err(CliError::Interrupted),
        other => Ok(other?),
    }
}
