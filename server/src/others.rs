//! Models beside the server's own, which are loaded when they are first asked for.

use crate::adapters::Adapters;
use crate::app::App;
use crate::engine::Engine;
use crate::error::ApiError;
use shohin::Model;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak, mpsc};
use std::thread;
use std::time::{Instant, SystemTime};
use tokio::sync::Mutex;

/// Loads a model, or says why it cannot.
type Load = Arc<dyn Fn() -> Result<Model, String> + Send + Sync>;

/// A model that a server loads when a request first names it.
#[derive(Clone)]
pub struct OtherModel {
    /// Its name in requests and answers.
    pub name: String,
    load: Load,
}

impl OtherModel {
    /// A model of this name, and how it is loaded. That runs on a thread of its own.
    pub fn new(
        name: impl Into<String>,
        load: impl Fn() -> Result<Model, String> + Send + Sync + 'static,
    ) -> OtherModel {
        OtherModel { name: name.into(), load: Arc::new(load) }
    }
}

impl std::fmt::Debug for OtherModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OtherModel").field("name", &self.name).finish_non_exhaustive()
    }
}

/// All of them.
pub(crate) struct Others {
    all: Vec<Other>,
    /// Maximum number of bytes of their weights.
    room: Option<usize>,
    /// Counts requests.
    clock: AtomicU64,
}

struct Other {
    name: String,
    load: Load,
    loaded: Mutex<Option<Arc<App>>>,
    /// When it was asked for last, by the clock.
    used: AtomicU64,
}

impl Others {
    pub(crate) fn new(models: Vec<OtherModel>, room: Option<usize>) -> Others {
        let other = |OtherModel { name, load }| Other {
            name,
            load,
            loaded: Mutex::default(),
            used: AtomicU64::new(0),
        };
        Others { all: models.into_iter().map(other).collect(), room, clock: AtomicU64::new(0) }
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.all.iter().map(|other| other.name.as_str())
    }

    fn find(&self, name: &str) -> Option<&Other> {
        self.all.iter().find(|other| other.name == name)
    }

    /// What is loaded of this name.
    pub(crate) fn loaded(&self, name: &str) -> Option<Arc<App>> {
        self.find(name)?.loaded.try_lock().ok()?.clone()
    }

    /// Unloads models that were not asked for for longest and have no request in progress, until those that are left have room.
    /// Replies that are streamed end with what they need.
    fn make_room(&self) {
        let Some(room) = self.room else { return };
        loop {
            let (mut bytes, mut idle) = (0_usize, Vec::new());
            let newest = self.all.iter().map(|other| other.used.load(Relaxed)).max();
            for other in &self.all {
                let Ok(loaded) = other.loaded.try_lock() else { continue };
                let Some(app) = &*loaded else { continue };
                bytes = bytes.saturating_add(app.model.weight_bytes());
                let used = other.used.load(Relaxed);
                if Arc::strong_count(app) == 1 && Some(used) != newest {
                    idle.push((used, other));
                }
            }
            let oldest = idle.into_iter().min_by_key(|(used, _)| *used);
            let Some((_, other)) = oldest.filter(|_| bytes > room) else { return };
            if let Ok(mut loaded) = other.loaded.try_lock() {
                *loaded = None;
                tracing::info!(model = other.name, "unloaded");
            }
        }
    }
}

impl App {
    /// What answers requests for this model: another one if it has the name, and is not this one.
    pub(crate) async fn of_model(self: &Arc<App>, asked: Option<&str>) -> Result<Arc<App>, ApiError> {
        let name = asked.map(|name| name.strip_suffix(":latest").unwrap_or(name));
        let other = name.filter(|name| *name != self.name).and_then(|name| self.others.find(name));
        let Some(other) = other else { return Ok(Arc::clone(self)) };
        other.used.store(self.others.clock.fetch_add(1, Relaxed) + 1, Relaxed);
        let mut loaded = other.loaded.lock().await;
        if let Some(app) = &*loaded {
            return Ok(Arc::clone(app));
        }
        let (since, load) = (Instant::now(), Arc::clone(&other.load));
        let model = tokio::task::spawn_blocking(move || load()).await.map_err(|_| ApiError::Stopped)?;
        let app = Arc::new(self.beside(model.map_err(ApiError::Device)?, &other.name)?);
        tracing::info!(model = other.name, ms = since.elapsed().as_millis() as u64, "loaded");
        *loaded = Some(Arc::clone(&app));
        drop(loaded);
        self.others.make_room();
        Ok(app)
    }

    /// The same for another model, whose replies another thread computes.
    fn beside(&self, model: Model, name: &str) -> Result<App, ApiError> {
        let (tasks, received) = mpsc::channel();
        let (metrics, last) = (Arc::clone(&self.metrics), Arc::clone(&self.last));
        let engine = Engine::new(model.clone(), self.sizes, received, metrics, last)?;
        let adapters = Adapters::open(&model, &[], None)?;
        let engine = run(engine).map_err(|error| ApiError::Device(error.to_string()))?.0;
        Ok(App {
            model,
            name: name.into(),
            aliases: Vec::new(),
            any_name: false,
            created: SystemTime::now(),
            sizes: self.sizes,
            key: self.key.clone(),
            origins: self.origins.clone(),
            adapters: Arc::new(adapters),
            others: Arc::new(Others::new(Vec::new(), None)),
            tasks,
            permits: Arc::clone(&self.permits),
            embedding: Arc::clone(&self.embedding),
            metrics: Arc::clone(&self.metrics),
            last: Arc::clone(&self.last),
            engine,
            time: self.time,
            body: self.body,
            strict: self.strict,
            named: Arc::clone(&self.named),
        })
    }
}

/// Starts the thread that computes. What is returned is alive as long as it is.
pub(crate) fn run(engine: Engine) -> std::io::Result<(Weak<()>, thread::JoinHandle<()>)> {
    let runs = Arc::new(());
    let is_running = Arc::downgrade(&runs);
    let thread = thread::Builder::new().name("shohin-engine".into()).spawn(move || {
        // Dropped if it panics, too.
        let _runs = runs;
        engine.run();
    })?;
    Ok((is_running, thread))
}
