//! `shohin-api FILE.json`: the public items in rustdoc's JSON of a crate, one a line.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let Some(file) = std::env::args_os().nth(1) else { return Err("usage: shohin-api FILE.json".into()) };
    // Auto traits and blanket implementations follow from the rest.
    let api =
        public_api::Builder::from_rustdoc_json(file).omit_blanket_impls(true).omit_auto_trait_impls(true);
    for item in api.omit_auto_derived_impls(true).build()?.items() {
        println!("{item}");
    }
    Ok(())
}
