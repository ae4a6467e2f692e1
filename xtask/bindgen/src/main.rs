//! `shohin-bindgen INPUT.wasm OUT_DIR OUT_NAME`: JavaScript glue and TypeScript types for a module, as ES
//! modules for browsers and bundlers (wasm-bindgen's `--target web`).

use anyhow::{Context, bail};

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [input, out_dir, out_name] = args.as_slice() else {
        bail!("usage: shohin-bindgen INPUT.wasm OUT_DIR OUT_NAME")
    };
    let mut bindgen = wasm_bindgen_cli_support::Bindgen::new();
    bindgen.input_path(input).out_name(out_name).web(true)?.typescript(true).omit_default_module_path(false);
    bindgen.generate(out_dir).with_context(|| format!("wasm-bindgen on {input}"))
}
