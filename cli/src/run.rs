//! `shohin run`: one prompt, one reply.

use crate::args::whole;
use crate::beams::{self, BeamArgs};
use crate::error::{CliError, Result};
use crate::input::{is_piped, read_text};
use crate::model::{ModelArgs, finish_caching, template_warning, token_text};
use crate::reply::{follow, line, reason_text, recovered};
use crate::sampling::SamplingArgs;
use crate::session;
use crate::terminal::{self, round, write_model_text};
use crate::turn::{self, FormatArgs, OverflowArgs, SpeculationArgs, ToolArgs, Tools};
use clap::Args;
use serde_json::{Value, json};
use shohin::core::chat::{ChatMessage, Finish, FunctionCall, OverflowPolicy, Role};
use shohin::core::generate::Reason;
use shohin::{Model, Piece, Timings, TurnOptions};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

/// Answer one prompt, or continue a text
///
/// The prompt is the argument, followed by the content of --file or what is piped into the command, or one of these. It is
/// sent as a chat message; with --raw the model continues it as plain text.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  shohin run \"What does a cow say?\"
  shohin run --raw \"Once upon a time, there was\" -n 60 --seed 7
  shohin run --raw \"Once upon a time\" -n 10000 --overflow shift
  shohin run --file question.txt --json
  shohin run \"Describe a fox.\" --json-schema fox.schema.json
  shohin run -m bonsai-8b \"Is it raining in Kyoto?\" --tools weather.json --json
  shohin run --session trip.session \"I am in Kyoto. What should I see?\"
  git diff | shohin run -m bonsai-8b \"Write a commit message for this diff.\"
  shohin run \"Name a fruit.\" --json --logprobs 3 | jq .logprobs
  shohin run --raw \"Once upon a time\" -n 40 --beams 4")]
pub(crate) struct RunArgs {
    /// The prompt; "-" or none reads standard input
    prompt: Option<String>,
    /// Read the prompt from a file, or what follows the prompt
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Continue the prompt as plain text, without the chat template
    #[arg(long, conflicts_with_all = ["system", "think"])]
    raw: bool,
    /// System message
    #[arg(short, long, value_name = "TEXT")]
    system: Option<String>,
    /// Resume from FILE if it exists; save on exit
    ///
    /// --system is that of a new conversation.
    #[arg(long, value_name = "FILE", conflicts_with = "raw")]
    session: Option<PathBuf>,
    /// Let a reasoning model think before it answers, for at most N tokens if set
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, value_parser = whole::<usize>)]
    think: Option<Option<usize>>,
    /// Maximum tokens to generate [default: until the context is full]
    #[arg(short = 'n', long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<usize>)]
    max_tokens: Option<usize>,
    /// Print one JSON object at the end instead of streaming text
    #[arg(long)]
    json: bool,
    /// With --json: log-probability of each token and of the N most likely alternatives
    #[arg(long, value_name = "N", requires = "json", value_parser = clap::value_parser!(u16).range(0..=100), allow_negative_numbers = true)]
    logprobs: Option<u16>,
    /// Print token counts and speed to standard error at the end
    #[arg(long)]
    stats: bool,
    #[command(flatten)]
    format: FormatArgs,
    #[command(flatten)]
    tools: ToolArgs,
    #[command(flatten)]
    overflow: OverflowArgs,
    #[command(flatten)]
    speculation: SpeculationArgs,
    #[command(flatten)]
    beams: BeamArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

pub(crate) fn run(args: &RunArgs) -> Result {
    let model_args = &args.model;
    let ToolArgs { tools, tool_choice, tools_in_prompt } = &args.tools;
    let tools = Tools { descriptions: tools.as_deref(), choice: tool_choice, in_prompt: *tools_in_prompt };
    let mut options = turn::options(&args.sampling, &args.format, tools, args.think, args.max_tokens)?;
    options.logprobs = args.logprobs.map(usize::from);
    options.overflow = args.overflow.policy(OverflowPolicy::Error)?;
    if args.raw && matches!(options.overflow, OverflowPolicy::Trim { .. }) {
        return Err(CliError::usage("--overflow trim is for conversations, and --raw has none"));
    }
    let prompt = prompt(args)?;
    let model = model_args.load()?;
    model_args.remark_on(&model, args.think.is_some());
    if !args.raw
        && let Some(warning) = template_warning(&model)
    {
        terminal::remark(warning);
    }
    let outcome = match args.beams.beams {
        Some(beams) => search(args, beams, &model, prompt, &options),
        None => answer(args, &model, prompt, options),
    };
    finish_caching(&model);
    outcome
}

/// Prints what beam search finds.
fn search(args: &RunArgs, beams: u8, model: &Model, prompt: String, options: &TurnOptions) -> Result {
    let tokens = match args.raw {
        true => model.tokenize(&prompt),
        false => model.encode(messages(args.system.as_deref(), prompt), options)?.tokens().to_vec(),
    };
    let capacity = model.context();
    if tokens.len() >= capacity {
        return Err(too_long(model, tokens.len() as u64, capacity as u64, ""));
    }
    beams::run(beams, &args.beams, model, &tokens, args.max_tokens, args.json, args.stats)
}

/// Prints a reply.
fn answer(args: &RunArgs, model: &Model, prompt: String, options: TurnOptions) -> Result {
    let seed = options.sampler.seed;
    let mut chat = model.chat()?;
    *chat.options_mut() = options;
    args.speculation.apply(&mut chat, &args.model)?;
    let capacity = chat.capacity();
    args.overflow.check(capacity)?;
    let kept = args.session.as_ref().map_or(Ok(0), |path| session::open(&mut chat, path))?;
    let reply = match args.raw {
        true => chat.complete(&model.tokenize(&prompt)),
        false => chat.send_messages(messages(args.system.as_deref().filter(|_| kept == 0), prompt)),
    };
    let reply = reply.map_err(|error| match error {
        shohin::Error::Engine(shohin::core::Error::ContextFull { position, adding, capacity }) => {
            too_long(model, position + adding, capacity, "; --overflow shift reads on")
        }
        other => other.into(),
    })?;

    let mut out = io::stdout().lock();
    let terminal = out.is_terminal();
    let mut ends_line = false;
    let (mut tokens, mut logprobs) = (Vec::new(), Vec::new());
    let (finish, timings) = follow(reply, &mut |piece| {
        tokens.extend_from_slice(&piece.tokens);
        if args.logprobs.is_some() && piece.token.is_some() {
            logprobs.push(logprob_json(model, piece));
        }
        if !args.json && !piece.text.is_empty() {
            write_model_text(&mut out, &piece.text, terminal)?;
            ends_line = piece.text.ends_with('\n');
            out.flush()?;
        }
        Ok(())
    })?;
    let reason = finish.reason;
    if let Some(line) = recovered(&chat, 0) {
        terminal::remark(line);
    }
    if args.json {
        let mut object = reply_json(model, &finish, &timings);
        object["tokens"] = tokens.into();
        object["seed"] = seed.into();
        if args.speculation.is_used() {
            let guesses = chat.guesses();
            object["guesses"] = json!({ "checked": guesses.checked, "right": guesses.right });
        }
        if args.logprobs.is_some() {
            object["logprobs"] = Value::Array(logprobs);
        }
        writeln!(out, "{object:#}")?;
    } else if !ends_line {
        writeln!(out)?;
    }
    out.flush()?;
    if args.stats {
        let line = line(&timings, &finish, chat.guesses());
        terminal::remark(format_args!("{line}; seed {seed}; ended by {}", reason_text(reason)));
    } else if reason == Reason::ContextFull && !args.json {
        terminal::remark(format_args!("(the context of {capacity} tokens is full)"));
    }
    if let Some(path) = &args.session {
        session::save(&mut chat, path)?;
    }
    match turn::cut_off(chat.options(), reason) {
        _ if reason == Reason::Cancelled => Err(CliError::Interrupted),
        Some(what) => Err(CliError::CutOff(format!("{what}: ended by {}", reason_text(reason)))),
        None => Ok(()),
    }
}

/// A conversation with one message.
fn messages(system: Option<&str>, prompt: String) -> Vec<ChatMessage> {
    let system = system.map(|text| ChatMessage::new(Role::System, text));
    system.into_iter().chain([ChatMessage::new(Role::User, prompt)]).collect()
}

fn reply_json(model: &Model, finish: &Finish, timings: &Timings) -> Value {
    let mut object = json!({
        "model": model.name(),
        "text": finish.text,
        "finish_reason": finish.reason.code(),
        "prompt_tokens": finish.usage.prompt_tokens,
        "reply_tokens": finish.usage.completion_tokens,
        "dropped_tokens": finish.usage.dropped_tokens,
        "weights_cached": model.is_cached(),
        "timings": timings_json(model, timings),
    });
    let ChatMessage { content, reasoning, tool_calls, .. } = &finish.message;
    if reasoning.is_some() || !tool_calls.is_empty() {
        object["content"] = content.as_str().into();
    }
    if let Some(reasoning) = reasoning {
        object["reasoning"] = reasoning.as_str().into();
    }
    if !tool_calls.is_empty() {
        object["tool_calls"] = tool_calls.iter().map(call_json).collect();
    }
    object
}

/// The prompt does not fit; `more` is what else helps.
fn too_long(model: &Model, tokens: u64, capacity: u64, more: &str) -> CliError {
    let why = match model.config().max_context_length as u64 > capacity {
        true => "; --context can raise that",
        false => ", the most this model supports",
    };
    let reply = if tokens > capacity { "" } else { ", and a reply needs room" };
    CliError::new(format_args!(
        "the prompt is {tokens} tokens long, but the context holds {capacity}{reply}{why}{more}"
    ))
}

fn call_json(call: &FunctionCall) -> Value {
    let arguments: Value =
        serde_json::from_str(&call.arguments).unwrap_or_else(|_| call.arguments.as_str().into());
    json!({ "name": call.name, "arguments": arguments })
}

/// The prompt, and what follows it: a file, or what is piped.
fn prompt(args: &RunArgs) -> Result<String> {
    let asked = args.prompt.as_deref().filter(|prompt| *prompt != "-");
    if args.raw && asked.is_some() && args.file.is_some() {
        return Err(CliError::usage("--raw continues one text, expected a prompt or --file"));
    }
    if asked.is_some_and(|prompt| Path::new(prompt).is_file()) {
        terminal::remark("(this file's name is the prompt; -m FILE names a model, --file FILE a text)");
    }
    let holds_model = args.model.file.model.as_deref() == Some(Path::new("/dev/stdin"));
    let more = match &args.file {
        Some(file) => Some(read_text(file)?),
        None if asked.is_none() => Some(read_text(Path::new("-"))?),
        None if is_piped() && !args.raw && !holds_model => Some(read_text(Path::new("-"))?),
        None => None,
    };
    // The line end belongs to the file, not to the message.
    let ended = |text: &str| text.trim_end_matches(['\n', '\r']).to_owned();
    let more = if args.raw { more } else { more.as_deref().map(ended) };
    let text = match (asked, more.filter(|more| !more.is_empty())) {
        (Some(asked), Some(more)) if !asked.is_empty() => format!("{asked}\n\n{more}"),
        (_, Some(more)) => more,
        (asked, None) => asked.unwrap_or_default().into(),
    };
    if text.is_empty() {
        return Err(CliError::new(
            "the prompt is empty; give it as an argument, with --file, or on standard input",
        ));
    }
    Ok(text)
}

fn timings_json(model: &Model, t: &Timings) -> Value {
    let ms = |time: std::time::Duration| round(time.as_secs_f64() * 1e3);
    json!({
        "load_ms": ms(model.load_time()),
        "prompt_ms": ms(t.prompt_time),
        "prompt_tokens_per_second": round(t.prompt_speed()),
        "reply_ms": ms(t.reply_time),
        "reply_tokens_per_second": round(t.reply_speed()),
    })
}

fn logprob_json(model: &Model, piece: &Piece) -> Value {
    let entry = |token: u32, logprob: f32| json!({ "token": token, "text": token_text(model.tokenizer(), token), "logprob": logprob });
    let token = piece.token.unwrap_or_default();
    let mut object = entry(token, piece.logprob.unwrap_or(f32::NEG_INFINITY));
    object["top"] = piece.top.iter().map(|top| entry(top.token, top.logprob)).collect();
    object
}
