//! `cargo xtask pictures`: the README's pictures, made from the running page and program.

use std::path::Path;

use crate::command::{Cmd, Result};
use crate::machine::{CHROMIUM, Machine, Need, PYTHON};
use crate::{serve, web};

/// The question in the page.
const QUESTION: &str = "Tell me a story about a robot, a key and a boat.";
/// The conversation in the terminal, in answers of one line.
const CHAT: [&str; 4] =
    ["Hi! My name is Zoe.", "What does a cow say?", "What is 2 plus 5?", "What is my name?"];
/// The PyPI packages for recording the terminal: a pseudo-terminal, a terminal emulator, and its screen as
/// SVG.
const PACKAGES: &str = "pexpect pyte rich";

/// Writes `docs/pictures/page.png` and `docs/pictures/terminal.svg`.
pub(crate) fn pictures(machine: &mut Machine) -> Result<()> {
    let mut needs = web::NEEDS.to_vec();
    needs.extend([Need::Program(&CHROMIUM), Need::Program(&PYTHON)]);
    machine.prepare(&needs);
    if let Some(why) = needs.iter().find_map(|need| machine.absent(*need)) {
        return Err(format!("the pictures cannot be made: {why}"));
    }
    let out = machine.root.join("docs/pictures");
    std::fs::create_dir_all(&out).map_err(|e| format!("{}: {e}", out.display()))?;
    page(machine, &out.join("page.png"))?;
    terminal(machine, &out.join("terminal.svg"))
}

fn page(machine: &mut Machine, picture: &Path) -> Result<()> {
    web::build(machine)?;
    let listener = serve::listen(0)?;
    let address = listener.local_addr().map_err(|e| format!("the server's address: {e}"))?;
    let root = machine.root.join("web-demo/dist");
    std::thread::spawn(move || serve::serve(&listener, &root));
    machine
        .cmd("node")
        .arg(machine.root.join("xtask/ask-page.mjs"))
        .arg(format!("http://{address}/"))
        .arg(QUESTION)
        .arg(picture)
        .env("CHROME", machine.program(&CHROMIUM)?)
        .run()
}

fn terminal(machine: &Machine, picture: &Path) -> Result<()> {
    machine.cargo().args("build --release --package shohin-cli").run()?;
    let home = machine.tools().join("terminal");
    let python = home.join("bin/python");
    Cmd::new(machine.program(&PYTHON)?, &machine.root).args("-m venv").arg(&home).run()?;
    let pip = Cmd::new(&python, &machine.root).args("-m pip install --quiet --disable-pip-version-check");
    pip.args(PACKAGES).run()?;
    let record = Cmd::new(&python, &machine.root)
        .arg(machine.root.join("xtask/record-terminal.py"))
        .arg(picture)
        .arg(machine.target.join("release/shohin"));
    CHAT.iter().fold(record, |record, message| record.arg(message)).run()
}
