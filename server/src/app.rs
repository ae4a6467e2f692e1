//! What all requests share, and the way of a request to its reply.

use crate::adapters::{Adapters, Chosen, NamedAdapter};
use crate::api::{AskedAdapter, Input, ModelInfo, PromptInput};
use crate::engine::{self, Job, Permit, Sizes, Task, Update};
use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::others::Others;
use serde_json::Value;
use shohin::Model;
use shohin::core::chat::openai::CompletionId;
use shohin::core::chat::{Chunk, Finish, Prompt, TokenLogprob, TurnOptions, Usage};
use shohin::core::sample::{Logprob, Logprobs};
use shohin::core::tokenizer::Special;
use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak, mpsc as std_mpsc};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::Semaphore;

/// What all requests share.
pub(crate) struct App {
    pub(crate) model: Model,
    pub(crate) name: String,
    /// Other names of the model.
    pub(crate) aliases: Vec<String>,
    /// Whether the model answers to every name.
    pub(crate) any_name: bool,
    /// When the model was loaded.
    pub(crate) created: SystemTime,
    pub(crate) sizes: Sizes,
    pub(crate) key: Option<String>,
    /// Origins of pages that may ask.
    pub(crate) origins: Vec<String>,
    pub(crate) adapters: Arc<Adapters>,
    /// Models that are loaded when they are asked for.
    pub(crate) others: Arc<Others>,
    pub(crate) tasks: std_mpsc::Sender<Task>,
    pub(crate) permits: Arc<Semaphore>,
    /// Embeddings are computed one request at a time.
    pub(crate) embedding: Arc<Semaphore>,
    pub(crate) metrics: Arc<Metrics>,
    /// Set when the server shuts down.
    pub(crate) last: Arc<OnceLock<Instant>>,
    /// Alive as long as the thread that computes.
    pub(crate) engine: Weak<()>,
    pub(crate) time: Duration,
    pub(crate) body: usize,
    /// Whether requests with unknown fields are refused.
    pub(crate) strict: bool,
    /// Fields that the log has named.
    pub(crate) named: Arc<Mutex<BTreeSet<String>>>,
}

/// Maximum number of fields that the log names.
const MAX_NAMED: usize = 1000;

impl App {
    /// What is told of the model, and of it with each of its adapters.
    pub(crate) fn models(&self) -> Vec<ModelInfo> {
        let adapted = self.adapters.list();
        let adapted = adapted.iter().map(|loaded| self.info(Some(loaded.name())));
        let aliases = self.aliases.iter().map(|name| ModelInfo { name: name.clone(), ..self.info(None) });
        let others = self.others.names().map(|name| self.other(name));
        [self.info(None)].into_iter().chain(aliases).chain(adapted).chain(others).collect()
    }

    /// What is told of another model, of which little is known before it is loaded.
    fn other(&self, name: &str) -> ModelInfo {
        match self.others.loaded(name) {
            Some(app) => app.info(None),
            None => {
                let (created, slots) = (self.created, self.sizes.replies);
                ModelInfo { name: name.into(), parent: None, context: None, created, slots, model: None }
            }
        }
    }

    /// The name by which the model is known, for one of its other names.
    fn known<'n>(&'n self, asked: &'n str) -> &'n str {
        // As Ollama's clients say it.
        let asked = asked.strip_suffix(":latest").unwrap_or(asked);
        let is_known = |name: &str| name == self.name || self.adapters.of_model(&self.name, name).is_some();
        let is_alias = self.aliases.iter().any(|alias| alias == asked);
        if is_alias || self.any_name && !is_known(asked) { &self.name } else { asked }
    }

    /// What is told of the model of this name.
    pub(crate) fn model_info(&self, asked: &str) -> Result<ModelInfo, ApiError> {
        let plain = asked.strip_suffix(":latest").unwrap_or(asked);
        if plain != self.name && self.others.names().any(|name| name == plain) {
            return Ok(self.other(plain));
        }
        if self.known(asked) == self.name {
            return Ok(ModelInfo { name: asked.into(), ..self.info(None) });
        }
        let loaded = self.adapters.of_model(&self.name, asked);
        let loaded = loaded.ok_or_else(|| self.adapters.unknown_model(&self.name, asked))?;
        Ok(self.info(Some(loaded.name())))
    }

    fn info(&self, adapter: Option<&str>) -> ModelInfo {
        let context = self.model.context().min(self.model.config().max_context_length);
        let name = adapter.map_or(self.name.clone(), |adapter| format!("{}:{adapter}", self.name));
        let parent = adapter.map(|_| self.name.clone());
        let (created, slots, model) = (self.created, self.sizes.replies, Some(self.model.clone()));
        ModelInfo { name, parent, context: Some(context), created, slots, model }
    }

    /// The adapters of a request that names this model, and these adapters in the place of the model's.
    pub(crate) fn choose(
        &self,
        model: Option<&str>,
        asked: Option<Vec<AskedAdapter>>,
    ) -> Result<Chosen, ApiError> {
        self.adapters.choose(&self.name, model.map(|model| self.known(model)), asked)
    }

    /// Loads an adapter of the folder, on a thread that may take its time.
    pub(crate) async fn load_adapter(&self, named: NamedAdapter) -> Result<Value, ApiError> {
        let permit = self.permit()?;
        let (model, adapters) = (self.model.clone(), Arc::clone(&self.adapters));
        keep(permit, move || adapters.load(&model, named)).await?.0
    }

    /// Unloads an adapter, whose memory is free when its last reply has ended.
    pub(crate) fn unload_adapter(&self, name: &str) -> Result<(), ApiError> {
        self.adapters.unload(name)?;
        self.metrics.forget_adapter(name);
        self.tasks.send(Task::Tidy).map_err(|_| ApiError::Stopped)
    }

    /// Whether the log has not named this field, which it does now.
    pub(crate) fn is_new(&self, field: &str) -> bool {
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        named.len() < MAX_NAMED && named.insert(field.into())
    }

    /// A permit for a request, unless the server shuts down.
    pub(crate) fn permit(&self) -> Result<Permit, ApiError> {
        if self.last.get().is_some() {
            return Err(ApiError::ShuttingDown);
        }
        let permit = Arc::clone(&self.permits).try_acquire_owned();
        permit.map(Arc::new).map_err(|_| ApiError::Busy)
    }

    /// Counts the tokens of a prompt.
    pub(crate) async fn count_tokens(
        &self,
        prompt: PromptInput,
        options: &TurnOptions,
        permit: &Permit,
    ) -> Result<usize, ApiError> {
        Ok(match self.prompt(prompt, options, permit).await? {
            Prompt::Encoded(encoded) => encoded.tokens().len(),
            Prompt::Tokens(tokens) => tokens.len(),
            Prompt::Messages(_) => 0,
        })
    }

    /// Makes tokens of what is replied to, on a thread that may take its time.
    async fn prompt(
        &self,
        prompt: PromptInput,
        options: &TurnOptions,
        permit: &Permit,
    ) -> Result<Prompt, ApiError> {
        let (model, permit) = (self.model.clone(), Arc::clone(permit));
        match prompt {
            PromptInput::Messages(messages) => {
                let options = options.clone();
                let (encoded, _) = keep(permit, move || model.encode(messages, &options)).await?;
                Ok(Prompt::Encoded(encoded?))
            }
            PromptInput::Text(Input::Text(text)) => {
                Ok(Prompt::Tokens(keep(permit, move || model.tokenize(&text)).await?.0))
            }
            PromptInput::Text(Input::Tokens(tokens)) => {
                model.check_tokens(&tokens)?;
                Ok(Prompt::Tokens(tokens))
            }
            PromptInput::Between(before, after) => {
                let tokens = keep(permit, move || fill_in(&model, &before, &after)).await?.0;
                let problem = "suffix is not supported by this model, which has no tokens to fill in the middle of a text";
                let field = ApiError::Field { place: "suffix".into(), problem: problem.into() };
                tokens.map(Prompt::Tokens).ok_or(field)
            }
        }
    }

    /// What tells the next answer apart.
    pub(crate) fn id(&self, adapters: &Chosen) -> CompletionId {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        CompletionId { id: format!("{:016x}", random()), created, model: adapters.name(&self.name) }
    }

    /// Asks for `n` replies to each prompt, and waits until the first part of the first is there: what is wrong with the request
    /// is known then. Tokens of prompts that are texts are put into `tokens`.
    pub(crate) async fn begin(
        &self,
        request: Asked<'_>,
        tokens: &mut Vec<Vec<u32>>,
    ) -> Result<Vec<Updates>, ApiError> {
        let Asked { prompts, n, options, seed, adapters, permit } = request;
        let asked = Instant::now();
        let deadline = asked + self.time;
        let mut all = Vec::new();
        for prompt in prompts {
            let prompt = self.prompt(prompt, options, permit).await?;
            if let Prompt::Tokens(text) = &prompt {
                tokens.push(text.clone());
            }
            for i in 0..n {
                let mut options = options.clone();
                // A number that other programs' JSON can hold.
                options.sampler.seed =
                    seed.map_or_else(|| random() >> 32, |seed| seed.wrapping_add(i as u64));
                let (sender, receiver) = engine::channel();
                let (prompt, permit) = (prompt.clone(), Arc::clone(permit));
                let adapters = adapters.clone();
                let job = Job { prompt, options, adapters, updates: sender, asked, deadline, permit };
                self.tasks.send(Task::Reply(Box::new(job))).map_err(|_| ApiError::Stopped)?;
                all.push(Updates { receiver, first: None, prompt: Usage::default(), queued: Duration::ZERO });
            }
        }
        if let Some(updates) = all.first_mut() {
            updates.first = match updates.next().await {
                Update::Failed(error) => return Err(error),
                Update::Begun(usage, queued) => {
                    (updates.prompt, updates.queued) = (usage, queued);
                    None
                }
                first => Some(first),
            };
        }
        Ok(all)
    }
}

impl App {
    /// Measures the tokens after the first of each text, on a thread that may take its time.
    pub(crate) async fn score(
        &self,
        texts: Vec<Vec<u32>>,
        top: usize,
        adapters: &Chosen,
        permit: Permit,
    ) -> Result<Vec<(Vec<u32>, Vec<TokenLogprob>)>, ApiError> {
        let deadline = Instant::now() + self.time;
        let (model, adapters) = (self.model.clone(), adapters.clone());
        let scores = keep(permit, move || {
            let model = adapters.apply(&model)?;
            let score = |tokens: Vec<u32>| {
                if Instant::now() >= deadline {
                    return Err(ApiError::TimedOut);
                }
                let mut measured = Vec::new();
                let mut logprobs = Logprobs::new(top);
                model.logits(&tokens, &mut |i, logits| {
                    let Some(&token) = tokens.get(i + 1) else { return };
                    let logprob = logprobs.measure(logits, token);
                    let chosen = Logprob { token, logprob };
                    measured.push(TokenLogprob { chosen, top: logprobs.top().into() });
                })?;
                Ok((tokens, measured))
            };
            texts.into_iter().map(score).collect::<Result<Vec<_>, ApiError>>()
        });
        scores.await?.0
    }
}

/// A request for replies, whose model is known.
pub(crate) struct Asked<'r> {
    pub(crate) prompts: Vec<PromptInput>,
    pub(crate) n: usize,
    pub(crate) options: &'r TurnOptions,
    pub(crate) seed: Option<u64>,
    pub(crate) adapters: &'r Chosen,
    pub(crate) permit: &'r Permit,
}

/// The names of the tokens before the text that comes first, before that which comes last, and where the model goes on, by which
/// models were trained to fill in what is between.
const FILL_IN: [[&str; 3]; 4] = [
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
    ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
];

/// The prompt for a text between two others; `None` if the model has no tokens for it.
fn fill_in(model: &Model, before: &str, after: &str) -> Option<Vec<u32>> {
    let tokenizer = model.tokenizer();
    let ids = |names: &[&str; 3]| {
        let [first, last, middle] = names.map(|name| tokenizer.added_id(name));
        Some((first?, last?, middle?))
    };
    let (first, last, middle) = FILL_IN.iter().find_map(ids)?;
    let mut tokens = Vec::from_iter(tokenizer.leading_bos());
    tokens.push(first);
    tokenizer.encode(before, Special::UserDefined, &mut tokens);
    tokens.push(last);
    tokenizer.encode(after, Special::UserDefined, &mut tokens);
    tokens.push(middle);
    Some(tokens)
}

/// Works on a thread that keeps the permit until it ends, even if the client leaves, which drops what waits here.
async fn keep<T: Send + 'static>(
    permit: Permit,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<(T, Permit), ApiError> {
    tokio::task::spawn_blocking(move || (work(), permit)).await.map_err(|_| ApiError::Stopped)
}

/// The parts of a reply.
pub(crate) struct Updates {
    receiver: engine::Receiver,
    first: Option<Update>,
    /// Counts of the prompt's tokens.
    pub(crate) prompt: Usage,
    /// How long it has waited to begin.
    pub(crate) queued: Duration,
}

impl Updates {
    pub(crate) async fn next(&mut self) -> Update {
        match self.first.take() {
            Some(first) => first,
            None => self.receiver.next().await.unwrap_or(Update::Failed(ApiError::Stopped)),
        }
    }

    /// Waits for the whole of a reply.
    pub(crate) async fn whole(mut self, mut take: impl FnMut(Chunk)) -> Result<Finish, ApiError> {
        loop {
            match self.next().await {
                Update::Begun(..) => {}
                Update::Chunk(chunk) => take(chunk),
                Update::End(finish) => return Ok(*finish),
                Update::Failed(error) => return Err(error),
            }
        }
    }
}

pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_client_that_leaves_does_not_free_the_permit_of_what_goes_on() {
        let permits = Arc::new(Semaphore::new(1));
        let permit = Arc::new(Arc::clone(&permits).try_acquire_owned().unwrap());
        let (began, waits) = std_mpsc::channel();
        let (end, ended) = std_mpsc::channel::<()>();
        let client = tokio::spawn(keep(permit, move || {
            began.send(()).unwrap();
            ended.recv().unwrap();
        }));
        tokio::task::spawn_blocking(move || waits.recv().unwrap()).await.unwrap();
        client.abort();
        assert!(client.await.unwrap_err().is_cancelled());
        assert_eq!(permits.available_permits(), 0);
        end.send(()).unwrap();
        drop(permits.acquire().await.unwrap());
    }
}
