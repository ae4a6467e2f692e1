//! `cargo xtask package`: what is published, packed into a folder and tried from there.

use crate::command::{Cmd, Result};
use crate::machine::{Machine, Need};
use crate::{package, web};
use std::fs;
use std::path::{Path, PathBuf};

/// The crates, each after those that it depends on.
const CRATES: [&str; 11] = [
    package::CORE,
    package::FILES,
    package::CONVERT,
    package::ACCELERATOR,
    package::CUDA,
    package::GPU,
    package::METAL,
    package::TRAIN,
    package::HOST,
    package::SERVER,
    package::CLI,
];

/// The program of the README.
const PROGRAM: &str = r#"use shohin::Model;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = Model::built_in()?;
    for piece in model.chat()?.send("What does a cow say?")? {
        print!("{}", piece?.text);
    }
    Ok(())
}
"#;

/// What the built-in model answers.
const ANSWER: &str = "A cow says moo.";

/// Packs crates and the npm package into `out`, and runs the README's lines and the program from what is in the packages.
pub(crate) fn run(machine: &mut Machine, out: &Path) -> Result<()> {
    let failed = |path: &Path, e: std::io::Error| format!("{}: {e}", path.display());
    fs::create_dir_all(out).map_err(|e| failed(out, e))?;
    let out = out.canonicalize().map_err(|e| failed(out, e))?;
    let target = machine.target.join("package-crates");
    let pack = machine.cargo().args("package --no-verify --allow-dirty").packages(&CRATES);
    pack.arg("--target-dir").arg(&target).run()?;
    let mut packed = Vec::new();
    for name in CRATES {
        let file = format!("{name}-{}.crate", env!("CARGO_PKG_VERSION"));
        let to = out.join(&file);
        fs::copy(target.join("package").join(&file), &to).map_err(|e| failed(&to, e))?;
        packed.push(to);
    }
    from_crates(machine, &packed)?;
    packed.push(npm(machine, &out)?);
    let mut sums = Cmd::new("sha256sum", &out);
    for path in &packed {
        let name = path.file_name().unwrap_or_default();
        println!("{:>10} bytes  {}", fs::metadata(path).map_or(0, |file| file.len()), name.display());
        sums = sums.arg(name);
    }
    let list = out.join("SHA256SUMS");
    fs::write(&list, sums.read()?).map_err(|e| failed(&list, e))
}

/// Builds the README's program, and `shohin`, from the packed crates in a folder that has nothing else.
fn from_crates(machine: &Machine, packed: &[PathBuf]) -> Result<()> {
    let folder = machine.target.join("package-tried");
    let failed = |e: std::io::Error| format!("{}: {e}", folder.display());
    let _ = fs::remove_dir_all(folder.join("crates"));
    fs::create_dir_all(folder.join("crates")).map_err(failed)?;
    fs::create_dir_all(folder.join("src")).map_err(failed)?;
    for file in packed {
        Cmd::new("tar", &folder).args("-xzf").arg(file).args("-C crates").run()?;
    }
    let place = |name: &str| format!("crates/{name}-{}", env!("CARGO_PKG_VERSION"));
    let patch = |at: &str| -> String {
        CRATES.iter().map(|name| format!("{name} = {{ path = \"{at}{}\" }}\n", place(name))).collect()
    };
    let manifest = format!(
        "[package]\nname = \"tried\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n[dependencies]\nshohin = \"{}\"\n\n[patch.crates-io]\n{}",
        env!("CARGO_PKG_VERSION"),
        patch("")
    );
    fs::write(folder.join("Cargo.toml"), manifest).map_err(failed)?;
    fs::write(folder.join("src/main.rs"), PROGRAM).map_err(failed)?;
    let cargo = |args: &str| {
        let cmd = Cmd::new("cargo", &folder).args(args);
        cmd.env("CARGO_TARGET_DIR", folder.join("target"))
    };
    answers(&cargo("run --release --quiet"))?;
    // Installing has no manifest to patch: the configuration of the folder does it.
    fs::create_dir_all(folder.join(".cargo")).map_err(failed)?;
    let at = format!("{}/", folder.display());
    let config = format!("[patch.crates-io]\n{}", patch(&at));
    fs::write(folder.join(".cargo/config.toml"), config).map_err(failed)?;
    let root = folder.join("installed");
    cargo("install --force --path").arg(place(package::CLI)).arg("--root").arg(&root).run()?;
    let shohin = root.join("bin").join(package::PROGRAM);
    answers(&Cmd::new(shohin, &folder).args("run").arg("What does a cow say?"))
}

/// Checks that a program says what the built-in model answers.
fn answers(program: &Cmd) -> Result<()> {
    let said = program.read()?;
    match said.trim() == ANSWER {
        true => Ok(()),
        false => Err(format!("{program} said {said:?}, expected {ANSWER:?}")),
    }
}

/// Packs the npm package, asks npm whether it would publish it, and chats with it from an empty folder.
fn npm(machine: &mut Machine, out: &Path) -> Result<PathBuf> {
    machine.prepare(web::NEEDS);
    if let Some(why) = web::NEEDS.iter().find_map(|need: &Need| machine.absent(*need)) {
        return Err(format!("the npm package cannot be packed: {why}"));
    }
    web::build(machine)?;
    machine.cmd("npm").args("pack --silent --workspace wasm --pack-destination").arg(out).run()?;
    let file = out.join(format!("shohin-{}.tgz", env!("CARGO_PKG_VERSION")));
    machine.cmd("npm").args("publish --dry-run --silent").arg(&file).run()?;
    let folder = machine.target.join("package-tried/npm");
    let failed = |e: std::io::Error| format!("{}: {e}", folder.display());
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).map_err(failed)?;
    fs::write(folder.join("package.json"), "{\"type\": \"module\"}\n").map_err(failed)?;
    let program = "import { Engine } from \"shohin\";\nconst engine = await Engine.load(process.argv[2]);\nfor await (const { text } of engine.chat([{ role: \"user\", content: \"What does a cow say?\" }])) process.stdout.write(text);\nawait engine.dispose();\n";
    fs::write(folder.join("chat.mjs"), program).map_err(failed)?;
    machine
        .cmd("npm")
        .args("install --silent --no-audit --no-fund --omit=peer --prefix")
        .arg(&folder)
        .arg(&file)
        .run()?;
    answers(&machine.cmd("node").arg(folder.join("chat.mjs")).arg(machine.root.join("models/sprout.gguf")))?;
    Ok(file)
}
