//! The examples, with the built-in model.

use serde_json::Value;
use shohin::{ChatMessage, Error, Model};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

#[path = "../examples/cancel.rs"]
#[allow(dead_code)]
mod cancel;
#[path = "../examples/embeddings.rs"]
#[allow(dead_code)]
mod embeddings;
#[path = "../examples/schema.rs"]
#[allow(dead_code)]
mod schema;
#[path = "../examples/several_chats.rs"]
#[allow(dead_code)]
mod several_chats;
#[cfg(feature = "stream")]
#[path = "../examples/stream.rs"]
#[allow(dead_code)]
mod stream;
#[path = "../examples/tools.rs"]
#[allow(dead_code)]
mod tools;

const COW: &str = "What does a cow say?";

fn model() -> &'static Model {
    static MODEL: OnceLock<Model> = OnceLock::new();
    MODEL.get_or_init(|| Model::built_in().unwrap())
}

#[test]
fn a_schema_is_kept() {
    let found: Value = serde_json::from_str(&schema::describe(model(), "cow").unwrap()).unwrap();
    assert!(found["name"].is_string() && found["legs"].as_u64().unwrap() <= 8, "{found}");
    assert!(["moo", "woof", "meow"].contains(&found["sound"].as_str().unwrap()), "{found}");
}

#[test]
fn a_tool_is_called() {
    let (calls, answer) = tools::ask(model()).unwrap();
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0].name, "weather");
    let arguments: Value = serde_json::from_str(&calls[0].arguments).unwrap();
    assert!(["Paris", "Rome"].contains(&arguments["city"].as_str().unwrap()), "{arguments}");
    assert!(!answer.is_empty());
}

#[test]
fn another_thread_ends_a_reply() {
    let whole = cancel::until(model(), COW, &AtomicBool::new(false), |_| ()).unwrap();
    assert_eq!(whole, model().chat().unwrap().ask(COW).unwrap());
    let stopped = AtomicBool::new(false);
    let mut at = None;
    let part = cancel::until(model(), COW, &stopped, |said| {
        if !said.is_empty() && at.is_none() {
            thread::scope(|scope| scope.spawn(|| stopped.store(true, Ordering::Relaxed)).join().unwrap());
            at = Some(said.len());
        }
    });
    let part = part.unwrap();
    assert!(whole.starts_with(&part) && part.len() < whole.len() && part.len() >= at.unwrap(), "{part}");
    // In the middle of a prompt, where there is no text yet.
    assert_eq!(cancel::until(model(), &COW.repeat(50), &AtomicBool::new(true), |_| ()).unwrap(), "");
}

#[test]
fn texts_are_ranked() {
    let ranked = embeddings::rank(model(), COW, &["The sky is blue.", COW, "Two and two are four."]).unwrap();
    assert_eq!(ranked[0].1, COW);
    assert!((ranked[0].0 - 1.0).abs() < 1e-3 && ranked[1].0 < ranked[0].0, "{ranked:?}");
}

#[test]
fn chats_at_once_say_what_they_say_alone() {
    let texts = [COW, "What does a dog say?", COW];
    let alone: Vec<String> = texts.iter().map(|text| model().chat().unwrap().ask(*text).unwrap()).collect();
    assert_eq!(several_chats::ask_all(model(), &texts).unwrap(), alone);
    assert_eq!(alone[0], alone[2]);
}

#[test]
fn a_message_is_of_its_author() {
    let mut chat = model().chat().unwrap();
    chat.set_messages(vec![
        ChatMessage::system("You are a farmer."),
        ChatMessage::user("Hi!"),
        ChatMessage::assistant("Hello!"),
    ]);
    let reply = chat.ask(COW).unwrap();
    let roles: Vec<&str> = chat.messages().iter().map(|message| message.role.name()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "user", "assistant"]);
    assert_eq!(chat.messages().last().unwrap().content, reply);
    assert_eq!(ChatMessage::tool("7").role.name(), "tool");
    // `text` has all of a reply that was read in part.
    let mut chat = model().chat().unwrap();
    let whole = chat.ask(COW).unwrap();
    let mut reply = chat.retry().unwrap();
    reply.next().unwrap().unwrap();
    assert_eq!(reply.text().unwrap(), whole);
}

/// What `main` prints of an error that it returns.
#[test]
fn errors_are_sentences() {
    let error: Error = Model::load("no such file.gguf").unwrap_err();
    assert_eq!(format!("{error:?}"), error.to_string());
    assert!(error.to_string().contains("no such file.gguf"), "{error}");
    assert_eq!(format!("{:?}", Some(&error)), format!("Some({error})"));
}

#[cfg(feature = "stream")]
mod streams {
    use super::{COW, model, stream};
    use shohin::Piece;
    use shohin::core::generate::Reason;
    use std::future::poll_fn;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use futures_core::Stream;

    async fn next(reply: &mut shohin::ReplyStream) -> Option<shohin::Result<Piece>> {
        poll_fn(|cx| Pin::new(&mut *reply).poll_next(cx)).await
    }

    #[test]
    fn a_stream_has_the_reply_and_gives_the_chat_back() {
        let mut want = model().chat().unwrap();
        let wants = [want.ask(COW).unwrap(), want.ask("And a dog?").unwrap()];
        let (mut first, mut second) = (String::new(), String::new());
        pollster::block_on(async {
            let chat = stream::send(model().chat()?, COW, |text| first += text).await?;
            let chat = stream::send(chat, "And a dog?", |text| second += text).await?;
            assert_eq!(chat.messages(), want.messages());
            Ok::<(), shohin::Error>(())
        })
        .unwrap();
        assert_eq!([first, second], wants);
    }

    #[test]
    fn a_stopped_stream_ends() {
        let mut chat = model().chat().unwrap();
        // So random that it does not end by itself soon.
        chat.options_mut().sampler.temperature = 50.0;
        chat.options_mut().sampler.top_k = 0;
        chat.options_mut().sampler.top_p = 1.0;
        let mut reply = chat.stream(COW).unwrap();
        pollster::block_on(async {
            next(&mut reply).await.unwrap().unwrap();
            reply.stop();
            let mut last = None;
            while let Some(piece) = next(&mut reply).await {
                last = piece.unwrap().done.or(last);
            }
            assert_eq!(last, Some(Reason::Cancelled));
            let chat = reply.chat().await.unwrap();
            assert_eq!(chat.messages().len(), 2);
            // Dropped, its thread ends by itself.
            drop(chat.stream(COW).unwrap());
        });
    }

    #[test]
    fn an_error_is_an_item() {
        let mut chat = model().chat().unwrap();
        chat.options_mut().sampler.temperature = -1.0;
        let mut reply = chat.stream(COW).unwrap();
        pollster::block_on(async {
            let error = next(&mut reply).await.unwrap().unwrap_err();
            assert_eq!(error.code(), "option");
            assert!(next(&mut reply).await.is_none());
            assert!(reply.chat().await.unwrap().messages().is_empty());
        });
        let mut reply = model().chat().unwrap().stream(COW).unwrap();
        // Nobody waits for it: polled by hand it is pending or has a piece, and never blocks.
        let polled = Pin::new(&mut reply).poll_next(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(polled, Poll::Pending | Poll::Ready(Some(Ok(_)))));
    }
}
