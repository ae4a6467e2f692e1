//! `cargo xtask clients`: conversations with a tool through the clients of PyPI and npm, against the program.

use crate::command::{Cmd, Result};
use crate::machine::{Machine, PYTHON};
use crate::package::{CLI, PROGRAM, SERVER};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread;

/// Python environments, since not all packages agree on the versions of others: the names of `tests/clients/clients.py`, and their packages.
const PYTHON_CLIENTS: [(&str, &str); 2] = [
    (
        "openai anthropic ollama langchain_openai langchain_anthropic langchain_ollama pydantic_ai openai_agents llm",
        "openai anthropic ollama langchain-openai langchain-anthropic langchain-ollama pydantic-ai-slim[openai,anthropic] openai-agents llm",
    ),
    ("litellm instructor", "litellm instructor"),
];

const NPM_CLIENTS: &str = "ai @ai-sdk/openai @ai-sdk/openai-compatible @ai-sdk/anthropic ollama openai @anthropic-ai/sdk \
                           @langchain/openai @langchain/core zod";

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the program with the built-in model as if it had been trained with tools. Returns its address, too.
fn serve(machine: &Machine) -> Result<(Server, String)> {
    machine.cargo().args("build --profile suite").packages(&[CLI]).run()?;
    let model = machine.tools().join("clients/tools.gguf");
    let write = machine.cargo().args("run --profile suite").packages(&[SERVER]);
    write.args("--example tool_model --").arg(&model).run()?;
    let program = machine.target.join("suite").join(PROGRAM);
    let mut server = Command::new(program);
    server.args(["serve", "--port", "0", "--context", "4096", "--name", "sprout", "--model"]).arg(model);
    server.stdin(Stdio::null()).stderr(Stdio::piped()).stdout(Stdio::null());
    let mut server = Server(server.spawn().map_err(|e| format!("{PROGRAM}: {e}"))?);
    let said = server.0.stderr.take().ok_or("the server has no output")?;
    let mut lines = BufReader::new(said).lines();
    let address = lines.by_ref().map_while(std::result::Result::ok).find_map(|line| {
        let (_, rest) = line.split_once(" at http://")?;
        Some(format!("http://{}", rest.split('/').next()?))
    });
    let address = address.ok_or("the server does not say where it listens")?;
    // It would wait on a full pipe.
    thread::spawn(move || lines.for_each(drop));
    Ok((server, address))
}

/// Installs the newest clients, runs them in turn and prints a line for each.
pub(crate) fn clients(machine: &Machine) -> Result<()> {
    let home = machine.tools().join("clients");
    std::fs::create_dir_all(home.join("npm")).map_err(|e| format!("{}: {e}", home.display()))?;
    let (_server, address) = serve(machine)?;
    let mut said = String::new();
    for (i, (names, packages)) in PYTHON_CLIENTS.into_iter().enumerate() {
        let home = home.join(format!("python{i}"));
        Cmd::new(machine.program(&PYTHON)?, &machine.root).args("-m venv").arg(&home).run()?;
        let python = home.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" });
        Cmd::new(&python, &machine.root).args("-m pip install -q -U").args(packages).run()?;
        let script = Cmd::new(&python, &machine.root).arg("tests/clients/clients.py").arg(&address);
        said += &script.arg("sprout").args(names).read()?;
    }
    let npm = home.join("npm");
    std::fs::write(npm.join("package.json"), "{\"private\": true}\n").map_err(|e| e.to_string())?;
    let script = npm.join("clients.mjs");
    std::fs::copy(machine.root.join("tests/clients/clients.mjs"), &script).map_err(|e| e.to_string())?;
    machine.cmd("npm").dir(&npm).args("install --silent").args(NPM_CLIENTS).run()?;
    said += &machine.cmd("node").dir(&npm).arg(&script).arg(&address).arg("sprout").read()?;
    let lines: Vec<&str> = said.lines().filter(|line| line.contains(" | ")).collect();
    lines.iter().for_each(|line| println!("| {line} |"));
    match lines.iter().filter(|line| line.contains("FAILED")).count() {
        0 => Ok(()),
        failed => Err(format!("{failed} of {} clients failed", lines.len())),
    }
}
