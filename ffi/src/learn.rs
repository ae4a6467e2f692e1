//! Teaching by the Rust API.

use crate::argument::{self, shohin_text};
use crate::code::{Failure, Result, shohin_code};
use crate::teach::{shohin_answer, shohin_fact, shohin_taught_info, shohin_teach_options, shohin_teach_step};
use shohin::Model;
use shohin::train::{Answer, Fact, LessonReport, Taught, TeachOptions, TeachSettings, teach as teach_model};
use std::mem::size_of;
use std::ops::ControlFlow;
use std::ptr;

/// What was taught, and its answers as C has them.
pub(crate) struct Learned {
    taught: Taught,
    /// What the answers point to, with a NUL at the end of each text.
    _texts: Vec<Vec<u8>>,
    facts: Vec<shohin_answer>,
    wordings: Vec<shohin_answer>,
    exam: Vec<shohin_answer>,
}

impl Learned {
    fn new(taught: Taught) -> Learned {
        let mut texts = Vec::new();
        let mut keep = |text: &str| {
            let kept = [text.as_bytes(), b"\0"].concat();
            let shown = shohin_text { text: kept.as_ptr().cast(), len: text.len() };
            texts.push(kept);
            shown
        };
        let mut show = |answer: &Answer| shohin_answer {
            question: keep(&answer.question),
            expected: keep(&answer.expected),
            before: keep(&answer.before),
            after: keep(&answer.after),
            is_right: usize::from(answer.is_right()),
        };
        let answers = &taught.answers;
        let [facts, wordings, exam] = [&answers.facts, &answers.wordings, &answers.exam]
            .map(|answers| answers.iter().map(&mut show).collect());
        Learned { taught, _texts: texts, facts, wordings, exam }
    }

    pub(crate) fn info(&self) -> shohin_taught_info {
        let adapter = self.taught.bytes();
        shohin_taught_info {
            size: size_of::<shohin_taught_info>(),
            adapter: adapter.as_ptr(),
            adapter_len: adapter.len(),
            steps: self.taught.steps as usize,
            is_learned: usize::from(self.facts.iter().all(|answer| answer.is_right != 0)),
            facts: self.facts.as_ptr(),
            fact_count: self.facts.len(),
            wordings: self.wordings.as_ptr(),
            wording_count: self.wordings.len(),
            exam: self.exam.as_ptr(),
            exam_count: self.exam.len(),
        }
    }

    pub(crate) fn save(&self, path: &str) -> Result<()> {
        Ok(self.taught.save(path)?)
    }
}

/// The default options; those that are pointers are NULL.
pub(crate) fn defaults() -> shohin_teach_options {
    let TeachSettings { options, rank, .. } = TeachSettings::default();
    shohin_teach_options {
        size: size_of::<shohin_teach_options>(),
        seed: options.seed,
        learning_rate: options.learning_rate,
        steps: u32::try_from(options.steps).unwrap_or(u32::MAX),
        rank: u32::try_from(rank).unwrap_or(u32::MAX),
        rehearsals: options.rehearse,
        questions: ptr::null(),
        question_count: 0,
        name: ptr::null(),
        name_len: 0,
    }
}

/// # Safety
/// Texts as [`argument::text`] and [`argument::texts`].
unsafe fn settings(options: &shohin_teach_options) -> Result<TeachSettings> {
    let mut settings = TeachSettings {
        options: TeachOptions {
            steps: options.steps.into(),
            learning_rate: options.learning_rate,
            rehearse: options.rehearsals,
            seed: options.seed,
            ..TeachOptions::default()
        },
        rank: options.rank as usize,
        ..TeachSettings::default()
    };
    // SAFETY: the caller vouches for them.
    unsafe {
        if options.question_count > 0 {
            settings.questions = argument::texts(options.questions, options.question_count, "questions")?;
        }
        if !options.name.is_null() {
            settings.name = argument::text(options.name, options.name_len, "name of the adapter")?.into();
        }
    }
    Ok(settings)
}

/// # Safety
/// Texts as [`argument::text`] and [`argument::texts`].
unsafe fn fact(fact: &shohin_fact, number: usize) -> Result<Fact> {
    // SAFETY: the caller vouches for them.
    let read = unsafe {
        Fact {
            question: argument::text(fact.question.text, fact.question.len, "question of a fact")?.into(),
            answer: argument::text(fact.answer.text, fact.answer.len, "answer of a fact")?.into(),
            forms: argument::texts(fact.forms, fact.form_count, "forms of a fact")?,
        }
    };
    if read.questions().chain([&*read.answer]).any(|text| text.trim().is_empty()) {
        let message = format!("fact {number} has an empty text, expected a question and an answer");
        return Err(Failure::new(shohin_code::SHOHIN_ARGUMENT, message));
    }
    Ok(read)
}

/// Teaches `model` facts; `on_step` says whether to end early.
///
/// # Safety
/// Texts as [`argument::text`] and [`argument::texts`].
pub(crate) unsafe fn teach(
    model: &Model,
    facts: &[shohin_fact],
    options: &shohin_teach_options,
    on_step: &mut dyn FnMut(&shohin_teach_step) -> bool,
) -> Result<Learned> {
    if facts.is_empty() {
        return Err(Failure::new(shohin_code::SHOHIN_ARGUMENT, "there are no facts, expected at least one"));
    }
    // SAFETY: the caller vouches for the texts.
    let (settings, facts) = unsafe {
        let facts = facts.iter().enumerate().map(|(i, each)| fact(each, i + 1));
        (settings(options)?, facts.collect::<Result<Vec<Fact>>>()?)
    };
    let mut progress = |report: &LessonReport| {
        let size = size_of::<shohin_teach_step>();
        let step = shohin_teach_step { size, step: report.step, loss: report.loss, least: report.least };
        if on_step(&step) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    Ok(Learned::new(teach_model(model, &facts, &settings, &mut progress)?))
}
