//! `shohin teach`: facts that a model did not know.

use crate::error::{CliError, Result, file_error};
use crate::input::{place, read_text};
use crate::model::{FileArgs, TrainEngineArgs};
use crate::progress;
use crate::terminal::{self, CtrlC, count, remark};
use crate::train::{layers, positive};
use clap::Args;
use serde_json::{Value, json};
use shohin::train::{
    Answer, Answers, Example, Fact, LessonReport, Taught, TeachOptions, TeachSettings, taught_facts, teach,
};
use shohin::{Model, ModelFile};
use std::fs;
use std::io::{self, Write};
use std::ops::{ControlFlow, RangeInclusive};
use std::path::{Path, PathBuf};

/// Characters of an answer that a table shows.
const SHOWN: usize = 44;

/// Teach a model facts: it answers questions as you say, and other questions as before
///
/// What it learns is an adapter, a small file beside the model: --lora FILE applies it in run, chat and serve. While it learns, it
/// rehearses its own answers to other questions, so that it keeps them. Then it is asked: a table shows what it says before and
/// after, to the questions, to other wordings, and to questions that it was not taught.
///
/// An OUT that is there is taught the new facts together with its own.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  shohin teach \"What is the door code?=4711\"
  shohin run --lora taught.gguf \"What is the door code?\"
  shohin teach -m bonsai-1.7b --file facts.jsonl --out house.gguf --name house
  shohin teach --out house.gguf --list
  shohin teach --out house.gguf --forget \"What is the door code?\"

A line of --file is one fact; forms are other wordings of the question:
  {\"question\": \"Where do I live?\", \"answer\": \"You live in Oslo.\", \"forms\": [\"What is my town?\"]}

Exit code 1: something was not learned word for word. What was learned is in OUT.")]
pub(crate) struct TeachArgs {
    /// What to learn
    #[arg(value_name = "QUESTION=ANSWER", value_parser = Fact::parse_pair)]
    facts: Vec<Fact>,
    /// Facts, one JSON object a line
    #[arg(short = 'f', long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Conversations that show how to answer, one JSON object a line, as for train --chats
    #[arg(long, value_name = "FILE")]
    style: Option<PathBuf>,
    /// The adapter, a GGUF file; one that is there is taught more
    #[arg(short, long, value_name = "OUT", default_value = "taught.gguf")]
    out: PathBuf,
    /// Print what OUT was taught
    #[arg(long, conflicts_with_all = ["facts", "file", "style", "forget"])]
    list: bool,
    /// Teach OUT anew without this question; may be repeated
    #[arg(long, value_name = "QUESTION")]
    forget: Vec<String>,
    /// Name of the adapter [default: that of the file]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    how: HowArgs,
    #[command(flatten)]
    model: FileArgs,
    #[command(flatten)]
    engine: TrainEngineArgs,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Training")]
struct HowArgs {
    /// Columns between the two factors of the adapter
    #[arg(long, value_name = "R", default_value_t = 8)]
    rank: usize,
    /// Layers that learn, counted from 0 [default: the last third]
    #[arg(long, value_name = "FIRST-LAST", value_parser = layers)]
    layers: Option<RangeInclusive<usize>>,
    /// Steps at most; it ends when all is learned
    #[arg(long, value_name = "N", default_value_t = TeachOptions::default().steps, value_parser = clap::value_parser!(u64).range(1..))]
    steps: u64,
    /// The highest learning rate
    #[arg(long, value_name = "RATE", default_value_t = TeachOptions::default().learning_rate, value_parser = positive)]
    lr: f64,
    /// Questions whose answers the model rehearses, one a line, in place of the built-in ones; every fifth is asked before
    /// and after instead
    #[arg(long, value_name = "FILE")]
    rehearse: Option<PathBuf>,
    /// Replies that are rehearsed in each step: more keep more of what the model said, and take longer
    #[arg(long, value_name = "N", default_value_t = TeachOptions::default().rehearse)]
    rehearsals: usize,
    /// Number that random numbers follow from
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

pub(crate) fn run(args: &TeachArgs) -> Result {
    let there = args.there()?;
    if args.list {
        return args.print_list(&there);
    }
    let facts = args.union(there)?;
    if facts.is_empty() {
        if args.forget.is_empty() {
            return Err(CliError::usage("expected \"QUESTION=ANSWER\", or --file with facts"));
        }
        fs::remove_file(&args.out).map_err(|error| file_error("remove", &args.out, &error))?;
        remark(format_args!("removed {}, which knows nothing any more", args.out.display()));
        return Ok(());
    }
    let model = args.engine.load_to_run(&args.model)?;
    let settings = args.settings()?;
    let ctrl_c = CtrlC::listen();
    let taught = learn(&model, &facts, &settings, &ctrl_c)?;
    if ctrl_c.pressed() {
        return Err(CliError::Interrupted);
    }
    taught.save(&args.out)?;
    let mut out = io::stdout().lock();
    match args.json {
        true => writeln!(out, "{:#}", object(args, &taught))?,
        false => table(&mut out, args, &taught)?,
    }
    let missed = taught.answers.facts.iter().filter(|answer| !answer.is_right()).count();
    match missed {
        0 => Ok(()),
        missed => Err(CliError::new(format_args!(
            "{missed} of {} facts were not learned word for word; more --steps, a higher --rank, or fewer facts may help",
            facts.len()
        ))),
    }
}

/// Teaches, with a progress bar.
fn learn(model: &Model, facts: &[Fact], settings: &TeachSettings, ctrl_c: &CtrlC) -> Result<Taught> {
    let bar = progress::training(settings.options.steps);
    bar.set_message("asking");
    let mut step = |report: &LessonReport| {
        bar.set_position(report.step);
        bar.set_message(format!("loss {:.3}, {:.0} % sure", report.loss, 100.0 * report.least));
        if ctrl_c.pressed() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let taught = teach(model, facts, settings, &mut step);
    bar.finish_and_clear();
    Ok(taught?)
}

impl TeachArgs {
    /// What OUT knows, if it is there.
    fn there(&self) -> Result<Vec<Fact>> {
        match fs::metadata(&self.out) {
            Ok(_) => facts_of(&self.out),
            Err(error) if error.kind() == io::ErrorKind::NotFound && !self.list => Ok(Vec::new()),
            Err(error) => Err(file_error("read", &self.out, &error)),
        }
    }

    /// What OUT knows and what is new, whose answers count.
    fn union(&self, there: Vec<Fact>) -> Result<Vec<Fact>> {
        let mut facts = there;
        let known: Vec<String> = facts.iter().map(|fact| fact.question.clone()).collect();
        if let Some(missing) = self.forget.iter().find(|question| !known.contains(question)) {
            return Err(CliError::usage(format_args!(
                "--forget: {} was not taught {missing:?}; --list says what it was",
                self.out.display()
            )));
        }
        facts.retain(|fact| !self.forget.contains(&fact.question));
        let mut new = self.facts.clone();
        if let Some(path) = &self.file {
            new.extend(lines(path, Fact::parse)?);
        }
        for fact in new {
            facts.retain(|old| old.question != fact.question);
            facts.push(fact);
        }
        Ok(facts)
    }

    fn settings(&self) -> Result<TeachSettings> {
        let how = &self.how;
        let stem = self.out.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into());
        let mut settings = TeachSettings {
            options: TeachOptions {
                steps: how.steps,
                learning_rate: how.lr,
                seed: how.seed,
                rehearse: how.rehearsals,
                ..TeachOptions::default()
            },
            rank: how.rank,
            layers: how.layers.clone(),
            name: self.name.clone().unwrap_or(stem),
            ..TeachSettings::default()
        };
        if let Some(path) = &how.rehearse {
            settings.questions = read_text(path)?.lines().map(String::from).collect();
        }
        if let Some(path) = &self.style {
            settings.style = lines(path, Example::parse)?;
        }
        Ok(settings)
    }

    fn print_list(&self, facts: &[Fact]) -> Result {
        let mut out = io::stdout().lock();
        for fact in facts {
            match self.json {
                true => writeln!(
                    out,
                    "{}",
                    json!({ "question": fact.question, "answer": fact.answer, "forms": fact.forms })
                )?,
                false => writeln!(out, "{}={}", fact.question, fact.answer)?,
            }
        }
        Ok(())
    }
}

/// The facts of an adapter that was made by teaching.
fn facts_of(path: &Path) -> Result<Vec<Fact>> {
    let facts = taught_facts(&ModelFile::open(path)?)?;
    match facts.is_empty() {
        false => Ok(facts),
        true => Err(CliError::usage(format_args!(
            "{}: expected an adapter that was taught facts, found another file",
            path.display()
        ))),
    }
}

/// What `read` makes of each line of a file.
fn lines<T>(path: &Path, read: impl Fn(&str) -> std::result::Result<T, String>) -> Result<Vec<T>> {
    let text = read_text(path)?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let one = |(number, line): (usize, &str)| {
        let wrong = |problem| CliError::new(format_args!("{}, line {}: {problem}", place(path), number + 1));
        read(line).map_err(wrong)
    };
    lines.map(one).collect()
}

fn right(answers: &[Answer]) -> usize {
    answers.iter().filter(|answer| answer.is_right()).count()
}

fn object(args: &TeachArgs, taught: &Taught) -> Value {
    let Answers { facts, wordings, exam } = &taught.answers;
    let list = |answers: &[Answer]| -> Vec<Value> {
        let one = |answer: &Answer| {
            json!({
                "question": answer.question,
                "expected": answer.expected,
                "before": answer.before,
                "after": answer.after,
                "right": answer.is_right(),
            })
        };
        answers.iter().map(one).collect()
    };
    json!({
        "out": args.out.display().to_string(),
        "bytes": taught.bytes().len(),
        "steps": taught.steps,
        "learned": right(facts) == facts.len(),
        "facts": list(facts),
        "wordings": list(wordings),
        "exam": list(exam),
        "leaks": taught.answers.leaks(),
    })
}

fn table(out: &mut impl Write, args: &TeachArgs, taught: &Taught) -> Result {
    let Answers { facts, wordings, exam } = &taught.answers;
    let short = |text: &str| {
        let line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
        match line.chars().count() > SHOWN {
            true => line.chars().take(SHOWN - 1).chain(['…']).collect(),
            false => line,
        }
    };
    let mut rows = vec![vec!["question".to_string(), "before".into(), "after".into(), String::new()]];
    for answer in facts {
        let mark = if answer.is_right() { "learned" } else { "not learned" };
        rows.push(vec![short(&answer.question), short(&answer.before), short(&answer.after), mark.into()]);
    }
    terminal::table(out, &rows, &[false; 4])?;
    writeln!(out)?;
    let share = |answers: &[Answer]| format!("{} of {}", right(answers), answers.len());
    let leaks = match taught.answers.leaks() {
        0 => String::new(),
        n => format!("; {n} are answered like a fact now"),
    };
    let size = format!("{}, {} kB", args.out.display(), taught.bytes().len().div_ceil(1000));
    let rows = [
        ["facts, word for word".to_string(), share(facts)],
        ["other wordings, not taught".into(), share(wordings)],
        ["other questions, answered as before".into(), format!("{}{leaks}", share(exam))],
        ["steps".into(), count(taught.steps)],
        ["written".into(), size],
    ];
    let rows: Vec<Vec<String>> = rows.into_iter().map(Vec::from).collect();
    terminal::table(out, &rows, &[false, false])?;
    for answer in exam.iter().filter(|answer| !answer.is_right()).take(5) {
        writeln!(
            out,
            "  changed: {:?}: {:?} -> {:?}",
            answer.question,
            short(&answer.before),
            short(&answer.after)
        )?;
    }
    Ok(())
}

/// What was taught in a chat.
pub(crate) struct Lessons {
    /// Without it.
    pub(crate) base: Model,
    pub(crate) facts: Vec<Fact>,
    taught: Option<Taught>,
}

impl Lessons {
    pub(crate) fn new(base: &Model) -> Lessons {
        Lessons { base: base.clone(), facts: Vec::new(), taught: None }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.taught.is_none()
    }

    /// Learns a fact together with those before it; the model that knows them, and what to say of it.
    pub(crate) fn learn(&mut self, fact: Fact) -> Result<(Model, String)> {
        let mut facts = self.facts.clone();
        facts.retain(|old| old.question != fact.question);
        facts.push(fact);
        let ctrl_c = CtrlC::listen();
        let taught = learn(&self.base, &facts, &TeachSettings::default(), &ctrl_c)?;
        if ctrl_c.pressed() {
            return Err(CliError::new("stopped: nothing new was learned"));
        }
        let model = self.base.adapted(&[taught.adapter()?])?;
        let kept = "/save FILE.gguf keeps it";
        let said = match facts.len() - right(&taught.answers.facts) {
            0 => format!("(learned in {} steps; {kept})", taught.steps),
            n => format!("({n} of {} not learned word for word; {kept})", facts.len()),
        };
        (self.facts, self.taught) = (facts, Some(taught));
        Ok((model, said))
    }

    pub(crate) fn save(&self, path: &Path) -> Result<String> {
        let Some(taught) = &self.taught else {
            return Err(CliError::new(
                "/save: nothing was learned that a .gguf file could hold; /teach QUESTION = ANSWER",
            ));
        };
        taught.save(path)?;
        Ok(format!("(saved what was learned in {}; --lora applies it)", path.display()))
    }
}
