//! `shohin chat`: a conversation, a line at a time.

use crate::args::{ChatArgs, EngineArgs, OverflowArgs, Policy};
use crate::constraint;
use crate::engine::{Engine, Timings, open, reply};
use crate::failure::{At, Failure, Outcome, file_error};
use crate::run::{instructions, reason_text};
use crate::terminal::{Colours, CtrlC, remark, write_model_text};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use serde_json::json;
use shohin::timeline::Timeline;
use shohin_core::chat::{ChatOptions, Message, Role, encode, encode_next};
use shohin_core::constrain::Constraint;
use shohin_core::generate::{Event, Generation, GenerationOptions, Overflow, Reason, common_prefix};
use shohin_core::{Sampler, SamplerConfig};
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::Path;

const HELP: &str = "\
\x20 /help            this list
  /new             forget the conversation
  /retry           make another reply to the last message
  /system TEXT     set the instructions and begin anew; without TEXT, remove them
  /set NAME VALUE  change a sampling option: temperature, top_k, top_p, min_p, ...; /set alone lists them
  /save FILE       write the conversation, as JSON if FILE ends in .json, else as Markdown
  /stats           tokens and speed of the last reply
  /quit            leave, as Ctrl-D does
A line that ends in \\ goes on in the next one; // begins a message with a slash. Ctrl-C stops a reply.";

pub(crate) fn chat(args: &ChatArgs, engine_args: &EngineArgs) -> Outcome {
    let config = args.sampling.config();
    config.check().of_usage()?;
    let grammar = constraint::grammar(&args.form)?;
    let file = open(engine_args)?;
    let engine = Engine::load(&file, engine_args)?;
    engine.remark_on(args.think);
    let mut chat = Chat::new(&engine, args, config)?;
    if let Some(grammar) = grammar {
        chat.constraint = Some(constraint::constraint(grammar, &engine, args.think)?);
    }
    if io::stdin().is_terminal() && io::stdout().is_terminal() { chat.interactive() } else { chat.piped() }
}

enum Then {
    GoOn,
    Leave,
}

struct Chat<'e> {
    engine: &'e Engine<'e>,
    options: ChatOptions<'e>,
    generation: GenerationOptions,
    overflow: OverflowArgs,
    /// What replies are kept to, at their beginning.
    constraint: Option<Constraint>,
    session: Box<dyn Timeline + 'e>,
    sampler: Sampler,
    config: SamplerConfig,
    system: Option<String>,
    turns: Vec<Turn>,
    /// All tokens of the conversation so far.
    tokens: Vec<u32>,
    /// The tokens the session holds.
    held: Vec<u32>,
    last: Option<(Timings, Reason)>,
    colours: Colours,
    terminal: bool,
}

/// A message and, once it is made, the reply.
struct Turn {
    user: String,
    reply: Option<String>,
    /// How many tokens there were before the message.
    start: usize,
}

impl<'e> Chat<'e> {
    fn new(engine: &'e Engine<'e>, args: &ChatArgs, config: SamplerConfig) -> Outcome<Self> {
        let generation = GenerationOptions {
            max_tokens: args.max_tokens.unwrap_or(usize::MAX),
            stop_strings: args.sampling.stop.clone(),
            ..GenerationOptions::default()
        };
        generation.check().of_usage()?;
        let session = engine.session(engine.options.context)?;
        let capacity = session.capacity();
        if let Overflow::Shift { keep } = args.overflow.policy(0, capacity)
            && keep >= capacity
        {
            return Err(Failure::usage(format_args!(
                "--keep {keep} leaves no room in a context of {capacity} tokens"
            )));
        }
        Ok(Chat {
            engine,
            options: ChatOptions {
                template: engine.template,
                thinking: Some(args.think),
                ..ChatOptions::default()
            },
            generation,
            overflow: args.overflow,
            constraint: None,
            session,
            sampler: engine.sampler(&config)?,
            config,
            system: args.system.clone(),
            turns: Vec::new(),
            tokens: Vec::new(),
            held: Vec::new(),
            last: None,
            colours: Colours::stdout(),
            terminal: io::stdout().is_terminal(),
        })
    }

    fn interactive(&mut self) -> Outcome {
        let Colours { bold, dim, off, accent } = self.colours;
        let (name, kind) = (self.engine.name(), self.engine.kind());
        let parameters = crate::terminal::count(self.engine.model().config().num_parameters());
        let context = self.session.capacity();
        let mut out = io::stdout();
        writeln!(out, "{bold}{name}{off}  {dim}{kind}, {parameters} parameters, context {context}{off}")?;
        writeln!(out, "{dim}{}{off}", self.engine.settings())?;
        writeln!(out, "{dim}/help lists commands, Ctrl-C stops a reply, Ctrl-D leaves{off}\n")?;
        if let Some(warning) = self.engine.template_warning() {
            self.note(&warning)?;
            self.gap()?;
        }
        let no_editor = |e| Failure::new(format_args!("cannot read from the terminal: {e}"));
        let mut editor = DefaultEditor::new().map_err(no_editor)?;
        let prompt = format!("{accent}>{off} ");
        loop {
            let mut line = String::new();
            loop {
                let shown = if line.is_empty() { prompt.as_str() } else { "… " };
                match editor.readline(shown) {
                    Ok(more) => line.push_str(&more),
                    Err(ReadlineError::Eof) => return Ok(()),
                    Err(ReadlineError::Interrupted) => {
                        self.note("(Ctrl-D or /quit leaves)")?;
                        line.clear();
                        continue;
                    }
                    Err(error) => return Err(no_editor(error)),
                }
                if line.ends_with('\\') {
                    line.pop();
                    line.push('\n');
                } else {
                    break;
                }
            }
            if line.trim().is_empty() {
                continue;
            }
            let _ = editor.add_history_entry(line.trim());
            match self.line(line.trim()) {
                Ok(Then::GoOn) => {}
                Ok(Then::Leave) => return Ok(()),
                // One refused message is no reason to lose the conversation.
                Err(Failure::Message(message)) => {
                    self.note(&format!("({message})"))?;
                    self.gap()?;
                }
                Err(other) => return Err(other),
            }
        }
    }

    /// One message a line, no prompts: for scripts.
    fn piped(&mut self) -> Outcome {
        let mut text = String::new();
        for line in io::stdin().lock().lines() {
            text.push_str(&line?);
            if text.ends_with('\\') {
                text.pop();
                text.push('\n');
                continue;
            }
            let line = std::mem::take(&mut text);
            if line.trim().is_empty() {
                continue;
            }
            if let Then::Leave = self.line(line.trim())? {
                return Ok(());
            }
        }
        // The last line promised another one, which never came.
        if !text.trim().is_empty() {
            self.line(text.trim())?;
        }
        Ok(())
    }

    fn line(&mut self, line: &str) -> Outcome<Then> {
        // `//usr` is a message that begins with a slash.
        let command = line.strip_prefix('/').filter(|command| !command.starts_with('/'));
        let Some(command) = command else {
            self.say(line.strip_prefix('/').unwrap_or(line))?;
            return Ok(Then::GoOn);
        };
        let (name, argument) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let argument = argument.trim();
        let mut note = None;
        match name {
            "help" | "h" | "?" => note = Some(HELP.to_string()),
            "quit" | "q" | "exit" => return Ok(Then::Leave),
            "new" => {
                self.forget();
                note = Some("(a new conversation)".into());
            }
            "system" => {
                self.system = (!argument.is_empty()).then(|| argument.to_string());
                self.forget();
                note = Some(match self.system {
                    Some(_) => "(a new conversation with these instructions)".into(),
                    None => "(a new conversation without instructions)".into(),
                });
            }
            "retry" => self.retry()?,
            "set" => note = Some(self.set(argument)?),
            "save" => note = Some(self.save(argument)?),
            "stats" => note = Some(self.stats()),
            _ => {
                let message =
                    format!("/{name} is no command; /help lists them, and // begins a message with a slash");
                return Err(Failure::Message(message));
            }
        }
        if let Some(note) = note {
            self.note(&note)?;
            self.gap()?;
        }
        Ok(Then::GoOn)
    }

    fn forget(&mut self) {
        self.turns.clear();
        self.tokens.clear();
        self.last = None;
    }

    fn say(&mut self, text: &str) -> Outcome {
        let turn = Turn { user: text.into(), reply: None, start: self.tokens.len() };
        self.turns.push(turn);
        self.answer()
    }

    fn retry(&mut self) -> Outcome {
        let Some(turn) = self.turns.last_mut() else {
            return Err(Failure::new("there is nothing to retry yet"));
        };
        let before = Turn { user: turn.user.clone(), reply: turn.reply.take(), start: turn.start };
        let (turns, tokens) = (self.turns.len(), self.tokens.clone());
        self.tokens.truncate(before.start);
        let outcome = self.answer();
        // Nothing came, so the first reply stands; unless older turns went, whose tokens are gone.
        if self.turns.len() + 1 == turns && before.start < tokens.len() {
            self.turns.push(before);
            self.tokens = tokens;
        }
        outcome
    }

    /// The messages from turn `from` on, with the instructions in front.
    fn messages(&self, from: usize) -> Vec<Message<'_>> {
        let system = self.system.as_deref().map(|text| Message::new(Role::System, text));
        let turns = self.turns.iter().skip(from).flat_map(|turn| {
            let reply = turn.reply.as_deref().map(|text| Message::new(Role::Assistant, text));
            [Message::new(Role::User, &turn.user)].into_iter().chain(reply)
        });
        system.into_iter().chain(turns).collect()
    }

    /// The tokens up to and with the last message, and how many old turns had to go for that.
    fn prompt(&self) -> Outcome<(Vec<u32>, usize)> {
        let tokenizer = &self.engine.tokenizer;
        let capacity = self.session.capacity();
        // A reply should not be cut off after a few words.
        let reserve = (capacity / 4).min(256);
        let Some(turn) = self.turns.last() else { return Ok((Vec::new(), 0)) };
        let mut prompt = self.tokens.clone();
        if prompt.is_empty() {
            prompt = encode(tokenizer, &self.messages(0), &self.options)?;
        } else {
            let next = [Message::new(Role::User, &turn.user)];
            prompt.extend(encode_next(tokenizer, &self.tokens, &next, &self.options)?);
        }
        if self.overflow.overflow == Policy::Shift {
            return Ok((prompt, 0));
        }
        let mut dropped = 0;
        // Once something must go, make room for more than the next turn: every time costs a new prefill.
        while prompt.len() + if dropped == 0 { reserve } else { capacity / 2 } > capacity
            && dropped + 1 < self.turns.len()
        {
            dropped += 1;
            prompt = encode(tokenizer, &self.messages(dropped), &self.options)?;
        }
        if prompt.len() >= capacity {
            let n = prompt.len();
            return Err(Failure::new(format_args!(
                "this message makes {n} tokens, but the context holds {capacity}; please shorten it"
            )));
        }
        Ok((prompt, dropped))
    }

    fn answer(&mut self) -> Outcome {
        let outcome = self.attempt();
        // As if the message had not been sent.
        if outcome.is_err() && self.turns.last().is_some_and(|turn| turn.reply.is_none()) {
            self.turns.pop();
        }
        outcome
    }

    fn attempt(&mut self) -> Outcome {
        let Colours { dim, off, .. } = self.colours;
        let (prompt, dropped) = self.prompt()?;
        if dropped > 0 {
            self.turns.drain(..dropped);
            self.tokens.clear();
            // The conversation is encoded from its first message on; a retry does that again.
            if let Some(turn) = self.turns.last_mut() {
                turn.start = 0;
            }
            let what = if dropped == 1 { "exchange was" } else { "exchanges were" };
            self.note(&format!("(the context is full: the oldest {dropped} {what} forgotten)"))?;
        }
        let held = common_prefix(&self.held, &prompt);
        self.session.truncate(held)?;
        self.session.chosen_by(&self.config, self.constraint.is_some());
        let (sampler, mut options) = (self.sampler.clone(), self.generation.clone());
        let keep = instructions(self.engine, self.system.as_deref(), &self.options)?;
        let overflow = self.overflow.policy(keep, self.session.capacity());
        options.overflow = overflow;
        let mut generation = Generation::new(&prompt, held, self.session.capacity(), sampler, options)?;
        if let Some(constraint) = &self.constraint {
            generation.constrain(constraint.clone());
        }
        let think = ["<think>", "</think>"].map(|name| self.engine.tokenizer.added_id(name));
        let mut out = io::stdout().lock();
        let mut text = String::new();
        let ctrl_c = CtrlC::listen();
        let terminal = self.terminal;
        let outcome =
            reply(&mut generation, &mut *self.session, self.engine, &|| ctrl_c.pressed(), &mut |step| {
                let (piece, token) = match step {
                    Event::Token(event) => (event.text, Some(event.token)),
                    Event::Flush(text) => (text, None),
                    Event::Prompt(..) => return Ok(()),
                };
                if token.is_some() && token == think[0] {
                    write!(out, "{dim}")?;
                }
                write_model_text(&mut out, piece, terminal)?;
                if token.is_some() && token == think[1] {
                    write!(out, "{off}")?;
                }
                text.push_str(piece);
                out.flush()?;
                Ok(())
            });
        drop(ctrl_c);
        // Whatever happened, this is what the session holds.
        self.held = generation.held().to_vec();
        self.held.truncate(self.session.position());
        if text.is_empty() && generation.reason() == Some(Reason::Cancelled) {
            // As if the message had not been sent.
            self.turns.pop();
        } else if outcome.is_ok()
            && let Some(turn) = self.turns.last_mut()
        {
            self.tokens = generation.tokens().to_vec();
            turn.reply = Some(text.clone());
            // Where the message is now. If it is gone, a retry reads the conversation again.
            let dropped = generation.dropped();
            if let Overflow::Shift { keep } = overflow
                && dropped > 0
                && turn.start > keep
            {
                turn.start = if turn.start >= keep + dropped { turn.start - dropped } else { 0 };
            }
        }
        let (reason, timings) = outcome?;
        let forgotten = generation.dropped();
        self.sampler = generation.into_sampler();
        self.sampler.forget();
        self.last = Some((timings, reason));
        write!(out, "{off}")?;
        if !text.ends_with('\n') {
            writeln!(out)?;
        }
        out.flush()?;
        drop(out);
        if forgotten > 0 {
            self.note(&format!("(the context was full: the oldest {forgotten} tokens were forgotten)"))?;
        }
        match reason {
            Reason::Cancelled => self.note("(stopped)")?,
            Reason::ContextFull => self.note("(the context is full, so the reply ends here)")?,
            Reason::Length => self.note("(--max-tokens reached)")?,
            Reason::Stop | Reason::StopString => {}
        }
        self.gap()
    }

    /// An empty line before the next prompt.
    fn gap(&self) -> Outcome {
        if self.terminal {
            writeln!(io::stdout())?;
        }
        Ok(())
    }

    /// A remark of the program. Scripts find it on standard error, not among the replies.
    fn note(&self, text: &str) -> Outcome {
        let Colours { dim, off, .. } = self.colours;
        if self.terminal {
            writeln!(io::stdout(), "{dim}{text}{off}")?;
        } else {
            remark(text);
        }
        Ok(())
    }

    fn stats(&self) -> String {
        match &self.last {
            None => "(no reply yet)".into(),
            Some((timings, reason)) => {
                let (held, capacity) = (self.session.position(), self.session.capacity());
                let reason = reason_text(*reason);
                let seed = self.config.seed;
                format!(
                    "{}; ended by {reason}\ncontext {held} of {capacity} tokens; seed {seed}",
                    timings.line()
                )
            }
        }
    }

    fn set(&mut self, argument: &str) -> Outcome<String> {
        let mut words = argument.split_whitespace();
        let mut config = self.config;
        let Some(name) = words.next() else {
            let lines: Vec<String> =
                options(&mut config).iter().map(|(n, v)| format!("  {n:20}{}", v.shown())).collect();
            return Ok(lines.join("\n"));
        };
        let wanted = name.replace('-', "_");
        let value = words.next().unwrap_or_default();
        let mut all = options(&mut config);
        let Some((_, option)) = all.iter_mut().find(|(n, _)| *n == wanted) else {
            let names: Vec<&str> = all.iter().map(|(n, _)| *n).collect();
            let names = names.join(", ");
            return Err(Failure::new(format_args!("{name} is no sampling option; expected one of {names}")));
        };
        if !option.put(value) {
            return Err(Failure::new(format_args!("/set {name} needs a number, found {value:?}")));
        }
        config.check()?;
        self.sampler = self.engine.sampler(&config)?;
        self.config = config;
        Ok(format!("({wanted} is now {value})"))
    }

    fn save(&self, argument: &str) -> Outcome<String> {
        if argument.is_empty() {
            return Err(Failure::new("/save needs a file name"));
        }
        let path = Path::new(argument);
        let messages = self.messages(0);
        let text = if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("json")) {
            let messages: Vec<_> =
                messages.iter().map(|m| json!({ "role": m.role.name(), "content": m.content })).collect();
            format!("{:#}\n", json!({ "model": self.engine.name(), "messages": messages }))
        } else {
            let name = |role| match role {
                Role::System => "Instructions",
                Role::User => "You",
                Role::Assistant => "Model",
                Role::Tool => "Tool",
            };
            messages.iter().map(|m| format!("**{}:** {}\n\n", name(m.role), m.content.trim())).collect()
        };
        std::fs::write(path, text).map_err(|e| file_error("write", path, &e))?;
        let n = messages.len();
        Ok(format!("({n} messages written to {argument})"))
    }
}

/// A place in the sampler's options.
enum Place<'c> {
    Float(&'c mut f32),
    Count(&'c mut usize),
    Seed(&'c mut u64),
}

impl Place<'_> {
    fn shown(&self) -> String {
        match self {
            Place::Float(x) => x.to_string(),
            Place::Count(n) => n.to_string(),
            Place::Seed(n) => n.to_string(),
        }
    }

    fn put(&mut self, value: &str) -> bool {
        match self {
            Place::Float(x) => value.parse().map(|v| **x = v).is_ok(),
            Place::Count(n) => value.parse().map(|v| **n = v).is_ok(),
            Place::Seed(n) => value.parse().map(|v| **n = v).is_ok(),
        }
    }
}

fn options(c: &mut SamplerConfig) -> [(&'static str, Place<'_>); 14] {
    use Place::{Count, Float, Seed};
    [
        ("temperature", Float(&mut c.temperature)),
        ("top_k", Count(&mut c.top_k)),
        ("top_p", Float(&mut c.top_p)),
        ("min_p", Float(&mut c.min_p)),
        ("typical_p", Float(&mut c.typical_p)),
        ("repetition_penalty", Float(&mut c.repetition_penalty)),
        ("presence_penalty", Float(&mut c.presence_penalty)),
        ("frequency_penalty", Float(&mut c.frequency_penalty)),
        ("penalty_last_n", Count(&mut c.penalty_last_n)),
        ("dry_multiplier", Float(&mut c.dry_multiplier)),
        ("dry_base", Float(&mut c.dry_base)),
        ("dry_allowed_length", Count(&mut c.dry_allowed_length)),
        ("dry_last_n", Count(&mut c.dry_last_n)),
        ("seed", Seed(&mut c.seed)),
    ]
}
