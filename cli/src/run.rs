//! `shohin run`: one prompt, one reply.

use crate::args::{EngineArgs, RunArgs};
use crate::constraint;
use crate::engine::{Engine, Timings, open, reply, token_text};
use crate::failure::{At, Failure, Outcome};
use crate::terminal::{self, CtrlC, write_model_text};
use serde_json::{Value, json};
use shohin_core::chat::{CallBlocks, ChatOptions, Message, Reply, Role, encode};
use shohin_core::generate::{Event, GeneratedToken, Generation, GenerationOptions, Overflow, Reason};
use shohin_core::tokenizer::Special;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

pub(crate) fn run(args: &RunArgs, engine_args: &EngineArgs) -> Outcome {
    let config = args.sampling.config();
    config.check().of_usage()?;
    let tools = constraint::tools(&args.tools)?;
    let form = constraint::grammar(&args.form)?;
    let is_json = form.is_some();
    let grammar = form.or(constraint::calls(&args.tools, &tools)?);
    let stops =
        GenerationOptions { stop_strings: args.sampling.stop.clone(), ..GenerationOptions::default() };
    stops.check().of_usage()?;
    let prompt = prompt(args)?;
    let file = open(engine_args)?;
    let engine = Engine::load(&file, engine_args)?;
    engine.remark_on(args.think);
    let (tokens, instructions) = if args.raw {
        (engine.encode_plain(&prompt, Special::UserDefined), 0)
    } else {
        if let Some(warning) = engine.template_warning() {
            terminal::remark(warning);
        }
        let system = args.system.as_deref().map(|text| Message::new(Role::System, text));
        let messages: Vec<Message<'_>> =
            system.into_iter().chain([Message::new(Role::User, &prompt)]).collect();
        let tools: Vec<&str> = tools.iter().map(String::as_str).collect();
        let options = ChatOptions {
            template: engine.template,
            thinking: Some(args.think),
            tools: &tools,
            ..ChatOptions::default()
        };
        let instructions = instructions(&engine, args.system.as_deref(), &options)?;
        (encode(&engine.tokenizer, &messages, &options)?, instructions)
    };
    let mut session = engine.session(engine.options.context)?;
    let options = GenerationOptions {
        max_tokens: args.max_tokens.unwrap_or(usize::MAX),
        logprobs: args.logprobs.map(usize::from),
        overflow: args.overflow.policy(instructions, session.capacity()),
        ..stops
    };
    if tokens.len() > session.capacity() && options.overflow == Overflow::Error {
        let (n, most) = (tokens.len(), session.capacity());
        let more = if most < engine.model().config().max_context_length {
            "; --context can raise that, and --overflow shift reads on"
        } else {
            ", the most this model can; --overflow shift reads on"
        };
        return Err(Failure::new(format_args!(
            "the prompt is {n} tokens long, but the context holds {most}{more}"
        )));
    }
    let sampler = engine.sampler(&config)?;
    session.chosen_by(&config, args.logprobs.is_some() || grammar.is_some());
    let mut generation = Generation::new(&tokens, 0, session.capacity(), sampler, options)?;
    if let Some(grammar) = grammar {
        generation.constrain(constraint::constraint(grammar, &engine, args.think)?);
    }

    let mut out = io::stdout().lock();
    let terminal = out.is_terminal();
    let mut text = String::new();
    let mut logprobs = Vec::new();
    let ctrl_c = CtrlC::listen();
    let (reason, timings) =
        reply(&mut generation, &mut *session, &engine, &|| ctrl_c.pressed(), &mut |step| {
            let piece = match step {
                Event::Token(event) => {
                    if args.logprobs.is_some() {
                        logprobs.push(logprob_json(&engine, &event));
                    }
                    event.text
                }
                Event::Flush(text) => text,
                Event::Prompt(..) => return Ok(()),
            };
            if args.json {
                text.push_str(piece);
            } else if !piece.is_empty() {
                write_model_text(&mut out, piece, terminal)?;
                text.clear();
                text.push_str(piece);
                out.flush()?;
            }
            Ok(())
        })?;
    drop(ctrl_c);
    if args.json {
        let mut object = json!({
            "model": engine.name(),
            "text": text,
            "tokens": generation.reply(),
            "finish_reason": reason.code(),
            "prompt_tokens": tokens.len(),
            "reply_tokens": generation.reply().len(),
            "dropped_tokens": generation.dropped(),
            "seed": config.seed,
            "timings": timings_json(&engine, &timings),
        });
        // What looks like a marker in JSON is text.
        if !is_json || args.think {
            let parts =
                if is_json { Reply::parse_with(&text, CallBlocks::Text) } else { Reply::parse(&text) };
            if parts.reasoning.is_some() || !parts.calls.is_empty() {
                object["content"] = parts.content.into();
            }
            if let Some(reasoning) = parts.reasoning {
                object["reasoning"] = reasoning.into();
            }
            if !parts.calls.is_empty() {
                object["tool_calls"] = parts.calls.iter().map(|call| call_json(call)).collect();
            }
        }
        if args.logprobs.is_some() {
            object["logprobs"] = Value::Array(logprobs);
        }
        writeln!(out, "{object:#}")?;
    } else if !text.ends_with('\n') {
        writeln!(out)?;
    }
    out.flush()?;
    if args.stats {
        let (line, seed) = (timings.line(), config.seed);
        terminal::remark(format_args!("{line}; seed {seed}; ended by {}", reason_text(reason)));
    } else if reason == Reason::ContextFull && !args.json {
        terminal::remark(format_args!("(the context of {} tokens is full)", session.capacity()));
    }
    if reason == Reason::Cancelled { Err(Failure::Interrupted) } else { Ok(()) }
}

/// A call's name and arguments; as text where the model was cut off within one.
fn call_json(call: &str) -> Value {
    serde_json::from_str(call).unwrap_or_else(|_| call.into())
}

fn prompt(args: &RunArgs) -> Outcome<String> {
    let text = match (&args.prompt, &args.file) {
        (_, Some(file)) => terminal::read_text(file)?,
        (Some(prompt), None) if prompt != "-" => prompt.clone(),
        _ => terminal::read_text(Path::new("-"))?,
    };
    // The line end belongs to the file, not to the message.
    let text = if args.raw { &text } else { text.trim_end_matches(['\n', '\r']) };
    if text.is_empty() {
        return Err(Failure::new(
            "the prompt is empty; give it as an argument, with --file, or on standard input",
        ));
    }
    Ok(text.into())
}

/// How many tokens a chat with these instructions begins with, whatever its first message is.
pub(crate) fn instructions(
    engine: &Engine<'_>,
    system: Option<&str>,
    options: &ChatOptions<'_>,
) -> Outcome<usize> {
    let chat = |text: &str| {
        let system = system.map(|text| Message::new(Role::System, text));
        let messages: Vec<Message<'_>> = system.into_iter().chain([Message::new(Role::User, text)]).collect();
        encode(&engine.tokenizer, &messages, options)
    };
    Ok(chat("a")?.iter().zip(chat("b")?).take_while(|(a, b)| **a == *b).count())
}

pub(crate) fn reason_text(reason: Reason) -> &'static str {
    match reason {
        Reason::Stop => "the model",
        Reason::StopString => "a stop text",
        Reason::Length => "--max-tokens",
        Reason::ContextFull => "a full context",
        Reason::Cancelled => "Ctrl-C",
    }
}

fn timings_json(engine: &Engine<'_>, t: &Timings) -> Value {
    let ms = |time: std::time::Duration| round(time.as_secs_f64() * 1e3);
    json!({
        "load_ms": ms(engine.load_time),
        "prompt_ms": ms(t.prompt_time),
        "prompt_tokens_per_second": round(t.prompt_speed()),
        "reply_ms": ms(t.reply_time),
        "reply_tokens_per_second": round(t.reply_speed()),
    })
}

/// Three decimals: more would only be noise.
pub(crate) fn round(x: f64) -> f64 {
    (x * 1e3).round() / 1e3
}

fn logprob_json(engine: &Engine<'_>, event: &GeneratedToken<'_>) -> Value {
    let entry = |token: u32, logprob: f32| json!({ "token": token, "text": token_text(&engine.tokenizer, token), "logprob": logprob });
    let mut object = entry(event.token, event.logprob.unwrap_or(f32::NEG_INFINITY));
    object["top"] = event.top.iter().map(|top| entry(top.token, top.logprob)).collect();
    object
}
