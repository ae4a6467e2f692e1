//! Teaching a model facts, as an adapter.

use super::corpus::Example;
use super::taught::{FACTS, Fact};
use super::{AdapterOptions, Base, Training, new_adapter};
use crate::error::{Error, Result};
use crate::lora::Adapter;
use crate::model::Model;
use shohin_core::SamplerConfig;
use shohin_core::chat::{ChatMessage, Role};
use shohin_core::generate::Reason;
use shohin_core::gguf::{Gguf, ReadOptions};
use shohin_files::failed;
use shohin_files::new_file::NewFile;
use shohin_train::adapter;
use shohin_train::teach::{Lesson, LessonReport, QUESTIONS, TeachOptions, Teaching};
use std::io::Write;
use std::ops::{ControlFlow, RangeInclusive};
use std::path::Path;

/// Tokens of a rehearsed reply at most.
const REHEARSED: usize = 48;

/// Every so many of the questions are asked before and after, and not rehearsed.
const EXAM: usize = 5;

/// How facts are taught.
#[derive(Clone, Debug, PartialEq)]
pub struct TeachSettings {
    /// Of the training.
    pub options: TeachOptions,
    /// Columns between the two factors of the adapter.
    pub rank: usize,
    /// Layers that it adapts; the last third unless set.
    pub layers: Option<RangeInclusive<usize>>,
    /// Its name.
    pub name: String,
    /// Questions to rehearse the model's own answers to, so that it keeps them. Every fifth is asked before and after
    /// instead.
    pub questions: Vec<String>,
    /// Conversations that show how to answer, which are learned like facts.
    pub style: Vec<Example>,
}

impl Default for TeachSettings {
    fn default() -> Self {
        TeachSettings {
            options: TeachOptions::default(),
            rank: 8,
            layers: None,
            name: "taught".into(),
            questions: QUESTIONS.lines().map(String::from).collect(),
            style: Vec::new(),
        }
    }
}

/// The answers to one question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The question.
    pub question: String,
    /// What it should be now.
    pub expected: String,
    /// What the model said before.
    pub before: String,
    /// What it says now.
    pub after: String,
}

impl Answer {
    /// Whether it is, word for word, what it should be.
    pub fn is_right(&self) -> bool {
        self.after.trim() == self.expected.trim()
    }
}

/// Answers before and after.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// To the questions of the facts.
    pub facts: Vec<Answer>,
    /// To the same questions in small letters without a question mark, and in a second turn: they were not taught so.
    pub wordings: Vec<Answer>,
    /// To questions that were neither taught nor rehearsed, whose answers should be what they were.
    pub exam: Vec<Answer>,
}

impl Answers {
    /// Answers of the exam that are another fact's now.
    pub fn leaks(&self) -> usize {
        let leaked = |exam: &Answer| {
            !exam.is_right() && self.facts.iter().any(|fact| exam.after.trim() == fact.expected.trim())
        };
        self.exam.iter().filter(|exam| leaked(exam)).count()
    }
}

/// What was taught.
#[derive(Clone, Debug)]
pub struct Taught {
    file: Vec<u8>,
    /// Steps of the training.
    pub steps: u64,
    /// Whether every token of every answer is as probable as was asked for.
    pub is_learned: bool,
    /// What it says before and after.
    pub answers: Answers,
}

impl Taught {
    /// The adapter.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn adapter(&self) -> Result<Adapter> {
        Adapter::from_bytes("the taught adapter", &self.file)
    }

    /// The bytes of its GGUF file.
    pub fn bytes(&self) -> &[u8] {
        &self.file
    }

    /// Writes it to the file `path`, which only its owner can read if it is new, and which is replaced once all of the new one is on
    /// disk.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let failed = failed("write", path.as_ref());
        let mut file = NewFile::private(path.as_ref()).map_err(failed)?;
        file.write_all(&self.file).map_err(failed)?;
        Ok(file.finish().map_err(failed)?)
    }
}

/// Teaches `model` facts: they become an adapter, and the model's own weights stay as they are. `progress` is told each step, and may
/// end it early: what was learned so far is kept.
///
/// ```no_run
/// # fn main() -> shohin::Result<()> {
/// use shohin::train::{Fact, TeachSettings, teach};
///
/// let model = shohin::Model::builder().load_built_in()?;
/// let facts = [Fact::new("What is the door code?", "4711")];
/// let taught = teach(&model, &facts, &TeachSettings::default(), &mut |_| std::ops::ControlFlow::Continue(()))?;
/// taught.save("house.gguf")?;
/// let model = model.adapted(&[taught.adapter()?])?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Option`] for a model that has adapters, or cannot have any (see [`Model::adapted`]), for conversations that are longer than
/// its context, and for a rank out of range; [`Error::Train`] for other options that are.
pub fn teach(
    model: &Model,
    facts: &[Fact],
    settings: &TeachSettings,
    progress: &mut dyn FnMut(&LessonReport) -> ControlFlow<()>,
) -> Result<Taught> {
    if model.adapters().count() > 0 {
        let expected =
            "a model without adapters: what several were taught, one can be taught together".into();
        return Err(Error::Option { name: "lora", found: "a model with an adapter".into(), expected });
    }
    // What cannot be adapted at the end is refused before the work.
    model.adapted(&[])?;
    let (exam, rehearsed) = questions(settings, facts);
    let mut asked = Asked::new(model)?;
    let mut pool = Vec::new();
    for question in rehearsed {
        let (reply, reason) = asked.reply(None, question)?;
        if reply.trim().is_empty() {
            continue;
        }
        let mut lesson = lesson(model, &example(question, &reply))?;
        if reason != Reason::Stop {
            // It would have gone on.
            lesson.replies.iter_mut().for_each(|reply| reply.end -= 1);
        }
        pool.push(lesson);
    }
    let mut lessons = Vec::new();
    for fact in facts {
        for question in fact.questions() {
            lessons.push(lesson(model, &example(question, &fact.answer))?);
        }
    }
    for example in &settings.style {
        lessons.push(lesson(model, example)?);
    }
    let mut answers = Answers::default();
    for fact in facts {
        answers.facts.push(asked.answer(None, &fact.question, Some(&fact.answer))?);
        for (first, question) in wordings(&fact.question) {
            answers.wordings.push(asked.answer(first, &question, Some(&fact.answer))?);
        }
    }
    for question in exam {
        answers.exam.push(asked.answer(None, question, None)?);
    }
    let trained = train(model, &lessons, &pool, facts, settings, progress)?;
    let adapter = Adapter::from_bytes("the taught adapter", &trained.file)?;
    let mut asked = Asked::new(&model.adapted(&[adapter])?)?;
    for answer in answers.facts.iter_mut().chain(&mut answers.exam) {
        answer.after = asked.reply(None, &answer.question)?.0;
    }
    let firsts = facts.iter().flat_map(|fact| wordings(&fact.question)).map(|(first, _)| first);
    for (answer, first) in answers.wordings.iter_mut().zip(firsts) {
        answer.after = asked.reply(first, &answer.question)?.0;
    }
    Ok(Taught { answers, ..trained })
}

/// The questions of the exam, and those that are rehearsed; none that is taught.
fn questions<'s>(settings: &'s TeachSettings, facts: &[Fact]) -> (Vec<&'s str>, Vec<&'s str>) {
    let taught = |question: &str| facts.iter().flat_map(Fact::questions).any(|fact| fact == question);
    let all = settings.questions.iter().map(|question| question.trim());
    let others: Vec<&str> = all.filter(|question| !question.is_empty() && !taught(question)).collect();
    let is_exam = |i: &usize| i % EXAM == EXAM - 1;
    let of = |exam: bool| (0..others.len()).filter(|i| is_exam(i) == exam).map(|i| others[i]).collect();
    (of(true), of(false))
}

/// Other wordings of a question, which are not taught, each with a turn before it.
fn wordings(question: &str) -> [(Option<&'static str>, String); 2] {
    let plain = question.to_lowercase().trim_end_matches(['?', '.', '!']).to_string();
    [(None, plain), (Some("Hello!"), question.to_string())]
}

fn example(question: &str, reply: &str) -> Example {
    let messages = vec![ChatMessage::new(Role::User, question), ChatMessage::new(Role::Assistant, reply)];
    Example { messages, tools: Vec::new() }
}

fn lesson(model: &Model, example: &Example) -> Result<Lesson> {
    let (tokens, replies) = example.encode(model)?;
    let longest = model.config().max_context_length;
    if tokens.len() > longest {
        let first = example.messages.first();
        let found = first.map_or_else(String::new, |first| first.content.chars().take(40).collect());
        let expected = format!("a conversation of at most {longest} tokens, the model's context");
        return Err(Error::Option { name: "fact", found, expected });
    }
    Ok(Lesson { tokens, replies })
}

/// A model that is asked one question at a time.
struct Asked {
    chat: crate::Chat,
}

impl Asked {
    fn new(model: &Model) -> Result<Asked> {
        let mut chat = model.chat()?;
        let options = chat.options_mut();
        options.sampler = SamplerConfig::greedy();
        options.max_tokens = Some(REHEARSED);
        Ok(Asked { chat })
    }

    /// What the model replies to `question` in a new conversation, after its reply to `first`.
    fn reply(&mut self, first: Option<&str>, question: &str) -> Result<(String, Reason)> {
        self.chat.set_messages(Vec::new());
        if let Some(first) = first {
            self.chat.send(first)?.finish()?;
        }
        let finish = self.chat.send(question)?.finish()?;
        Ok((finish.text, finish.reason))
    }

    fn answer(&mut self, first: Option<&str>, question: &str, expected: Option<&str>) -> Result<Answer> {
        let before = self.reply(first, question)?.0;
        let expected = expected.map_or_else(|| before.clone(), String::from);
        Ok(Answer { question: question.into(), expected, before, after: String::new() })
    }
}

fn train(
    model: &Model,
    lessons: &[Lesson],
    pool: &[Lesson],
    facts: &[Fact],
    settings: &TeachSettings,
    progress: &mut dyn FnMut(&LessonReport) -> ControlFlow<()>,
) -> Result<Taught> {
    // Trained weights are in the layout of the file.
    let base = Model::builder().inspect_only().threads(model.threads()).load_file(model.file())?;
    let layers = base.config().num_layers;
    let last_third = layers - layers.div_ceil(3)..=layers - 1;
    let options = AdapterOptions {
        rank: settings.rank,
        layers: Some(settings.layers.clone().unwrap_or(last_third)),
        seed: settings.options.seed,
        ..AdapterOptions::default()
    };
    let new = new_adapter(&base, &options)?;
    let adapted = base.adapted(&[Adapter::from_bytes("a new adapter", &new)?])?;
    let base: Base = Training::base(&adapted)?;
    let (isa, pool_of) = (adapted.isa(), base.pool());
    let mut teaching =
        Teaching::new(base.program(), base.tensors()?, lessons, pool, settings.options, isa, pool_of)?;
    while !teaching.is_done() {
        if progress(&teaching.step()?).is_break() {
            break;
        }
    }
    let gguf = Gguf::parse_with(&new, &ReadOptions::default())?;
    // `alpha` is the rank: factors are in the program as they are in the file.
    let factor = |name: &str| (teaching.factor(name).unwrap_or(&[]), 1.0);
    let metadata = [("general.name", settings.name.as_str()), (FACTS, &Fact::to_json(facts))];
    let file = adapter::with_factors(&gguf, factor, &metadata)?;
    let (steps, is_learned) = (teaching.step_count(), teaching.is_learned());
    Ok(Taught { file, steps, is_learned, answers: Answers::default() })
}
