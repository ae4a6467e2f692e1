//! What is at which path.

use crate::engine::{self, Job, Update};
use crate::failure::{CHAT, COMPLETIONS, Failure, MESSAGES, RESPONSES, Style};
use crate::metrics::Metrics;
use crate::page;
use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::PathRejection;
use axum::extract::{DefaultBodyLimit, FromRequest, Path, Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use futures_util::{Stream, stream};
use serde_json::{Value, json};
use shohin::core::chat::anthropic::{MessageWriter, MessagesRequest};
use shohin::core::chat::openai::{
    self, ChatCompletionRequest, Chunk, ChunkWriter, CompletionId, CompletionRequest, EmbeddingRequest,
    Input, NamedEvent, ResponseWriter, ResponsesRequest, TextWriter,
};
use shohin::core::chat::{Encoded, Finish, Prompt, TurnOptions, Usage};
use shohin::{ChatMessage, Model};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock, Weak, mpsc as std_mpsc};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use subtle::ConstantTimeEq;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};
use tower_http::timeout::RequestBodyTimeoutLayer;

/// How long a client may be silent within a request.
const BODY_PAUSE: Duration = Duration::from_secs(30);

/// How long a request's body may take, however steadily it comes: otherwise a hundred clients that send slowly would occupy
/// all connections indefinitely.
const BODY_TIME: Duration = Duration::from_secs(120);

/// What all requests share.
pub(crate) struct App {
    pub(crate) model: Model,
    pub(crate) name: String,
    pub(crate) key: Option<String>,
    /// Origins of pages that may ask.
    pub(crate) origins: Vec<String>,
    pub(crate) jobs: std_mpsc::Sender<Job>,
    pub(crate) places: Arc<Semaphore>,
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

type Shared = State<Arc<App>>;

/// The body of a request, or what is wrong with it.
struct Body(Result<Bytes, Failure>);

impl FromRequest<Arc<App>> for Body {
    type Rejection = Infallible;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Infallible> {
        let time = BODY_TIME.min(app.time);
        let late = || {
            Failure::Body(
                StatusCode::REQUEST_TIMEOUT,
                format!("the body took more than {} s", time.as_secs()),
            )
        };
        let read = tokio::time::timeout(time, Bytes::from_request(request, app)).await;
        Ok(Body(match read {
            Ok(body) => body.map_err(|error| match error.status() {
                status @ StatusCode::PAYLOAD_TOO_LARGE => {
                    Failure::Body(status, format!("the body has more than {} bytes", app.body))
                }
                status => Failure::Body(status, error.body_text()),
            }),
            Err(_) => Err(late()),
        }))
    }
}

/// The origins that may ask; `None` for none, an error for one that is not an origin.
pub(crate) fn cors(origins: &[String]) -> Result<Option<CorsLayer>, String> {
    if origins.is_empty() {
        return Ok(None);
    }
    let layer = CorsLayer::new()
        .allow_methods([Method::GET, Method::POST])
        // The clients of OpenAI and Anthropic have many of their own.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([header::RETRY_AFTER]);
    if origins == ["*"] {
        return Ok(Some(layer.allow_origin(AllowOrigin::any())));
    }
    let value = |origin: &String| match origin.split_once("://") {
        Some((_, host)) if !host.is_empty() && !host.contains('/') => {
            HeaderValue::from_str(origin).map_err(|_| origin.clone())
        }
        _ => Err(origin.clone()),
    };
    let values: Vec<HeaderValue> = origins.iter().map(value).collect::<Result<_, _>>()?;
    Ok(Some(layer.allow_origin(values)))
}

pub(crate) fn router(app: Arc<App>, cors: Option<CorsLayer>) -> Router {
    let router = Router::new()
        .route("/v1/chat/completions", post(chat))
        .route("/v1/responses", post(respond))
        .route("/v1/messages", post(message))
        .route("/v1/messages/count_tokens", post(count_tokens))
        .route("/v1/completions", post(complete))
        .route("/v1/embeddings", post(embed))
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(one_model))
        .route("/metrics", get(metrics))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&app), authorize))
        .route("/health", get(health))
        .route("/", get(page))
        .fallback(async |request: Request| refuse(&request, Failure::NotFound))
        .method_not_allowed_fallback(async |request: Request| refuse(&request, Failure::Method))
        .layer(middleware::from_fn_with_state(Arc::clone(&app), refuse_late))
        .layer(middleware::from_fn_with_state(Arc::clone(&app), count))
        .layer(DefaultBodyLimit::max(app.body))
        .layer(RequestBodyTimeoutLayer::new(BODY_PAUSE))
        .with_state(app);
    match cors {
        Some(cors) => router.layer(cors),
        None => router,
    }
}

/// An answer that says what is wrong with a request's path.
fn refuse(request: &Request, problem: fn(String) -> Failure) -> Response {
    let path = request.uri().path();
    problem(path.into()).answer(Style::of(path))
}

/// Refuses what comes when the server is shutting down.
async fn refuse_late(State(app): Shared, request: Request, next: Next) -> Response {
    if app.last.get().is_some() {
        return Failure::ShuttingDown.answer(Style::of(request.uri().path()));
    }
    next.run(request).await
}

/// Refuses requests without the key, and of pages that are not allowed to ask: a browser would send them, and only keep
/// the answer from the page.
async fn authorize(State(app): Shared, request: Request, next: Next) -> Response {
    let style = Style::of(request.uri().path());
    let headers = request.headers();
    if let Some(origin) = headers.get(header::ORIGIN) {
        let allowed =
            app.origins.iter().any(|allowed| allowed == "*" || allowed.as_bytes() == origin.as_bytes());
        if !allowed && !app.is_own(origin, headers.get(header::HOST)) {
            let origin = String::from_utf8_lossy(origin.as_bytes()).into_owned();
            return Failure::Origin(origin).answer(style);
        }
    } else if let Err(failure) = app.check_host(headers) {
        // A browser names no origin if a page reads what is its own.
        return failure.answer(style);
    }
    if let Some(key) = &app.key {
        let given = headers.get(header::AUTHORIZATION).and_then(|given| bearer(given.as_bytes()));
        let given = given.or_else(|| headers.get("x-api-key").map(HeaderValue::as_bytes)).unwrap_or_default();
        if !bool::from(given.ct_eq(key.as_bytes())) {
            return Failure::Unauthorized.answer(style);
        }
    }
    next.run(request).await
}

/// The key after the scheme, whose case does not count.
fn bearer(given: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = given.split_at_checked(b"Bearer".len())?;
    let is_bearer = scheme.eq_ignore_ascii_case(b"Bearer") && key.starts_with(b" ");
    is_bearer.then(|| key.trim_ascii())
}

/// Counts answers.
async fn count(State(app): Shared, request: Request, next: Next) -> Response {
    let path = match request.uri().path() {
        "/v1/chat/completions" => "/v1/chat/completions",
        "/v1/responses" => "/v1/responses",
        "/v1/messages" => "/v1/messages",
        "/v1/messages/count_tokens" => "/v1/messages/count_tokens",
        "/v1/completions" => "/v1/completions",
        "/v1/embeddings" => "/v1/embeddings",
        "/v1/models" => "/v1/models",
        "/" => "/",
        "/health" => "/health",
        "/metrics" => "/metrics",
        _ => "other",
    };
    let response = next.run(request).await;
    app.metrics.count_answer(path, response.status().as_u16());
    response
}

async fn health(State(app): Shared) -> Response {
    if app.engine.strong_count() == 0 {
        return Failure::Stopped.into_response();
    }
    axum::Json(json!({ "status": "ok" })).into_response()
}

async fn metrics(State(app): Shared) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], app.metrics.text()).into_response()
}

async fn models(State(app): Shared) -> Response {
    axum::Json(json!({ "object": "list", "data": [app.describe()] })).into_response()
}

async fn one_model(
    State(app): Shared,
    uri: Uri,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, Failure> {
    // It is not UTF-8.
    let Path(name) = name.map_err(|_| Failure::NotFound(uri.path().into()))?;
    app.check_name(Some(&name))?;
    Ok(axum::Json(app.describe()).into_response())
}

async fn chat(State(app): Shared, body: Body) -> Result<Response, Failure> {
    let request = ChatCompletionRequest::parse(&text(body)?)?;
    app.check_name(request.model.as_ref())?;
    let updates = app.begin(Asked::Messages(request.messages.clone()), &request.options, request.seed).await;
    let updates = updates.map_err(|failure| failure.in_request(&request.options, &CHAT))?;
    let id = app.id();
    if request.stream {
        let writer = ChunkWriter::new(id, &request);
        return Ok(streamed(app, updates, Form::Chat(writer)));
    }
    let mut logprobs = Vec::new();
    let finish = whole(updates, |chunk| logprobs.extend(chunk.logprobs)).await?;
    let logprobs = request.options.logprobs.map(|_| logprobs.as_slice());
    Ok(json_text(openai::completion(&id, &finish, logprobs, app.model.tokenizer())))
}

async fn respond(State(app): Shared, body: Body) -> Result<Response, Failure> {
    let request = ResponsesRequest::parse(&text(body)?)?;
    app.check_name(request.model.as_ref())?;
    let updates = app.begin(Asked::Messages(request.messages.clone()), &request.options, None).await;
    let updates = updates.map_err(|failure| failure.in_request(&request.options, &RESPONSES))?;
    let mut writer = ResponseWriter::new(app.id(), &request);
    if request.stream {
        return Ok(streamed(app, updates, Form::Response(writer)));
    }
    let finish = whole(updates, |chunk| drop(writer.chunk(&chunk))).await?;
    drop(writer.finish(&finish));
    Ok(json_text(writer.whole(&finish)))
}

async fn message(State(app): Shared, body: Body) -> Response {
    let answer = async {
        let request = MessagesRequest::parse(&text(body)?)?;
        app.check_name(request.model.as_ref())?;
        let updates = app.begin(Asked::Messages(request.messages.clone()), &request.options, None).await;
        let updates = updates.map_err(|failure| failure.in_request(&request.options, &MESSAGES))?;
        let mut writer = MessageWriter::new(app.id(), &request, updates.prompt);
        if request.stream {
            return Ok(streamed(app, updates, Form::Message(writer)));
        }
        let finish = whole(updates, |chunk| drop(writer.chunk(&chunk))).await?;
        drop(writer.finish(&finish));
        Ok(json_text(writer.whole(&finish)))
    };
    answer.await.unwrap_or_else(|failure: Failure| failure.answer(Style::Anthropic))
}

async fn count_tokens(State(app): Shared, body: Body) -> Response {
    let answer = async {
        let request = MessagesRequest::parse_prompt(&text(body)?)?;
        app.check_name(request.model.as_ref())?;
        let place = app.place()?;
        let (encoded, _place) = app.encode(request.messages, request.options, place).await?;
        let count = encoded.tokens().len();
        Ok(axum::Json(json!({ "input_tokens": count })).into_response())
    };
    answer.await.unwrap_or_else(|failure: Failure| failure.answer(Style::Anthropic))
}

/// A page to chat with the model.
async fn page(State(app): Shared, headers: HeaderMap) -> Result<Response, Failure> {
    app.check_host(&headers)?;
    Ok(page::answer(random()))
}

async fn complete(State(app): Shared, body: Body) -> Result<Response, Failure> {
    let request = CompletionRequest::parse(&text(body)?)?;
    app.check_name(request.model.as_ref())?;
    let prompt = Asked::Text(request.prompt.clone());
    let updates = app.begin(prompt, &request.options, request.seed).await;
    let updates = updates.map_err(|failure| failure.in_request(&request.options, &COMPLETIONS))?;
    let id = app.id();
    if request.stream {
        let writer = TextWriter::new(id, &request);
        return Ok(streamed(app, updates, Form::Text(writer)));
    }
    let finish = whole(updates, |_| ()).await?;
    Ok(json_text(openai::text_completion(&id, &finish)))
}

async fn embed(State(app): Shared, body: Body) -> Result<Response, Failure> {
    let request = EmbeddingRequest::parse(&text(body)?)?;
    app.check_name(request.model.as_ref())?;
    let place = app.place()?;
    let deadline = Instant::now() + app.time;
    let turn = tokio::time::timeout_at(deadline.into(), Arc::clone(&app.embedding).acquire_owned());
    // It is never closed.
    let turn = turn.await.map_err(|_| Failure::TimedOut)?.map_err(|_| Failure::Stopped)?;
    let (model, name, last) = (app.model.clone(), app.name.clone(), Arc::clone(&app.last));
    let (sender, receiver) = oneshot::channel();
    // The thread goes on when a client leaves, which drops what waits here: it keeps the place and the turn until it ends, and
    // learns of that from the channel.
    tokio::task::spawn_blocking(move || {
        let _held = (place, turn);
        let go_on = || match last.get() {
            Some(last) if Instant::now() >= *last => Err(Failure::ShuttingDown),
            _ if sender.is_closed() || Instant::now() >= deadline => Err(Failure::TimedOut),
            _ => Ok(()),
        };
        let answer = embeddings(&model, &name, request, go_on);
        let _ = sender.send(answer); // Err: the client has gone
    });
    Ok(json_text(receiver.await.map_err(|_| Failure::Stopped)??))
}

/// The answer to a request for embeddings. Asks before each text whether to go on.
fn embeddings(
    model: &Model,
    name: &str,
    request: EmbeddingRequest,
    go_on: impl Fn() -> Result<(), Failure>,
) -> Result<String, Failure> {
    let mut texts = Vec::with_capacity(request.input.len());
    for input in request.input {
        go_on()?;
        texts.push(match input {
            Input::Text(text) => model.tokenize_whole(&text),
            Input::Tokens(tokens) => tokens,
        });
    }
    let tokens: usize = texts.iter().map(Vec::len).sum();
    let mut vectors = model.token_embeddings(texts, model.pooling()?, true)?;
    let mut answer = String::from("{\"object\":\"list\",\"data\":[");
    for index in 0.. {
        go_on()?;
        let Some(vector) = vectors.next() else { break };
        write_embedding(index, &vector?, request.base64, &mut answer);
    }
    let usage = json!({ "prompt_tokens": tokens, "total_tokens": tokens });
    let _ = write!(answer, "],\"model\":{},\"usage\":{usage}}}", json!(name)); // a String takes everything
    Ok(answer)
}

/// Appends a vector of an answer: as text at once, since a JSON value of each number would take several times its bytes.
fn write_embedding(index: usize, vector: &[f32], in_base64: bool, out: &mut String) {
    out.push_str(if index == 0 { "" } else { "," });
    let _ = write!(out, "{{\"object\":\"embedding\",\"index\":{index},\"embedding\":"); // a String takes everything
    if in_base64 {
        let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
        out.push('"');
        BASE64_STANDARD.encode_string(bytes, out);
        out.push('"');
    } else {
        for (i, x) in vector.iter().enumerate() {
            // The shortest digits that are this number again; all are finite.
            let _ = write!(out, "{}{x:?}", if i == 0 { '[' } else { ',' });
        }
        out.push(']');
    }
    out.push('}');
}

impl App {
    fn describe(&self) -> Value {
        let context = self.model.context().min(self.model.config().max_context_length);
        json!({ "id": self.name, "object": "model", "created": 0, "owned_by": "shohin", "context_length": context })
    }

    fn check_name(&self, asked: Option<&String>) -> Result<(), Failure> {
        match asked.filter(|asked| **asked != self.name) {
            Some(asked) => Err(Failure::UnknownModel { asked: asked.clone(), have: self.name.clone() }),
            None => Ok(()),
        }
    }

    /// Refuses a request by a name that a page elsewhere can have, too.
    fn check_host(&self, headers: &HeaderMap) -> Result<(), Failure> {
        // Every browser names it.
        let Some(host) = headers.get(header::HOST) else { return Ok(()) };
        if self.origins == ["*"] || host.to_str().is_ok_and(|host| self.believes(host)) {
            return Ok(());
        }
        Err(Failure::Host(String::from_utf8_lossy(host.as_bytes()).into_owned()))
    }

    /// Whether a page of this name may ask. A page elsewhere can give its name this machine's address: without a key, only
    /// addresses are believed, and names that nobody can register.
    fn believes(&self, host: &str) -> bool {
        if self.key.is_some() {
            return true;
        }
        let Ok(authority) = host.parse::<Authority>() else { return false };
        let name = authority.host().trim_end_matches('.').to_ascii_lowercase();
        let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
        let is_private = match name.rsplit_once('.') {
            None => !name.is_empty(),
            Some((_, last)) => matches!(last, "localhost" | "local" | "internal"),
        };
        address || is_private
    }

    /// Whether a page of this origin is the server's own.
    fn is_own(&self, origin: &HeaderValue, host: Option<&HeaderValue>) -> bool {
        let (Ok(origin), Some(Ok(host))) = (origin.to_str(), host.map(HeaderValue::to_str)) else {
            return false;
        };
        let same = origin.split_once("://").is_some_and(|(scheme, name)| {
            matches!(scheme, "http" | "https") && name.eq_ignore_ascii_case(host)
        });
        same && self.believes(host)
    }

    /// A place for a request, unless the server shuts down.
    fn place(&self) -> Result<OwnedSemaphorePermit, Failure> {
        if self.last.get().is_some() {
            return Err(Failure::ShuttingDown);
        }
        Arc::clone(&self.places).try_acquire_owned().map_err(|_| Failure::Busy)
    }

    /// Encodes a conversation, on a thread that may take its time.
    async fn encode(
        &self,
        messages: Vec<ChatMessage>,
        options: TurnOptions,
        place: OwnedSemaphorePermit,
    ) -> Result<(Encoded, OwnedSemaphorePermit), Failure> {
        let model = self.model.clone();
        let (encoded, place) = keep(place, move || model.encode(messages, &options)).await?;
        Ok((encoded?, place))
    }

    /// The tokens of a prompt.
    async fn tokens(
        &self,
        prompt: Input,
        place: OwnedSemaphorePermit,
    ) -> Result<(Vec<u32>, OwnedSemaphorePermit), Failure> {
        match prompt {
            Input::Text(text) => {
                let model = self.model.clone();
                keep(place, move || model.tokenize(&text)).await
            }
            Input::Tokens(tokens) => {
                self.model.check_tokens(&tokens)?;
                Ok((tokens, place))
            }
        }
    }

    /// What tells the next answer apart.
    fn id(&self) -> CompletionId {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        CompletionId { id: format!("{:016x}", random()), created, model: self.name.clone() }
    }

    /// Asks for a reply, and waits until its first part is there: what is wrong with the request is known then.
    async fn begin(
        &self,
        prompt: Asked,
        options: &TurnOptions,
        seed: Option<u64>,
    ) -> Result<Updates, Failure> {
        let place = self.place()?;
        let deadline = Instant::now() + self.time;
        let (prompt, place) = match prompt {
            Asked::Messages(messages) => {
                let (encoded, place) = self.encode(messages, options.clone(), place).await?;
                (Prompt::Encoded(encoded), place)
            }
            Asked::Text(input) => {
                let (tokens, place) = self.tokens(input, place).await?;
                (Prompt::Tokens(tokens), place)
            }
        };
        let mut options = options.clone();
        // A number that other programs' JSON can hold.
        options.sampler.seed = seed.unwrap_or_else(|| random() >> 32);
        let (sender, receiver) = engine::channel();
        let job = Job { prompt, options, updates: sender, deadline, place };
        self.jobs.send(job).map_err(|_| Failure::Stopped)?;
        let mut updates = Updates { receiver, first: None, prompt: Usage::default() };
        updates.first = match updates.next().await {
            Update::Failed(failure) => return Err(failure),
            Update::Begun(usage) => {
                updates.prompt = usage;
                None
            }
            first => Some(first),
        };
        Ok(updates)
    }
}

/// Works on a thread that keeps the place until it ends, even if the client leaves, which drops what waits here.
async fn keep<T: Send + 'static>(
    place: OwnedSemaphorePermit,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<(T, OwnedSemaphorePermit), Failure> {
    tokio::task::spawn_blocking(move || (work(), place)).await.map_err(|_| Failure::Stopped)
}

/// What a reply is asked for.
enum Asked {
    Messages(Vec<ChatMessage>),
    Text(Input),
}

/// The parts of a reply.
struct Updates {
    receiver: engine::Receiver,
    first: Option<Update>,
    /// Counts of the prompt's tokens.
    prompt: Usage,
}

impl Updates {
    async fn next(&mut self) -> Update {
        match self.first.take() {
            Some(first) => first,
            None => self.receiver.next().await.unwrap_or(Update::Failed(Failure::Stopped)),
        }
    }
}

/// Waits for the whole of a reply.
async fn whole(mut updates: Updates, mut take: impl FnMut(Chunk)) -> Result<Finish, Failure> {
    loop {
        match updates.next().await {
            Update::Begun(_) => {}
            Update::Chunk(chunk) => take(chunk),
            Update::End(finish) => return Ok(*finish),
            Update::Failed(failure) => return Err(failure),
        }
    }
}

/// The form of streamed answers.
enum Form {
    Chat(ChunkWriter),
    Text(TextWriter),
    Response(ResponseWriter),
    Message(MessageWriter),
}

impl Form {
    /// The events of an update.
    fn events(&mut self, update: &Update, app: &App) -> Vec<sse::Event> {
        let plain = |data: &str| sse::Event::default().data(data);
        let named = |event: NamedEvent| sse::Event::default().event(event.name).data(event.data);
        let all = |events: Vec<NamedEvent>| events.into_iter().map(named).collect();
        match (self, update) {
            (_, Update::Begun(_)) => Vec::new(),
            (Form::Chat(writer), Update::Chunk(chunk)) => {
                writer.chunk(chunk, app.model.tokenizer()).iter().map(|data| plain(data)).collect()
            }
            (Form::Chat(writer), Update::End(finish)) => {
                let mut events: Vec<_> = writer.finish(finish).iter().map(|data| plain(data)).collect();
                events.push(plain("[DONE]"));
                events
            }
            (Form::Text(writer), Update::Chunk(chunk)) => {
                writer.chunk(&chunk.text).iter().map(|data| plain(data)).collect()
            }
            (Form::Text(writer), Update::End(finish)) => {
                let mut events: Vec<_> = writer.finish(finish).iter().map(|data| plain(data)).collect();
                events.push(plain("[DONE]"));
                events
            }
            (Form::Chat(_) | Form::Text(..), Update::Failed(failure)) => {
                vec![plain(&failure.json(Style::OpenAi).to_string())]
            }
            (Form::Response(writer), Update::Chunk(chunk)) => all(writer.chunk(chunk)),
            (Form::Response(writer), Update::End(finish)) => all(writer.finish(finish)),
            (Form::Response(writer), Update::Failed(failure)) => {
                let code = failure.code().unwrap_or(failure.kind());
                vec![named(writer.error(code, &failure.message()))]
            }
            (Form::Message(writer), Update::Chunk(chunk)) => all(writer.chunk(chunk)),
            (Form::Message(writer), Update::End(finish)) => all(writer.finish(finish)),
            (Form::Message(_), Update::Failed(failure)) => {
                vec![plain(&failure.json(Style::Anthropic).to_string()).event("error")]
            }
        }
    }
}

/// Sends a reply as it is computed.
fn streamed(app: Arc<App>, updates: Updates, form: Form) -> Response {
    let parts = stream::unfold(
        (app, Some(updates), form, VecDeque::new()),
        |(app, mut updates, mut form, mut ready)| async {
            loop {
                if let Some(event) = ready.pop_front() {
                    return Some((Ok(event), (app, updates, form, ready)));
                }
                let update = updates.as_mut()?.next().await;
                ready.extend(form.events(&update, &app));
                if matches!(update, Update::End(_) | Update::Failed(_)) {
                    updates = None;
                }
            }
        },
    );
    sse_response(parts)
}

fn sse_response(parts: impl Stream<Item = Result<sse::Event, Infallible>> + Send + 'static) -> Response {
    let mut response = Sse::new(parts).keep_alive(KeepAlive::default()).into_response();
    // Proxies would collect it.
    response.headers_mut().insert("X-Accel-Buffering", HeaderValue::from_static("no"));
    response
}

fn json_text(text: String) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

/// The text of a request.
fn text(body: Body) -> Result<String, Failure> {
    String::from_utf8(body.0?.into()).map_err(|_| Failure::Encoding)
}

fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_client_that_leaves_does_not_free_the_place_of_what_goes_on() {
        let places = Arc::new(Semaphore::new(1));
        let place = Arc::clone(&places).try_acquire_owned().unwrap();
        let (began, waits) = std_mpsc::channel();
        let (end, ended) = std_mpsc::channel::<()>();
        let client = tokio::spawn(keep(place, move || {
            began.send(()).unwrap();
            ended.recv().unwrap();
        }));
        tokio::task::spawn_blocking(move || waits.recv().unwrap()).await.unwrap();
        client.abort();
        assert!(client.await.unwrap_err().is_cancelled());
        assert_eq!(places.available_permits(), 0);
        end.send(()).unwrap();
        drop(places.acquire().await.unwrap());
    }
}
