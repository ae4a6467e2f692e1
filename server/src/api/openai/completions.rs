//! Continuations of a text.

use super::input::inputs;
use super::{CHAT, DONE, OpenAi, extras};
use crate::api::dialect::{Begun, Dialect, Event, Input, PromptInput, ReplyRequest, ReplyWriter};
use crate::error::{ApiError, Fields};
use serde_json::{Map, Value, json};
use shohin::core::chat::fields::{Field, Object, Reading, refused};
use shohin::core::chat::openai::CompletionId;
use shohin::core::chat::openai::answer::{close_chunk, finish_reason, head, usage, usage_chunk};
use shohin::core::chat::openai::request::{max_tokens, stop, streaming};
use shohin::core::chat::{Chunk, Finish, TokenLogprob, Usage};
use shohin::core::{Error, Result, json};
use shohin::{Model, TurnOptions};

/// Fields of a request for a continuation.
const COMPLETION_FIELDS: &[&str] = &[
    "prompt",
    "model",
    "stream",
    "stream_options",
    "max_tokens",
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "stop",
    "best_of",
    "echo",
    "logprobs",
    "suffix",
    // Taken and left aside.
    "user",
];

/// Maximum number of prompts of a request.
const MAX_PROMPTS: usize = 128;

/// A request for continuations of texts.
#[derive(Debug)]
pub(crate) struct CompletionRequest {
    /// What is continued; at least one.
    prompts: Vec<Input>,
    /// What comes after the continuation of the only prompt.
    suffix: Option<String>,
    /// How many continuations of each.
    n: usize,
    /// How. The number of tokens is 16 unless set, as in OpenAI's reference.
    pub(crate) options: TurnOptions,
    fields: Fields,
    /// Whether an answer begins with the prompt.
    echo: bool,
    /// The seed, if one was asked for. If not, a host sets one of its own, at random.
    pub(crate) seed: Option<u64>,
    /// The model's name.
    model: Option<String>,
    /// Whether the answer is streamed in chunks.
    stream: bool,
    /// Whether a last chunk says what the answer took.
    pub(crate) include_usage: bool,
}

impl CompletionRequest {
    /// Reads a request.
    ///
    /// # Errors
    /// As [`ChatCompletionRequest::parse`](shohin::core::chat::openai::ChatCompletionRequest::parse).
    pub(crate) fn parse(text: &str, reading: &Reading) -> Result<CompletionRequest> {
        let request =
            Object::request_with(text, &[COMPLETION_FIELDS, extras::EXTRAS].concat(), Some(reading))?;
        let (mut options, mut fields) = (TurnOptions::default(), CHAT);
        let seed = request.sampling(&mut options.sampler)?;
        options.max_tokens = match request.get("max_tokens") {
            Some(_) => max_tokens(&request, "max_tokens")?,
            None => Some(16),
        };
        options.stop_strings = request.read_as("stop", stop)?;
        extras::read(&request, &mut options, &mut fields)?;
        options.logprobs = request.get("logprobs").map(|field| logprobs(&field)).transpose()?.flatten();
        let n = extras::replies(&request)?;
        if let Some(best_of) = request.get("best_of")
            && request.count("best_of")? != Some(n as u64)
        {
            return Err(best_of.unsupported("as many as n"));
        }
        let prompt =
            request.get("prompt").ok_or_else(|| refused("prompt", "must be a text or its tokens"))?;
        let prompts = inputs(&prompt)?;
        if prompts.len() > MAX_PROMPTS {
            let (what, found) = ("prompt", prompts.len() as f64);
            return Err(Error::Option { what, found, expected: "at most 128 prompts" });
        }
        let echo = request.boolean("echo")?;
        let suffix = request.string("suffix")?.filter(|suffix| !suffix.is_empty());
        if suffix.is_some()
            && let Some(field) = request.get("suffix")
        {
            if echo {
                return Err(field.unsupported("a request without echo"));
            }
            if !matches!(prompts[..], [Input::Text(_)]) {
                return Err(field.unsupported("one prompt that is a text"));
            }
        }
        let (stream, include_usage) = streaming(&request)?;
        let model = request.string("model")?;
        Ok(CompletionRequest {
            prompts,
            suffix,
            n,
            options,
            fields,
            echo,
            seed,
            model,
            stream,
            include_usage,
        })
    }
}

/// A number, or of llama.cpp's clients whether.
fn logprobs(field: &Field<'_>) -> Result<Option<usize>> {
    if let Some(wanted) = field.value.as_bool() {
        return Ok(wanted.then_some(1));
    }
    let top = field.value.as_number().filter(|top| (0.0..=20.0).contains(top) && *top == top.trunc());
    Ok(Some(top.ok_or_else(|| field.refused("must be 0 to 20"))? as usize))
}

impl From<CompletionRequest> for ReplyRequest {
    fn from(request: CompletionRequest) -> ReplyRequest {
        let CompletionRequest {
            prompts,
            suffix,
            n,
            options,
            fields,
            echo,
            seed,
            model,
            stream,
            include_usage,
        } = request;
        let echoed = if echo { prompts.clone() } else { Vec::new() };
        let prompts: Vec<PromptInput> = match suffix {
            Some(suffix) => {
                let between = |prompt| match prompt {
                    Input::Text(text) => PromptInput::Between(text, suffix.clone()),
                    tokens => PromptInput::Text(tokens),
                };
                prompts.into_iter().map(between).collect()
            }
            None => prompts.into_iter().map(PromptInput::Text).collect(),
        };
        let (count, measured) = (prompts.len() * n, options.logprobs.is_some());
        ReplyRequest {
            prompts,
            n,
            score: options.logprobs.filter(|_| echo),
            options,
            seed,
            model,
            stream,
            lines: false,
            fields,
            writer: Box::new(move |Begun { id, model, scores, .. }| {
                let text = |input: &Input| match input {
                    Input::Text(text) => text.clone(),
                    // They have been checked.
                    Input::Tokens(tokens) => model.detokenize(tokens).unwrap_or_default(),
                };
                let before = |reply: usize| {
                    let (echo, score) = (echoed.get(reply / n).map(text), scores.get(reply / n));
                    let mut measures = measured.then(Measures::default);
                    if let (Some(measures), Some((tokens, rest))) = (&mut measures, score) {
                        if let Some(first) = tokens.first() {
                            measures.first(*first, &model);
                        }
                        measures.add(rest, &model);
                    }
                    Choice { before: echo.unwrap_or_default(), measures }
                };
                let choices = (0..count).map(before).collect();
                Box::new(TextWriter { id, n, include_usage, model, choices, ended: vec![None; count] })
            }),
        }
    }
}

/// What is known of a continuation before its next event.
struct Choice {
    /// What it begins with, until that is sent.
    before: String,
    /// What was measured and not sent.
    measures: Option<Measures>,
}

/// Log-probabilities in the form of continuations.
#[derive(Default)]
struct Measures {
    tokens: Vec<String>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<usize>,
    /// Characters before the next token.
    offset: usize,
}

impl Measures {
    fn token(&mut self, token: u32, model: &Model) -> String {
        let text = token_text(token, model);
        self.tokens.push(text.clone());
        self.text_offset.push(self.offset);
        self.offset += text.chars().count();
        text
    }

    /// Adds a token that nothing comes before.
    fn first(&mut self, token: u32, model: &Model) {
        self.token(token, model);
        self.token_logprobs.push(Value::Null);
        self.top_logprobs.push(Value::Null);
    }

    fn add(&mut self, measured: &[TokenLogprob], model: &Model) {
        for TokenLogprob { chosen, top } in measured {
            self.token(chosen.token, model);
            self.token_logprobs.push(json!(chosen.logprob));
            let top: Map<String, Value> =
                top.iter().rev().map(|top| (token_text(top.token, model), json!(top.logprob))).collect();
            self.top_logprobs.push(Value::Object(top));
        }
    }

    /// What was added since the last time.
    fn take(&mut self) -> Value {
        let Measures { tokens, token_logprobs, top_logprobs, text_offset, .. } = self;
        json!({
            "tokens": std::mem::take(tokens),
            "token_logprobs": std::mem::take(token_logprobs),
            "top_logprobs": std::mem::take(top_logprobs),
            "text_offset": std::mem::take(text_offset),
        })
    }
}

fn token_text(token: u32, model: &Model) -> String {
    let bytes: Vec<u8> = model.tokenizer().token_bytes(token).into_iter().flatten().collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Writes continuations.
struct TextWriter {
    id: CompletionId,
    /// Continuations of each prompt.
    n: usize,
    include_usage: bool,
    model: Model,
    choices: Vec<Choice>,
    ended: Vec<Option<Usage>>,
}

impl ReplyWriter for TextWriter {
    fn chunk(&mut self, reply: usize, chunk: &Chunk) -> Vec<Event> {
        self.collect(reply, chunk.clone());
        let begins = self.choices.get(reply).is_some_and(|choice| !choice.before.is_empty());
        if chunk.text.is_empty() && chunk.logprobs.is_empty() && !begins {
            return Vec::new();
        }
        vec![Event::plain(self.choice(reply, &chunk.text, None))]
    }

    fn finish(&mut self, reply: usize, finish: &Finish) -> Vec<Event> {
        if let Some(ended) = self.ended.get_mut(reply) {
            *ended = Some(finish.usage);
        }
        vec![Event::plain(self.choice(reply, "", Some(finish)))]
    }

    fn end(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        if self.include_usage {
            let head = head(&self.id, "cmpl-", "text_completion");
            let ended: Vec<Usage> = self.ended.iter().flatten().copied().collect();
            events.push(Event::plain(usage_chunk(head, &total(&ended, self.n))));
        }
        events.push(Event::plain(DONE));
        events
    }

    fn error(&mut self, error: &ApiError) -> Event {
        Event::plain(OpenAi.error(error).to_string())
    }

    // The whole has the text, too.
    fn collect(&mut self, reply: usize, chunk: Chunk) {
        if let Some(Choice { measures: Some(measures), .. }) = self.choices.get_mut(reply) {
            measures.add(&chunk.logprobs, &self.model);
        }
    }

    fn whole(&mut self, replies: &[Finish]) -> String {
        let mut out = head(&self.id, "cmpl-", "text_completion");
        out.push_str(",\"choices\":[");
        for (reply, finish) in replies.iter().enumerate() {
            out.push_str(if reply == 0 { "" } else { "," });
            self.part(reply, &finish.text, Some(finish), &mut out);
        }
        out.push_str("],\"usage\":");
        let all: Vec<Usage> = replies.iter().map(|finish| finish.usage).collect();
        usage(&total(&all, self.n), &mut out);
        out.push('}');
        out
    }
}

/// What all continuations took, `n` of each prompt.
fn total(all: &[Usage], n: usize) -> Usage {
    let each = all.chunks(n.max(1)).map(|same| Usage::sum(same.iter().copied()));
    let add = |a: Usage, b: Usage| Usage {
        prompt_tokens: a.prompt_tokens + b.prompt_tokens,
        cached_tokens: a.cached_tokens + b.cached_tokens,
        ..Usage::sum([a, b])
    };
    each.reduce(add).unwrap_or_default()
}

impl TextWriter {
    fn choice(&mut self, reply: usize, text: &str, finish: Option<&Finish>) -> String {
        let mut out = head(&self.id, "cmpl-", "text_completion");
        out.push_str(",\"choices\":[");
        self.part(reply, text, finish, &mut out);
        out.push(']');
        close_chunk(self.include_usage, &mut out);
        out
    }

    /// Writes a part of a continuation, or with `finish` its end.
    fn part(&mut self, reply: usize, text: &str, finish: Option<&Finish>, out: &mut String) {
        let Some(choice) = self.choices.get_mut(reply) else { return };
        let text = std::mem::take(&mut choice.before) + text;
        out.push_str(&format!("{{\"index\":{reply},\"text\":"));
        json::string(&text, out);
        out.push_str(",\"logprobs\":");
        match &mut choice.measures {
            Some(measures) if finish.is_none() || !measures.tokens.is_empty() => {
                out.push_str(&measures.take().to_string());
            }
            Some(_) | None => out.push_str("null"),
        }
        out.push_str(",\"finish_reason\":");
        match finish {
            Some(finish) => json::string(finish_reason(finish), out),
            None => out.push_str("null"),
        }
        out.push('}');
    }
}
