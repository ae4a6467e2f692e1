//! What a model learns from: text, conversations, or tokens.

use super::{Error, TrainOptions};
use crate::error::Result;
use crate::model::Model;
use shohin_core::chat::ChatMessage;
use shohin_core::chat::openai::parse_messages;
use shohin_core::json::Value;
use shohin_core::tokenizer::Special;
use shohin_train::data::{BatchSize, Cursor, Data, Rows};
use std::ops::Range;
use std::sync::Arc;

/// Tokens to learn from or to measure on. Clones share them.
#[derive(Clone, Debug)]
pub struct Corpus {
    data: Arc<Data>,
    /// The line of each conversation.
    lines: Arc<[usize]>,
    lengths: Arc<[usize]>,
}

/// How a corpus is read.
#[derive(Clone, Debug, PartialEq)]
pub struct CorpusOptions {
    /// How much predicting what is not a reply counts in the loss, beside 1 for the rest: 1 for a text and 0 for conversations
    /// unless set. In a text, that is what the system and the user say in ChatML's form, results of tools among it: from
    /// `<|im_start|>` to the next one, unless it is followed by `assistant`.
    pub prompt_weight: Option<f32>,
    /// The control token between documents of a text, if the model has it.
    pub separator: String,
}

impl Default for CorpusOptions {
    fn default() -> Self {
        CorpusOptions { prompt_weight: None, separator: "<|endoftext|>".into() }
    }
}

/// A problem of what a model is to learn from.
fn wrong(line: Option<usize>, problem: impl Into<String>) -> Error {
    Error::Corpus { line, problem: problem.into() }
}

impl Corpus {
    /// A text, of which rows are cut anywhere. Control tokens in it, such as `<|endoftext|>` between documents, are control
    /// tokens.
    ///
    /// # Errors
    /// [`Error::Corpus`] for a text of fewer than two tokens.
    pub fn text(model: &Model, text: &str) -> Result<Corpus> {
        Corpus::text_with(model, text, &CorpusOptions::default())
    }

    /// As [`Corpus::text`].
    ///
    /// # Errors
    /// [`Error::Corpus`] also for a weight of prompts if the model has no `<|im_start|>`.
    pub fn text_with(model: &Model, text: &str, options: &CorpusOptions) -> Result<Corpus> {
        let tokens = model.tokenize_with(text, Special::Parse);
        let one = |text: &str| match model.tokenize_with(text, Special::Parse)[..] {
            [id] => Some(id),
            _ => None,
        };
        let separator = one(&options.separator);
        let mut weights = Vec::new();
        if let Some(weight) = options.prompt_weight.filter(|weight| *weight != 1.0) {
            let Some(start) = one("<|im_start|>") else {
                return Err(wrong(None, "a weight of prompts in a text needs a model with <|im_start|>"));
            };
            let reply = model.tokenize_with("assistant", Special::Text);
            let mut counts = 1.0;
            for (i, id) in tokens.iter().enumerate() {
                if *id == start {
                    let is_reply = tokens.get(i + 1..).is_some_and(|rest| rest.starts_with(&reply));
                    counts = if is_reply { 1.0 } else { weight };
                } else if Some(*id) == separator {
                    counts = 1.0;
                }
                weights.push(if *id == start { weight } else { counts });
            }
        }
        let ends = tokens.iter().enumerate().filter(|(_, id)| Some(**id) == separator);
        let documents = [0].into_iter().chain(ends.map(|(i, _)| i + 1)).filter(|at| *at < tokens.len());
        let documents = documents.collect();
        Corpus::stream(model, tokens, weights, documents)
    }

    /// Several of one kind, with the share of rows that [`Order::Sampled`](super::Order::Sampled) takes from each; in another order they come one after
    /// another.
    ///
    /// # Errors
    /// [`Error::Option`](crate::Error::Option) for shares that are not numbers over 0, and for conversations beside texts.
    pub fn mixed(parts: Vec<(Corpus, f64)>) -> Result<Corpus> {
        let lines = parts.iter().flat_map(|(corpus, _)| corpus.lines.iter().copied()).collect();
        let lengths = parts.iter().flat_map(|(corpus, _)| corpus.lengths.iter().copied()).collect();
        let own = |corpus: Corpus| Arc::unwrap_or_clone(corpus.data);
        let data = Data::mixed(parts.into_iter().map(|(corpus, share)| (own(corpus), share)).collect())?;
        Ok(Corpus { data: data.into(), lines, lengths })
    }

    /// The ids of tokens, one after another.
    ///
    /// # Errors
    /// [`Error::Corpus`] for fewer than two, [`shohin_core::Error::Token`] for one that the model does not have.
    pub fn tokens(model: &Model, tokens: Vec<u32>) -> Result<Corpus> {
        model.check_tokens(&tokens)?;
        Corpus::stream(model, tokens, Vec::new(), Vec::new())
    }

    fn stream(model: &Model, tokens: Vec<u32>, weights: Vec<f32>, documents: Vec<usize>) -> Result<Corpus> {
        model.check_tokens(&tokens)?;
        if tokens.len() < 2 {
            let problem = format!("expected at least 2 tokens to learn from, found {}", tokens.len());
            return Err(wrong(None, problem));
        }
        let data = Data::stream(tokens, weights)?.with_documents(documents)?;
        Ok(Corpus { data: data.into(), lines: [].into(), lengths: [].into() })
    }

    /// Conversations, one JSON object a line: `{"messages": [...], "tools": [...]}` with messages as in requests of OpenAI's chat
    /// completions. The replies of the assistant are learned, and nothing else. A conversation stays whole.
    ///
    /// # Errors
    /// [`Error::Corpus`] with the line: if it is not JSON, has unknown roles or fields, or no reply.
    pub fn chats(model: &Model, text: &str) -> Result<Corpus> {
        Corpus::chats_with(model, text, &CorpusOptions::default())
    }

    /// As [`Corpus::chats`].
    ///
    /// # Errors
    /// As [`Corpus::chats`].
    pub fn chats_with(model: &Model, text: &str, options: &CorpusOptions) -> Result<Corpus> {
        let prompt = options.prompt_weight.unwrap_or(0.0);
        let (mut tokens, mut weights) = (Vec::new(), Vec::new());
        let (mut lines, mut lengths) = (Vec::new(), Vec::new());
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let start = tokens.len();
            let encoded = Example::parse(line)
                .and_then(|example| example.encode(model).map_err(|error| error.to_string()));
            let (ids, replies) = encoded.map_err(|problem| wrong(Some(number + 1), problem))?;
            tokens.extend(ids);
            weights.resize(tokens.len(), prompt);
            for reply in replies {
                weights[start + reply.start..start + reply.end].fill(1.0);
            }
            lines.push(number + 1);
            lengths.push(tokens.len() - start);
        }
        if lines.is_empty() {
            return Err(wrong(None, "expected a conversation on each line, found none"));
        }
        let data = Data::sequences(tokens, &lengths, weights)?;
        Ok(Corpus { data: data.into(), lines: lines.into(), lengths: lengths.into() })
    }

    /// The data.
    pub fn data(&self) -> &Data {
        &self.data
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.data.tokens().len()
    }

    /// Whether there are none: never.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tokens whose prediction is learned.
    pub fn learned(&self) -> usize {
        match self.data.weights() {
            [] => self.len() - 1,
            weights => weights.iter().filter(|weight| **weight != 0.0).count(),
        }
    }

    /// Rows of `row_tokens` tokens, or conversations.
    pub fn items(&self, row_tokens: usize) -> usize {
        self.data.len(row_tokens)
    }

    /// Steps after which everything was learned `epochs` times.
    ///
    /// # Errors
    /// [`Error::Corpus`] for a conversation that is longer than a row.
    pub fn steps(&self, options: &TrainOptions, epochs: f64) -> Result<u64> {
        let recipe = options.recipe();
        let micro = BatchSize { rows: (options.rows / options.accumulate).max(1), ..recipe.size };
        if self.data.longest().is_some_and(|longest| longest > micro.row_tokens) {
            return Err(self.too_long(micro.row_tokens));
        }
        let items = self.items(options.row_tokens) as f64;
        let (mut cursor, mut rows, mut steps) = (Cursor::default(), Rows::default(), 0);
        // A step of conversations has as many as fit.
        while cursor.epoch as f64 + cursor.next as f64 / items < epochs {
            for _ in 0..options.accumulate {
                self.data.next(micro, options.order, options.seed, &mut cursor, &mut rows)?;
            }
            steps += 1;
        }
        Ok(steps)
    }

    /// The error of a conversation that is longer than a row.
    pub(super) fn too_long(&self, row_tokens: usize) -> Error {
        let longest = self.lengths.iter().zip(&*self.lines).max_by_key(|(len, _)| **len);
        let (len, line) = longest.map_or((0, 0), |(len, line)| (*len - 1, *line));
        let problem =
            format!("the conversation has {len} tokens, and a row at most {row_tokens} (--row-tokens)");
        wrong(Some(line), problem)
    }
}

/// A conversation to learn from.
#[derive(Clone, Debug, PartialEq)]
pub struct Example {
    /// The messages, of which the assistant's are learned.
    pub messages: Vec<ChatMessage>,
    /// Descriptions of functions, each a JSON text.
    pub tools: Vec<String>,
}

impl Example {
    /// Reads `{"messages": [...], "tools": [...]}`, with messages as in requests of OpenAI's chat completions.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> std::result::Result<Example, String> {
        // What is read as it was written keeps the order of the keys, in which a model is given them.
        let value = Value::parse(text).map_err(|error| error.to_string())?;
        let members = value.members().ok_or("expected a JSON object with \"messages\"")?;
        if let Some((other, _)) =
            members.iter().find(|(key, _)| !["messages", "tools"].contains(&key.as_str()))
        {
            return Err(format!("unknown field \"{other}\", expected \"messages\" and \"tools\""));
        }
        let messages = value.get("messages").ok_or("expected a JSON object with \"messages\"")?;
        let messages = parse_messages(messages.text()).map_err(|error| error.to_string())?;
        let tools = match value.get("tools") {
            None => Vec::new(),
            Some(tools) => {
                let tools = tools.elements().ok_or("expected an array in \"tools\"")?;
                tools.into_iter().map(|tool| tool.text().to_string()).collect()
            }
        };
        Ok(Example { messages, tools })
    }

    /// Its tokens, and where the replies are in them.
    pub(super) fn encode(&self, model: &Model) -> Result<(Vec<u32>, Vec<Range<usize>>)> {
        let tools: Vec<&str> = self.tools.iter().map(String::as_str).collect();
        model.encode_replies(&self.messages, &tools)
    }
}
