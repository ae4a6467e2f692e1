//! `shohin run`: one prompt, one reply.

use crate::args::{EngineArgs, RunArgs};
use crate::constraint;
use crate::engine::{Engine, Timings, open, reply, token_text};
use crate::failure::{At, Failure, Outcome};
use crate::terminal::{self, CtrlC, write_model_text};
use serde_json::{Value, json};
use shohin_core::Error;
use shohin_core::chat::{
    CallBlocks, ChatMessage, ChatOptions, Conversation, Finish, Message, Piece, Reply, ResponseFormat, Role,
    SessionState, Thinking, TurnOptions, encode,
};
use shohin_core::generate::{GenerationOptions, Reason};
use shohin_core::tokenizer::Special;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

pub(crate) fn run(args: &RunArgs, engine_args: &EngineArgs) -> Outcome {
    let config = args.sampling.config();
    config.check().of_usage()?;
    let (tools, tool_choice) = constraint::tools(&args.tools)?;
    let response_format = constraint::response_format(&args.form)?;
    let is_json = response_format != ResponseFormat::Text;
    let stop_strings = args.sampling.stop.clone();
    GenerationOptions { stop_strings: stop_strings.clone(), ..GenerationOptions::default() }
        .check()
        .of_usage()?;
    let prompt = prompt(args)?;
    let file = open(engine_args)?;
    let engine = Engine::load(&file, engine_args)?;
    engine.remark_on(args.think);
    if let Some(warning) = engine.template_warning().filter(|_| !args.raw) {
        terminal::remark(warning);
    }
    let system: Vec<ChatMessage> =
        args.system.iter().map(|text| ChatMessage::new(Role::System, text.as_str())).collect();
    let instructions = match args.raw {
        true => 0,
        false => instructions(&engine, args.system.as_deref(), args.think, &tools)?,
    };
    let mut session = engine.session(engine.options.context)?;
    let options = TurnOptions {
        sampler: config,
        max_tokens: args.max_tokens,
        stop_strings,
        logprobs: args.logprobs.map(usize::from),
        thinking: if args.think { Thinking::On } else { Thinking::Off },
        tools,
        tool_choice,
        response_format,
        overflow: args.overflow.policy(instructions, session.capacity()),
        ..TurnOptions::default()
    };
    let vocabulary = || engine.vocabulary();
    let (model, state) = (engine.chat_model(&vocabulary), SessionState::of(&*session));
    let mut conversation = Conversation::new();
    let begun = if args.raw {
        let tokens = engine.encode_plain(&prompt, Special::UserDefined);
        conversation.complete(&model, state, tokens, &options)
    } else {
        conversation.set_messages(system);
        conversation.send(&model, state, vec![ChatMessage::new(Role::User, prompt)], &options)
    };
    if let Err(Error::ContextFull { position, adding, .. }) = begun {
        let (n, most) = (position + adding, session.capacity());
        let more = if most < engine.model().config().max_context_length {
            "; --context can raise that, and --overflow shift reads on"
        } else {
            ", the most this model can; --overflow shift reads on"
        };
        return Err(Failure::new(format_args!(
            "the prompt is {n} tokens long, but the context holds {most}{more}"
        )));
    }
    begun?;
    let constrained = is_json || !options.tools.is_empty();
    session.chosen_by(&config, args.logprobs.is_some() || constrained);

    let mut out = io::stdout().lock();
    let terminal = out.is_terminal();
    let mut last = String::new();
    let (mut tokens, mut logprobs) = (Vec::new(), Vec::new());
    let ctrl_c = CtrlC::listen();
    let (finish, timings) =
        reply(&mut conversation, &mut *session, &engine, &|| ctrl_c.pressed(), &mut |piece| {
            tokens.extend_from_slice(piece.tokens);
            if let Some(token) = piece.token
                && args.logprobs.is_some()
            {
                logprobs.push(logprob_json(&engine, token, &piece));
            }
            if !args.json && !piece.text.is_empty() {
                write_model_text(&mut out, piece.text, terminal)?;
                last.clear();
                last.push_str(piece.text);
                out.flush()?;
            }
            Ok(())
        })?;
    drop(ctrl_c);
    let Finish { reason, text, usage, .. } = finish;
    if args.json {
        let mut object = json!({
            "model": engine.name(),
            "text": text,
            "tokens": tokens,
            "finish_reason": reason.code(),
            "prompt_tokens": usage.prompt_tokens,
            "reply_tokens": usage.completion_tokens,
            "dropped_tokens": usage.dropped_tokens,
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
    } else if !last.ends_with('\n') {
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
    think: bool,
    tools: &[String],
) -> Outcome<usize> {
    let tools: Vec<&str> = tools.iter().map(String::as_str).collect();
    let options = ChatOptions {
        template: engine.template,
        thinking: Some(think),
        tools: &tools,
        ..ChatOptions::default()
    };
    let chat = |text: &str| {
        let system = system.map(|text| Message::new(Role::System, text));
        let messages: Vec<Message<'_>> = system.into_iter().chain([Message::new(Role::User, text)]).collect();
        encode(&engine.tokenizer, &messages, &options)
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

fn logprob_json(engine: &Engine<'_>, token: u32, piece: &Piece<'_>) -> Value {
    let entry = |token: u32, logprob: f32| json!({ "token": token, "text": token_text(&engine.tokenizer, token), "logprob": logprob });
    let mut object = entry(token, piece.logprob.unwrap_or(f32::NEG_INFINITY));
    object["top"] = piece.top.iter().map(|top| entry(top.token, top.logprob)).collect();
    object
}
