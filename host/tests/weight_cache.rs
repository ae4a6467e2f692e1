//! Repacked weights on disk: the second load gives the same logits without repacking, and a file that does not
//! belong to the model is never used.

use shohin::core::Format;
use shohin::core::cpu::Isa;
use shohin::core::cpu::repack::repacks;
use shohin::{Builder, Error, FileError, Model, WeightCache};
use shohin_tests::model;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// A directory of its own for each test, deleted at the end.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("shohin-cache-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).unwrap();
        Dir(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn cache(&self) -> WeightCache {
        WeightCache::in_dir(self.path("cache")).smallest(0)
    }

    /// The files in the cache, sorted by name.
    fn cached(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(self.path("cache")).into_iter().flatten();
        let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
        files.sort();
        files
    }

    fn only_cached(&self) -> PathBuf {
        let [file] = self.cached().try_into().unwrap();
        file
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn builder() -> Builder {
    Model::builder().cpu().threads(2)
}

/// A fingerprint of the logits after a prompt.
fn logits(model: &Model) -> u32 {
    let tokens: Vec<u32> = (0..40).map(|i| i * 7 % 300).collect();
    let mut bytes = Vec::new();
    for logit in model.sequence(64).unwrap().feed(&tokens).unwrap() {
        bytes.extend(logit.to_le_bytes());
    }
    crc32fast::hash(&bytes)
}

/// Loads the model with the cache; returns its logits, and whether they were computed from the cache.
fn load(builder: &Builder, cache: WeightCache, path: &Path) -> (u32, bool) {
    let model = builder.clone().weight_cache(cache).load(path).unwrap();
    model.finish_caching().unwrap();
    (logits(&model), model.is_cached())
}

/// Whether the processor has no kernels for repacked weights, so that nothing is ever cached.
fn nothing_to_test() -> bool {
    !repacks(Isa::detect())
}

/// A directory with a 1-bit model, if there is something to test.
fn one_bit(name: &str) -> Option<(Dir, PathBuf)> {
    let dir = Dir::new(name);
    let path = dir.path("model.gguf");
    fs::write(&path, model::Model::tiny(Format::Q1_0)).unwrap();
    (!nothing_to_test()).then_some((dir, path))
}

#[test]
fn the_second_load_takes_the_weights_from_the_cache() {
    if nothing_to_test() {
        return;
    }
    let formats =
        [Format::Q1_0, Format::Pq2_0, Format::Tq2_0, Format::Tq2_0G128, Format::Ptq1_0, Format::Tq1_0];
    for format in formats {
        let dir = Dir::new(&format!("second-{}", format.name()));
        let path = dir.path("model.gguf");
        fs::write(&path, model::Model::tiny(format)).unwrap();
        let expected = logits(&builder().load(&path).unwrap());
        assert_eq!(load(&builder(), dir.cache(), &path), (expected, false), "{format:?}");
        let before = fs::read(dir.only_cached()).unwrap();
        assert_eq!(load(&builder(), dir.cache(), &path), (expected, true), "{format:?}");
        assert_eq!(fs::read(dir.only_cached()).unwrap(), before);
    }
}

#[test]
fn all_files_of_a_model_are_cached() {
    if nothing_to_test() {
        return;
    }
    let dir = Dir::new("parts");
    let parts = shohin_tests::parts::split(&model::Model::tiny(Format::Ptq1_0), 7, false).unwrap();
    let name = |i: usize| dir.path(&format!("model-{i:05}-of-{:05}.gguf", parts.len()));
    assert!(parts.len() > 2);
    for (i, part) in parts.iter().enumerate() {
        fs::write(name(i + 1), part).unwrap();
    }
    let expected = logits(&builder().load(name(1)).unwrap());
    assert_eq!(load(&builder(), dir.cache(), &name(1)), (expected, false));
    // Any of the files names the model.
    assert_eq!(load(&builder(), dir.cache(), &name(2)), (expected, true));
    assert_eq!(dir.cached().len(), 1);
}

#[test]
fn damaged_files_are_replaced() {
    let Some((dir, path)) = one_bit("damaged") else { return };
    let expected = load(&builder(), dir.cache(), &path).0;
    let file = dir.only_cached();
    let intact = fs::read(&file).unwrap();
    // Magic number, checksum, length, and as many bytes; then padding.
    let header = 16 + u32::from_le_bytes(*intact[12..].first_chunk().unwrap()) as usize;
    let start = 4096;
    assert!(header < start);
    let damages: Vec<Vec<u8>> = (0..header)
        .step_by(7)
        .chain([start, start + 12_345, intact.len() - 4096])
        .map(|at| {
            let mut damaged = intact.clone();
            damaged[at] ^= 0x20;
            damaged
        })
        .chain([0, 5, 100, start, start + 1000, intact.len() - 4096].map(|len| intact[..len].to_vec()))
        .collect();
    for damaged in damages {
        fs::write(&file, &damaged).unwrap();
        assert_eq!(load(&builder(), dir.cache(), &path), (expected, false));
        assert!(fs::read(&file).unwrap() == intact, "it was written again");
    }
    assert_eq!(load(&builder(), dir.cache(), &path), (expected, true));
}

#[test]
fn weights_of_other_files_or_for_other_kernels_are_not_used() {
    if nothing_to_test() {
        return;
    }
    let dir = Dir::new("foreign");
    let path = dir.path("model.gguf");
    let first = model::Model::tiny(Format::Ptq1_0);
    let mut other = first.clone();
    // Digits of the last matrix.
    let at = other.len() - 1000;
    other[at..at + 20].reverse();
    fs::write(&path, &first).unwrap();
    let then = fs::metadata(&path).unwrap().modified().unwrap();
    let expected = load(&builder(), dir.cache(), &path).0;
    // Another layout has a file of its own.
    assert_eq!(load(&builder().compact(true), dir.cache(), &path).0, expected);
    assert!(!load(&builder().isa("scalar"), dir.cache(), &path).1);
    // Another model of the same name, size and date.
    fs::write(&path, &other).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_modified(then).unwrap();
    let changed = logits(&builder().load(&path).unwrap());
    assert_ne!(changed, expected);
    #[cfg(unix)]
    assert_eq!(load(&builder(), dir.cache(), &path), (changed, false));
    fs::File::options().write(true).open(&path).unwrap().set_modified(SystemTime::now()).unwrap();
    assert_eq!(load(&builder(), dir.cache(), &path), (changed, false));
    assert_eq!(load(&builder(), dir.cache(), &path), (changed, true));
}

#[test]
fn what_was_not_used_for_long_is_deleted() {
    if nothing_to_test() {
        return;
    }
    let dir = Dir::new("limit");
    let paths = ["a", "b", "c"].map(|name| dir.path(&format!("{name}.gguf")));
    for path in &paths {
        fs::write(path, model::Model::tiny(Format::Q1_0)).unwrap();
    }
    load(&builder(), dir.cache(), &paths[0]);
    let first = dir.only_cached();
    let len = fs::metadata(&first).unwrap().len();
    let age = |file: &Path, seconds: u64| {
        let file = fs::File::options().write(true).open(file).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
    };
    load(&builder(), dir.cache(), &paths[1]);
    let second = dir.cached().into_iter().find(|file| *file != first).unwrap();
    age(&first, 200);
    age(&second, 100);
    let abandoned = dir.path("cache/unfinished-1");
    let recent = dir.path("cache/unfinished-2");
    fs::write(&abandoned, "").unwrap();
    fs::write(&recent, "").unwrap();
    age(&abandoned, 4000);
    // Use counts, not when it was written.
    assert!(load(&builder(), dir.cache(), &paths[0]).1);
    load(&builder(), dir.cache().limit(2 * len), &paths[2]);
    assert!(first.exists() && !second.exists());
    assert!(!abandoned.exists() && recent.exists());
    fs::remove_file(&recent).unwrap();
    assert_eq!(dir.cached().len(), 2);
    // A model that is larger than the limit is not written, and small ones are not, either.
    load(&builder(), dir.cache().limit(len / 2), &paths[1]);
    load(&builder(), dir.cache().smallest(1 << 30), &paths[1]);
    assert_eq!(dir.cached().len(), 2);
}

#[test]
fn a_cache_that_cannot_be_written_is_reported() {
    let Some((dir, path)) = one_bit("unwritable") else { return };
    fs::write(dir.path("cache"), "a file where a directory should be").unwrap();
    let model = builder().weight_cache(dir.cache()).load(&path).unwrap();
    assert!(matches!(model.finish_caching(), Err(Error::File(FileError::Io { .. }))));
    assert_eq!(logits(&model), logits(&builder().load(&path).unwrap()));
}
