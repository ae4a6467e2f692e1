//! HTTP routes.

use crate::access::{LEFT_ASIDE, TOOLS};
use crate::adapters::{Chosen, NamedAdapter};
use crate::api::{
    self, Action, Begun, DIALECTS, Dialect, EmbeddingRequest, Event, Input, Read, ReplyRequest, ReplyWriter,
    RerankRequest,
};
use crate::app::{App, Asked, Updates, random};
use crate::body::Held;
use crate::engine::Update;
use crate::error::{ApiError, Fields};
use crate::log::{Line, Record};
use crate::page;
use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::PathRejection;
use axum::extract::{DefaultBodyLimit, FromRequest, Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, post};
use futures_util::{Stream, StreamExt, stream};
use serde_json::{Value, json};
use shohin::core;
use shohin::core::chat::Usage;
use shohin::core::chat::fields::{Object, Reading, refused};
use shohin::core::constrain::Grammar;
use shohin::{Model, TurnOptions};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tower_http::cors::CorsLayer;
use tower_http::decompression::RequestDecompressionLayer;
use tower_http::timeout::RequestBodyTimeoutLayer;

/// A client that is refused may ask again after this many seconds.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// Maximum number of bytes of that header.
const MAX_HEADER: usize = 1000;

/// How a client that has no key gives it.
const BEARER: HeaderValue = HeaderValue::from_static("Bearer");

/// What an answer says if the model's chat template has no tools.
const TOOLS_DESCRIBED: HeaderValue = HeaderValue::from_static("described in the system message");

/// How long a client may be silent within a request.
const BODY_PAUSE: Duration = Duration::from_secs(30);

/// How long a request's body may take, however steadily it comes: otherwise a hundred clients that send slowly would occupy
/// all connections indefinitely.
const BODY_TIME: Duration = Duration::from_secs(120);

/// Paths of the server that are no interface's.
const OWN_PATHS: [&str; 4] = ["/", "/health", "/metrics", "/v1/adapters"];

type Shared = State<Arc<App>>;

/// The body of a request, or what is wrong with it.
struct Body(Result<Bytes, ApiError>);

impl FromRequest<Arc<App>> for Body {
    type Rejection = Infallible;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Infallible> {
        let time = BODY_TIME.min(app.time);
        let late = || {
            ApiError::Body(
                StatusCode::REQUEST_TIMEOUT,
                format!("the body took more than {} s", time.as_secs()),
            )
        };
        let read = tokio::time::timeout(time, Bytes::from_request(request, app)).await;
        Ok(Body(match read {
            Ok(body) => body.map_err(|error| match error.status() {
                status @ StatusCode::PAYLOAD_TOO_LARGE => {
                    ApiError::Body(status, format!("the body has more than {} bytes", app.body))
                }
                status => ApiError::Body(status, error.body_text()),
            }),
            Err(_) => Err(late()),
        }))
    }
}

pub(crate) fn router(app: Arc<App>, cors: Option<CorsLayer>) -> Router {
    let mut router = Router::new();
    for dialect in DIALECTS {
        for route in dialect.routes() {
            router = router.route(route.path, handler(dialect, route.action));
        }
    }
    let router = router
        .route("/metrics", get(metrics))
        .route("/v1/adapters", get(adapters).post(load_adapter))
        .route("/v1/adapters/{name}", delete(unload_adapter))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&app), authorize))
        .route("/health", get(health))
        .route("/", get(page))
        .fallback(async |request: Request| refuse_path(&request, ApiError::NotFound))
        .method_not_allowed_fallback(async |request: Request| refuse_path(&request, ApiError::Method))
        .layer(middleware::from_fn_with_state(Arc::clone(&app), refuse_late))
        .layer(middleware::from_fn_with_state(Arc::clone(&app), count))
        .layer(DefaultBodyLimit::max(app.body))
        .layer(RequestDecompressionLayer::new().pass_through_unaccepted(true))
        .layer(middleware::from_fn(check_encoding))
        .layer(RequestBodyTimeoutLayer::new(BODY_PAUSE))
        .with_state(app);
    let router = match cors {
        Some(cors) => router.layer(cors),
        None => router,
    };
    // Before routes are found.
    Router::new().fallback_service(router).layer(middleware::map_request(with_plain_path))
}

/// Takes doubled and trailing slashes out of a path, which clients make of a base address that ends in one.
async fn with_plain_path(mut request: Request) -> Request {
    let path = request.uri().path();
    if !path.contains("//") && (path.len() < 2 || !path.ends_with('/')) {
        return request;
    }
    let mut plain = String::from("/");
    for part in path.split('/').filter(|part| !part.is_empty()) {
        plain.extend([if plain.len() > 1 { "/" } else { "" }, part]);
    }
    if let Some(query) = request.uri().query() {
        plain.extend(["?", query]);
    }
    if let Ok(uri) = plain.parse() {
        *request.uri_mut() = uri;
    }
    request
}

/// Refuses bodies that are compressed in a way that is not read.
async fn check_encoding(request: Request, next: Next) -> Response {
    let encoding = request.headers().get(header::CONTENT_ENCODING);
    let is_read = encoding.is_none_or(|name| {
        name.to_str()
            .is_ok_and(|name| ["gzip", "identity"].contains(&name.trim().to_ascii_lowercase().as_str()))
    });
    if is_read {
        return next.run(request).await;
    }
    let path = request.uri().path().to_owned();
    let problem = "the body is compressed in a way that is not supported, expected gzip or none".into();
    let error = ApiError::Body(StatusCode::UNSUPPORTED_MEDIA_TYPE, problem);
    let mut answer = refuse(api::dialect(&path), &error);
    answer.headers_mut().insert(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
    answer
}

fn handler(dialect: &'static dyn Dialect, action: Action) -> MethodRouter<Arc<App>> {
    let or_refuse =
        move |answer: Result<Response, ApiError>| answer.unwrap_or_else(|error| refuse(dialect, &error));
    match action {
        Action::Reply(read) => {
            post(async move |State(app): Shared, body: Body| or_refuse(reply(app, read, body).await))
        }
        Action::Count(read, write) => post(async move |State(app): Shared, body: Body| {
            or_refuse(count_tokens(app, read, write, body).await)
        }),
        Action::Embed(read) => {
            post(async move |State(app): Shared, body: Body| or_refuse(embed(app, read, body).await))
        }
        Action::Rerank(read) => {
            post(async move |State(app): Shared, body: Body| or_refuse(rerank(app, read, body).await))
        }
        Action::Show(read, describe) => post(async move |State(app): Shared, body: Body| {
            let shown = async {
                let (name, left) = self::read(&app, read, &text(body)?)?;
                app.of_model(name.as_deref()).await?;
                let model = app.model_info(name.as_deref().unwrap_or(&app.name))?;
                Ok(left.tell(&app, axum::Json(describe(&model)).into_response()))
            };
            or_refuse(shown.await)
        }),
        Action::Convert(convert) => post(async move |State(app): Shared, body: Body| {
            let converted = || {
                let reading = Reading::new(app.strict);
                let answer = convert(&app.model, &text(body)?, &reading)?;
                Ok(LeftAside(reading.left_aside()).tell(&app, axum::Json(answer).into_response()))
            };
            or_refuse(converted())
        }),
        Action::Models(describe) => get(async move |State(app): Shared| axum::Json(describe(&app.models()))),
        Action::Model(describe) => {
            get(async move |State(app): Shared, uri: Uri, name: Result<Path<String>, PathRejection>| {
                // It is not UTF-8.
                let name = name.map_err(|_| ApiError::NotFound(uri.path().into()));
                let model = name.and_then(|Path(name)| app.model_info(&name));
                or_refuse(model.map(|model| axum::Json(describe(&model)).into_response()))
            })
        }
    }
}

/// An answer that says what is wrong.
fn refuse(dialect: &dyn Dialect, error: &ApiError) -> Response {
    let mut response = (error.status(), axum::Json(dialect.error(error))).into_response();
    let headers = response.headers_mut();
    match error {
        ApiError::Busy | ApiError::ShuttingDown => drop(headers.insert(header::RETRY_AFTER, RETRY_AFTER)),
        ApiError::Unauthorized => drop(headers.insert(header::WWW_AUTHENTICATE, BEARER)),
        _ => {}
    }
    response
}

/// An answer that says what is wrong with a request's path.
fn refuse_path(request: &Request, problem: fn(String) -> ApiError) -> Response {
    let path = request.uri().path();
    refuse(api::dialect(path), &problem(path.into()))
}

/// Refuses what comes when the server is shutting down.
async fn refuse_late(State(app): Shared, request: Request, next: Next) -> Response {
    if app.last.get().is_some() {
        return refuse(api::dialect(request.uri().path()), &ApiError::ShuttingDown);
    }
    next.run(request).await
}

async fn authorize(State(app): Shared, request: Request, next: Next) -> Response {
    match app.authorize(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => refuse(api::dialect(request.uri().path()), &error),
    }
}

/// Counts answers, and writes a line of the log for each when it has ended.
async fn count(State(app): Shared, request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    let mut known = DIALECTS.iter().flat_map(|dialect| dialect.routes()).map(|route| route.path);
    let known = known.find(|known| *known == path && !known.contains('{'));
    let known = known.or_else(|| OWN_PATHS.into_iter().find(|known| *known == path));
    let (method, since) = (request.method().to_string(), Instant::now());
    let mut response = next.run(request).await;
    let status = response.status().as_u16();
    app.metrics.count_answer(known.unwrap_or("other"), status);
    let record = response.extensions_mut().remove::<Record>().unwrap_or_default();
    let line = Line { method, path, status, since, record };
    response.map(|body| axum::body::Body::new(Held { body, _held: line }))
}

async fn health(State(app): Shared) -> Response {
    if app.engine.strong_count() == 0 {
        return refuse(api::DEFAULT, &ApiError::Stopped);
    }
    axum::Json(json!({ "status": "ok" })).into_response()
}

async fn metrics(State(app): Shared) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], app.metrics.text()).into_response()
}

/// A page to chat with the model.
async fn page(State(app): Shared, headers: HeaderMap) -> Response {
    match app.check_host(&headers) {
        Ok(()) => page::answer(random()),
        Err(error) => refuse(api::DEFAULT, &error),
    }
}

/// Reads a request, without its adapters. Fields that are left aside are named to the client and in the log.
fn read<T>(app: &App, read: Read<T>, text: &str) -> Result<(T, LeftAside), ApiError> {
    let reading = Reading::new(app.strict);
    let request = read(text, &reading).map_err(|error| ApiError::from(error).at(&reading.refused()))?;
    Ok((request, LeftAside(reading.left_aside())))
}

/// Places of fields of a request that were left aside.
struct LeftAside(Vec<String>);

impl LeftAside {
    /// Adds what is not supported of the schemas of tools that need not be followed.
    fn add_tools(&mut self, options: &TurnOptions, fields: &Fields) {
        for (i, tool) in options.tools.iter().enumerate() {
            // What is wrong with a tool is said when the reply begins.
            let left_out = Grammar::left_out(tool).unwrap_or_default();
            let place = |pointer| format!("tools[{i}].{}{pointer}", (fields.tool)(tool));
            self.0.extend(left_out.into_iter().map(place));
        }
    }

    /// Adds their header to an answer, and names each once in the log.
    fn tell(self, app: &App, mut answer: Response) -> Response {
        for name in self.0.iter().filter(|name| app.is_new(name)) {
            tracing::warn!(field = name.as_str(), "a field of a request is left aside");
        }
        let mut text = String::new();
        for name in &self.0 {
            if text.len() + name.len() > MAX_HEADER {
                text.push_str(", ...");
                break;
            }
            text.extend([if text.is_empty() { "" } else { ", " }, name]);
        }
        let visible = text.replace(|c: char| !c.is_ascii_graphic() && c != ' ', "?");
        if let Ok(value) = HeaderValue::from_str(&visible)
            && !visible.is_empty()
        {
            answer.headers_mut().insert(LEFT_ASIDE, value);
        }
        answer
    }
}

async fn reply(app: Arc<App>, read: Read<ReplyRequest>, body: Body) -> Result<Response, ApiError> {
    let text = text(body)?;
    let (text, lora) = api::take_adapters(&text)?;
    let (request, mut left) = self::read(&app, read, &text)?;
    let ReplyRequest { prompts, n, options, score, seed, model, stream, lines, fields, writer } = request;
    let app = app.of_model(model.as_deref()).await?;
    let options = TurnOptions { describe_tools: true, ..options };
    let described = !options.tools.is_empty() && !app.model.template().style.has_tools();
    let remark = |mut answer: Response| {
        if described {
            answer.headers_mut().insert(TOOLS, TOOLS_DESCRIBED);
        }
        answer
    };
    let adapters = app.choose(model.as_deref(), lora)?;
    left.add_tools(&options, &fields);
    let biased: Vec<u32> = options.logit_bias.iter().map(|(token, _)| *token).collect();
    let in_request = |error: ApiError| error.in_request(&options, &fields);
    app.model.check_tokens(&biased).map_err(|error| ApiError::from(error).at_field("logit_bias"))?;
    let permit = app.permit()?;
    let since = Instant::now();
    let asked = Asked { prompts, n, options: &options, seed, adapters: &adapters, permit: &permit };
    let mut tokens = Vec::new();
    let all = app.begin(asked, &mut tokens).await.map_err(in_request)?;
    let scores = match score {
        Some(top) => app.score(tokens, top, &adapters, permit).await?,
        None => Vec::new(),
    };
    let (prompt, queued) = all.first().map_or_else(Default::default, |first| (first.prompt, first.queued));
    let record = Record::default();
    let first = since.elapsed();
    record.update(|taken| (taken.queued, taken.first) = (Some(queued), Some(first)));
    let mut writer = writer(Begun { id: app.id(&adapters), prompt, model: app.model.clone(), scores });
    if stream {
        return Ok(remark(left.tell(&app, recorded(streamed(all, writer, record.clone(), lines), record))));
    }
    let mut finished = Vec::new();
    for (i, updates) in all.into_iter().enumerate() {
        let finish = updates.whole(|chunk| writer.collect(i, chunk)).await?;
        record.update(|taken| taken.usage = Usage::sum([finish.usage, taken.usage]));
        finished.push(finish);
    }
    Ok(remark(left.tell(&app, recorded(json_text(writer.whole(&finished)), record))))
}

/// An answer with what is told of it to the log.
fn recorded(mut answer: Response, record: Record) -> Response {
    answer.extensions_mut().insert(record);
    answer
}

async fn count_tokens(
    app: Arc<App>,
    read: Read<ReplyRequest>,
    write: fn(usize) -> Value,
    body: Body,
) -> Result<Response, ApiError> {
    let text = text(body)?;
    let (text, lora) = api::take_adapters(&text)?;
    let (request, left) = self::read(&app, read, &text)?;
    let app = app.of_model(request.model.as_deref()).await?;
    // They do not change how texts are tokenized.
    app.choose(request.model.as_deref(), lora)?;
    let permit = app.permit()?;
    let options = TurnOptions { describe_tools: true, ..request.options };
    let mut count = 0;
    for prompt in request.prompts {
        count += app.count_tokens(prompt, &options, &permit).await?;
    }
    Ok(left.tell(&app, axum::Json(write(count)).into_response()))
}

async fn embed(app: Arc<App>, read: Read<EmbeddingRequest>, body: Body) -> Result<Response, ApiError> {
    aside(app, read, body, |request| request.model.as_deref(), embeddings).await
}

async fn rerank(app: Arc<App>, read: Read<RerankRequest>, body: Body) -> Result<Response, ApiError> {
    aside(app, read, body, |request| request.model.as_deref(), reranked).await
}

/// Whether work for a client goes on.
type GoOn<'f> = &'f dyn Fn() -> Result<(), ApiError>;

/// The answer to a request that no reply is computed for, on a thread of its own. `work` asks before each text whether to go on.
async fn aside<R: Send + 'static>(
    app: Arc<App>,
    read: Read<R>,
    body: Body,
    model_of: fn(&R) -> Option<&str>,
    work: fn(&Model, &Chosen, &str, R, GoOn<'_>) -> Result<String, ApiError>,
) -> Result<Response, ApiError> {
    let text = text(body)?;
    let (text, lora) = api::take_adapters(&text)?;
    let (request, left) = self::read(&app, read, &text)?;
    let app = app.of_model(model_of(&request)).await?;
    let adapters = app.choose(model_of(&request), lora)?;
    let permit = app.permit()?;
    let deadline = Instant::now() + app.time;
    let turn = tokio::time::timeout_at(deadline.into(), Arc::clone(&app.embedding).acquire_owned());
    // It is never closed.
    let turn = turn.await.map_err(|_| ApiError::TimedOut)?.map_err(|_| ApiError::Stopped)?;
    let told = Arc::clone(&app);
    let (model, name, last) = (app.model.clone(), adapters.name(&app.name), Arc::clone(&app.last));
    let (sender, receiver) = oneshot::channel();
    // The thread goes on when a client leaves, which drops what waits here: it keeps the permit and the turn until it ends,
    // and learns of that from the channel.
    tokio::task::spawn_blocking(move || {
        let _held = (permit, turn);
        let go_on = || match last.get() {
            Some(last) if Instant::now() >= *last => Err(ApiError::ShuttingDown),
            _ if sender.is_closed() || Instant::now() >= deadline => Err(ApiError::TimedOut),
            _ => Ok(()),
        };
        let answer = work(&model, &adapters, &name, request, &go_on);
        let _ = sender.send(answer); // Err: the client has gone
    });
    Ok(left.tell(&told, json_text(receiver.await.map_err(|_| ApiError::Stopped)??)))
}

/// The answer to a request for embeddings.
fn embeddings(
    model: &Model,
    adapters: &Chosen,
    name: &str,
    request: EmbeddingRequest,
    go_on: GoOn<'_>,
) -> Result<String, ApiError> {
    let EmbeddingRequest { input: inputs, mut writer, .. } = request;
    let mut texts = Vec::with_capacity(inputs.len());
    for input in inputs {
        go_on()?;
        texts.push(match input {
            Input::Text(text) => model.tokenize_whole(&text),
            Input::Tokens(tokens) => tokens,
        });
    }
    let tokens: usize = texts.iter().map(Vec::len).sum();
    let model = adapters.apply(model)?;
    let mut vectors = model.token_embeddings(texts, model.pooling()?, true)?;
    loop {
        go_on()?;
        let Some(vector) = vectors.next() else { break };
        writer.vector(&vector?);
    }
    Ok(writer.finish(name, tokens))
}

/// The answer to a request for the order of documents.
fn reranked(
    model: &Model,
    adapters: &Chosen,
    name: &str,
    request: RerankRequest,
    go_on: GoOn<'_>,
) -> Result<String, ApiError> {
    go_on()?;
    let model = adapters.apply(model)?;
    let mut reranking = model.rerank(&request.query, &request.documents, request.instruction.as_deref())?;
    let mut scores = Vec::with_capacity(request.documents.len());
    loop {
        go_on()?;
        let Some(score) = reranking.next() else { break };
        scores.push(score?);
    }
    Ok(request.answer(name, &scores, reranking.tokens()))
}

/// The adapters that are loaded.
async fn adapters(State(app): Shared) -> Response {
    let all: Vec<Value> = app.adapters.list().iter().map(|loaded| loaded.describe()).collect();
    axum::Json(json!({ "object": "list", "data": all })).into_response()
}

async fn load_adapter(State(app): Shared, body: Body) -> Response {
    let loaded = async {
        let named = named_adapter(&text(body)?)?;
        app.load_adapter(named).await
    };
    match loaded.await {
        Ok(described) => axum::Json(described).into_response(),
        Err(error) => refuse(api::DEFAULT, &error),
    }
}

/// Reads a request to load an adapter.
fn named_adapter(text: &str) -> core::Result<NamedAdapter> {
    let request = Object::request(text, &["name", "path", "scale"])?;
    let needed = |name| request.string(name)?.ok_or_else(|| refused(name, "must be a string"));
    let scale = request.get("scale").map_or(Ok(1.0), |scale| api::finite(&scale))?;
    Ok(NamedAdapter { name: needed("name")?, path: needed("path")?.into(), scale })
}

async fn unload_adapter(State(app): Shared, uri: Uri, name: Result<Path<String>, PathRejection>) -> Response {
    // Err: it is not UTF-8.
    let name = name.map_err(|_| ApiError::NotFound(uri.path().into()));
    match name.and_then(|Path(name)| app.unload_adapter(&name).map(|()| name)) {
        Ok(name) => axum::Json(json!({ "name": name, "deleted": true })).into_response(),
        Err(error) => refuse(api::DEFAULT, &error),
    }
}

/// Sends replies as they are computed.
fn streamed(all: Vec<Updates>, writer: Box<dyn ReplyWriter>, record: Record, lines: bool) -> Response {
    let updates = |(i, updates): (usize, Updates)| {
        Box::pin(stream::unfold(Some(updates), move |updates| async move {
            let mut updates = updates?;
            let update = updates.next().await;
            let is_last = matches!(update, Update::End(_) | Update::Failed(_));
            Some(((i, update), Some(updates).filter(|_| !is_last)))
        }))
    };
    let left = all.len();
    let all = stream::select_all(all.into_iter().enumerate().map(updates));
    let parts = stream::unfold(
        (all, left, writer, record, VecDeque::new()),
        |(mut all, mut left, mut writer, record, mut ready)| async move {
            loop {
                if let Some(event) = ready.pop_front() {
                    return Some((event, (all, left, writer, record, ready)));
                }
                let (i, update) = all.next().await?;
                match update {
                    Update::Begun(..) => {}
                    Update::Chunk(chunk) => ready.extend(writer.chunk(i, &chunk)),
                    Update::End(finish) => {
                        record.update(|taken| taken.usage = Usage::sum([finish.usage, taken.usage]));
                        ready.extend(writer.finish(i, &finish));
                        left -= 1;
                        if left == 0 {
                            ready.extend(writer.end());
                        }
                    }
                    Update::Failed(error) => {
                        ready.push_back(writer.error(&error));
                        all.clear();
                    }
                }
            }
        },
    );
    if lines {
        let parts = parts.map(|event| Ok::<_, Infallible>(event.data + "\n"));
        let body = axum::body::Body::from_stream(parts);
        return ([(header::CONTENT_TYPE, "application/x-ndjson")], body).into_response();
    }
    sse_response(parts.map(|event| Ok(sse_event(event))))
}

fn sse_event(Event { name, data }: Event) -> sse::Event {
    let event = sse::Event::default();
    match name {
        Some(name) => event.event(name).data(data),
        None => event.data(data),
    }
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
fn text(body: Body) -> Result<String, ApiError> {
    let text = String::from_utf8(body.0?.into()).map_err(|_| ApiError::Encoding)?;
    tracing::trace!(text, "request");
    Ok(text)
}
