//! A reply that another thread ends, also while a long prompt is computed: `cargo run --release --example cancel [MODEL.gguf]`.

use shohin::{Model, Result, Step};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The reply to a text until `stopped` is set; `watch` is told its text so far after each step.
pub(crate) fn until(
    model: &Model,
    text: &str,
    stopped: &AtomicBool,
    mut watch: impl FnMut(&str),
) -> Result<String> {
    let mut chat = model.chat()?;
    let mut said = String::new();
    let mut reply = chat.send(text)?;
    while let Some(step) = reply.step() {
        if let Step::Piece(piece) = step? {
            said += &piece.content;
        }
        watch(&said);
        if stopped.load(Ordering::Relaxed) {
            // Text that was held back, such as what may begin a stop string.
            said += &reply.cancel().map(|piece| piece.content).unwrap_or_default();
        }
    }
    Ok(said)
}

fn main() -> Result<()> {
    let model = std::env::args().nth(1).map_or_else(Model::built_in, Model::load)?;
    let stopped = Arc::new(AtomicBool::new(false));
    let enter = Arc::clone(&stopped);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_line(&mut String::new());
        enter.store(true, Ordering::Relaxed);
    });
    println!("(Enter ends the reply.)");
    let said = until(&model, "Tell me a story.", &stopped, |_| ())?;
    println!("{said}");
    Ok(())
}
