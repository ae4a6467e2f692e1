//! OpenAI's, Anthropic's and Ollama's HTTP interfaces over a model on this machine, behind `shohin serve`.
//!
//! | path | |
//! |---|---|
//! | `POST /v1/chat/completions` | replies, whole or streamed, with tools, JSON Schema and log-probabilities |
//! | `POST /v1/responses` | OpenAI's Responses, of which none is stored |
//! | `POST /v1/messages`, `/v1/messages/count_tokens` | Anthropic's Messages |
//! | `POST /v1/completions` | continuations of a text |
//! | `POST /v1/embeddings` | vectors of texts |
//! | `POST /v1/rerank`, `/v2/rerank`, `/rerank`, `/v1/reranking`, `/reranking` | documents by how well they answer a query |
//! | `POST /api/chat`, `/api/generate`, `/api/embed`, `/api/show`, `GET /api/tags`, `/api/ps`, `/api/version` | Ollama's |
//! | `POST /tokenize`, `/detokenize`, `GET /props` | of llama.cpp |
//! | `GET /v1/models` | the model, and the model with each adapter |
//! | `GET`, `POST /v1/adapters`, `DELETE /v1/adapters/NAME` | adapters (LoRA) that requests ask for |
//! | `GET /` | a page to chat |
//! | `GET /health`, `GET /metrics` | whether it answers; counts for Prometheus |
//!
//! Beside the model, others can be loaded when requests name them ([`OtherModel`]).
//!
//! The log is written with [`tracing`](https://docs.rs/tracing): a line for each answer at level `info`, without anything of what was
//! said, and requests at level `trace`.
//!
//! Replies are computed together: each step reads the weights once for all of them (see [`shohin::scheduler`]). Requests
//! beyond [`ServerOptions::replies`] wait in a queue, and beyond [`ServerOptions::queue`] are refused with status 429.

mod access;
mod adapters;
mod api;
mod app;
mod body;
mod connections;
mod engine;
mod error;
mod log;
mod metrics;
mod others;
mod page;
mod routes;

pub use adapters::{NamedAdapter, is_adapter_name};
pub use api::read_requests;
pub use others::OtherModel;

use adapters::Adapters;
use app::App;
use engine::{Engine, Sizes};
use metrics::Metrics;
use others::Others;
use shohin::Model;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Options of a server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerOptions {
    /// Where it listens; port 0 takes a free one.
    pub address: SocketAddr,
    /// The model's name in requests and answers.
    pub model: String,
    /// Other names of the model in requests.
    pub aliases: Vec<String>,
    /// Whether requests for other models are answered by this one, for clients whose name of a model cannot be set.
    pub any_model_name: bool,
    /// Other models, which are loaded when requests first name them.
    pub others: Vec<OtherModel>,
    /// Maximum number of bytes of the weights of [`ServerOptions::others`] in memory: beyond, those not asked for for longest are
    /// unloaded. `None`: they stay.
    pub others_memory: Option<usize>,
    /// Adapters (LoRA) that apply where a request asks for them, on the CPU only.
    pub adapters: Vec<NamedAdapter>,
    /// A folder of which requests can load adapters; `None`: they cannot.
    pub adapter_folder: Option<PathBuf>,
    /// A key that requests must have, but for `/health`.
    pub key: Option<String>,
    /// Origins of pages that may ask; none by default.
    pub origins: Vec<String>,
    /// Maximum number of replies computed at once, at most 64. Each has the model's context. As many sets of adapters are in
    /// memory at most.
    pub replies: usize,
    /// Maximum number of requests that wait.
    pub queue: usize,
    /// Maximum number of tokens of prompts per step. `None`: those of [`Model::prompt_tokens`].
    pub prompt_tokens: Option<usize>,
    /// Bytes of keys and values up to which those of ended replies are kept, for prompts that begin like theirs; those of
    /// replies in progress count, too. `None`: as many as the contexts of [`ServerOptions::replies`] take.
    pub prefix_cache: Option<usize>,
    /// Maximum number of connections; others wait until one is closed.
    pub connections: usize,
    /// Maximum number of bytes of a request.
    pub body: usize,
    /// How long a request may take.
    pub time: Duration,
    /// Whether requests with fields that are not known are refused. Otherwise they are left aside, and named in the
    /// answer's header `shohin-left-aside` and in the log.
    pub strict: bool,
    /// How long replies may take to end when the server shuts down; clients then have two seconds to read how they end.
    pub grace: Duration,
}

impl ServerOptions {
    /// Options for a model of this name, on a free port of this machine only.
    pub fn new(model: impl Into<String>) -> Self {
        ServerOptions {
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            model: model.into(),
            aliases: Vec::new(),
            any_model_name: false,
            others: Vec::new(),
            others_memory: None,
            adapters: Vec::new(),
            adapter_folder: None,
            key: None,
            origins: Vec::new(),
            replies: 4,
            queue: 64,
            prompt_tokens: None,
            prefix_cache: None,
            connections: 256,
            body: 4 << 20,
            time: Duration::from_secs(600),
            strict: false,
            grace: Duration::from_secs(30),
        }
    }

    /// Finds what would keep a server from starting, before a model is loaded for it.
    ///
    /// # Errors
    /// [`StartError::Key`], [`StartError::Origin`], [`StartError::Adapter`], [`StartError::Folder`], and
    /// [`StartError::Listen`] if the address is taken now.
    pub fn check(&self) -> Result<(), StartError> {
        self.check_access()?;
        self.check_adapters()?;
        let listener = std::net::TcpListener::bind(self.address);
        listener.map(drop).map_err(|error| StartError::Listen(self.address, error))
    }

    fn check_access(&self) -> Result<(), StartError> {
        let is_valid = |key: &String| !key.is_empty() && key.bytes().all(|b| b.is_ascii_graphic());
        if !self.key.as_ref().is_none_or(is_valid) {
            return Err(StartError::Key);
        }
        access::cors(&self.origins).map(drop).map_err(StartError::Origin)
    }

    /// Checks the adapters' names and scales. Returns the folder without links in its path.
    fn check_adapters(&self) -> Result<Option<PathBuf>, StartError> {
        for (i, named) in self.adapters.iter().enumerate() {
            let others = self.adapters[..i].iter().map(|other| other.name.as_str());
            adapters::check_name(&named.name, others).map_err(StartError::Adapter)?;
            if !named.scale.is_finite() {
                let (name, scale) = (&named.name, named.scale);
                let problem =
                    format!("the scale of the adapter {name:?} is {scale}, expected a finite number");
                return Err(StartError::Adapter(problem));
            }
        }
        let found =
            |path: &PathBuf| adapters::folder(path).map_err(|error| StartError::Folder(path.clone(), error));
        self.adapter_folder.as_ref().map(found).transpose()
    }
}

/// A server that listens.
pub struct Server {
    listener: TcpListener,
    connections: usize,
    address: SocketAddr,
    app: Arc<App>,
    last: Arc<OnceLock<Instant>>,
    grace: Duration,
    origins: Vec<String>,
    engine: thread::JoinHandle<()>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Serves until the process is asked to end: by Ctrl-C or SIGTERM. `ready` is called with the address once it listens. A
/// second signal ends it at once.
///
/// # Errors
/// [`StartError`].
pub fn serve(model: Model, options: ServerOptions, ready: impl FnOnce(SocketAddr)) -> Result<(), StartError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(StartError::Thread)?;
    let served = runtime.block_on(async {
        let server = Server::bind(model, options).await?;
        ready(server.address());
        let stop = async {
            signal().await;
            tokio::spawn(async {
                signal().await;
                std::process::exit(130);
            });
        };
        server.run(stop).await;
        Ok(())
    });
    // A thread may still tokenize a long prompt, for nobody.
    runtime.shutdown_background();
    served
}

/// Waits until the process is asked to end.
async fn signal() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
            return;
        }
    }
    // Without signals it ends when it is killed.
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Why a server cannot start.
#[derive(Debug)]
pub enum StartError {
    /// The address cannot be listened at.
    Listen(SocketAddr, io::Error),
    /// An origin is not one.
    Origin(String),
    /// The key has characters that no header can have.
    Key,
    /// An adapter has a name that none can have or that of another one, or a scale that is not finite.
    Adapter(String),
    /// The folder of adapters cannot be read.
    Folder(PathBuf, io::Error),
    /// The options or an adapter do not fit the model, or there is no memory.
    Model(shohin::Error),
    /// There is no thread for it.
    Thread(io::Error),
}

impl std::fmt::Display for StartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StartError::Listen(address, error) => write!(f, "cannot listen at {address}: {error}"),
            StartError::Origin(origin) if origin == "*" => {
                f.write_str("the origin \"*\" is one of several, expected it alone: it stands for all")
            }
            StartError::Origin(origin) => {
                write!(f, "the origin is {origin:?}, expected one such as https://example.com, or *")
            }
            StartError::Key => f.write_str("the key must be visible ASCII characters"),
            StartError::Adapter(problem) => f.write_str(problem),
            StartError::Folder(path, error) => {
                write!(f, "cannot read the folder of adapters {}: {error}", path.display())
            }
            StartError::Model(error) => error.fmt(f),
            StartError::Thread(error) => write!(f, "cannot start a thread: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

impl Server {
    /// Listens, and starts the thread that computes.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn bind(model: Model, options: ServerOptions) -> Result<Server, StartError> {
        options.check_access()?;
        let folder = options.check_adapters()?;
        let adapters = Adapters::open(&model, &options.adapters, folder).map_err(StartError::Model)?;
        let prompt_tokens = options.prompt_tokens.unwrap_or_else(|| model.prompt_tokens(options.replies));
        let sizes = Sizes { replies: options.replies, prompt_tokens, cache_bytes: options.prefix_cache };
        let (sender, tasks) = mpsc::channel();
        let (metrics, last) = (Arc::new(Metrics::default()), Arc::new(OnceLock::new()));
        let engine = Engine::new(model.clone(), sizes, tasks, Arc::clone(&metrics), Arc::clone(&last));
        let engine = engine.map_err(StartError::Model)?;
        let failed = |error| StartError::Listen(options.address, error);
        let listener = connections::listen(options.address).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let (is_running, engine) = others::run(engine).map_err(StartError::Thread)?;
        let permits = options.replies.saturating_add(options.queue).min(Semaphore::MAX_PERMITS);
        let app = App {
            model,
            name: options.model,
            aliases: options.aliases,
            any_name: options.any_model_name,
            created: SystemTime::now(),
            sizes,
            key: options.key,
            origins: options.origins.clone(),
            adapters: Arc::new(adapters),
            others: Arc::new(Others::new(options.others, options.others_memory)),
            tasks: sender,
            permits: Arc::new(Semaphore::new(permits)),
            embedding: Arc::new(Semaphore::new(1)),
            metrics,
            last: Arc::clone(&last),
            engine: is_running,
            time: options.time,
            body: options.body,
            strict: options.strict,
            named: Arc::default(),
        };
        Ok(Server {
            listener,
            connections: options.connections,
            address,
            app: Arc::new(app),
            last,
            grace: options.grace,
            origins: options.origins,
            engine,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers requests until `shutdown` is done. Replies in progress then have [`ServerOptions::grace`] to end; what is
    /// left after that ends with an error, and connections that are still open two seconds later are closed. Until the last
    /// reply has ended, new requests, `/health` too, are refused with status 503.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let Server { listener, connections, address, app, last, grace, origins, engine } = self;
        tracing::info!(%address, model = app.name, "listening");
        // They have been checked.
        let cors = access::cors(&origins).ok().flatten();
        let router = routes::router(app, cors);
        let stop = async move {
            shutdown.await;
            tracing::info!(grace_s = grace.as_secs(), "shutting down");
            // Only the first shutdown counts.
            let _ = last.set(Instant::now() + grace);
        };
        connections::serve(listener, router, connections, stop, grace).await;
        // Nobody can ask any more: it ends with its last reply.
        let _ = tokio::task::spawn_blocking(move || engine.join()).await;
        tracing::info!("ended");
    }
}
