//! `cargo xtask wasm-pack`: the commands of wasm-pack that wasm/README.md names, as a web developer types them.

use crate::command::{Cmd, Result};
use crate::machine::{CHROMEDRIVER, CHROMIUM, Machine, Need, WASM};
use std::fs;

/// The version from crates.io.
const VERSION: &str = "0.15.1";

/// Builds the package, and runs its tests in Node, Chromium and, where there is geckodriver, Firefox.
pub(crate) fn run(machine: &mut Machine) -> Result<()> {
    let needs = [Need::Target(WASM), Need::Node, Need::Program(&CHROMIUM), Need::Program(&CHROMEDRIVER)];
    machine.prepare(&needs);
    if let Some(why) = needs.iter().find_map(|need| machine.absent(*need)) {
        return Err(format!("wasm-pack cannot be tried: {why}"));
    }
    let root = machine.target.join("wasm-pack");
    let program = root.join("bin/wasm-pack");
    if !program.exists() {
        let install = machine.cargo().args("install wasm-pack --locked --version").arg(VERSION);
        install.arg("--root").arg(&root).arg("--target-dir").arg(root.join("build")).run()?;
    }
    let wasm_pack = |args: &str| Cmd::new(&program, &machine.root).args(args);
    wasm_pack("build wasm --target web").run()?;
    let made = machine.root.join("wasm/pkg");
    for name in ["shohin_wasm.js", "shohin_wasm.d.ts", "shohin_wasm_bg.wasm", "package.json", "README.md"] {
        let path = made.join(name);
        if !fs::metadata(&path).is_ok_and(|file| file.len() > 0) {
            return Err(format!("wasm-pack build wrote no {}", path.display()));
        }
    }
    let drivers = [machine.program(&CHROMEDRIVER)?];
    let folders = drivers.iter().filter_map(|driver| driver.parent().map(std::path::Path::to_path_buf));
    let old = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(folders.chain(std::env::split_paths(&old))).map_err(|e| e.to_string())?;
    let mut browsers = vec!["--node", "--headless --chrome"];
    match machine.cmd("geckodriver").arg("--version").read() {
        Ok(_) => browsers.push("--headless --firefox"),
        Err(_) => {
            println!("xtask: without geckodriver, nothing is tested in Firefox (`cargo install geckodriver`)")
        }
    }
    for browser in browsers {
        let tally = wasm_pack(&format!("test {browser} wasm")).env("PATH", &path).tests()?;
        if tally.passed == 0 {
            return Err(format!("wasm-pack test {browser} wasm ran no tests"));
        }
    }
    Ok(())
}
