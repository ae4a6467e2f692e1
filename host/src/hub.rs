//! Models of the Hugging Face Hub: published ones by name, any GGUF file as `hf:owner/repository/file` or
//! `hf:owner/repository:Q4_K_M`, and folders of safetensors as `hf:owner/repository`.
//!
//! Files are kept in the layout of the Hub's own cache, which other programs share: `blobs/` has them by their
//! checksum, `snapshots/COMMIT/` links to them by name, and `refs/` has the commit of each revision. An
//! interrupted download continues where it ended.
//!
//! The environment variables of the Hub's own tools apply: `HF_ENDPOINT`, `HF_TOKEN`, `HF_TOKEN_PATH`, `HF_HUB_CACHE`, `HF_HOME`,
//! `XDG_CACHE_HOME` and `HF_HUB_OFFLINE`; those of proxies do, too (`HTTPS_PROXY`, `ALL_PROXY`, `HTTP_PROXY` and `NO_PROXY`).

pub use crate::error::HubError;
use crate::error::{Error, FileError, Result};
use crate::hub_files::{Selection, has_tag, is_weights, select};
pub use crate::hub_name::{HubModel, PublishedModel, published, published_names};
use crate::hub_name::{MAIN, is_relative};
use crate::hub_place;
use sha2::{Digest, Sha256};
use shohin_core::gguf::MAX_PARTS;
use shohin_core::json::Value;
use shohin_files::new_file::{NewFile, sync_folder};
use shohin_files::{failed, shard_names};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use ureq::http::{Response, Uri};
use ureq::{Agent, Body};

/// The SHA-256 that an entity tag, or the name of a blob, consists of.
fn sum_in(etag: &str) -> Option<&str> {
    Some(etag).filter(|etag| etag.len() == 64 && etag.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Progress of a download.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Download<'d> {
    /// The file.
    pub file: &'d str,
    /// Bytes on this machine.
    pub have: u64,
    /// Size of the file, if the Hub tells it.
    pub total: Option<u64>,
}

/// Receives the progress of a download, and may cancel it.
pub type OnDownload<'f> = dyn FnMut(Download<'_>) -> ControlFlow<()> + 'f;

/// A file that is kept.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeptFile {
    /// Its repository, `owner/name`.
    pub repository: String,
    /// Its name there.
    pub file: String,
    /// Its size.
    pub bytes: u64,
    /// The link to it.
    pub path: PathBuf,
}

/// The Hub, and the cache of its files.
#[derive(Clone, Debug)]
pub struct Hub {
    endpoint: String,
    cache: PathBuf,
    token: Option<String>,
    offline: bool,
    stall_timeout: Duration,
    pause: Duration,
    agent: Agent,
}

/// What the name of a blob ends with that is not whole yet.
const UNFINISHED: &str = ".incomplete";

/// Maximum number of bytes of the description of a repository.
const MOST_TEXT: usize = 10 << 20;

/// Attempts in a row that bring nothing.
const ATTEMPTS: u32 = 6;

/// The same before a download, when somebody waits to hear whether there is a network at all.
const FIRST_ATTEMPTS: u32 = 3;

/// The longest pause that a server may ask for.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

const REDIRECTS: usize = 8;

/// A failure, and whether another attempt may help.
enum Failure {
    Final(HubError),
    /// After a pause, if the server asks for one.
    Passing(HubError, Option<Duration>),
    Io(FileError),
}

impl From<HubError> for Failure {
    fn from(error: HubError) -> Failure {
        Failure::Final(error)
    }
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Failure {
        Failure::Io(error)
    }
}

type Attempt<T> = std::result::Result<T, Failure>;

/// What the Hub says of a file.
struct Remote {
    commit: String,
    etag: String,
    size: Option<u64>,
}

impl Hub {
    /// The Hub and the cache that the environment names.
    ///
    /// # Errors
    /// If the user has no home directory, or `HF_ENDPOINT` or a proxy is not an address.
    pub fn from_env() -> Result<Hub> {
        let cache = hub_place::cache().ok_or_else(|| Error::Environment {
            name: "HF_HUB_CACHE",
            found: String::new(),
            expected: "a directory, as there is no home directory".into(),
        })?;
        let endpoint = hub_place::set("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into());
        let mut hub = Hub::new(endpoint, cache).map_err(|error| match error {
            Error::Option { found, expected, .. } => {
                Error::Environment { name: "HF_ENDPOINT", found, expected }
            }
            other => other,
        })?;
        hub.token = hub_place::token();
        hub.offline = hub_place::set("HF_HUB_OFFLINE")
            .is_some_and(|value| ["1", "on", "yes", "true"].contains(&value.to_lowercase().as_str()));
        Ok(hub)
    }

    /// The Hub at an address, with its cache in a directory.
    ///
    /// # Errors
    /// If it is not an http or https address, or the environment names a proxy that is none.
    pub fn new(endpoint: impl Into<String>, cache: impl Into<PathBuf>) -> Result<Hub> {
        let endpoint = endpoint.into();
        let endpoint = endpoint.trim_end_matches('/').to_string();
        let is_web = |uri: &Uri| ["http", "https"].contains(&uri.scheme_str().unwrap_or_default());
        if !endpoint.parse::<Uri>().is_ok_and(|uri| is_web(&uri)) {
            let expected = "an http or https address".into();
            return Err(Error::Option { name: "endpoint", found: endpoint, expected });
        }
        let stall_timeout = Duration::from_secs(30);
        let agent = Agent::config_builder()
            .proxy(hub_place::proxy(&endpoint)?)
            .user_agent(concat!("shohin/", env!("CARGO_PKG_VERSION")))
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(stall_timeout))
            .timeout_recv_response(Some(stall_timeout))
            .build()
            .into();
        let (cache, pause) = (cache.into(), Duration::from_millis(500));
        Ok(Hub { endpoint, cache, token: None, offline: false, stall_timeout, pause, agent })
    }

    /// Sends this token to the Hub, never to other servers.
    pub fn token(mut self, token: impl Into<String>) -> Hub {
        self.token = Some(token.into());
        self
    }

    /// Whether only kept files are used.
    pub fn only_kept(mut self, offline: bool) -> Hub {
        self.offline = offline;
        self
    }

    /// Time without a byte after which a connection counts as broken: 30 seconds unless set.
    pub fn stall_timeout(mut self, timeout: Duration) -> Hub {
        self.stall_timeout = timeout;
        self
    }

    /// Pause before the second attempt, doubled before each further one: half a second unless set.
    pub fn pause(mut self, pause: Duration) -> Hub {
        self.pause = pause;
        self
    }

    /// Whether only kept files are used.
    pub fn is_offline(&self) -> bool {
        self.offline
    }

    /// The address of the Hub.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The directory of kept files.
    pub fn cache(&self) -> &Path {
        &self.cache
    }

    fn repository(&self, repository: &str) -> PathBuf {
        self.cache.join(format!("models--{}", repository.replace('/', "--")))
    }

    /// The directory of a revision's files, if it is known here which commit that is.
    fn snapshot(&self, model: &HubModel) -> Option<PathBuf> {
        let directory = self.repository(&model.repository);
        let commit = match is_commit(&model.revision) {
            true => model.revision.clone(),
            false => {
                fs::read_to_string(directory.join("refs").join(&model.revision)).ok()?.trim().to_string()
            }
        };
        Some(directory.join("snapshots").join(&commit)).filter(|_| is_commit(&commit))
    }

    /// The kept file of a model, without asking the Hub; of a model in parts the one that was named, if all are
    /// kept.
    pub fn find(&self, model: &HubModel) -> Option<PathBuf> {
        let snapshot = self.snapshot(model)?;
        let mut all = Vec::new();
        walk(&snapshot, &mut |path| all.extend(name_in(&snapshot, path)));
        let selection = select(model, &all).ok()?;
        if !selection.files.iter().all(|file| snapshot.join(file).is_file()) {
            return None;
        }
        let path = selection.path(&snapshot);
        if selection.is_folder() {
            // The parts that its index names come last.
            return self.has_all(&snapshot).then_some(path);
        }
        let blob = fs::read_link(&path).ok();
        let found = blob.as_ref().and_then(|blob| sum_in(blob.file_name()?.to_str()?));
        model.expect(found).is_ok().then_some(path)
    }

    /// Whether a folder has the files of all weights that its index names.
    fn has_all(&self, snapshot: &Path) -> bool {
        let Ok(index) = fs::read_to_string(snapshot.join("model.safetensors.index.json")) else {
            return true;
        };
        let files = Value::parse(&index).ok().and_then(|index| index.get("weight_map")?.members());
        files.is_some_and(|files| {
            files.iter().all(|(_, file)| file.as_string().is_some_and(|file| snapshot.join(file).is_file()))
        })
    }

    /// Number of bytes that [`Hub::pull`] would download, if the Hub tells it.
    ///
    /// # Errors
    /// As [`Hub::pull`].
    pub fn missing(&self, model: &HubModel) -> Result<Option<u64>> {
        let named = |source| Error::Hub { model: model.to_string(), source };
        let mut ignore = |_: Download<'_>| ControlFlow::Continue(());
        let mut missing = 0;
        let selection = self.selection(model, &mut ignore).map_err(|failure| last(failure, named))?;
        for file in selection.files {
            let remote = self.ask(model, &file, &mut ignore).map_err(|failure| last(failure, named))?;
            let blobs = self.repository(&model.repository).join("blobs");
            let held = |name: String| fs::metadata(blobs.join(name)).map_or(0, |meta| meta.len());
            let have = held(remote.etag.clone()).max(held(unfinished(&remote.etag)));
            match remote.size {
                Some(size) => missing += size.saturating_sub(have),
                None => return Ok(None),
            }
        }
        Ok(Some(missing))
    }

    /// Downloads a model unless its current version is kept, and returns the path of its file: of a model in parts
    /// that of the named part, beside which the others are, and of safetensors that of their folder.
    ///
    /// # Errors
    /// [`Error::Hub`] if it does not exist, needs another token, cannot be fetched or is damaged; [`FileError::Io`] if it
    /// cannot be written. What has arrived is kept for the next call.
    pub fn pull(&self, model: &HubModel, on_download: &mut OnDownload<'_>) -> Result<PathBuf> {
        let named = |source| Error::Hub { model: model.to_string(), source };
        if self.offline {
            return self.find(model).ok_or_else(|| named(HubError::Offline));
        }
        let selection = self.selection(model, on_download).map_err(|failure| last(failure, named))?;
        let mut path = None;
        for file in &selection.files {
            let kept = self.fetch(model, file, on_download).map_err(|failure| last(failure, named))?;
            if *file == selection.first {
                path = Some(kept);
            }
        }
        let folder = |path: PathBuf| match (selection.is_folder(), path.parent()) {
            (true, Some(folder)) => folder.to_path_buf(),
            _ => path,
        };
        path.map(folder).ok_or_else(|| named(HubError::Ambiguous { files: Vec::new() }))
    }

    /// The files of a model.
    fn selection(&self, model: &HubModel, on_download: &mut OnDownload<'_>) -> Attempt<Selection> {
        let all = match &model.file {
            Some(_) => Vec::new(),
            None => siblings(&self.description(model, on_download)?),
        };
        let selection = select(model, &all)?;
        if selection.files.len() > MAX_PARTS {
            let (name, count) = (selection.first, selection.files.len());
            return Err(FileError::TooManyParts { name, count }.into());
        }
        Ok(selection)
    }

    /// What the Hub says of a repository.
    fn description(&self, model: &HubModel, on_download: &mut OnDownload<'_>) -> Attempt<String> {
        let HubModel { repository, revision, .. } = model;
        let url = format!("{}/api/models/{repository}/revision/{revision}", self.endpoint);
        self.patiently(on_download, &mut |hub| {
            let (answer, _) = hub.request(model, &url, None, true)?;
            hub.check(model, &answer)?;
            let (pieces, mut text) = (pieces(answer), Vec::new());
            loop {
                let piece = hub.next(&pieces)?;
                if piece.is_empty() {
                    return Ok(String::from_utf8_lossy(&text).into_owned());
                }
                text.extend(piece);
                if text.len() > MOST_TEXT {
                    let problem = format!("it describes the repository in more than {MOST_TEXT} bytes");
                    return Err(HubError::Answer { problem }.into());
                }
            }
        })
    }

    /// Repeats work that fails for a passing reason.
    fn patiently<T>(
        &self,
        on_download: &mut OnDownload<'_>,
        work: &mut dyn FnMut(&Hub) -> Attempt<T>,
    ) -> Attempt<T> {
        let mut tries = 0;
        loop {
            match work(self) {
                Err(Failure::Passing(error, wait)) => {
                    tries += 1;
                    let most = if wait.is_some() { ATTEMPTS } else { FIRST_ATTEMPTS };
                    let mut tick = || on_download(Download { file: "", have: 0, total: None });
                    self.rest((tries, most), error, wait, &mut tick)?;
                }
                other => return other,
            }
        }
    }

    /// Pauses after a failure, unless there were too many in a row.
    fn rest(
        &self,
        (tries, most): (u32, u32),
        error: HubError,
        wait: Option<Duration>,
        tick: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Attempt<()> {
        if tries >= most || wait.is_some_and(|wait| wait > LONGEST_PAUSE) {
            return Err(error.into());
        }
        let until = Instant::now() + wait.unwrap_or(self.pause * 2u32.pow(tries.saturating_sub(1)));
        loop {
            if tick().is_break() {
                return Err(HubError::Cancelled.into());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(Duration::from_millis(100)));
        }
    }

    /// The address of a file.
    fn address(&self, model: &HubModel, revision: &str, file: &str) -> String {
        format!("{}/{}/resolve/{}/{}", self.endpoint, model.repository, encoded(revision), encoded(file))
    }

    /// Sends a request and follows redirects, to other servers only for the content. Returns the answer and the headers
    /// that the Hub itself gave.
    fn request(
        &self,
        model: &HubModel,
        url: &str,
        range: Option<u64>,
        content: bool,
    ) -> Attempt<(Response<Body>, Option<Remote>)> {
        let mut url = url.to_string();
        let mut remote = None;
        for _ in 0..REDIRECTS {
            let own = origin(&url) == origin(&self.endpoint);
            let mut request = if content { self.agent.get(&url) } else { self.agent.head(&url) };
            if let Some(token) = self.token.as_ref().filter(|_| own) {
                request = request.header("Authorization", format!("Bearer {token}"));
            }
            if let Some(have) = range {
                request = request.header("Range", format!("bytes={have}-"));
            }
            let answer = request.call().map_err(|error| request_failed(error, &url))?;
            if own && remote.is_none() {
                remote = remote_of(&answer);
            }
            let status = answer.status().as_u16();
            let Some(to) =
                header(&answer, "location").filter(|_| [301, 302, 303, 307, 308].contains(&status))
            else {
                return Ok((answer, remote));
            };
            let to = match to.strip_prefix('/') {
                Some(path) if !path.starts_with('/') => {
                    format!("{}/{path}", origin(&url).unwrap_or_default())
                }
                _ => to.to_string(),
            };
            let away = origin(&to) != origin(&self.endpoint);
            if origin(&to).is_none() || (url.starts_with("https:") && !to.starts_with("https:")) {
                let problem = format!("the Hub redirects to {to}, expected an https address");
                return Err(HubError::Answer { problem }.into());
            }
            if away && !content {
                return Ok((answer, remote));
            }
            url = to;
        }
        let problem = format!("the Hub redirects more than {REDIRECTS} times for {}", model.repository);
        Err(HubError::Answer { problem }.into())
    }

    /// Refuses answers without content.
    fn check(&self, model: &HubModel, answer: &Response<Body>) -> Attempt<()> {
        let page = || format!("{}/{}", self.endpoint, model.repository);
        let denied = || HubError::Denied { with_token: self.token.is_some(), page: page() };
        let code = header(answer, "x-error-code").unwrap_or_default();
        Err(Failure::Final(match (answer.status().as_u16(), code) {
            (200..=399 | 416, _) => return Ok(()),
            (_, "GatedRepo") | (401 | 403, _) => denied(),
            (_, "RepoNotFound") => HubError::Missing { what: "repository" },
            (_, "RevisionNotFound") => HubError::Missing { what: "revision" },
            (404 | 410, _) => HubError::Missing { what: "file" },
            (status @ (408 | 429 | 500..), _) => {
                let wait = header(answer, "retry-after").and_then(|seconds| seconds.parse().ok());
                let problem = format!("the server answered with status {status}");
                return Err(Failure::Passing(HubError::Network { problem }, wait.map(Duration::from_secs)));
            }
            (status, _) => HubError::Answer { problem: format!("the server answered with status {status}") },
        }))
    }

    /// Asks the Hub about a file.
    fn ask(&self, model: &HubModel, file: &str, on_download: &mut OnDownload<'_>) -> Attempt<Remote> {
        let url = self.address(model, &model.revision, file);
        self.patiently(on_download, &mut |hub| {
            let (answer, remote) = hub.request(model, &url, None, false)?;
            hub.check(model, &answer)?;
            remote.ok_or_else(|| {
                let problem = format!(
                    "{} does not answer as a Hub does: a commit and a checksum are missing",
                    hub.endpoint
                );
                HubError::Answer { problem }.into()
            })
        })
    }

    /// Downloads a file unless it is kept, and returns its path.
    fn fetch(&self, model: &HubModel, file: &str, on_download: &mut OnDownload<'_>) -> Attempt<PathBuf> {
        let remote = self.ask(model, file, on_download)?;
        model.expect(sum_in(&remote.etag))?;
        let directory = self.repository(&model.repository);
        let blob = directory.join("blobs").join(&remote.etag);
        let snapshot = directory.join("snapshots").join(&remote.commit);
        // Where there are no links, the file is no longer among the blobs.
        let is_kept = || blob.is_file() || snapshot.join(file).is_file();
        if !is_kept() {
            let locks = self.cache.join(".locks").join(directory.file_name().unwrap_or_default());
            let _lock = lock(&locks, &remote.etag, &mut || {
                on_download(Download { file, have: 0, total: remote.size })
            })?;
            // Another program may have brought it meanwhile.
            if !is_kept() {
                self.bring(model, file, &remote, &blob, on_download)?;
            }
        }
        let path = link(&snapshot, file, &blob)?;
        if !is_commit(&model.revision) {
            let refs = directory.join("refs");
            write_whole(&refs, &model.revision, remote.commit.as_bytes())?;
        }
        Ok(path)
    }

    fn bring(
        &self,
        model: &HubModel,
        file: &str,
        remote: &Remote,
        blob: &Path,
        on_download: &mut OnDownload<'_>,
    ) -> Attempt<()> {
        let path = blob.with_file_name(unfinished(&remote.etag));
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(failed("create", parent))?;
        }
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let mut part =
            Part { file: opened.map_err(failed("open", &path))?, path, have: 0, hash: Sha256::new() };
        part.resume(remote.size)?;
        let url = self.address(model, &remote.commit, file);
        let mut tries = 0;
        while part.have == 0 || remote.size.is_none_or(|size| part.have < size) {
            let before = part.have;
            match self.attempt(model, file, &url, remote, &mut part, on_download) {
                Ok(()) => break,
                Err(Failure::Passing(error, wait)) => {
                    tries = if part.have > before { 1 } else { tries + 1 };
                    let (have, total) = (part.have, remote.size);
                    self.rest((tries, ATTEMPTS), error, wait, &mut || {
                        on_download(Download { file, have, total })
                    })?;
                }
                Err(other) => return Err(other),
            }
        }
        part.finish(model, remote, blob)
    }

    /// Downloads the rest of a file over one connection.
    fn attempt(
        &self,
        model: &HubModel,
        file: &str,
        url: &str,
        remote: &Remote,
        part: &mut Part,
        on_download: &mut OnDownload<'_>,
    ) -> Attempt<()> {
        let total = remote.size;
        let (answer, _) = self.request(model, url, (part.have > 0).then_some(part.have), true)?;
        self.check(model, &answer)?;
        let status = answer.status().as_u16();
        let begins = |range: &str| range.starts_with(&format!("bytes {}-", part.have));
        if part.have > 0 && !(status == 206 && header(&answer, "content-range").is_some_and(begins)) {
            // The server has no ranges, or another file.
            part.restart()?;
            if status != 200 {
                let problem = format!("the server answered a range with status {status}");
                return Err(Failure::Passing(HubError::Network { problem }, None));
            }
        }
        let pieces = pieces(answer);
        loop {
            if on_download(Download { file, have: part.have, total }).is_break() {
                return Err(HubError::Cancelled.into());
            }
            let piece = self.next(&pieces)?;
            if piece.is_empty() {
                return match total {
                    Some(total) if part.have < total => {
                        let problem = format!("the connection ended after {} of {total} bytes", part.have);
                        Err(Failure::Passing(HubError::Network { problem }, None))
                    }
                    _ => Ok(()),
                };
            }
            part.append(&piece)?;
        }
    }

    /// The next piece of a body; an empty one is its end.
    fn next(&self, pieces: &mpsc::Receiver<io::Result<Vec<u8>>>) -> Attempt<Vec<u8>> {
        let piece = pieces.recv_timeout(self.stall_timeout).map_err(|_| {
            let problem = format!("no byte arrived for {} seconds", self.stall_timeout.as_secs_f32());
            Failure::Passing(HubError::Network { problem }, None)
        })?;
        piece.map_err(|e| Failure::Passing(HubError::Network { problem: e.to_string() }, None))
    }

    /// The files of weights that are kept.
    pub fn list(&self) -> Vec<KeptFile> {
        let mut kept = BTreeSet::new();
        for directory in entries(&self.cache) {
            let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let Some(repository) = name.strip_prefix("models--") else { continue };
            let repository = repository.replacen("--", "/", 1);
            for snapshot in entries(&directory.join("snapshots")) {
                for file in files_of(&snapshot) {
                    let path = snapshot.join(&file);
                    let bytes = fs::metadata(&path).map_or(0, |meta| meta.len());
                    kept.insert(KeptFile { repository: repository.clone(), file, bytes, path });
                }
            }
        }
        kept.into_iter().collect()
    }

    /// The kept files of a model: all files of weights in the repository unless it names one or a format, and in all revisions
    /// unless it names another than `main`.
    pub fn kept(&self, model: &HubModel) -> Vec<KeptFile> {
        let snapshot = (model.revision != MAIN).then(|| self.snapshot(model));
        let parts = model.file.as_ref().map(|file| shard_names(file).unwrap_or_else(|| vec![file.clone()]));
        let is_named = |kept: &KeptFile| {
            let in_revision = match &snapshot {
                None => true,
                Some(snapshot) => snapshot.as_ref().is_some_and(|snapshot| kept.path.starts_with(snapshot)),
            };
            let is_file = parts.as_ref().is_none_or(|parts| parts.contains(&kept.file))
                && model.tag.as_ref().is_none_or(|tag| has_tag(&kept.file, tag));
            kept.repository == model.repository && in_revision && is_file
        };
        self.list().into_iter().filter(is_named).collect()
    }

    /// Deletes the files that [`Hub::kept`] returns, and what was kept for them only; without a file in the name, interrupted
    /// downloads of the repository, too. Returns the bytes that were freed.
    ///
    /// # Errors
    /// If a file cannot be deleted.
    pub fn remove(&self, model: &HubModel) -> Result<u64> {
        let directory = self.repository(&model.repository);
        let mut freed = 0;
        let mut delete = |path: &Path| {
            // That of a link is its own.
            let bytes =
                fs::symlink_metadata(path).map_or(0, |meta| if meta.is_file() { meta.len() } else { 0 });
            fs::remove_file(path).map_err(failed("delete", path))?;
            freed += bytes;
            Ok::<(), Error>(())
        };
        let kept = self.kept(model);
        kept.iter().try_for_each(|file| delete(&file.path))?;
        if model.file.is_none() && model.tag.is_none() {
            // With the weights, what is beside them.
            let snapshots: BTreeSet<&Path> = kept.iter().filter_map(|file| file.path.parent()).collect();
            for snapshot in snapshots {
                let mut rest = Vec::new();
                walk(snapshot, &mut |path| rest.push(path.to_path_buf()));
                rest.iter().try_for_each(|path| delete(path))?;
            }
        }
        let blobs = entries(&directory.join("blobs"));
        // One that is incomplete may be of another file.
        let is_other = |blob: &PathBuf| {
            (model.file.is_some() || model.tag.is_some())
                && is_unfinished(blob.file_name().unwrap_or_default())
        };
        let (mut linked, mut is_empty) = (BTreeSet::new(), !blobs.iter().any(is_other));
        for snapshot in entries(&directory.join("snapshots")) {
            walk(&snapshot, &mut |path| {
                is_empty = false;
                linked.extend(fs::read_link(path).ok().and_then(|to| Some(to.file_name()?.to_owned())));
            });
        }
        // Without a link to it nothing finds a blob.
        let is_needed =
            |blob: &PathBuf| blob.file_name().is_some_and(|name| linked.contains(name)) || is_other(blob);
        blobs.iter().filter(|blob| !is_needed(blob)).try_for_each(|blob| delete(blob))?;
        if is_empty {
            fs::remove_dir_all(&directory).or_else(missing_is_fine).map_err(failed("delete", &directory))?;
        }
        Ok(freed)
    }
}

fn missing_is_fine(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// A failure as an error.
fn last(failure: Failure, named: impl Fn(HubError) -> Error) -> Error {
    match failure {
        Failure::Final(error) | Failure::Passing(error, _) => named(error),
        Failure::Io(error) => error.into(),
    }
}

fn request_failed(error: ureq::Error, url: &str) -> Failure {
    let problem = match error {
        ureq::Error::Io(error) => error.to_string(),
        other => other.to_string(),
    };
    let problem = format!("cannot connect to {}: {problem}", origin(url).unwrap_or_default());
    Failure::Passing(HubError::Network { problem }, None)
}

/// The pieces of a body, the last of them empty. Reads wait as long as a server is silent, so they are made on a thread
/// of their own.
fn pieces(answer: Response<Body>) -> mpsc::Receiver<io::Result<Vec<u8>>> {
    let (sender, receiver) = mpsc::sync_channel(4);
    let mut body = answer.into_body().into_reader();
    thread::spawn(move || {
        let mut buffer = vec![0; 1 << 18];
        loop {
            let read = body.read(&mut buffer);
            let ended = !matches!(read, Ok(1..));
            let piece = read.map(|n| buffer.get(..n).unwrap_or_default().to_vec());
            if sender.send(piece).is_err() || ended {
                return;
            }
        }
    });
    receiver
}

fn header<'r>(answer: &'r Response<Body>, name: &str) -> Option<&'r str> {
    answer.headers().get(name)?.to_str().ok()
}

/// Scheme, host and port of an http or https address.
fn origin(url: &str) -> Option<String> {
    let uri: Uri = url.parse().ok()?;
    let scheme = uri.scheme_str().filter(|scheme| ["http", "https"].contains(scheme))?;
    Some(format!("{scheme}://{}", uri.authority()?))
}

fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|b| b.is_ascii_hexdigit())
}

fn remote_of(answer: &Response<Body>) -> Option<Remote> {
    let etag = header(answer, "x-linked-etag").or_else(|| header(answer, "etag"))?;
    let etag = etag.trim_start_matches("W/").trim_matches('"');
    let is_name = etag.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
    let size = header(answer, "x-linked-size").or_else(|| match answer.status().is_success() {
        true => header(answer, "content-length"),
        false => None,
    });
    let commit = header(answer, "x-repo-commit").filter(|commit| is_commit(commit))?;
    let (commit, etag) =
        (commit.into(), Some(etag).filter(|e| is_name && (1..=128).contains(&e.len()))?.into());
    Some(Remote { commit, etag, size: size.and_then(|size| size.parse().ok()) })
}

fn unfinished(etag: &str) -> String {
    format!("{etag}{UNFINISHED}")
}

fn is_unfinished(blob: &OsStr) -> bool {
    blob.to_str().is_some_and(|name| name.ends_with(UNFINISHED))
}

/// A path as part of an address.
fn encoded(path: &str) -> String {
    let mut text = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => {
                text.push(char::from(byte))
            }
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

/// The file names in the Hub's description of a repository.
fn siblings(text: &str) -> Vec<String> {
    let list = Value::parse(text).ok().and_then(|value| value.get("siblings")?.elements());
    let files = list.unwrap_or_default().into_iter();
    files.filter_map(|file| file.get("rfilename")?.as_string()).filter(|file| is_relative(file)).collect()
}

/// A file that is being downloaded.
struct Part {
    file: File,
    path: PathBuf,
    have: u64,
    hash: Sha256,
}

impl Part {
    /// Continues behind the bytes of an earlier download, unless there are too many.
    fn resume(&mut self, size: Option<u64>) -> Result<(), FileError> {
        let mut buffer = vec![0; 1 << 20];
        loop {
            let n = self.file.read(&mut buffer).map_err(failed("read", &self.path))?;
            if n == 0 {
                break;
            }
            self.hash.update(buffer.get(..n).unwrap_or_default());
            self.have += n as u64;
        }
        if size.is_some_and(|size| self.have > size) { self.restart() } else { Ok(()) }
    }

    fn restart(&mut self) -> Result<(), FileError> {
        (self.have, self.hash) = (0, Sha256::new());
        self.file.set_len(0).and_then(|()| self.file.rewind()).map_err(failed("write", &self.path))
    }

    fn append(&mut self, piece: &[u8]) -> Result<(), FileError> {
        self.file.write_all(piece).map_err(failed("write", &self.path))?;
        self.hash.update(piece);
        self.have += piece.len() as u64;
        Ok(())
    }

    /// Moves the file to its place if it is the one that the Hub announced, and deletes it otherwise.
    fn finish(self, model: &HubModel, remote: &Remote, blob: &Path) -> Attempt<()> {
        let Part { file, path, have, hash } = self;
        let found: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        let problem = if let Some(size) = remote.size.filter(|size| *size != have) {
            Some(format!("expected {size} bytes, found {have}"))
        } else {
            let announced = sum_in(&remote.etag).filter(|sum| !sum.eq_ignore_ascii_case(&found));
            announced.map(|sum| format!("expected the SHA-256 {sum}, found {found}"))
        };
        let wrong = problem.map(|problem| HubError::Damaged { problem });
        if let Some(error) = wrong.or_else(|| model.expect(Some(&found)).err()) {
            let _ = fs::remove_file(&path);
            return Err(error.into());
        }
        file.sync_all().map_err(failed("write", &path))?;
        let named = fs::rename(&path, blob).and_then(|()| sync_folder(blob));
        Ok(named.map_err(failed("write", blob))?)
    }
}

/// Waits until no other program downloads this file.
fn lock(directory: &Path, etag: &str, tick: &mut dyn FnMut() -> ControlFlow<()>) -> Attempt<File> {
    let path = directory.join(format!("{etag}.lock"));
    let failed = failed("lock", &path);
    fs::create_dir_all(directory).map_err(failed)?;
    let file = OpenOptions::new().create(true).write(true).truncate(false).open(&path).map_err(failed)?;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(failed(error).into()),
        }
        if tick().is_break() {
            return Err(HubError::Cancelled.into());
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Writes a small file as a whole: afterwards either the old or the new content is there.
fn write_whole(directory: &Path, name: &str, content: &[u8]) -> Result<(), FileError> {
    let path = directory.join(name);
    let write = || {
        // The name of a revision may have several parts.
        fs::create_dir_all(path.parent().unwrap_or(directory))?;
        let mut file = NewFile::create(&path)?;
        file.write_all(content)?;
        file.finish()
    };
    write().map_err(failed("write", &path))
}

/// Links to a blob by the name of its file.
fn link(snapshot: &Path, file: &str, blob: &Path) -> Result<PathBuf, FileError> {
    let path = snapshot.join(file);
    if path.is_file() {
        return Ok(path);
    }
    let make = || {
        let directory = path.parent().unwrap_or(snapshot);
        fs::create_dir_all(directory)?;
        place(directory, &path, file, blob)
    };
    make().map_err(failed("write", &path))?;
    Ok(path)
}

#[cfg(unix)]
fn place(directory: &Path, path: &Path, file: &str, blob: &Path) -> io::Result<()> {
    let up = "../".repeat(2 + file.matches('/').count());
    let to = format!("{up}blobs/{}", blob.file_name().unwrap_or_default().to_string_lossy());
    let made = tempfile::Builder::new().make_in(directory, |path| std::os::unix::fs::symlink(&to, path))?;
    made.into_temp_path().persist(path)?;
    Ok(())
}

/// Links need a permission there that users lack.
#[cfg(not(unix))]
fn place(_: &Path, path: &Path, _: &str, blob: &Path) -> io::Result<()> {
    fs::rename(blob, path)
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// Calls `visit` with every file below a directory.
fn walk(directory: &Path, visit: &mut dyn FnMut(&Path)) {
    for path in entries(directory) {
        match fs::symlink_metadata(&path) {
            Ok(meta) if meta.is_dir() => walk(&path, visit),
            Ok(_) => visit(&path),
            Err(_) => {}
        }
    }
}

/// The name that a file of a snapshot has in the repository.
fn name_in(snapshot: &Path, path: &Path) -> Option<String> {
    Some(path.strip_prefix(snapshot).ok()?.to_str()?.replace('\\', "/"))
}

/// The files of weights in a snapshot by their names in the repository.
fn files_of(snapshot: &Path) -> Vec<String> {
    let mut files = Vec::new();
    walk(snapshot, &mut |path| files.extend(name_in(snapshot, path).filter(|name| is_weights(name))));
    files
}
