//! A reply in asynchronous code: `cargo run --release --features stream --example stream [MODEL.gguf]`. Any executor does; here it is
//! `pollster`, which waits on this thread.

use futures_core::Stream;
use shohin::{Chat, Model, Piece, ReplyStream, Result};
use std::future::poll_fn;
use std::pin::Pin;

/// `StreamExt::next` of the crate `futures`, or of `tokio-stream`.
async fn next(reply: &mut ReplyStream) -> Option<Result<Piece>> {
    poll_fn(|cx| Pin::new(&mut *reply).poll_next(cx)).await
}

/// Sends a message, tells `watch` each text, and gives the chat back.
pub(crate) async fn send(chat: Chat, text: &str, mut watch: impl FnMut(&str)) -> Result<Chat> {
    let mut reply = chat.stream(text)?;
    while let Some(piece) = next(&mut reply).await {
        watch(&piece?.content);
    }
    reply.chat().await
}

fn main() -> Result<()> {
    let model = std::env::args().nth(1).map_or_else(Model::built_in, Model::load)?;
    pollster::block_on(async {
        let chat = send(model.chat()?, "What does a cow say?", |text| print!("{text}")).await?;
        println!();
        send(chat, "And a dog?", |text| print!("{text}")).await?;
        println!();
        Ok(())
    })
}
