//! `cargo xtask demo`: builds, serves and opens the chat page, or sends one message through it headlessly.

use crate::command::Result;
use crate::machine::{CHROMIUM, Machine, Need};
use crate::{serve, web};

/// The message sent by `--check`.
const QUESTION: &str = "Hello! What can you do?";

pub(crate) struct Options {
    /// Send one message in a headless browser and exit.
    pub(crate) check: bool,
    /// Do not open a browser.
    pub(crate) no_open: bool,
    pub(crate) port: u16,
}

pub(crate) fn demo(machine: &mut Machine, options: &Options) -> Result<()> {
    let mut needs = web::NEEDS.to_vec();
    if options.check {
        needs.push(Need::Program(&CHROMIUM));
    }
    machine.prepare(&needs);
    if let Some(why) = needs.iter().find_map(|need| machine.absent(*need)) {
        return Err(format!("the demo cannot be built: {why}"));
    }
    web::build(machine)?;
    let listener = serve::listen(if options.check { 0 } else { options.port })?;
    let address = listener.local_addr().map_err(|e| format!("the server's address: {e}"))?;
    let url = format!("http://{address}/");
    let root = machine.root.join("web-demo/dist");
    if options.check {
        std::thread::spawn(move || serve::serve(&listener, &root));
        return machine
            .cmd("node")
            .arg(machine.root.join("xtask/ask-page.mjs"))
            .arg(url)
            .arg(QUESTION)
            .env("CHROME", machine.program(&CHROMIUM)?)
            .run();
    }
    println!("\nThe page is at {url} (Ctrl-C ends it)");
    if !options.no_open && !open(machine, &url) {
        println!("Open that address in a browser.");
    }
    serve::serve(&listener, &root);
    Ok(())
}

/// Opens a page in the user's browser. Returns false if there is no display.
fn open(machine: &Machine, url: &str) -> bool {
    let shown = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let opener = match std::env::consts::OS {
        "macos" => "open",
        "windows" => "explorer",
        _ if shown("DISPLAY") || shown("WAYLAND_DISPLAY") => "xdg-open",
        _ => return false,
    };
    machine.cmd(opener).arg(url).spawn().is_ok()
}
