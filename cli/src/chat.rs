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
use shohin_core::chat::{
    ChatMessage, ChatModel, Conversation, OverflowPolicy, ResponseFormat, Role, SessionState, Thinking,
    TurnOptions,
};
use shohin_core::generate::{GenerationOptions, Reason};
use shohin_core::{Error, SamplerConfig};
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
    let response_format = constraint::response_format(&args.form)?;
    let file = open(engine_args)?;
    let engine = Engine::load(&file, engine_args)?;
    engine.remark_on(args.think);
    let mut chat = Chat::new(&engine, args, config, response_format)?;
    if io::stdin().is_terminal() && io::stdout().is_terminal() { chat.interactive() } else { chat.piped() }
}

/// Begins a turn of a conversation.
type Begin<'b> =
    dyn Fn(&mut Conversation, &ChatModel<'_>, SessionState, &TurnOptions) -> shohin_core::Result<usize> + 'b;

enum Then {
    GoOn,
    Leave,
}

struct Chat<'e> {
    engine: &'e Engine<'e>,
    options: TurnOptions,
    overflow: OverflowArgs,
    session: Box<dyn Timeline + 'e>,
    conversation: Conversation,
    last: Option<(Timings, Reason)>,
    colours: Colours,
    terminal: bool,
}

impl<'e> Chat<'e> {
    fn new(
        engine: &'e Engine<'e>,
        args: &ChatArgs,
        sampler: SamplerConfig,
        response_format: ResponseFormat,
    ) -> Outcome<Self> {
        let stop_strings = args.sampling.stop.clone();
        GenerationOptions { stop_strings: stop_strings.clone(), ..GenerationOptions::default() }
            .check()
            .of_usage()?;
        let session = engine.session(engine.options.context)?;
        let capacity = session.capacity();
        if let OverflowPolicy::Shift { keep: Some(keep) } = args.overflow.policy(0, capacity)
            && keep >= capacity
        {
            return Err(Failure::usage(format_args!(
                "--keep {keep} leaves no room in a context of {capacity} tokens"
            )));
        }
        let mut chat = Chat {
            engine,
            options: TurnOptions {
                sampler,
                // Another reply to the same message is another one.
                reseed: false,
                max_tokens: args.max_tokens,
                stop_strings,
                thinking: if args.think { Thinking::On } else { Thinking::Off },
                response_format,
                ..TurnOptions::default()
            },
            overflow: args.overflow,
            session,
            conversation: Conversation::new(),
            last: None,
            colours: Colours::stdout(),
            terminal: io::stdout().is_terminal(),
        };
        chat.begin(args.system.clone());
        Ok(chat)
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
                self.begin(self.system().map(String::from));
                note = Some("(a new conversation)".into());
            }
            "system" => {
                self.begin((!argument.is_empty()).then(|| argument.to_string()));
                note = Some(match self.system() {
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

    /// Begins a conversation with these instructions.
    fn begin(&mut self, system: Option<String>) {
        let system = system.map(|text| ChatMessage::new(Role::System, text));
        self.conversation.set_messages(system.into_iter().collect());
        self.last = None;
    }

    fn system(&self) -> Option<&str> {
        let first = self.conversation.messages().first().filter(|message| message.role == Role::System)?;
        Some(&first.content)
    }

    fn say(&mut self, text: &str) -> Outcome {
        let message = ChatMessage::new(Role::User, text);
        self.answer(&|conversation, model, state, options| {
            conversation.send(model, state, vec![message.clone()], options)
        })
    }

    fn retry(&mut self) -> Outcome {
        if self.conversation.messages().last().is_none_or(|message| message.role != Role::Assistant) {
            return Err(Failure::new("there is nothing to retry yet"));
        }
        self.answer(&Conversation::retry)
    }

    /// How the next turn deals with a full context.
    fn overflow_policy(&self) -> Outcome<OverflowPolicy> {
        let capacity = self.session.capacity();
        Ok(match self.overflow.overflow {
            // A reply should not be cut off after a few words. Once something must go, make room for more than the
            // next turn: every time costs a new prefill.
            Policy::Error => OverflowPolicy::Trim { reserve: (capacity / 4).min(256), free: capacity / 2 },
            Policy::Shift => {
                let think = self.options.thinking.allowed();
                self.overflow.policy(instructions(self.engine, self.system(), think, &[])?, capacity)
            }
        })
    }

    fn answer(&mut self, begin: &Begin<'_>) -> Outcome {
        let Colours { dim, off, .. } = self.colours;
        self.options.overflow = self.overflow_policy()?;
        let vocabulary = || self.engine.vocabulary();
        let (model, state) = (self.engine.chat_model(&vocabulary), SessionState::of(&*self.session));
        let begun = begin(&mut self.conversation, &model, state, &self.options);
        let trims = self.overflow.overflow == Policy::Error;
        let usage = self.conversation.usage();
        let too_long = match begun {
            Err(Error::ContextFull { position, adding, .. }) => Some(position + adding),
            Err(error) => return Err(error.into()),
            // There must be room for a reply.
            Ok(_) if trims && usage.prompt_tokens >= state.capacity => {
                self.conversation.end(state.position);
                Some(usage.prompt_tokens as u64)
            }
            Ok(_) => None,
        };
        if let Some(n) = too_long {
            let capacity = state.capacity;
            return Err(Failure::new(format_args!(
                "this message makes {n} tokens, but the context holds {capacity}; please shorten it"
            )));
        }
        // A message and its reply.
        let dropped = usage.dropped_messages / 2;
        if dropped > 0 {
            let what = if dropped == 1 { "exchange was" } else { "exchanges were" };
            self.note(&format!("(the context is full: the oldest {dropped} {what} forgotten)"))?;
        }
        let constrained = self.options.response_format != ResponseFormat::Text;
        self.session.chosen_by(&self.options.sampler, constrained);
        let think = ["<think>", "</think>"].map(|name| self.engine.tokenizer.added_id(name));
        let mut out = io::stdout().lock();
        let ctrl_c = CtrlC::listen();
        let terminal = self.terminal;
        let outcome = reply(
            &mut self.conversation,
            &mut *self.session,
            self.engine,
            &|| ctrl_c.pressed(),
            &mut |piece| {
                if piece.token.is_some() && piece.token == think[0] {
                    write!(out, "{dim}")?;
                }
                write_model_text(&mut out, piece.text, terminal)?;
                if piece.token.is_some() && piece.token == think[1] {
                    write!(out, "{off}")?;
                }
                out.flush()?;
                Ok(())
            },
        );
        drop(ctrl_c);
        let (finish, timings) = outcome?;
        self.last = Some((timings, finish.reason));
        write!(out, "{off}")?;
        if !finish.text.ends_with('\n') {
            writeln!(out)?;
        }
        out.flush()?;
        drop(out);
        let forgotten = finish.usage.dropped_tokens;
        if forgotten > 0 {
            self.note(&format!("(the context was full: the oldest {forgotten} tokens were forgotten)"))?;
        }
        match finish.reason {
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
                let seed = self.options.sampler.seed;
                format!(
                    "{}; ended by {reason}\ncontext {held} of {capacity} tokens; seed {seed}",
                    timings.line()
                )
            }
        }
    }

    fn set(&mut self, argument: &str) -> Outcome<String> {
        let mut words = argument.split_whitespace();
        let mut config = self.options.sampler;
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
        self.options.sampler = config;
        Ok(format!("({wanted} is now {value})"))
    }

    fn save(&self, argument: &str) -> Outcome<String> {
        if argument.is_empty() {
            return Err(Failure::new("/save needs a file name"));
        }
        let path = Path::new(argument);
        let messages = self.conversation.messages();
        let text = if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("json")) {
            let messages: Vec<_> =
                messages.iter().map(|m| json!({ "role": m.role.name(), "content": m.text() })).collect();
            format!("{:#}\n", json!({ "model": self.engine.name(), "messages": messages }))
        } else {
            let name = |role| match role {
                Role::System => "Instructions",
                Role::User => "You",
                Role::Assistant => "Model",
                Role::Tool => "Tool",
            };
            messages.iter().map(|m| format!("**{}:** {}\n\n", name(m.role), m.text().trim())).collect()
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
