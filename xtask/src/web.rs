//! The web side: WebAssembly module, its JavaScript glue, the npm package, the page.

use crate::command::Result;
use crate::machine::{Machine, Need};

/// The target of everything that runs in a browser.
pub(crate) const WASM: &str = "wasm32-unknown-unknown";

/// What building the page takes.
pub(crate) const NEEDS: &[Need] = &[Need::Target(WASM), Need::Bindgen, Need::Node, Need::NodeModules];

/// Compiles the module and writes its glue to `wasm/pkg`, as wasm-pack would.
pub(crate) fn module(machine: &Machine) -> Result<()> {
    // In wasm/ cargo reads wasm/.cargo/config.toml, which turns simd128 on.
    machine
        .cargo_for(WASM)
        .dir(machine.root.join("wasm"))
        .args("build --release --target")
        .arg(WASM)
        .run()?;
    let built = machine.target_of(WASM).join(WASM).join("release/shohin_wasm.wasm");
    machine.cmd("shohin-bindgen").arg(built).arg(machine.root.join("wasm/pkg")).arg("shohin_wasm").run()
}

/// Builds the npm package and the page; the page is then in `web-demo/dist`.
pub(crate) fn build(machine: &Machine) -> Result<()> {
    module(machine)?;
    machine.cmd("npm").args("run --silent build").run()
}
