//! Devices that a model can run on: their names, and which this machine has.

use crate::error::{Error, Result};
use shohin_core::cpu::Isa;
use std::fmt;
use std::str::FromStr;

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

/// The devices other than the CPU for which this program was built; of each kind that has none, the reason.
pub(crate) fn other_devices() -> Vec<FoundDevice> {
    if ![DeviceName::Cuda(0), DeviceName::Metal, DeviceName::Gpu(String::new())].iter().any(built) {
        return Vec::new();
    }
    let mut all = [cuda(), metal(), gpus()].concat();
    all.retain(|device| built(&device.name));
    all
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
    fn every_kind_of_device_is_listed() {
        let all = devices();
        assert!(all[0].name == DeviceName::Cpu && all[0].about.contains("core") && all[0].usable);
        let has = |kind: fn(&DeviceName) -> bool| all.iter().any(|device| kind(&device.name));
        assert!(has(|name| matches!(name, DeviceName::Cuda(_))) && has(|name| *name == DeviceName::Metal));
        assert!(has(|name| matches!(name, DeviceName::Gpu(_))));
    }
}
