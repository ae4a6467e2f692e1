//! Conversations over a model, and streaming replies.

use crate::error::Result;
use crate::model::Model;
use crate::sequence::Sequence;
use crate::speculate::{Guesses, MAX_GUESSES, Speculating, Speculation};
use shohin_core::chat::{
    ChatMessage, Conversation, Finish, FunctionCall, OverflowPolicy, Piece as CorePiece, PrefixState,
    Request, Role, SessionState, TurnOptions, Usage,
};
use shohin_core::generate::{Action, Reason};
use shohin_core::sample::Logprob;
use std::time::{Duration, Instant};

/// A conversation. Each has its own KV cache and scratch memory; the model is shared.
pub struct Chat {
    model: Model,
    sequence: Speculating,
    conversation: Conversation,
    options: TurnOptions,
}

impl std::fmt::Debug for Chat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chat").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Model {
    /// Begins a conversation.
    ///
    /// # Errors
    /// If there is no memory for its context.
    pub fn chat(&self) -> Result<Chat> {
        Chat::new(self)
    }

    /// Continues `text` as plain text, without the chat template.
    ///
    /// # Errors
    /// If there is no memory, the text does not fit the context, or an option is invalid.
    pub fn generate(&self, text: &str, options: TurnOptions) -> Result<Reply<'static>> {
        let mut chat = self.chat()?;
        *chat.options_mut() = options;
        chat.into_completion(&self.tokenize(text))
    }
}

impl Chat {
    pub(crate) fn new(model: &Model) -> Result<Chat> {
        Ok(Chat::over(model, model.generating_sequence()?))
    }

    /// A conversation whose tokens are those of an empty sequence.
    pub(crate) fn over(model: &Model, sequence: Sequence) -> Chat {
        let overflow = OverflowPolicy::TRIM;
        Chat {
            model: model.clone(),
            sequence: Speculating::none(sequence),
            conversation: Conversation::new(),
            options: TurnOptions { overflow, ..TurnOptions::default() },
        }
    }

    /// Decodes with guesses from now on: the same replies, faster where guesses are right. On a GPU, where last bits depend on
    /// how many tokens are computed at once, a near tie may be decided otherwise. The conversation so far is computed again
    /// with the next message.
    ///
    /// # Errors
    /// If there is no memory, or a draft model has another vocabulary.
    pub fn speculate(&mut self, speculation: &Speculation) -> Result<()> {
        let sequence = self.model.checking_sequence(MAX_GUESSES + 1)?;
        let sequence = Speculating::new(&self.model, sequence, speculation)?;
        self.conversation.set_prefix(PrefixState::default())?;
        self.sequence = sequence;
        Ok(())
    }

    /// Guessed tokens so far.
    pub fn guesses(&self) -> Guesses {
        self.sequence.guesses()
    }

    /// Times that a rank of a split model was lost, and the conversation went on with new threads: tokens were computed
    /// again. Ranks that are other processes end with the lost one.
    pub fn recoveries(&self) -> usize {
        self.sequence.recoveries()
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Options of replies. When the context is full the oldest exchanges are left out, unless
    /// [`TurnOptions::overflow`] is changed.
    pub fn options(&self) -> &TurnOptions {
        &self.options
    }

    /// As [`Chat::options`], to change them for the next reply.
    pub fn options_mut(&mut self) -> &mut TurnOptions {
        &mut self.options
    }

    /// Starts over, with these instructions for the whole conversation.
    pub fn system(&mut self, text: impl Into<String>) {
        self.conversation.set_messages(vec![ChatMessage::new(Role::System, text)]);
    }

    /// Starts over, with the messages of another conversation or none.
    pub fn set_messages(&mut self, messages: Vec<ChatMessage>) {
        self.conversation.set_messages(messages);
    }

    /// The messages so far.
    pub fn messages(&self) -> &[ChatMessage] {
        self.conversation.messages()
    }

    /// Tokens that the KV cache holds.
    pub fn position(&self) -> usize {
        self.sequence.position()
    }

    /// Maximum number of tokens that fit into the KV cache.
    pub fn capacity(&self) -> usize {
        self.sequence.capacity()
    }

    /// Sends a message; the reply is computed as the iterator advances. Only new tokens are computed.
    ///
    /// # Errors
    /// If the message does not fit the context, or an option is invalid. Nothing is sent then.
    pub fn send(&mut self, text: impl Into<String>) -> Result<Reply<'_>> {
        self.send_messages(vec![ChatMessage::new(Role::User, text)])
    }

    /// Sends a message and computes the whole reply: its text for the reader.
    ///
    /// # Errors
    /// As [`Chat::send`] and [`Reply::step`].
    pub fn ask(&mut self, text: impl Into<String>) -> Result<String> {
        self.send(text)?.text()
    }

    /// Sends messages, such as the results of tools.
    ///
    /// # Errors
    /// As [`Chat::send`].
    pub fn send_messages(&mut self, messages: Vec<ChatMessage>) -> Result<Reply<'_>> {
        self.begin(Request::Send(messages))?;
        Ok(Reply::new(Owner::Borrowed(self)))
    }

    /// Replies to a whole conversation, which takes the place of this one, with options for this reply alone. Tokens that the
    /// KV cache holds are not computed again.
    ///
    /// # Errors
    /// As [`Chat::send`].
    pub fn respond(&mut self, messages: Vec<ChatMessage>, options: &TurnOptions) -> Result<Reply<'_>> {
        let Chat { model, sequence, conversation, .. } = self;
        begin(model, sequence, conversation, Request::Respond(messages), options)?;
        Ok(Reply::new(Owner::Borrowed(self)))
    }

    /// Computes another reply to the last message.
    ///
    /// # Errors
    /// As [`Chat::send`], and if there is no reply yet, or if the last message was not kept: its reply ended before any text.
    pub fn retry(&mut self) -> Result<Reply<'_>> {
        self.begin(Request::Retry)?;
        Ok(Reply::new(Owner::Borrowed(self)))
    }

    /// Continues the last reply, which was cut off. Its pieces are what is new; [`Finish::message`] is the whole reply.
    ///
    /// # Errors
    /// As [`Chat::send`], and if there is no reply yet, or if the last message was not kept: its reply ended before any text.
    pub fn continue_reply(&mut self) -> Result<Reply<'_>> {
        self.begin(Request::Continue)?;
        Ok(Reply::new(Owner::Borrowed(self)))
    }

    /// Continues tokens as plain text; the conversation stays as it is.
    ///
    /// # Errors
    /// As [`Chat::send`].
    pub fn complete(&mut self, tokens: &[u32]) -> Result<Reply<'_>> {
        self.begin(Request::Complete(tokens.to_vec()))?;
        Ok(Reply::new(Owner::Borrowed(self)))
    }

    /// As [`Chat::complete`], with a reply that owns the chat.
    pub(crate) fn into_completion(mut self, tokens: &[u32]) -> Result<Reply<'static>> {
        self.begin(Request::Complete(tokens.to_vec()))?;
        Ok(Reply::new(Owner::Owned(Box::new(self))))
    }

    /// What a snapshot is made of.
    pub(crate) fn parts(&mut self) -> (&Model, &mut Conversation, &mut Speculating) {
        (&self.model, &mut self.conversation, &mut self.sequence)
    }

    fn begin(&mut self, request: Request) -> Result<()> {
        let Chat { model, sequence, conversation, options } = self;
        begin(model, sequence, conversation, request, options)
    }
}

fn begin(
    model: &Model,
    sequence: &mut Speculating,
    conversation: &mut Conversation,
    request: Request,
    options: &TurnOptions,
) -> Result<()> {
    let state = SessionState { position: sequence.position(), capacity: sequence.capacity() };
    let held = model.with_chat_model(|chat| conversation.start(chat, state, request, options))?;
    sequence.read_out(options.readout());
    sequence.truncate(held)?;
    Ok(())
}

/// A piece of a reply: a token and the text that is now certain.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// Text as the model wrote it, markers of reasoning and tool calls included.
    pub text: String,
    /// The part of `text` for the reader.
    pub content: String,
    /// The part of `text` that is reasoning.
    pub reasoning: String,
    /// Tool calls that are now complete.
    pub tool_calls: Vec<FunctionCall>,
    /// The token that the model chose; `None` for text that a cancelled reply had held back.
    pub token: Option<u32>,
    /// The tokens that are now part of the reply: `token`, unless it ended the reply, and the tokens of an
    /// inserted end of reasoning.
    pub tokens: Vec<u32>,
    /// The token's log-probability, if asked for.
    pub logprob: Option<f32>,
    /// The most likely alternatives, if asked for.
    pub top: Vec<Logprob>,
    /// Why the reply ended, if this is its last piece.
    pub done: Option<Reason>,
}

impl From<CorePiece<'_>> for Piece {
    fn from(piece: CorePiece<'_>) -> Piece {
        Piece {
            text: piece.text.into(),
            content: piece.content.into(),
            reasoning: piece.reasoning.into(),
            tool_calls: piece.tool_calls.to_vec(),
            token: piece.token,
            tokens: piece.tokens.to_vec(),
            logprob: piece.logprob,
            top: piece.top.to_vec(),
            done: piece.done,
        }
    }
}

/// The result of a step of a reply.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Prompt tokens computed so far, cached ones included, and their total.
    Prompt(usize, usize),
    /// A piece of the reply.
    Piece(Piece),
}

/// Times and token counts of a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timings {
    /// Prompt tokens that were computed.
    pub prompt: usize,
    /// Prompt tokens that were in the KV cache.
    pub cached: usize,
    /// From the beginning to the first token; 0 before it.
    pub prompt_time: Duration,
    /// Generated tokens, including the one that ended the reply.
    pub reply: usize,
    /// From the first token to the end; 0 before it.
    pub reply_time: Duration,
}

impl Timings {
    /// Prompt tokens per second.
    pub fn prompt_speed(&self) -> f64 {
        speed(self.prompt, self.prompt_time)
    }

    /// Generated tokens per second. The first costs no decoding: its logits come from the prompt.
    pub fn reply_speed(&self) -> f64 {
        speed(self.reply.saturating_sub(1), self.reply_time)
    }
}

fn speed(tokens: usize, time: Duration) -> f64 {
    if tokens == 0 { 0.0 } else { tokens as f64 / time.as_secs_f64().max(1e-9) }
}

enum Owner<'c> {
    Borrowed(&'c mut Chat),
    Owned(Box<Chat>),
}

impl Owner<'_> {
    fn chat(&mut self) -> &mut Chat {
        match self {
            Owner::Borrowed(chat) => chat,
            Owner::Owned(chat) => chat,
        }
    }
}

/// A reply in progress: an iterator over its pieces. Dropping it before its end cancels it; the conversation
/// then keeps the partial reply.
pub struct Reply<'c> {
    owner: Owner<'c>,
    start: Instant,
    first_token: Option<Instant>,
    timings: Timings,
    finish: Option<Finish>,
    /// Set when it has ended, normally or by an error.
    ended: bool,
}

impl std::fmt::Debug for Reply<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reply").field("timings", &self.timings).finish_non_exhaustive()
    }
}

impl<'c> Reply<'c> {
    fn new(mut owner: Owner<'c>) -> Self {
        let chat = owner.chat();
        let cached = chat.sequence.position();
        let (_, total) = chat.conversation.prompt_progress();
        let timings = Timings { prompt: total - cached, cached, ..Timings::default() };
        Reply { owner, start: Instant::now(), first_token: None, timings, finish: None, ended: false }
    }

    /// Runs the model once: on a part of the prompt, or for the next token. `None` after the end.
    ///
    /// # Errors
    /// Those of the device; the reply ends, and the conversation is as before.
    pub fn step(&mut self) -> Option<Result<Step>> {
        if self.ended {
            return None;
        }
        match self.advance() {
            Ok(Some(step)) => {
                if let Step::Piece(piece) = &step {
                    self.first_token();
                    self.timings.reply += usize::from(piece.token.is_some());
                }
                Some(Ok(step))
            }
            Ok(None) => {
                self.end();
                None
            }
            Err(error) => {
                self.end();
                Some(Err(error))
            }
        }
    }

    /// When the first token came: now, if there was none.
    fn first_token(&mut self) -> Instant {
        let first_token = *self.first_token.get_or_insert_with(Instant::now);
        self.timings.prompt_time = first_token - self.start;
        first_token
    }

    fn advance(&mut self) -> Result<Option<Step>> {
        let Chat { model, sequence, conversation, .. } = self.owner.chat();
        loop {
            match conversation.next() {
                Action::Done(_) => return Ok(None),
                Action::Shift { keep, drop } => {
                    sequence.shift(keep, drop)?;
                    conversation.shifted(sequence.position());
                }
                Action::Decode(tokens) => {
                    let logits = sequence.feed(tokens)?;
                    if let Some(piece) = conversation.logits(model.tokenizer(), logits)? {
                        return Ok(Some(Step::Piece(piece.into())));
                    }
                    let (done, of) = conversation.prompt_progress();
                    return Ok(Some(Step::Prompt(done, of)));
                }
            }
        }
    }

    /// Ends the reply as it is; returns text that was held back.
    pub fn cancel(&mut self) -> Option<Piece> {
        if self.ended {
            return None;
        }
        let piece = self.owner.chat().conversation.cancel().map(Piece::from);
        self.end();
        piece
    }

    fn end(&mut self) {
        self.ended = true;
        self.timings.reply_time = self.first_token().elapsed();
        let Chat { sequence, conversation, .. } = self.owner.chat();
        let (held, finish) = conversation.end(sequence.position());
        // It holds at least as many tokens as the conversation knows of.
        let _ = sequence.truncate(held);
        self.finish = finish;
    }

    /// Computes the rest of the reply and returns how it ended.
    ///
    /// # Errors
    /// As [`Reply::step`].
    pub fn finish(mut self) -> Result<Finish> {
        while let Some(step) = self.step() {
            step?;
        }
        // Only an error leaves none, and it was already returned.
        let ended = shohin_core::Error::Device { problem: "the reply had failed before" };
        Ok(self.finish.take().ok_or(ended)?)
    }

    /// Computes the rest of the reply and returns all of its text for the reader, that of pieces before included; without
    /// reasoning and calls, which [`Reply::finish`] has, too.
    ///
    /// # Errors
    /// As [`Reply::step`].
    pub fn text(self) -> Result<String> {
        Ok(self.finish()?.message.content)
    }

    /// How it ended; `None` before that, or after an error.
    pub fn finished(&self) -> Option<&Finish> {
        self.finish.as_ref()
    }

    /// The messages of the conversation; those of this reply only after its end.
    pub fn messages(&self) -> &[ChatMessage] {
        match &self.owner {
            Owner::Borrowed(chat) => chat.messages(),
            Owner::Owned(chat) => chat.messages(),
        }
    }

    /// Token counts so far.
    pub fn usage(&mut self) -> Usage {
        match &self.finish {
            Some(finish) => finish.usage,
            None => self.owner.chat().conversation.usage(),
        }
    }

    /// Times and counts; complete after the end.
    pub fn timings(&self) -> &Timings {
        &self.timings
    }
}

impl Iterator for Reply<'_> {
    type Item = Result<Piece>;

    fn next(&mut self) -> Option<Result<Piece>> {
        loop {
            match self.step()? {
                Ok(Step::Prompt(..)) => {}
                Ok(Step::Piece(piece)) => return Some(Ok(piece)),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

impl Drop for Reply<'_> {
    fn drop(&mut self) {
        self.cancel();
    }
}
