//! What all requests share, and the way of a request to its reply.

use crate::adapters::{Adapters, Chosen, NamedAdapter};
use crate::api::{AskedAdapter, Input, ModelInfo, PromptInput};
use crate::engine::{self, Job, Task, Update};
use crate::error::ApiError;
use crate::metrics::Metrics;
use serde_json::Value;
use shohin::core::chat::openai::CompletionId;
use shohin::core::chat::{Chunk, Encoded, Finish, Prompt, TurnOptions, Usage};
use shohin::{ChatMessage, Model};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, OnceLock, Weak, mpsc as std_mpsc};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What all requests share.
pub(crate) struct App {
    pub(crate) model: Model,
    pub(crate) name: String,
    pub(crate) key: Option<String>,
    /// Origins of pages that may ask.
    pub(crate) origins: Vec<String>,
    pub(crate) adapters: Arc<Adapters>,
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
}

impl App {
    /// What is told of the model, and of it with each of its adapters.
    pub(crate) fn models(&self) -> Vec<ModelInfo> {
        let adapted = self.adapters.list();
        let adapted = adapted.iter().map(|loaded| self.info(Some(loaded.name())));
        [self.info(None)].into_iter().chain(adapted).collect()
    }

    /// What is told of the model of this name.
    pub(crate) fn model_info(&self, asked: &str) -> Result<ModelInfo, ApiError> {
        if asked == self.name {
            return Ok(self.info(None));
        }
        let loaded = self.adapters.of_model(&self.name, asked);
        let loaded = loaded.ok_or_else(|| self.adapters.unknown_model(&self.name, asked))?;
        Ok(self.info(Some(loaded.name())))
    }

    fn info(&self, adapter: Option<&str>) -> ModelInfo {
        let context = self.model.context().min(self.model.config().max_context_length);
        let name = adapter.map_or(self.name.clone(), |adapter| format!("{}:{adapter}", self.name));
        ModelInfo { name, parent: adapter.map(|_| self.name.clone()), context }
    }

    /// The adapters of a request that names this model, and these adapters in the place of the model's.
    pub(crate) fn choose(
        &self,
        model: Option<&String>,
        asked: Option<Vec<AskedAdapter>>,
    ) -> Result<Chosen, ApiError> {
        self.adapters.choose(&self.name, model, asked)
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

    /// A permit for a request, unless the server shuts down.
    pub(crate) fn permit(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        if self.last.get().is_some() {
            return Err(ApiError::ShuttingDown);
        }
        Arc::clone(&self.permits).try_acquire_owned().map_err(|_| ApiError::Busy)
    }

    /// Counts the tokens of a prompt.
    pub(crate) async fn count_tokens(
        &self,
        prompt: PromptInput,
        options: TurnOptions,
        permit: OwnedSemaphorePermit,
    ) -> Result<usize, ApiError> {
        match prompt {
            PromptInput::Messages(messages) => {
                let (encoded, _permit) = self.encode(messages, options, permit).await?;
                Ok(encoded.tokens().len())
            }
            PromptInput::Text(input) => Ok(self.tokens(input, permit).await?.0.len()),
        }
    }

    /// Encodes a conversation, on a thread that may take its time.
    async fn encode(
        &self,
        messages: Vec<ChatMessage>,
        options: TurnOptions,
        permit: OwnedSemaphorePermit,
    ) -> Result<(Encoded, OwnedSemaphorePermit), ApiError> {
        let model = self.model.clone();
        let (encoded, permit) = keep(permit, move || model.encode(messages, &options)).await?;
        Ok((encoded?, permit))
    }

    /// The tokens of a prompt.
    async fn tokens(
        &self,
        prompt: Input,
        permit: OwnedSemaphorePermit,
    ) -> Result<(Vec<u32>, OwnedSemaphorePermit), ApiError> {
        match prompt {
            Input::Text(text) => {
                let model = self.model.clone();
                keep(permit, move || model.tokenize(&text)).await
            }
            Input::Tokens(tokens) => {
                self.model.check_tokens(&tokens)?;
                Ok((tokens, permit))
            }
        }
    }

    /// What tells the next answer apart.
    pub(crate) fn id(&self, adapters: &Chosen) -> CompletionId {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        CompletionId { id: format!("{:016x}", random()), created, model: adapters.name(&self.name) }
    }

    /// Asks for a reply, and waits until its first part is there: what is wrong with the request is known then.
    pub(crate) async fn begin(
        &self,
        prompt: PromptInput,
        options: &TurnOptions,
        seed: Option<u64>,
        adapters: Chosen,
    ) -> Result<Updates, ApiError> {
        let permit = self.permit()?;
        let deadline = Instant::now() + self.time;
        let (prompt, permit) = match prompt {
            PromptInput::Messages(messages) => {
                let (encoded, permit) = self.encode(messages, options.clone(), permit).await?;
                (Prompt::Encoded(encoded), permit)
            }
            PromptInput::Text(input) => {
                let (tokens, permit) = self.tokens(input, permit).await?;
                (Prompt::Tokens(tokens), permit)
            }
        };
        let mut options = options.clone();
        // A number that other programs' JSON can hold.
        options.sampler.seed = seed.unwrap_or_else(|| random() >> 32);
        let (sender, receiver) = engine::channel();
        let job = Job { prompt, options, adapters, updates: sender, deadline, permit };
        self.tasks.send(Task::Reply(Box::new(job))).map_err(|_| ApiError::Stopped)?;
        let mut updates = Updates { receiver, first: None, prompt: Usage::default() };
        updates.first = match updates.next().await {
            Update::Failed(error) => return Err(error),
            Update::Begun(usage) => {
                updates.prompt = usage;
                None
            }
            first => Some(first),
        };
        Ok(updates)
    }
}

/// Works on a thread that keeps the permit until it ends, even if the client leaves, which drops what waits here.
async fn keep<T: Send + 'static>(
    permit: OwnedSemaphorePermit,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<(T, OwnedSemaphorePermit), ApiError> {
    tokio::task::spawn_blocking(move || (work(), permit)).await.map_err(|_| ApiError::Stopped)
}

/// The parts of a reply.
pub(crate) struct Updates {
    receiver: engine::Receiver,
    first: Option<Update>,
    /// Counts of the prompt's tokens.
    pub(crate) prompt: Usage,
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
                Update::Begun(_) => {}
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
        let permit = Arc::clone(&permits).try_acquire_owned().unwrap();
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
