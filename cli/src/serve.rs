//! `shohin serve`: OpenAI's, Anthropic's and Ollama's HTTP interfaces.

use crate::args::byte_count;
use crate::error::{CliError, Result};
use crate::input::read_text_up_to;
use crate::model::{AdapterArgs, BareArgs, Lora, ModelArgs, finish_caching, settings};
use crate::terminal::remark;
use clap::Args;
use shohin_server::{NamedAdapter, OtherModel, ServerOptions, StartError, is_adapter_name, serve};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Maximum number of bytes of a file with a key.
const MAX_KEY: usize = 64 << 10;

/// Maximum of --prompt-tokens: with a token of each of the other replies, at most 64, a step has no more than a device takes.
const PROMPT_TOKENS: i64 = 65_536 - 64;

/// Serve a model to programs that speak OpenAI's, Anthropic's or Ollama's HTTP interface
///
/// Answers /v1/chat/completions, /v1/responses, /v1/completions, /v1/embeddings and /v1/models as OpenAI, and /v1/messages
/// and /v1/messages/count_tokens as Anthropic, and paths below /api as Ollama, whole or streamed, with tools, JSON Schema and log-probabilities; /health and
/// /metrics (Prometheus); and a page to chat at /. Replies are computed together: the weights are read once for all
/// of them. Adapters (LoRA) with a name apply where a request asks for them: as the model NAME, or in its field lora. Ctrl-C
/// or SIGTERM lets the replies in progress end.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  shohin serve
  shohin serve bonsai-1.7b --port 8000 --parallel 8 --kv q8
  shohin serve base.gguf --lora poet=poet.gguf --lora sql=sql.gguf
  xdg-open http://127.0.0.1:8080/
  curl http://127.0.0.1:8080/v1/chat/completions \\
    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}]}'

Only programs on this machine can connect, unless --host is set; then set --api-key-file, too.
TLS is not supported: put a proxy in front of it.",
    mut_arg("lora", |lora| lora.value_name("[NAME=]FILE[=SCALE]").value_parser(adapter).help(
        "Apply an adapter (LoRA), a GGUF file or a folder that PEFT has saved, at SCALE, or 1 without one, to all requests, or \
         with NAME to those that ask for it; several add up; CPU only"
    )),
)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) bare: BareArgs,
    /// Address to listen on, or a name of one, such as localhost [env: SHOHIN_HOST]
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", value_parser = host)]
    host: IpAddr,
    /// Port to listen on; 0 takes a free one [env: SHOHIN_PORT]
    #[arg(long, value_name = "N", default_value_t = 8080)]
    port: u16,
    /// Key that requests must have, as in "Authorization: Bearer KEY" or "x-api-key: KEY" [env: SHOHIN_API_KEY]
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// File with the key, which other users of this machine do not see then [env: SHOHIN_API_KEY_FILE]
    #[arg(long, value_name = "FILE", conflicts_with = "api_key")]
    api_key_file: Option<PathBuf>,
    /// Name of the model in requests and answers [default: the file's]; may be repeated: the first one is that of answers
    #[arg(long, value_name = "NAME")]
    name: Vec<String>,
    /// Answer requests for other models, too, for clients whose model's name cannot be set
    #[arg(long)]
    any_model_name: bool,
    /// Maximum concurrent replies, 1 to 64; each may need the memory of a context
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    parallel: u8,
    /// Maximum waiting requests; others are refused with status 429
    #[arg(long, value_name = "N", default_value_t = 64)]
    queue: u16,
    /// Prompt tokens per step while other replies generate; on GPUs at most 4096 with theirs [default: 64; with CUDA, 512 less
    /// --parallel]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=PROMPT_TOKENS))]
    prompt_tokens: Option<u16>,
    /// Keep the keys and values of ended replies while those of all replies take at most BYTES (such as 500M or 2G), for
    /// prompts that begin like theirs [default: what --parallel contexts take]
    #[arg(long, value_name = "BYTES", value_parser = byte_count::<usize>)]
    prefix_cache: Option<usize>,
    /// Folder of adapters that requests can load, see POST /v1/adapters [default: they can load none]
    #[arg(long, value_name = "DIR")]
    lora_dir: Option<PathBuf>,
    /// What is logged, on the standard error output: warn, info (a line for each answer), debug, or trace (requests, too); off for
    /// nothing [env: SHOHIN_LOG]
    #[arg(long, value_name = "LEVEL", default_value = "warn", value_parser = level)]
    log: LevelFilter,
    /// Form of the log
    #[arg(long, value_name = "FORM", default_value = "text", value_parser = ["text", "json"])]
    log_format: String,
    /// Another model, loaded when a request first names it; may be repeated. It is run with the same options, without adapters
    #[arg(long, value_name = "[NAME=]MODEL")]
    also: Vec<String>,
    /// Unload the models of --also that were not asked for for longest while their weights take more than BYTES (such as 4G)
    /// [default: they stay]
    #[arg(long, value_name = "BYTES", value_parser = byte_count::<usize>)]
    also_memory: Option<usize>,
    /// Refuse requests with fields that are not known, instead of leaving these aside
    #[arg(long)]
    strict: bool,
    /// Maximum number of connections
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..))]
    connections: u16,
    /// Seconds that a request may take
    #[arg(long, value_name = "N", default_value_t = 600)]
    timeout: u32,
    /// Seconds for replies to end after Ctrl-C or SIGTERM
    #[arg(long, value_name = "N", default_value_t = 30)]
    grace: u32,
    /// Origin of a page that may send requests, such as https://example.com, or * for all; may be repeated
    #[arg(long, value_name = "ORIGIN")]
    cors: Vec<String>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

/// A level of the log.
fn level(text: &str) -> std::result::Result<LevelFilter, String> {
    text.parse().map_err(|_| "expected off, error, warn, info, debug or trace".into())
}

/// The key that requests must have.
fn key(args: &ServeArgs) -> Result<Option<String>> {
    let Some(path) = args.api_key_file.as_deref().filter(|_| args.api_key.is_none()) else {
        return Ok(args.api_key.clone());
    };
    let text = read_text_up_to(path, MAX_KEY)?;
    match text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>()[..] {
        [key] => Ok(Some(key.into())),
        ref found => Err(CliError::usage(format_args!(
            "--api-key-file {}: expected one line with the key, found {}",
            path.display(),
            found.len()
        ))),
    }
}

/// Writes what the server logs to the standard error output.
fn begin_log(args: &ServeArgs) {
    // A log that nobody reads any more does not matter.
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).log_internal_errors(false);
    let own = Targets::new().with_target("shohin", args.log);
    let all = tracing_subscriber::registry();
    // It is begun once.
    let _ = match args.log_format.as_str() {
        "json" => all.with(lines.json().with_filter(own)).try_init(),
        _ => all.with(lines.with_filter(own)).try_init(),
    };
}

/// The address of a name, or an address, which may be in brackets.
fn host(text: &str) -> std::result::Result<IpAddr, String> {
    let inner = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    if let Ok(address) = inner.parse() {
        return Ok(address);
    }
    let found: Vec<SocketAddr> = (text, 0).to_socket_addrs().map_err(|error| error.to_string())?.collect();
    let first = found.iter().find(|found| found.is_ipv4()).or(found.first());
    first.map(SocketAddr::ip).ok_or_else(|| "it has no address".into())
}

/// Parses `NAME=FILE` and `NAME=FILE=SCALE`; what can be `FILE` or `FILE=SCALE`, as other commands do.
fn adapter(text: &str) -> std::result::Result<Lora, String> {
    let exists = |path: &str| Path::new(path).exists();
    if let Some((name, rest)) = text.split_once('=')
        && is_adapter_name(name)
        && !exists(name)
        && !exists(text)
        && (exists(rest) || !rest.is_empty() && rest.parse::<f32>().is_err())
    {
        return Lora::read(Some(name), rest, "NAME=FILE=SCALE, whose scale is a finite number");
    }
    text.parse()
}

pub(crate) fn run(args: &ServeArgs) -> Result {
    let model = &args.model;
    let name = args.name.first().cloned().or_else(|| model.file.model.as_deref().and_then(file_name));
    let name = name.unwrap_or_else(|| "sprout".into());
    let mut options = ServerOptions::new(name);
    options.address = SocketAddr::new(args.host, args.port);
    options.aliases = args.name.iter().skip(1).cloned().collect();
    options.any_model_name = args.any_model_name;
    options.others = args.also.iter().map(|text| other(text, model)).collect();
    options.others_memory = args.also_memory;
    options.adapters = named(&model.adapters.lora);
    options.adapter_folder = args.lora_dir.clone();
    options.key = key(args)?;
    let has_key = options.key.is_some();
    options.origins = args.cors.clone();
    options.replies = args.parallel.into();
    options.queue = args.queue.into();
    options.prompt_tokens = args.prompt_tokens.map(usize::from);
    options.prefix_cache = args.prefix_cache;
    options.connections = args.connections.into();
    options.time = Duration::from_secs(args.timeout.into());
    options.strict = args.strict;
    options.grace = Duration::from_secs(args.grace.into());
    options.check().map_err(refusal)?;
    begin_log(args);
    let loaded = model.load()?;
    finish_caching(&loaded);
    model.remark_on(&loaded, false);
    if !args.host.is_loopback() && !has_key {
        remark("(everyone who can reach this machine can send requests: no --api-key is set)");
    }
    let name = options.model.clone();
    let adapters = options.adapters.iter().map(|adapter| format!(", {} on request", adapter.name));
    let told = settings(&loaded) + &adapters.collect::<String>();
    serve(loaded, options, |address| {
        remark(format_args!("serving {name} ({told}) at http://{address}/v1, a page to chat at http://{address}/; Ctrl-C ends it"));
    })
    .map_err(refusal)
}

/// A model that is loaded when it is asked for: `MODEL` or `NAME=MODEL`.
fn other(text: &str, args: &ModelArgs) -> OtherModel {
    let named = text.split_once('=').filter(|(name, _)| is_adapter_name(name) && !Path::new(text).exists());
    let path = Path::new(named.map_or(text, |(_, path)| path));
    let name = named.map(|(name, _)| name.to_owned()).or_else(|| file_name(path));
    let mut args = args.clone();
    (args.file.model, args.adapters) = (Some(path.into()), AdapterArgs::default());
    let load = args.loader();
    OtherModel::new(name.unwrap_or_else(|| text.into()), move || load().map_err(|error| error.to_string()))
}

/// The adapters that requests ask for.
fn named(all: &[Lora]) -> Vec<NamedAdapter> {
    let named = |Lora { name, path, scale }: &Lora| {
        Some(NamedAdapter { name: name.clone()?, path: path.clone(), scale: *scale })
    };
    all.iter().filter_map(named).collect()
}

fn refusal(error: StartError) -> CliError {
    match error {
        StartError::Origin(_) | StartError::Key | StartError::Adapter(_) => CliError::usage(error),
        StartError::Model(error) => error.into(),
        error => CliError::new(error),
    }
}

/// The last part of a path without `.gguf`.
fn file_name(path: &Path) -> Option<String> {
    // Of a folder, such as `.`, that of what it is.
    let own = || Some(path.file_name()?.to_string_lossy().into_owned());
    let name = if path.is_dir() { shohin::folder_name(path) } else { own() }?;
    // Not the "extension" of bonsai-1.7b.
    let at = name.len().saturating_sub(".gguf".len());
    let is_gguf = at > 0 && name.get(at..).is_some_and(|end| end.eq_ignore_ascii_case(".gguf"));
    Some(if is_gguf { name[..at].to_string() } else { name })
}

#[cfg(test)]
mod tests {
    use super::{adapter, file_name, host};
    use crate::model::Lora;
    use std::path::Path;

    #[test]
    fn an_adapter_has_a_name_if_no_file_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, "").unwrap();
            path.display().to_string()
        };
        let (a, signed) = (file("a.gguf"), file("b=0.5"));
        let lora = |name: Option<&str>, path: &str, scale| Lora {
            name: name.map(String::from),
            path: path.into(),
            scale,
        };
        for (text, expected) in [
            (a.clone(), lora(None, &a, 1.0)),
            (format!("{a}=0.5"), lora(None, &a, 0.5)),
            (signed.clone(), lora(None, &signed, 1.0)),
            (format!("{signed}=2"), lora(None, &signed, 2.0)),
            (format!("poet={a}"), lora(Some("poet"), &a, 1.0)),
            (format!("poet={a}=-2"), lora(Some("poet"), &a, -2.0)),
            (format!("poet={signed}"), lora(Some("poet"), &signed, 1.0)),
            ("poet=absent.gguf".into(), lora(Some("poet"), "absent.gguf", 1.0)),
            // Files are looked for from the folder of this package on.
            ("Cargo.toml=0.5".into(), lora(None, "Cargo.toml", 0.5)),
            ("poet=0.5".into(), lora(None, "poet", 0.5)),
            ("poet=src".into(), lora(Some("poet"), "src", 1.0)),
        ] {
            assert_eq!(adapter(&text), Ok(expected), "{text}");
        }
        for text in [format!("{a}=many"), format!("poet={a}=many"), "Cargo.toml=src".into(), "poet=".into()] {
            assert!(adapter(&text).unwrap_err().contains("finite number"), "{text}");
        }
    }

    #[test]
    fn a_host_is_an_address_or_a_name() {
        for (text, address) in
            [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("[::1]", "::1"), ("0.0.0.0", "0.0.0.0")]
        {
            assert_eq!(host(text).unwrap().to_string(), address);
        }
        assert!(host("localhost").unwrap().is_loopback());
        assert!(host("no such name").is_err());
    }

    #[test]
    fn a_model_has_the_name_of_its_file() {
        for (path, name) in [
            ("bonsai-1.7b", "bonsai-1.7b"),
            ("a/b/Model.gguf", "Model"),
            ("MODEL.GGUF", "MODEL"),
            ("hf:owner/name/m.gguf", "m"),
            ("src", "src"),
            ("src/..", "cli"),
        ] {
            assert_eq!(file_name(Path::new(path)).as_deref(), Some(name), "{path}");
        }
    }
}
