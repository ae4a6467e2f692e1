//! The files of a model: their names, and their mapped bytes.
#![forbid(unsafe_code)]

use crate::error::{Error, Result, failed};
use crate::map::{Mmap, map_file};
use shohin_core::Gguf;
use shohin_core::gguf::{MAX_PARTS, ReadOptions};
use std::fs::File;
use std::path::{Path, PathBuf};

/// If a file is named like a part of a model (`name-00001-of-00003.gguf`): the names of all parts, first to
/// last.
pub fn shard_names(name: &str) -> Option<Vec<String>> {
    let (stem, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, no) = stem.rsplit_once('-')?;
    let number = |digits: &str| {
        let digits = digits.as_bytes().iter().all(u8::is_ascii_digit).then_some(digits)?;
        (digits.len() == 5).then(|| digits.parse::<u32>().ok())?
    };
    let (no, count) = (number(no)?, number(count)?);
    let name = |i| format!("{stem}-{i:05}-of-{count:05}.gguf");
    (1..=count).contains(&no).then(|| (1..=count).map(name).collect())
}

/// As [`shard_names`], with paths.
fn shard_paths(path: &Path) -> Option<Vec<PathBuf>> {
    let names = shard_names(path.file_name()?.to_str()?)?;
    Some(names.iter().map(|name| path.with_file_name(name)).collect())
}

/// A mapped file, and the file itself.
#[derive(Debug)]
pub struct MappedFile {
    /// The path.
    pub path: PathBuf,
    /// Its bytes.
    pub map: Mmap,
    /// The open file: another one may have taken the path since.
    pub file: File,
}

impl MappedFile {
    /// Maps the file: nothing is read until it is used, and the system shares it between programs.
    fn open(path: &Path) -> Result<MappedFile> {
        let url = path.to_str().filter(|path| path.starts_with("https://") || path.starts_with("http://"));
        if let Some(url) = url {
            return Err(Error::Address { url: url.into() });
        }
        // Before it is opened: opening a pipe waits for a writer.
        let meta = std::fs::metadata(path).map_err(failed("open the model", path))?;
        let refused = |problem| Err(Error::NotAFile { path: path.to_path_buf(), problem });
        if meta.is_dir() {
            return refused("is a directory, expected a GGUF file");
        }
        if !meta.is_file() {
            return refused("is a pipe or a device, but a model must be a regular file");
        }
        if meta.len() == 0 {
            return refused("is empty, expected a GGUF file");
        }
        let file = File::open(path).map_err(failed("open the model", path))?;
        let map = map_file(&file).map_err(failed("map the model", path))?;
        Ok(MappedFile { path: path.to_path_buf(), map, file })
    }
}

/// A GGUF file, or all files of a model in parts, mapped.
#[derive(Debug)]
pub struct MappedModel {
    /// The name in messages.
    pub name: String,
    /// At least one.
    pub files: Vec<MappedFile>,
}

impl MappedModel {
    /// Maps the file, or all files of a model in parts, given any of them (`name-00001-of-00003.gguf`).
    ///
    /// # Errors
    /// If one cannot be opened or is not a regular file. Contents are not checked.
    pub fn open(path: &Path) -> Result<MappedModel> {
        let name = path.display().to_string();
        let Some(paths) = shard_paths(path).filter(|paths| paths.len() > 1) else {
            return Ok(MappedModel { name, files: vec![MappedFile::open(path)?] });
        };
        let count = paths.len();
        if count > MAX_PARTS {
            return Err(Error::TooManyParts { name, count });
        }
        let files = paths.iter().map(|path| MappedFile::open(path)).collect::<Result<Vec<_>>>();
        let files = files.map_err(|source| Error::MissingPart { count, source: Box::new(source) })?;
        Ok(MappedModel { name, files })
    }

    /// The contents, validated.
    ///
    /// # Errors
    /// [`Error::Model`] with the name of the invalid part.
    pub fn gguf(&self, options: &ReadOptions) -> Result<Gguf<'_>> {
        let parts: Vec<&[u8]> = self.files.iter().map(|file| &file.map[..]).collect();
        parse(&parts, options, |part| match self.files.get(part) {
            Some(file) => file.path.display().to_string(),
            None => self.name.clone(),
        })
    }
}

/// Parses the parts of a model, whose names are `name(0)`, `name(1)` and so on.
///
/// # Errors
/// [`Error::Model`] with the name of the invalid part.
pub fn parse<'p>(
    parts: &[&'p [u8]],
    options: &ReadOptions,
    name: impl Fn(usize) -> String,
) -> Result<Gguf<'p>> {
    Gguf::parse_parts(parts, options)
        .map_err(|wrong| Error::Model { name: name(wrong.part), source: wrong.error })
}

/// The name of a model's folder: of one in the cache of the Hugging Face Hub (`models--OWNER--NAME/snapshots/COMMIT`) that of its
/// repository, else its own.
pub fn folder_name(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let own = path.file_name()?.to_string_lossy().into_owned();
    let snapshots = path.parent().filter(|parent| parent.file_name().is_some_and(|name| name == "snapshots"));
    let cache = snapshots.and_then(|snapshots| snapshots.parent()?.file_name()?.to_str());
    let repository = cache.and_then(|cache| cache.strip_prefix("models--"));
    Some(repository.map_or(own, |name| name.split_once("--").map_or(name, |(_, name)| name).into()))
}
