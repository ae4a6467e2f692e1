//! Several chats at once over one model: `cargo run --release --example several_chats [MODEL.gguf]`. Each has a thread and a KV cache;
//! `Scheduler` computes many replies together instead, and reads the weights once for all of them.

use shohin::{Model, Result};
use std::thread;

/// The replies to some messages, each in a chat of its own.
pub(crate) fn ask_all(model: &Model, texts: &[&str]) -> Result<Vec<String>> {
    thread::scope(|scope| {
        let chats: Vec<_> = texts.iter().map(|text| scope.spawn(|| model.chat()?.ask(*text))).collect();
        chats.into_iter().map(|chat| chat.join().expect("no thread panics")).collect()
    })
}

fn main() -> Result<()> {
    let model = std::env::args().nth(1).map_or_else(Model::built_in, Model::load)?;
    let texts = ["What does a cow say?", "What does a dog say?", "What color is the sky?"];
    for (text, reply) in texts.iter().zip(ask_all(&model, &texts)?) {
        println!("{text} {reply}");
    }
    Ok(())
}
