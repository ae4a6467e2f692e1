//! Adapters (LoRA) that requests ask for by name.

use crate::api::{AskedAdapter, Which};
use crate::error::ApiError;
use serde_json::{Value, json};
use shohin::core::gguf::ReadOptions;
use shohin::core::model::LoraAdapter;
use shohin::{Adapter, Error, FileError, Model};
use std::fmt::Write;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

/// Maximum number of adapters that are loaded.
const MAX_LOADED: usize = 256;

/// Maximum length of a name.
const MAX_NAME: usize = 64;

/// An adapter (LoRA) that applies where a request asks for it.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedAdapter {
    /// Letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// The file, as in [`Adapter::open`].
    pub path: PathBuf,
    /// The scale at which it applies, unless the request says at which.
    pub scale: f32,
}

/// Whether an adapter can have this name: 1 to 64 letters, digits, `-`, `_` and `.`, among them a letter or digit.
pub fn is_adapter_name(name: &str) -> bool {
    let is_known = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    name.len() <= MAX_NAME && name.bytes().all(is_known) && name.bytes().any(|b| b.is_ascii_alphanumeric())
}

/// What is wrong with a name, if something is, beside those of other adapters.
pub(crate) fn check_name<'n>(name: &str, mut others: impl Iterator<Item = &'n str>) -> Result<(), String> {
    if !is_adapter_name(name) {
        return Err(format!(
            "the adapter's name is {name:?}, expected 1 to {MAX_NAME} letters, digits, \"-\", \"_\" and \".\""
        ));
    }
    match others.any(|other| other == name) {
        true => Err(format!("there is an adapter {name:?} already, expected another name")),
        false => Ok(()),
    }
}

/// A loaded adapter.
#[derive(Debug)]
pub(crate) struct Loaded {
    name: String,
    adapter: Adapter,
    /// The last part of its path.
    file: String,
    /// The largest.
    rank: usize,
    /// Bytes of its factors in memory, for each set that it is in.
    bytes: usize,
    is_unloaded: AtomicBool,
}

impl Loaded {
    /// Opens an adapter, and finds out whether it fits the model.
    pub(crate) fn open(model: &Model, named: &NamedAdapter) -> shohin::Result<Loaded> {
        let adapter = Adapter::open(&named.path, model)?.at(named.scale);
        // At scale 0 there would be none.
        let bytes = model.adapted(&[adapter.clone().at(1.0)])?.weight_bytes() - model.weight_bytes();
        let gguf = adapter.file().gguf(&ReadOptions::default())?;
        let failed = |source| FileError::Model { name: adapter.file().name().into(), source };
        let rank = LoraAdapter::from_gguf(&gguf).map_err(failed)?.ranks().1;
        drop(gguf);
        let file = named.path.file_name().unwrap_or(named.path.as_os_str()).to_string_lossy().into_owned();
        let (name, is_unloaded) = (named.name.clone(), AtomicBool::new(false));
        Ok(Loaded { name, adapter, file, rank, bytes, is_unloaded })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn is_unloaded(&self) -> bool {
        self.is_unloaded.load(Relaxed)
    }

    /// As it is told to clients.
    pub(crate) fn describe(&self) -> Value {
        let Loaded { name, adapter, file, rank, bytes, .. } = self;
        json!({ "name": name, "file": file, "rank": rank, "bytes": bytes, "scale": adapter.scale() })
    }
}

/// An adapter of a reply.
#[derive(Clone, Debug)]
struct Scaled {
    loaded: Arc<Loaded>,
    scale: f32,
}

impl PartialEq for Scaled {
    fn eq(&self, other: &Scaled) -> bool {
        Arc::ptr_eq(&self.loaded, &other.loaded) && self.scale == other.scale
    }
}

/// The adapters of a reply, in the order in which they are added. Those without an effect are left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Chosen(Vec<Scaled>);

impl Chosen {
    fn new(adapters: impl IntoIterator<Item = (Arc<Loaded>, f32)>) -> Chosen {
        let effective = adapters.into_iter().filter(|(_, scale)| *scale != 0.0);
        Chosen(effective.map(|(loaded, scale)| Scaled { loaded, scale }).collect())
    }

    /// `model` with them.
    pub(crate) fn apply(&self, model: &Model) -> shohin::Result<Model> {
        if self.0.is_empty() {
            return Ok(model.clone());
        }
        let adapters: Vec<Adapter> =
            self.0.iter().map(|Scaled { loaded, scale }| loaded.adapter.clone().at(*scale)).collect();
        model.adapted(&adapters)
    }

    /// The name of the model with them: `base:poet`, or `base:poet=0.5+sql` at other scales and of several.
    pub(crate) fn name(&self, base: &str) -> String {
        let mut name = base.to_string();
        for (i, Scaled { loaded, scale }) in self.0.iter().enumerate() {
            name.push(if i == 0 { ':' } else { '+' });
            name.push_str(&loaded.name);
            if *scale != loaded.adapter.scale() {
                let _ = write!(name, "={scale}"); // a String takes everything
            }
        }
        name
    }

    pub(crate) fn adapters(&self) -> impl Iterator<Item = &Loaded> {
        self.0.iter().map(|scaled| &*scaled.loaded)
    }
}

/// The adapters that can be asked for.
pub(crate) struct Adapters {
    loaded: RwLock<Vec<Arc<Loaded>>>,
    /// The folder, without links in its path, of which requests can load files.
    folder: Option<PathBuf>,
}

impl Adapters {
    /// The names have been checked.
    pub(crate) fn open(
        model: &Model,
        named: &[NamedAdapter],
        folder: Option<PathBuf>,
    ) -> shohin::Result<Adapters> {
        let loaded = named.iter().map(|named| Ok(Arc::new(Loaded::open(model, named)?)));
        Ok(Adapters { loaded: RwLock::new(loaded.collect::<shohin::Result<_>>()?), folder })
    }

    /// All of them, in the order in which they were loaded.
    pub(crate) fn list(&self) -> Vec<Arc<Loaded>> {
        self.loaded.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The adapter that a name of a model is of: `NAME`, or `base:NAME`.
    pub(crate) fn of_model(&self, base: &str, asked: &str) -> Option<Arc<Loaded>> {
        let name = asked.strip_prefix(base).and_then(|rest| rest.strip_prefix(':')).unwrap_or(asked);
        self.list().into_iter().find(|loaded| loaded.name == name)
    }

    /// The adapters of a request, which names this model, and these adapters in the place of the model's.
    pub(crate) fn choose(
        &self,
        base: &str,
        model: Option<&str>,
        asked: Option<Vec<AskedAdapter>>,
    ) -> Result<Chosen, ApiError> {
        let of_model = match model.filter(|model| *model != base) {
            Some(model) => Some(self.of_model(base, model).ok_or_else(|| self.unknown_model(base, model))?),
            None => None,
        };
        let Some(asked) = asked else {
            return Ok(Chosen::new(of_model.map(|loaded| (Arc::clone(&loaded), loaded.adapter.scale()))));
        };
        let all = self.list();
        let mut chosen = Vec::new();
        for AskedAdapter { place, which, scale } in asked {
            let (found, shown) = match &which {
                Which::Name(name) => {
                    (all.iter().find(|loaded| loaded.name == *name), format!("the adapter {name:?}"))
                }
                Which::Id(id) => (all.get(*id), format!("the adapter {id}")),
            };
            let Some(loaded) = found else {
                let names: Vec<&str> = all.iter().map(|loaded| loaded.name()).collect();
                let problem = format!("{place}: {shown} is not loaded, expected one of {names:?}");
                return Err(ApiError::Field { place, problem });
            };
            chosen.push((Arc::clone(loaded), scale.unwrap_or(loaded.adapter.scale())));
        }
        Ok(Chosen::new(chosen))
    }

    pub(crate) fn unknown_model(&self, base: &str, asked: &str) -> ApiError {
        let names = self.list().iter().map(|loaded| format!("{base}:{}", loaded.name)).collect();
        ApiError::UnknownModel { asked: asked.into(), have: base.into(), adapted: names }
    }

    /// Loads a file of the folder.
    pub(crate) fn load(&self, model: &Model, mut named: NamedAdapter) -> Result<Value, ApiError> {
        let folder = self.folder.as_deref().ok_or(ApiError::NoFolder)?;
        self.check_new(&named.name)?;
        let given = std::mem::take(&mut named.path);
        let wrong = |problem: String| ApiError::Field { place: "path".into(), problem };
        named.path = within(folder, &given).map_err(wrong)?;
        let loaded = Loaded::open(model, &named).map_err(|error| match error {
            // Where the folder is does not concern clients.
            Error::File(_) => wrong(error.to_string().replace(&folder.join("").display().to_string(), "")),
            error => error.into(),
        })?;
        // The other parts may be links, too.
        if loaded.adapter.file().parts() > 1 {
            return Err(wrong(format!("{:?} is in parts, expected an adapter in one file", given.display())));
        }
        let described = loaded.describe();
        let mut all = self.loaded.write().unwrap_or_else(PoisonError::into_inner);
        check_new(&all, &named.name)?;
        all.push(Arc::new(loaded));
        Ok(described)
    }

    /// Refuses a name before its file is read.
    fn check_new(&self, name: &str) -> Result<(), ApiError> {
        check_new(&self.list(), name)
    }

    /// Unloads an adapter. Replies that have it go on with it.
    pub(crate) fn unload(&self, name: &str) -> Result<(), ApiError> {
        let mut all = self.loaded.write().unwrap_or_else(PoisonError::into_inner);
        let Some(at) = all.iter().position(|loaded| loaded.name == name) else {
            let names = all.iter().map(|loaded| loaded.name.clone()).collect();
            return Err(ApiError::UnknownAdapter { asked: name.into(), have: names });
        };
        all.remove(at).is_unloaded.store(true, Relaxed);
        Ok(())
    }
}

fn check_new(all: &[Arc<Loaded>], name: &str) -> Result<(), ApiError> {
    let refused = |problem| ApiError::Field { place: "name".into(), problem };
    check_name(name, all.iter().map(|loaded| loaded.name())).map_err(refused)?;
    if all.len() >= MAX_LOADED {
        return Err(refused(format!("{MAX_LOADED} adapters are loaded, expected fewer before another one")));
    }
    Ok(())
}

/// The folder of which requests can load files, without links in its path.
pub(crate) fn folder(path: &Path) -> io::Result<PathBuf> {
    let folder = path.canonicalize()?;
    if folder.is_dir() { Ok(folder) } else { Err(io::ErrorKind::NotADirectory.into()) }
}

/// The file at `path` within `folder`, without links in its path.
fn within(folder: &Path, path: &Path) -> Result<PathBuf, String> {
    let shown = path.display();
    if path.as_os_str().is_empty() || !path.components().all(|part| matches!(part, Component::Normal(_))) {
        return Err(format!(
            "path is {shown:?}, expected one from the folder of --lora-dir on, without \"..\""
        ));
    }
    let found = folder.join(path).canonicalize();
    let found =
        found.map_err(|error| format!("there is no {shown:?} in the folder of --lora-dir: {error}"))?;
    // A link may lead elsewhere; what is no file may never end.
    match found.starts_with(folder) && found.is_file() {
        true => Ok(found),
        false => Err(format!("{shown:?} is no file in the folder of --lora-dir, expected one")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_letters_digits_and_three_signs() {
        for name in ["poet", "a", "0", "My_LoRA-1.5", &"x".repeat(64)] {
            assert!(is_adapter_name(name), "{name}");
        }
        for name in ["", ".", "..", "-_.", "a:b", "a/b", "a b", "a=1", "a+b", "ä", "a\n", &"x".repeat(65)] {
            assert!(!is_adapter_name(name), "{name}");
        }
        assert!(check_name("a", ["b", "a"].into_iter()).unwrap_err().contains("already"));
    }

    #[test]
    fn paths_stay_within_the_folder() {
        let (inside, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let root = folder(inside.path()).unwrap();
        std::fs::create_dir(root.join("sub")).unwrap();
        for file in [root.join("a.gguf"), root.join("sub/b.gguf"), outside.path().join("c.gguf")] {
            std::fs::write(file, "x").unwrap();
        }
        for path in ["a.gguf", "sub/b.gguf"] {
            assert_eq!(within(&root, Path::new(path)).unwrap(), root.join(path));
        }
        let elsewhere = outside.path().join("c.gguf");
        let mut refused: Vec<PathBuf> = [
            "",
            ".",
            "..",
            "../a.gguf",
            "sub/../a.gguf",
            "./a.gguf",
            "sub",
            "absent.gguf",
            "a.gguf/x",
            "a\0b",
        ]
        .map(PathBuf::from)
        .into();
        refused.extend([root.join("a.gguf"), elsewhere.clone()]);
        #[cfg(unix)]
        {
            use std::os::unix::fs::symlink;
            symlink(&elsewhere, root.join("link.gguf")).unwrap();
            symlink(outside.path(), root.join("folder")).unwrap();
            symlink("a.gguf", root.join("own.gguf")).unwrap();
            symlink("loop", root.join("loop")).unwrap();
            refused.extend(["link.gguf", "folder/c.gguf", "loop"].map(PathBuf::from));
            assert_eq!(within(&root, Path::new("own.gguf")).unwrap(), root.join("a.gguf"));
        }
        for path in refused {
            let problem = within(&root, &path).unwrap_err();
            assert!(problem.contains("--lora-dir"), "{path:?}: {problem}");
        }
        assert!(folder(&root.join("a.gguf")).is_err() && folder(&root.join("absent")).is_err());
    }
}
