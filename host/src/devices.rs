//! Devices that a model can run on: their names, which this machine has, and the choice among them.

use crate::builder::Builder;
use crate::error::{Error, Result};
use crate::file::ModelFile;
use crate::model::Model;
use crate::new_file::NewFile;
use crate::weight_cache::WeightCache;
use sha2::{Digest, Sha256};
use shohin_core::cpu::Isa;
use std::fmt;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// Where a model runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DeviceName {
    /// The fastest of the devices that this machine has and that this program was built for.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// A GPU whose name contains this, through Vulkan, Metal or Direct3D; the system's choice if it is empty.
    Gpu(String),
    /// An NVIDIA GPU by its number, with CUDA.
    Cuda(usize),
    /// The GPU of a Mac, with Metal.
    Metal,
}

impl FromStr for DeviceName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let found = match text.split_once(':').map_or((text, None), |(kind, rest)| (kind, Some(rest))) {
            ("auto", None) => Some(DeviceName::Auto),
            ("cpu", None) => Some(DeviceName::Cpu),
            ("gpu", name) => Some(DeviceName::Gpu(name.unwrap_or("").into())),
            ("cuda", number) => number.map_or(Some(0), |number| number.parse().ok()).map(DeviceName::Cuda),
            ("metal", None) => Some(DeviceName::Metal),
            _ => None,
        };
        found.ok_or("expected auto, cpu, gpu, gpu:NAME, cuda, cuda:NUMBER or metal")
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceName::Auto => f.write_str("auto"),
            DeviceName::Cpu => f.write_str("cpu"),
            DeviceName::Gpu(name) if name.is_empty() => f.write_str("gpu"),
            DeviceName::Gpu(name) => write!(f, "gpu:{name}"),
            DeviceName::Cuda(number) => write!(f, "cuda:{number}"),
            DeviceName::Metal => f.write_str("metal"),
        }
    }
}

/// A device of this machine, or the reason why there is none of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundDevice {
    /// Its name as an option.
    pub name: DeviceName,
    /// What it is: a GPU's name, or the instruction set and the cores of the CPU. The reason if there is none.
    pub about: String,
    /// Whether a model can run on it.
    pub usable: bool,
    /// Whether it is one in software, which is slower than the CPU by itself.
    pub software: bool,
}

impl FoundDevice {
    fn absent(name: DeviceName, reason: impl fmt::Display) -> FoundDevice {
        FoundDevice { name, about: reason.to_string(), usable: false, software: false }
    }

    fn found(name: DeviceName, about: String) -> FoundDevice {
        FoundDevice { name, about, usable: true, software: false }
    }
}

/// The devices of this machine, the CPU first; of each kind that has none, the reason.
pub fn devices() -> Vec<FoundDevice> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cores = if cores == 1 { "1 core".into() } else { format!("{cores} cores") };
    let cpu = FoundDevice::found(DeviceName::Cpu, format!("{}, {cores}", Isa::detect().name()));
    [vec![cpu], cuda(), metal(), gpus()].concat()
}

#[cfg(feature = "cuda")]
fn cuda() -> Vec<FoundDevice> {
    let names = shohin_cuda::Cuda::names();
    match names.is_empty() {
        true => vec![FoundDevice::absent(
            DeviceName::Cuda(0),
            shohin_cuda::Cuda::open(0).map_or_else(|e| e.to_string(), |_| "it has no name".into()),
        )],
        false => {
            let names = names.into_iter().enumerate();
            names.map(|(i, name)| FoundDevice::found(DeviceName::Cuda(i), name)).collect()
        }
    }
}

#[cfg(not(feature = "cuda"))]
fn cuda() -> Vec<FoundDevice> {
    vec![FoundDevice::absent(DeviceName::Cuda(0), Error::NoCudaSupport)]
}

#[cfg(all(feature = "metal", target_os = "macos"))]
fn metal() -> Vec<FoundDevice> {
    use shohin_metal::Driver;
    vec![match shohin_metal::Metal::open() {
        Ok(metal) => FoundDevice::found(DeviceName::Metal, metal.name().into()),
        Err(error) => FoundDevice::absent(DeviceName::Metal, error),
    }]
}

#[cfg(not(all(feature = "metal", target_os = "macos")))]
fn metal() -> Vec<FoundDevice> {
    vec![FoundDevice::absent(DeviceName::Metal, Error::NoMetalSupport)]
}

#[cfg(feature = "gpu")]
fn gpus() -> Vec<FoundDevice> {
    let mut found: Vec<FoundDevice> = pollster::block_on(shohin_gpu::Gpu::adapters())
        .into_iter()
        .map(|(name, software)| FoundDevice {
            software,
            ..FoundDevice::found(DeviceName::Gpu(name.clone()), name)
        })
        .collect();
    if found.is_empty() {
        found.push(FoundDevice::absent(DeviceName::Gpu(String::new()), "no driver offers a GPU"));
    }
    found
}

#[cfg(not(feature = "gpu"))]
fn gpus() -> Vec<FoundDevice> {
    vec![FoundDevice::absent(DeviceName::Gpu(String::new()), Error::NoGpuSupport)]
}

/// Why a model that could have run on another device runs on the CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// The reason, on one line.
    pub reason: String,
    /// Whether there is such a device.
    pub found: bool,
}

/// Whether this program was built for the devices of a kind.
fn built(name: &DeviceName) -> bool {
    match name {
        DeviceName::Auto | DeviceName::Cpu => true,
        DeviceName::Gpu(_) => cfg!(feature = "gpu"),
        DeviceName::Cuda(_) => cfg!(feature = "cuda"),
        DeviceName::Metal => cfg!(all(feature = "metal", target_os = "macos")),
    }
}

/// Tokens per second.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Speeds {
    cpu: f64,
    device: f64,
}

impl Builder {
    /// Loads the model on the fastest device that there is.
    pub(crate) fn load_on_best(&self, file: &ModelFile) -> Result<Model> {
        let on = |name| self.clone().device(name);
        let mut candidates: Vec<FoundDevice> = Vec::new();
        if [DeviceName::Cuda(0), DeviceName::Metal, DeviceName::Gpu(String::new())].iter().any(built) {
            candidates = [cuda(), metal(), gpus()].concat();
            candidates.retain(|device| built(&device.name));
        }
        let (mut reasons, mut found) = (Vec::new(), false);
        for candidate in candidates {
            let FoundDevice { name, about, usable, software } = candidate;
            if !usable || software {
                reasons.push(if software { format!("{about} is software") } else { about });
                continue;
            }
            found = true;
            let key = self.measurement_key(file, &name, &about);
            let known = self.cache().and_then(|cache| Measurements::of(cache).get(&key));
            if known.is_some_and(|speeds| speeds.device <= speeds.cpu) {
                reasons.push(format!("{about} is slower, as was measured"));
                continue;
            }
            let device = match on(name).load_file(file) {
                Ok(device) => device,
                Err(error) => {
                    reasons.push(format!("{about}: {error}"));
                    continue;
                }
            };
            if known.is_some() {
                return Ok(device);
            }
            let cpu = on(DeviceName::Cpu).load_file(file)?;
            let speeds = Speeds { cpu: speed(&cpu)?, device: speed(&device)? };
            if let Some(cache) = self.cache() {
                // Where it cannot be kept, it is measured again.
                let _ = Measurements::of(cache).set(&key, speeds);
            }
            if speeds.device > speeds.cpu {
                return Ok(device);
            }
            reasons.push(format!(
                "{about} is slower: {:.1} tokens/s, {:.1} on the CPU",
                speeds.device, speeds.cpu
            ));
        }
        if reasons.is_empty() {
            reasons.push(
                "this program was built for no other device; the features gpu, cuda and metal add some"
                    .into(),
            );
        }
        let fallback = Fallback { reason: reasons.join("; "), found };
        on(DeviceName::Cpu).load_with(file, Some(fallback))
    }

    /// What a measurement depends on.
    fn measurement_key(&self, file: &ModelFile, name: &DeviceName, about: &str) -> String {
        let mut hash = Sha256::new();
        hash.update(format!("{} {name} {about} {:?}\n", env!("CARGO_PKG_VERSION"), self.measured()));
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

/// Most lines that are kept.
const MOST: usize = 200;

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
        for (key, Speeds { cpu, device }) in &lines[lines.len().saturating_sub(MOST)..] {
            writeln!(file, "{key} {cpu} {device}")?;
        }
        file.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for text in ["auto", "cpu", "gpu", "gpu:NVIDIA RTX: 4090", "cuda:0", "cuda:3", "metal"] {
            assert_eq!(text.parse::<DeviceName>().unwrap().to_string(), text);
        }
        assert_eq!("cuda".parse(), Ok(DeviceName::Cuda(0)));
        for wrong in ["", "cuda:", "cuda:x", "metal:1", "tpu", "cpu:0"] {
            assert!(wrong.parse::<DeviceName>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn measurements_are_kept_and_the_oldest_are_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let kept = Measurements::of(&WeightCache::in_dir(dir.path().join("new")));
        assert_eq!(kept.get("a"), None);
        let speeds = |cpu| Speeds { cpu, device: 0.5 };
        kept.set("a", speeds(1.0)).unwrap();
        kept.set("a", speeds(2.0)).unwrap();
        assert_eq!(kept.get("a"), Some(speeds(2.0)));
        for i in 0..MOST {
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

    #[test]
    fn every_kind_of_device_is_listed() {
        let all = devices();
        assert!(all[0].name == DeviceName::Cpu && all[0].about.contains("core") && all[0].usable);
        let has = |kind: fn(&DeviceName) -> bool| all.iter().any(|device| kind(&device.name));
        assert!(has(|name| matches!(name, DeviceName::Cuda(_))) && has(|name| *name == DeviceName::Metal));
        assert!(has(|name| matches!(name, DeviceName::Gpu(_))));
    }
}
