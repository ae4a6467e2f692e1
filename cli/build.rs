//! Tells the program the commit that it is built from.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let version = match packaged().or_else(checked_out) {
        Some(commit) => format!("{version} ({})", commit.get(..12).unwrap_or(&commit)),
        None => version,
    };
    println!("cargo::rustc-env=SHOHIN_VERSION={version}");
}

/// The commit that Cargo has written into the package.
fn packaged() -> Option<String> {
    let text = fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let digits = text.split("\"sha1\"").nth(1)?.split('"').nth(1)?;
    Some(digits.into())
}

/// The commit that is checked out here.
fn checked_out() -> Option<String> {
    // A package that lies in the repository of something else is not of that commit.
    if !Path::new("../core/Cargo.toml").is_file() {
        return None;
    }
    for name in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--git-path", name])?;
        if Path::new(&path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    git(&["rev-parse", "HEAD"])
}

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().into())
}
