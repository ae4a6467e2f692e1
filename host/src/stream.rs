//! Replies as asynchronous streams.
#![forbid(unsafe_code)]

use crate::chat::{Chat, Piece, Step};
use crate::error::{Error, Result};
use futures_core::Stream;
use shohin_core::chat::ChatMessage;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;

impl Chat {
    /// Sends a message; the reply is computed on a thread of its own, so that no thread of an executor waits for it. The chat
    /// comes back with [`ReplyStream::chat`].
    ///
    /// ```
    /// use shohin::{Model, Piece};
    /// # async fn next(reply: &mut shohin::ReplyStream) -> Option<shohin::Result<Piece>> {
    /// #     std::future::poll_fn(|cx| futures_core::Stream::poll_next(std::pin::Pin::new(&mut *reply), cx)).await
    /// # }
    /// # async fn talk() -> shohin::Result<()> {
    /// let mut reply = Model::built_in()?.chat()?.stream("What does a cow say?")?;
    /// while let Some(piece) = next(&mut reply).await {  // `StreamExt::next` of the crate `futures`
    ///     print!("{}", piece?.content);
    /// }
    /// let mut chat = reply.chat().await?;
    /// # chat.set_messages(Vec::new());
    /// # Ok(())
    /// # }
    /// # pollster::block_on(talk()).unwrap();
    /// ```
    ///
    /// # Errors
    /// [`Error::Threads`]. Those of [`Chat::send`] are an item of the stream.
    pub fn stream(self, text: impl Into<String>) -> Result<ReplyStream> {
        self.stream_messages(vec![ChatMessage::user(text)])
    }

    /// As [`Chat::stream`], of messages such as the results of tools.
    ///
    /// # Errors
    /// As [`Chat::stream`].
    pub fn stream_messages(self, messages: Vec<ChatMessage>) -> Result<ReplyStream> {
        let shared = Arc::new(Shared::default());
        let worker = Worker(Arc::clone(&shared));
        let thread = thread::Builder::new().name("shohin-reply".into());
        thread
            .spawn(move || worker.reply(self, messages))
            .map_err(|source| Error::Threads { count: 1, source })?;
        Ok(ReplyStream { shared })
    }
}

/// A reply that another thread computes: a stream of its pieces, which are kept until they are taken. Dropping it stops the
/// reply.
pub struct ReplyStream {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    stopped: AtomicBool,
}

#[derive(Default)]
struct State {
    pieces: VecDeque<Result<Piece>>,
    /// After the reply.
    chat: Option<Chat>,
    ended: bool,
    waker: Option<Waker>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Every change of it is complete, and the worker's panics happen elsewhere.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        change(&mut state);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The thread's part, whose end is known even if it panics.
struct Worker(Arc<Shared>);

impl Drop for Worker {
    fn drop(&mut self) {
        self.0.change(|state| state.ended = true);
    }
}

impl Worker {
    fn reply(self, mut chat: Chat, messages: Vec<ChatMessage>) {
        match chat.send_messages(messages) {
            Err(error) => self.give(Err(error)),
            Ok(mut reply) => loop {
                if self.0.stopped.load(Ordering::Relaxed) {
                    if let Some(piece) = reply.cancel() {
                        self.give(Ok(piece));
                    }
                    break;
                }
                match reply.step() {
                    Some(Ok(Step::Prompt(..))) => {}
                    Some(Ok(Step::Piece(piece))) => self.give(Ok(piece)),
                    Some(Err(error)) => self.give(Err(error)),
                    None => break,
                }
            },
        }
        self.0.change(|state| state.chat = Some(chat));
    }

    fn give(&self, piece: Result<Piece>) {
        self.0.change(|state| state.pieces.push_back(piece));
    }
}

impl ReplyStream {
    /// Ends the reply soon, also while its prompt is computed; the pieces so far still follow.
    pub fn stop(&self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
    }

    /// The chat, once the reply has ended. Pieces that were not taken are lost, and the conversation has the reply all the same.
    ///
    /// # Errors
    /// If the reply's thread panicked.
    pub async fn chat(self) -> Result<Chat> {
        poll_fn(|cx| {
            let mut state = self.shared.state();
            if state.ended {
                let lost = shohin_core::Error::Device { problem: "the thread of the reply panicked" };
                return Poll::Ready(state.chat.take().ok_or(Error::Engine(lost)));
            }
            state.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl Stream for ReplyStream {
    type Item = Result<Piece>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Piece>>> {
        let mut state = self.shared.state();
        if let Some(piece) = state.pieces.pop_front() {
            return Poll::Ready(Some(piece));
        }
        if state.ended {
            return Poll::Ready(None);
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for ReplyStream {
    fn drop(&mut self) {
        self.stop();
    }
}

impl std::fmt::Debug for ReplyStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReplyStream").finish_non_exhaustive()
    }
}
