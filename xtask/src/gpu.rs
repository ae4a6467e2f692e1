//! `cargo xtask gpu`: every GPU of this machine compared with the CPU, measured, and used by a server under load.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::command::{Cmd, Result};
use crate::machine::Machine;
use crate::package::{CLI, PROGRAM, TESTS};
use crate::soak;

/// Formats that together reach every way in which a kernel reads weights.
const FORMATS: [&str; 6] = ["q1_0", "pq2_0", "tq1_0", "q4_k", "q8_0", "f16"];

/// What is measured: a shape and a format.
const MODELS: [(&str, &str); 4] = [("1.7b", "q1_0"), ("1.7b", "pq2_0"), ("8b", "q1_0"), ("8b", "pq2_0")];

#[derive(Default)]
pub(crate) struct Options {
    /// Only devices whose names begin with this.
    pub(crate) device: Option<String>,
    /// Drivers in software, too, with small models.
    pub(crate) software: bool,
}

struct Device {
    name: String,
    about: String,
    software: bool,
}

/// Writes a report, and returns whether every comparison passed.
pub(crate) fn gpu(machine: &Machine, options: &Options) -> Result<bool> {
    let features = if cfg!(target_os = "macos") { "gpu,metal" } else { "gpu,cuda" };
    let features: Vec<String> = features.split(',').map(|feature| format!("{CLI}/{feature}")).collect();
    let build = machine.cargo().args("build --release --bins").packages(&[CLI, TESTS]);
    build.arg("--features").arg(features.join(",")).run()?;
    let bench = Bench { machine, dir: machine.target.join("gpu") };
    std::fs::create_dir_all(&bench.dir).map_err(|e| format!("{}: {e}", bench.dir.display()))?;
    let devices = devices(&bench.program().args("inspect --devices --json").read()?, options)?;
    let (mut report, mut right) = (String::new(), true);
    for device in &devices {
        println!("\n== {}: {}", device.name, device.about);
        report += &format!("## {}\n\n{}\n\n", device.name, device.about);
        let (text, passed) = bench.parity(device)?;
        report += &format!("{text}\n{}\n", bench.speed(device)?);
        right &= passed;
        let requests = if device.software { 30 } else { 2000 };
        soak::soak_server(machine, &bench.path(), &requests.to_string(), &["--device", &device.name])?;
        report += &format!(
            "`cargo xtask soak`: {requests} requests to a server on it were answered as they should be.\n\n"
        );
    }
    let file = bench.dir.join("report.md");
    std::fs::write(&file, &report).map_err(|e| format!("{}: {e}", file.display()))?;
    println!("\n{report}The report is {}", file.display());
    Ok(right)
}

/// The usable devices other than the CPU.
fn devices(json: &str, options: &Options) -> Result<Vec<Device>> {
    let list: Value = serde_json::from_str(json).map_err(|e| format!("the list of devices: {e}"))?;
    let all = list["devices"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    let (mut found, mut reasons) = (Vec::new(), Vec::new());
    for entry in all.iter().filter(|entry| entry["device"] != "cpu") {
        let device = Device {
            name: text(&entry["device"]),
            about: text(&entry["about"]),
            software: entry["software"] == true,
        };
        if options.device.as_ref().is_some_and(|prefix| !device.name.starts_with(prefix)) {
            continue;
        }
        if entry["usable"] != true {
            reasons.push(format!("{}: {}", device.name, device.about));
        } else if device.software && !options.software {
            reasons.push(format!("{}: in software (--software measures it)", device.name));
        } else {
            found.push(device);
        }
    }
    match found.is_empty() {
        true => Err(format!("no GPU can be used here; {}", reasons.join("; "))),
        false => Ok(found),
    }
}

struct Bench<'m> {
    machine: &'m Machine,
    /// Models and the report.
    dir: PathBuf,
}

impl Bench<'_> {
    fn path(&self) -> PathBuf {
        self.machine.target.join("release").join(PROGRAM)
    }

    fn program(&self) -> Cmd {
        self.machine.cmd(&self.path().to_string_lossy())
    }

    /// A model with random weights.
    fn model(&self, name: &str, synth: &str) -> Result<PathBuf> {
        let file = self.dir.join(format!("{name}.gguf"));
        if !file.is_file() {
            let part = file.with_extension("part");
            let program = self.machine.target.join("release/synth");
            self.machine.cmd(&program.to_string_lossy()).args(synth).arg(&part).run()?;
            std::fs::rename(&part, &file).map_err(|e| format!("{}: {e}", file.display()))?;
        }
        Ok(file)
    }

    /// `shohin check` with the built-in model and with a small one of each format.
    fn parity(&self, device: &Device) -> Result<(String, bool)> {
        let mut models = vec![("built-in".to_string(), None)];
        for format in FORMATS {
            let name = format!("0.6b-{format}");
            let file = self.model(&name, &format!("--shape 0.6b --layers 2 --format {format}"))?;
            models.push((name, Some(file)));
        }
        let mut text = String::from("| model | as the CPU | |\n|---|---|---|\n");
        let mut right = true;
        for (name, file) in models {
            let check = with_model(self.program().arg("check"), file.as_deref());
            let said = check.arg("--device").arg(&device.name).read();
            right &= said.is_ok();
            let line = match &said {
                // The last line but one is the GPU's.
                Ok(said) => said.lines().rev().nth(1).unwrap_or_default().trim(),
                Err(why) => why.as_str(),
            };
            println!("{name}: {line}");
            text += &format!("| {name} | {} | {line} |\n", if said.is_ok() { "yes" } else { "NO" });
        }
        Ok((text, right))
    }

    /// `shohin bench`, on the device and on the CPU.
    fn speed(&self, device: &Device) -> Result<String> {
        let mut models = Vec::new();
        for (shape, format) in MODELS.into_iter().filter(|_| !device.software) {
            let name = format!("{shape}-{format}");
            let file = self.model(&name, &format!("--shape {shape} --format {format}"))?;
            models.push((name, Some(file)));
        }
        models.push(("built-in".into(), None));
        let mut text = String::from(
            "| tokens/s (CPU) | prefill 512 | decode 64 | GB/s of weights and cache |\n|---|---:|---:|---:|\n",
        );
        for (name, file) in models {
            let measure = |device: &str| -> Result<Value> {
                let bench = with_model(self.program().args("bench --json"), file.as_deref());
                let bench = bench.args("--prefill 512 --decode 64").arg("--device").arg(device);
                serde_json::from_str(&bench.read()?).map_err(|e| format!("the result of {name}: {e}"))
            };
            let (there, here) = (measure(&device.name)?, measure("cpu")?);
            let speed = |value: &Value, test: usize| -> f64 {
                value["results"][test]["tokens_per_second"].as_f64().unwrap_or_default()
            };
            let bandwidth = there["results"][1]["gigabytes_per_second"].as_f64().unwrap_or_default();
            let row = format!(
                "| {name} | {:.0} ({:.0}) | {:.1} ({:.1}) | {bandwidth:.1} |",
                speed(&there, 0),
                speed(&here, 0),
                speed(&there, 1),
                speed(&here, 1),
            );
            println!("{row}");
            text += &format!("{row}\n");
        }
        Ok(text)
    }
}

fn with_model(cmd: Cmd, file: Option<&Path>) -> Cmd {
    file.into_iter().fold(cmd, |cmd, file| cmd.arg("--model").arg(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = r#"{"devices": [
        {"device": "cpu", "about": "avx2", "software": false, "usable": true},
        {"device": "cuda:0", "about": "there is no driver", "software": false, "usable": false},
        {"device": "gpu:llvmpipe", "about": "llvmpipe", "software": true, "usable": true}]}"#;

    #[test]
    fn without_a_gpu_the_reasons_are_named() {
        let why = devices(LIST, &Options::default()).err().unwrap();
        assert!(why.contains("cuda:0: there is no driver") && why.contains("--software"), "{why}");
        let cuda = Options { device: Some("cuda".into()), software: true };
        assert!(devices(LIST, &cuda).is_err_and(|why| !why.contains("llvmpipe")));
    }

    #[test]
    fn drivers_in_software_are_used_on_request() {
        let found = devices(LIST, &Options { software: true, ..Options::default() }).ok().unwrap();
        assert_eq!(found.iter().map(|device| device.name.as_str()).collect::<Vec<_>>(), ["gpu:llvmpipe"]);
    }
}
