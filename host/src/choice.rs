//! The automatic choice of a device, by a short measurement.

use crate::devices::{DeviceName, Fallback, FoundDevice, other_devices};
use crate::error::Result;
use crate::file::ModelFile;
use crate::model::Model;
use crate::weight_cache::WeightCache;
use sha2::{Digest, Sha256};
use shohin_files::new_file::NewFile;
use std::fmt::Debug;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Tokens per second.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Speeds {
    cpu: f64,
    device: f64,
}

/// What is measured, and where measurements are kept.
pub(crate) struct Choice<'c> {
    pub(crate) file: &'c ModelFile,
    pub(crate) cache: Option<&'c WeightCache>,
    /// The options that speed depends on.
    pub(crate) options: &'c dyn Debug,
}

/// The model on the fastest device, or why that is the CPU.
pub(crate) fn fastest(
    choice: &Choice<'_>,
    load: &dyn Fn(DeviceName) -> Result<Model>,
) -> Result<Result<Model, Fallback>> {
    let (mut reasons, mut found) = (Vec::new(), false);
    for candidate in other_devices() {
        let FoundDevice { name, about, usable, software } = candidate;
        if !usable || software {
            reasons.push(if software { format!("{about} is software") } else { about });
            continue;
        }
        found = true;
        let key = choice.key(&name, &about);
        let known = choice.cache.and_then(|cache| Measurements::of(cache).get(&key));
        if known.is_some_and(|speeds| speeds.device <= speeds.cpu) {
            reasons.push(format!("{about} is slower, as was measured"));
            continue;
        }
        let device = match load(name) {
            Ok(device) => device,
            Err(error) => {
                reasons.push(format!("{about}: {error}"));
                continue;
            }
        };
        if known.is_some() {
            return Ok(Ok(device));
        }
        let cpu = load(DeviceName::Cpu)?;
        let speeds = Speeds { cpu: speed(&cpu)?, device: speed(&device)? };
        if let Some(cache) = choice.cache {
            // Where it cannot be kept, it is measured again.
            let _ = Measurements::of(cache).set(&key, speeds);
        }
        if speeds.device > speeds.cpu {
            return Ok(Ok(device));
        }
        let (device, cpu) = (speeds.device, speeds.cpu);
        reasons.push(format!("{about} is slower: {device:.1} tokens/s, {cpu:.1} on the CPU"));
    }
    if reasons.is_empty() {
        reasons.push(
            "this program was built for no other device; the features gpu, cuda and metal add some".into(),
        );
    }
    Ok(Err(Fallback { reason: reasons.join("; "), found }))
}

impl Choice<'_> {
    /// What a measurement depends on.
    fn key(&self, name: &DeviceName, about: &str) -> String {
        let Choice { file, options, .. } = self;
        let mut hash = Sha256::new();
        hash.update(format!("{} {name} {about} {options:?}\n", env!("CARGO_PKG_VERSION")));
        hash.update(format!("{} {}\n", file.name(), file.file_len()));
        for (path, meta) in file.files() {
            let modified = meta.and_then(|meta| meta.modified()).ok();
            hash.update(format!("{} {modified:?}\n", path.display()));
        }
        hash.finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Tokens per second of a short reply, whatever it says.
fn speed(model: &Model) -> Result<f64> {
    const TOKENS: usize = 16;
    const LONGEST: Duration = Duration::from_millis(500);
    let mut sequence = model.sequence(2 * TOKENS)?;
    // Graphs are recorded, kernels compiled and threads woken by the first.
    for token in 0..4 {
        sequence.feed(&[token])?;
    }
    let (start, mut count) = (Instant::now(), 0);
    while count < TOKENS && start.elapsed() < LONGEST {
        sequence.feed(&[count as u32])?;
        count += 1;
    }
    Ok(count as f64 / start.elapsed().as_secs_f64())
}

/// Measured speeds, in a file beside the repacked weights: a line for each has its key and the tokens per second of the CPU
/// and of the device.
struct Measurements(PathBuf);

/// Maximum number of lines.
const MAX: usize = 200;

impl Measurements {
    fn of(cache: &WeightCache) -> Measurements {
        Measurements(cache.dir().join("measured-devices"))
    }

    fn lines(&self) -> Vec<(String, Speeds)> {
        let line = |line: &str| {
            let mut words = line.split(' ');
            let key = words.next()?.to_string();
            let mut speed = || words.next()?.parse().ok().filter(|speed: &f64| speed.is_finite());
            Some((key, Speeds { cpu: speed()?, device: speed()? }))
        };
        fs::read_to_string(&self.0).unwrap_or_default().lines().filter_map(line).collect()
    }

    fn get(&self, key: &str) -> Option<Speeds> {
        self.lines().into_iter().rev().find(|(known, _)| known == key).map(|(_, speeds)| speeds)
    }

    fn set(&self, key: &str, speeds: Speeds) -> std::io::Result<()> {
        let mut lines = self.lines();
        lines.retain(|(known, _)| known != key);
        lines.push((key.into(), speeds));
        let dir = self.0.parent().unwrap_or(&self.0);
        fs::create_dir_all(dir)?;
        let mut file = NewFile::create(&self.0)?;
        for (key, Speeds { cpu, device }) in &lines[lines.len().saturating_sub(MAX)..] {
            writeln!(file, "{key} {cpu} {device}")?;
        }
        file.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measurements_are_kept_and_the_oldest_are_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let kept = Measurements::of(&WeightCache::in_dir(dir.path().join("new")));
        assert_eq!(kept.get("a"), None);
        let speeds = |cpu| Speeds { cpu, device: 0.5 };
        kept.set("a", speeds(1.0)).unwrap();
        kept.set("a", speeds(2.0)).unwrap();
        assert_eq!(kept.get("a"), Some(speeds(2.0)));
        for i in 0..MAX {
            kept.set(&format!("{i}"), speeds(i as f64)).unwrap();
        }
        assert_eq!((kept.get("a"), kept.get("0")), (None, Some(speeds(0.0))));
        fs::write(&kept.0, "damaged\na 1\nb 1 nan\nc 3 4\n").unwrap();
        assert_eq!(kept.lines(), [("c".into(), Speeds { cpu: 3.0, device: 4.0 })]);
    }

    #[test]
    fn the_speed_of_a_model_is_measured() {
        let model = Model::builder().cpu().load_built_in().unwrap();
        assert!(speed(&model).unwrap() > 1.0);
    }
}
