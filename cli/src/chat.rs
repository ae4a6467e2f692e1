//! `shohin chat`: a conversation, one line at a time.

use crate::args::whole;
use crate::editor::{Editor, Typed, Words};
use crate::error::{CliError, Result, file_error};
use crate::input::{MAX_TEXT, read_line};
use crate::message::Lines;
use crate::model::{self, BareArgs, ModelArgs, finish_caching, template_warning, weights};
use crate::reply::{follow, line, reason_text, recovered};
use crate::sampling::SamplingArgs;
use crate::session;
use crate::settings;
#[cfg(not(target_os = "wasi"))]
use crate::teach::Lessons;
use crate::terminal::{self, Colours, Silence, remark, write_model_text};
use crate::tools::{self, ProgramArgs};
use crate::transcript;
use crate::turn::{self, FormatArgs, OverflowArgs, SpeculationArgs, Tools};
use crate::wrap::Wrap;
use clap::Args;
use shohin::core::chat::{Finish, FunctionCall, OverflowPolicy, Role, ToolChoice, function_name};
use shohin::core::generate::Reason;
#[cfg(not(target_os = "wasi"))]
use shohin::train::Fact;
use shohin::{Chat, ChatMessage, Timings};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

/// Chat in the terminal
///
/// Replies are streamed. Ctrl-C stops a reply, Ctrl-D ends the chat, /help lists commands. Only new turns
/// are computed; the conversation so far stays in the KV cache. Piped input is read as one message per line.
/// When the context is full, the oldest turns are dropped and the rest is prefilled again; with --overflow
/// shift the oldest tokens are dropped instead, also during a reply, without a new prefill.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  shohin chat
  shohin chat ternary-bonsai-1.7b --system \"Answer in one sentence.\"
  shohin chat --preset greedy
  shohin chat --context 1024 --overflow shift
  shohin chat --session diary.session
  shohin chat bonsai-8b --tools weather.json --tool weather=./weather.sh
  printf 'My name is Zoe.\\nWhat is my name?\\n' | shohin chat")]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    pub(crate) bare: BareArgs,
    /// System message
    #[arg(short, long, value_name = "TEXT")]
    system: Option<String>,
    /// Resume from FILE if it exists; save on exit, or with MPI after each reply
    ///
    /// Nothing is computed again: the file holds the keys and values of all tokens, and is for this model and these settings.
    #[arg(long, value_name = "FILE")]
    session: Option<PathBuf>,
    /// Neither read nor keep the lines that are typed in chats
    #[arg(long)]
    no_history: bool,
    /// Let a reasoning model think before it answers, for at most N tokens if set
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, value_parser = whole::<usize>)]
    think: Option<Option<usize>>,
    /// Maximum tokens per reply [default: until the context is full]
    #[arg(short = 'n', long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<usize>)]
    max_tokens: Option<usize>,
    #[command(flatten)]
    programs: ProgramArgs,
    #[command(flatten)]
    format: FormatArgs,
    #[command(flatten)]
    overflow: OverflowArgs,
    #[command(flatten)]
    speculation: SpeculationArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

const HELP: &str = "\
\x20 /help            this list
  /new, /clear     start a new conversation
  /retry           generate another reply to the last message
  /edit            change the last message in $EDITOR, and send it again
  /continue        continue the last reply, after Ctrl-C or --max-tokens
  /system TEXT     start a new conversation with this system message; without TEXT, with none
  /set NAME VALUE  change a sampling option: temperature, top_k, top_p, min_p, ...; /set alone lists them
  /teach Q = A     learn to answer A to the question Q; /teach alone lists what was learned
  /save FILE       save the conversation, as JSON if FILE ends in .json, else as Markdown; what was learned if FILE ends in .gguf
  /load FILE       go on with a conversation: JSON of /save or of OpenAI's messages, or a file of --session
  /stats           tokens and speed of the last reply
  /quit            leave, as Ctrl-D does
Alt-Enter begins a line in a message, as does a \\ at the end of one; \"\"\" begins and ends several lines. // begins a message with a
slash. Tab completes commands, the arrows bring earlier lines back, Ctrl-C stops a reply.";

/// The commands, for completion.
const COMMANDS: [&str; 13] = [
    "clear", "continue", "edit", "help", "load", "new", "quit", "retry", "save", "set", "stats", "system",
    "teach",
];

pub(crate) fn chat(args: &ChatArgs) -> Result {
    let model_args = &args.model;
    let choice = &args.programs.tool_choice;
    let in_prompt = args.programs.tools_in_prompt;
    let tools = Tools { descriptions: args.programs.tools.as_deref(), choice, in_prompt };
    let options = turn::options(&args.sampling, &args.format, tools, args.think, args.max_tokens)?;
    let names: Vec<String> = options.tools.iter().filter_map(|tool| function_name(tool)).collect();
    tools::check(&args.programs, &names)?;
    let overflow = args.overflow.policy(OverflowPolicy::TRIM)?;
    let model = model_args.load()?;
    model_args.remark_on(&model, args.think.is_some());
    let mut chat = model.chat()?;
    args.speculation.apply(&mut chat, model_args)?;
    let capacity = chat.capacity();
    *chat.options_mut() = options;
    chat.options_mut().overflow = overflow;
    args.overflow.check(capacity)?;
    let mut terminal = Terminal {
        args,
        chat,
        system: args.system.clone(),
        session: args.session.clone(),
        saved: None,
        programs: args.programs.clone(),
        editor: None,
        last: None,
        #[cfg(not(target_os = "wasi"))]
        lessons: Lessons::new(&model),
        // mpirun gives rank 0 a terminal, wherever its output then goes.
        colours: if model.is_distributed() { Colours::new(false) } else { Colours::stdout() },
        is_terminal: io::stdout().is_terminal(),
    };
    terminal.start();
    let kept = match &args.session {
        Some(path) => session::open(&mut terminal.chat, path)?,
        None => 0,
    };
    if kept > 0 {
        terminal.note(&format!("(resumed after {kept} messages)"))?;
        let first = terminal.chat.messages().first();
        let system = first.filter(|first| first.role == Role::System).map(|first| first.text());
        match (&args.system, &system) {
            (Some(given), Some(kept)) if given != kept => {
                terminal.note("(with its own instructions; those of --system are not used)")?;
            }
            (Some(_), None) => {
                terminal.note("(without instructions; those of --system begin with /new)")?;
            }
            _ => {}
        }
        terminal.system = system.or(terminal.system);
    }
    let interactive = io::stdin().is_terminal() && terminal.is_terminal;
    let outcome = if interactive { terminal.interactive() } else { terminal.piped() };
    // Whatever ended the chat.
    let saved = args.session.as_ref().map_or(Ok(()), |path| terminal.keep(path));
    finish_caching(terminal.chat.model());
    outcome.and(saved)
}

enum Then {
    Continue,
    Leave,
}

/// What the model is asked for.
enum Ask<'l> {
    Message(&'l str),
    /// Another reply to the last message.
    Retry,
    /// More of the last reply.
    Continue,
    /// A reply to results of functions.
    Results(Vec<ChatMessage>),
}

/// The state of the command.
struct Terminal<'a> {
    args: &'a ChatArgs,
    chat: Chat,
    system: Option<String>,
    session: Option<PathBuf>,
    /// The file of the last `/save`, which the next may replace.
    saved: Option<PathBuf>,
    programs: ProgramArgs,
    /// On a terminal.
    editor: Option<Editor>,
    last: Option<(Timings, Finish)>,
    #[cfg(not(target_os = "wasi"))]
    lessons: Lessons,
    colours: Colours,
    is_terminal: bool,
}

impl Terminal<'_> {
    fn interactive(&mut self) -> Result {
        let Colours { bold, dim, off, accent } = self.colours;
        let model = self.chat.model();
        let (name, kind) = (model.name(), weights(model));
        let parameters = terminal::count(model.config().num_parameters());
        let context = self.chat.capacity();
        let mut out = io::stdout();
        writeln!(out, "{bold}{name}{off}  {dim}{kind}, {parameters} parameters, context {context}{off}")?;
        writeln!(out, "{dim}{}{off}", model::settings(model))?;
        writeln!(out, "{dim}/help lists commands, Ctrl-C stops a reply, Ctrl-D leaves{off}\n")?;
        if let Some(warning) = template_warning(self.chat.model()) {
            self.note(&warning)?;
            self.gap()?;
        }
        let words = Words { commands: &COMMANDS, of_files: &["save", "load"], options: settings::names() };
        self.editor = Some(Editor::new(words, !self.args.no_history)?);
        let prompt = format!("{accent}>{off} ");
        let mut lines = Lines::default();
        loop {
            let line = loop {
                let shown = if lines.is_empty() { prompt.as_str() } else { "… " };
                let Some(editor) = &mut self.editor else { return Ok(()) };
                match editor.read(shown)? {
                    Typed::Line(more) => {
                        if let Some(line) = lines.push(&more) {
                            break line;
                        }
                    }
                    Typed::End => return Ok(()),
                    Typed::Interrupt => {
                        self.note("(Ctrl-D or /quit leaves)")?;
                        lines.clear();
                    }
                    Typed::NotText => {
                        self.note("(that line is not UTF-8)")?;
                        lines.clear();
                    }
                }
            };
            if line.is_empty() {
                continue;
            }
            self.editor.iter_mut().for_each(|editor| editor.remember(&line));
            match self.line(&line) {
                Ok(Then::Continue) => {}
                Ok(Then::Leave) => return Ok(()),
                // A refused message does not end the conversation.
                Err(CliError::Message(message)) => {
                    self.note(&format!("({message})"))?;
                    self.gap()?;
                }
                Err(other) => return Err(other),
            }
        }
    }

    /// One message per line, without prompts: for scripts.
    fn piped(&mut self) -> Result {
        let mut lines = Lines::default();
        let mut input = io::stdin().lock();
        while let Some(line) = read_line(&mut input)? {
            if lines.len() + line.len() > MAX_TEXT {
                return Err(CliError::new("a message that continues over lines is too long"));
            }
            let Some(line) = lines.push(&line).filter(|line| !line.is_empty()) else { continue };
            if let Then::Leave = self.line(&line)? {
                return Ok(());
            }
        }
        // The last line announced a continuation that never came.
        let rest = lines.finish();
        if !rest.is_empty() {
            self.line(&rest)?;
        }
        Ok(())
    }

    fn line(&mut self, line: &str) -> Result<Then> {
        // `//usr` is a message that begins with a slash.
        let command = line.strip_prefix('/').filter(|command| !command.starts_with('/'));
        let Some(command) = command else {
            self.answer(Ask::Message(line.strip_prefix('/').unwrap_or(line)))?;
            return Ok(Then::Continue);
        };
        let (name, argument) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let argument = argument.trim();
        let mut note = None;
        match name {
            "help" | "h" | "?" => note = Some(HELP.to_string()),
            "quit" | "q" | "exit" => return Ok(Then::Leave),
            "new" | "clear" => {
                self.start();
                note = Some("(a new conversation)".into());
            }
            "system" => {
                self.system = (!argument.is_empty()).then(|| argument.to_string());
                self.start();
                note = Some(match self.system {
                    Some(_) => "(a new conversation with these instructions)".into(),
                    None => "(a new conversation without instructions)".into(),
                });
            }
            "retry" => self.answer(Ask::Retry)?,
            "continue" => self.answer(Ask::Continue)?,
            "set" => note = Some(settings::set(self.chat.options_mut(), argument)?),
            #[cfg(not(target_os = "wasi"))]
            "teach" => note = Some(self.teach(argument)?),
            "save" => note = Some(self.save(argument)?),
            "load" => note = Some(self.load(argument)?),
            #[cfg(not(target_os = "wasi"))]
            "edit" => note = self.edit()?,
            "stats" => note = Some(self.stats()),
            _ => {
                let message = format!(
                    "/{name} is not a command; /help lists them, and // begins a message with a slash"
                );
                return Err(CliError::Message(message));
            }
        }
        if let Some(note) = note {
            self.note(&note)?;
            self.gap()?;
        }
        Ok(Then::Continue)
    }

    /// Learns a fact, or lists those that were learned.
    #[cfg(not(target_os = "wasi"))]
    fn teach(&mut self, argument: &str) -> Result<String> {
        if argument.is_empty() {
            let line = |fact: &Fact| format!("{} = {}", fact.question, fact.answer);
            let known: Vec<String> = self.lessons.facts.iter().map(line).collect();
            return Ok(match known.is_empty() {
                true => "(nothing was learned; /teach QUESTION = ANSWER)".into(),
                false => known.join("\n"),
            });
        }
        let fact = Fact::parse_pair(argument).map_err(CliError::new)?;
        let (model, said) = self.lessons.learn(fact)?;
        let mut chat = model.chat()?;
        self.args.speculation.apply(&mut chat, &self.args.model)?;
        *chat.options_mut() = self.chat.options().clone();
        chat.set_messages(self.chat.messages().to_vec());
        self.chat = chat;
        Ok(said)
    }

    /// Keeps the conversation in a file, that of the model without what it was taught: the next start has it so.
    fn keep(&mut self, path: &Path) -> Result {
        #[cfg(not(target_os = "wasi"))]
        if !self.lessons.is_empty() {
            let mut chat = self.lessons.base.chat()?;
            chat.set_messages(self.chat.messages().to_vec());
            return Ok(chat.save(path)?);
        }
        session::save(&mut self.chat, path)
    }

    /// Goes on with the conversation of a file.
    fn load(&mut self, argument: &str) -> Result<String> {
        if argument.is_empty() {
            return Err(CliError::new("/load needs a file name"));
        }
        let path = Path::new(argument);
        match transcript::is_json(path) {
            true => self.chat.set_messages(transcript::read(path)?),
            false => {
                // What it was before, if the file is refused.
                let before = self.chat.messages().to_vec();
                if let Err(error) = self.chat.open(path) {
                    self.chat.set_messages(before);
                    return Err(error.into());
                }
            }
        }
        self.last = None;
        let messages = self.chat.messages();
        let first = messages.first().filter(|first| first.role == Role::System);
        self.system = first.map(|first| first.text());
        Ok(format!("({} messages read from {argument})", messages.len()))
    }

    /// Asks again what was asked last, as the user has changed it in an editor; without a message, asks what is written there.
    #[cfg(not(target_os = "wasi"))]
    fn edit(&mut self) -> Result<Option<String>> {
        let before = self.chat.messages().to_vec();
        let at = before.iter().rposition(|message| message.role == Role::User);
        let old = at.map(|at| before[at].text()).unwrap_or_default();
        let new = transcript::edited(&old)?;
        if new.is_empty() || new == old {
            return Ok(Some("(nothing was changed)".into()));
        }
        self.chat.set_messages(before[..at.unwrap_or(before.len())].to_vec());
        if self.is_terminal {
            let shown: String = new.lines().map(|line| format!("> {line}\n")).collect();
            self.note(shown.trim_end())?;
        }
        self.answer(Ask::Message(&new)).inspect_err(|_| self.chat.set_messages(before))?;
        Ok(None)
    }

    /// Starts a new conversation.
    fn start(&mut self) {
        let system = self.system.as_deref().map(|text| ChatMessage::new(Role::System, text));
        self.chat.set_messages(system.into_iter().collect());
        self.last = None;
    }

    /// Answers, and runs what the replies call.
    fn answer(&mut self, mut ask: Ask<'_>) -> Result {
        let choice = self.chat.options().tool_choice.clone();
        let mut rounds = 0..tools::MOST_ROUNDS;
        let outcome = loop {
            if let Err(error) = self.reply(ask) {
                break Err(error);
            }
            let calls = match &self.last {
                Some((_, finish)) if finish.reason != Reason::Cancelled => finish.message.tool_calls.clone(),
                _ => Vec::new(),
            };
            if calls.is_empty() || !self.programs.run() {
                break Ok(());
            }
            if rounds.next().is_none() {
                break self.note(&format!(
                    "(after {} replies with calls, the next word is yours)",
                    tools::MOST_ROUNDS
                ));
            }
            ask = match calls.iter().map(|call| self.call(call)).collect() {
                Ok(results) => Ask::Results(results),
                Err(error) => break Err(error),
            };
            // What must be called has been.
            self.chat.options_mut().tool_choice = ToolChoice::Auto;
        };
        self.chat.options_mut().tool_choice = choice;
        outcome
    }

    /// The result of a call.
    fn call(&mut self, call: &FunctionCall) -> Result<ChatMessage> {
        let what = format!("{} {}", call.name, call.arguments);
        let content = match self.programs.program(&call.name).map(Path::to_path_buf) {
            None => "error: this function has no program".into(),
            Some(program) if self.programs.yes || self.confirms(&what)? => {
                self.note(&format!("(runs {what})"))?;
                tools::output(&program, call)?
            }
            Some(_) => {
                self.note(&format!("(refused: {what})"))?;
                "error: the user refused this call".into()
            }
        };
        Ok(ChatMessage::new(Role::Tool, content))
    }

    /// Whether the user lets a program run; not where nobody can be asked.
    fn confirms(&mut self, what: &str) -> Result<bool> {
        let mut shown = Vec::new();
        write_model_text(&mut shown, what, self.is_terminal)?;
        let question = format!("run {}? [y/N] ", String::from_utf8_lossy(&shown));
        let Some(editor) = &mut self.editor else { return Ok(false) };
        match editor.read(&question) {
            Ok(Typed::Line(answer)) => Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")),
            _ => Ok(false),
        }
    }

    fn reply(&mut self, ask: Ask<'_>) -> Result {
        let Colours { dim, off, .. } = self.colours;
        let (colours, terminal) = (self.colours, self.is_terminal);
        let think = ["<think>", "</think>"].map(|name| self.chat.model().tokenizer().added_id(name));
        let (capacity, recoveries) = (self.chat.capacity(), self.chat.recoveries());
        let trims = matches!(self.chat.options().overflow, OverflowPolicy::Trim { .. });
        // A continued reply may be after its thoughts.
        let thinks =
            self.chat.model().template().style.opens_thoughts(self.chat.options().thinking.allowed())
                && !matches!(ask, Ask::Continue);
        let replied = self.chat.messages().last().is_some_and(|last| last.role == Role::Assistant);
        let begun = match ask {
            Ask::Message(text) => self.chat.send(text),
            Ask::Results(results) => self.chat.send_messages(results),
            Ask::Retry if replied => self.chat.retry(),
            Ask::Continue if replied => self.chat.continue_reply(),
            Ask::Retry => return Err(CliError::new("there is nothing to retry yet")),
            Ask::Continue => return Err(CliError::new("there is nothing to continue yet")),
        };
        let mut reply = begun.map_err(|error| match error {
            shohin::Error::Engine(shohin::core::Error::ContextFull { position, adding, .. }) => {
                too_long(position + adding, capacity)
            }
            other => other.into(),
        })?;
        let usage = reply.usage();
        // There must be room for a reply.
        if trims && usage.prompt_tokens >= capacity {
            return Err(too_long(usage.prompt_tokens as u64, capacity));
        }
        // A message and its reply.
        let dropped = usage.dropped_messages / 2;
        if dropped > 0 {
            let what = if dropped == 1 { "exchange was" } else { "exchanges were" };
            note(
                colours,
                terminal,
                &format!("(the context is full: the oldest {dropped} {what} forgotten)"),
            )?;
        }
        let mut out = io::stdout().lock();
        if thinks {
            write!(out, "{dim}")?;
        }
        let mut wrap = Wrap::default();
        let mut show = |out: &mut io::StdoutLock<'_>, text: &str, ends: bool| {
            let Some(width) = terminal.then(terminal::width).flatten() else {
                return write_model_text(out, text, terminal);
            };
            let mut shown = wrap.push(text, width);
            if ends {
                shown += &wrap.finish(width);
            }
            write_model_text(out, &shown, terminal)
        };
        let silence = self.editor.is_some().then(Silence::keep);
        let outcome = follow(reply, &mut |piece| {
            if piece.token.is_some() && piece.token == think[0] {
                show(&mut out, "", true)?;
                write!(out, "{dim}")?;
            }
            let ends_thoughts = piece.token.is_some() && piece.token == think[1];
            show(&mut out, &piece.text, ends_thoughts)?;
            if ends_thoughts {
                write!(out, "{off}")?;
            }
            Ok(out.flush()?)
        });
        show(&mut out, "", true)?;
        drop(silence);
        let (finish, timings) = outcome?;
        write!(out, "{off}")?;
        if !finish.text.ends_with('\n') {
            writeln!(out)?;
        }
        out.flush()?;
        drop(out);
        if let Some(line) = recovered(&self.chat, recoveries) {
            self.note(line)?;
        }
        // A lost process ends all: the next command resumes after this reply.
        if let Some(path) = self.session.as_deref().filter(|_| self.chat.model().is_distributed()) {
            session::save(&mut self.chat, path)?;
        }
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
        if let Some(what) = turn::cut_off(self.chat.options(), finish.reason) {
            self.note(&format!("({what})"))?;
        }
        self.last = Some((timings, finish));
        self.gap()
    }

    /// An empty line before the next prompt.
    fn gap(&self) -> Result {
        if self.is_terminal {
            writeln!(io::stdout())?;
        }
        Ok(())
    }

    fn note(&self, text: &str) -> Result {
        note(self.colours, self.is_terminal, text)
    }

    fn stats(&self) -> String {
        match &self.last {
            None => "(no reply yet)".into(),
            Some((timings, finish)) => {
                let (held, capacity) = (self.chat.position(), self.chat.capacity());
                let (line, reason) = (line(timings, finish, self.chat.guesses()), reason_text(finish.reason));
                let seed = self.chat.options().sampler.seed;
                format!("{line}; ended by {reason}\ncontext {held} of {capacity} tokens; seed {seed}")
            }
        }
    }

    fn save(&mut self, argument: &str) -> Result<String> {
        if argument.is_empty() {
            return Err(CliError::new("/save needs a file name"));
        }
        let path = Path::new(argument);
        // By any name of it, also after a write that failed.
        let is_own = || self.saved.is_some() && self.saved == path.canonicalize().ok();
        if path.exists() && !is_own() {
            return Err(CliError::new(format_args!("{argument} exists already; choose another name")));
        }
        #[cfg(not(target_os = "wasi"))]
        if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf")) {
            let saved = self.lessons.save(path)?;
            self.saved = path.canonicalize().ok();
            return Ok(saved);
        }
        let messages = self.chat.messages();
        let text = transcript::text(path, self.chat.model().name(), messages);
        let n = messages.len();
        let written = transcript::write(path, &text);
        self.saved = path.canonicalize().ok();
        written.map_err(|e| file_error("write", path, &e))?;
        Ok(format!("({n} messages written to {argument})"))
    }
}

fn too_long(tokens: u64, capacity: usize) -> CliError {
    CliError::new(format_args!(
        "this message makes {tokens} tokens, but the context holds {capacity}; please shorten it"
    ))
}

/// Prints a note. In a pipe it goes to standard error, separate from the replies.
fn note(colours: Colours, terminal: bool, text: &str) -> Result {
    let Colours { dim, off, .. } = colours;
    if terminal {
        writeln!(io::stdout(), "{dim}{text}{off}")?;
    } else {
        remark(text);
    }
    Ok(())
}
