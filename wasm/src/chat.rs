//! A conversation over a model: its cache, and the current reply.

use crate::beams::{Beams, beam_options};
use crate::checksum::sha256;
use crate::device::{self, Device, DeviceError};
use crate::error::{JsResult, js};
use crate::loaded::Loaded;
use crate::message::{Timings, chunk_object, finish_object, message_object, messages};
use crate::object::{object, set};
use crate::options::{random_seed, turn_options};
use crate::platform::{random, unix_seconds};
use js_sys::Array;
use shohin_core::chat::openai::{ChatCompletionRequest, ChunkWriter, CompletionId, completion};
use shohin_core::chat::snapshot::{self, Origin};
use shohin_core::chat::{
    ChatMessage, Chunk, ChunkCollector, Conversation, Finish, History, PrefixState, Request, SessionState,
    TurnOptions,
};
use shohin_core::device::Readout;
use shohin_core::generate::Action;
use shohin_core::sample::SparseLogits;
use shohin_core::{Result, Session};
use std::rc::Rc;
use wasm_bindgen::prelude::*;

/// The result of a step.
#[wasm_bindgen]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Part of the prompt was computed.
    Prompt = 0,
    /// There is a new token, and perhaps text.
    Token = 1,
    /// The reply is complete; there may be text that was held back.
    Done = 2,
}

/// A conversation over a shared model.
#[wasm_bindgen]
pub struct Chat {
    pub(crate) conversation: Conversation,
    device: Device,
    session: Session<Device>,
    loaded: Rc<Loaded>,
    /// The part of the logits that the current turn needs.
    readout: Readout,
    /// Logits read back from a GPU.
    sparse: SparseLogits,
    /// Output since it was last taken.
    chunk: Chunk,
    /// Holds back the log-probabilities of text that is held back.
    collector: ChunkCollector,
    turn: Turn,
    /// The search in the place of the conversation's turn.
    beams: Option<Beams>,
    /// Of the current turn.
    seed: u64,
    timings: Timings,
}

/// The call that the current turn answers.
enum Turn {
    /// A call of `generate`, with log-probabilities or not.
    Text { measured: bool },
    /// A call of `chat`, with log-probabilities or not.
    Chat { measured: bool },
    /// A request in OpenAI's form.
    Completion {
        id: CompletionId,
        writer: Option<ChunkWriter>,
        measured: bool,
        /// Those of the request.
        messages: Vec<ChatMessage>,
    },
}

#[wasm_bindgen]
impl Chat {
    /// Tokens it can hold.
    pub fn capacity(&self) -> usize {
        self.session.capacity()
    }

    /// Begins a reply to `messages`, by `ChatOptions` of the TypeScript side.
    ///
    /// # Errors
    /// `option` for a setting outside its range, `context_full` if the prompt does not fit, `unsupported` for a schema or
    /// for tools if the model's template has none.
    pub fn respond(&mut self, messages: &Array, options: &JsValue) -> JsResult<()> {
        let beams = beam_options(options)?;
        let (messages, options) = (self::messages(messages)?, turn_options(options)?);
        let turn = Turn::Chat { measured: options.logprobs.is_some() };
        if let Some(beams) = beams {
            let prompt = self.loaded.with_chat_model(|model| options.encode(model, &messages)).map_err(js)?;
            self.begin_search(Beams::new(prompt, beams), turn);
            return Ok(());
        }
        self.begin(Request::Resume(messages), options, turn).map_err(js)
    }

    /// Begins the continuation of a text, by `GenerateOptions` of the TypeScript side.
    ///
    /// # Errors
    /// As `respond`; `length` for an empty text.
    pub fn complete(&mut self, text: &str, options: &JsValue) -> JsResult<()> {
        let tokens = self.loaded.tokenize(text, false);
        if let Some(beams) = beam_options(options)? {
            self.begin_search(Beams::new(tokens, beams), Turn::Text { measured: false });
            return Ok(());
        }
        self.continue_tokens(tokens, turn_options(options)?).map_err(js)
    }

    /// Begins the answer to a request in OpenAI's form.
    ///
    /// # Errors
    /// As `respond`, and for an invalid request.
    pub fn answer(&mut self, request: &str) -> JsResult<()> {
        let mut request = ChatCompletionRequest::parse(request).map_err(js)?;
        if request.seed.is_none() {
            request.options.sampler.seed = random_seed();
        }
        let model = request.model.clone().unwrap_or_else(|| self.loaded.name().into());
        let id = random::<12>().map(|byte| format!("{byte:02x}")).concat();
        let id = CompletionId { id, created: unix_seconds(), model };
        let writer = request.stream.then(|| ChunkWriter::new(id.clone(), &request));
        let ChatCompletionRequest { messages, options, .. } = request;
        let measured = options.logprobs.is_some();
        let turn = Turn::Completion { id, writer, measured, messages: messages.clone() };
        // A request says by itself what its answer is.
        self.begin(Request::Respond(messages), options, turn).map_err(js)
    }

    /// Output since the last call, as `Chunk` of the TypeScript side. For a request in OpenAI's form: the chunk as a
    /// JSON text, or undefined if it is empty or the answer is not streamed.
    pub fn take_chunk(&mut self) -> JsValue {
        let tokenizer = &self.loaded.tokenizer;
        match &mut self.turn {
            Turn::Text { measured } | Turn::Chat { measured } => {
                chunk_object(&std::mem::take(&mut self.chunk), *measured, tokenizer).into()
            }
            // It belongs to the whole.
            Turn::Completion { writer: None, .. } => JsValue::UNDEFINED,
            Turn::Completion { writer: Some(writer), .. } => {
                writer.chunk(&std::mem::take(&mut self.chunk), tokenizer).into()
            }
        }
    }

    /// Ends the turn. Returns how it ended: `Finish` or `ChatFinish` of the TypeScript side, or for a
    /// request in OpenAI's form an object with `answers`, JSON texts of the last chunks or of the whole, and
    /// `messages`, those of the request and the reply. Undefined if it was not done.
    pub fn finish(&mut self) -> JsValue {
        let beams = self.beams.take();
        let ended = match &beams {
            Some(beams) => beams.finish(),
            None => self.end_turn(),
        };
        let Some(finish) = ended else { return JsValue::UNDEFINED };
        let made = match &self.turn {
            Turn::Text { .. } => finish_object(&finish, false, self.seed, &self.timings),
            Turn::Chat { .. } => finish_object(&finish, true, self.seed, &self.timings),
            Turn::Completion { id, writer, measured, messages } => {
                let answers = match writer {
                    Some(writer) => writer.finish(&finish),
                    None => {
                        let logprobs = measured.then_some(self.chunk.logprobs.as_slice());
                        vec![completion(id, &finish, logprobs, &self.loaded.tokenizer)]
                    }
                };
                let messages: Array = messages.iter().chain([&finish.message]).map(message_object).collect();
                object([("answers", answers.into()), ("messages", messages.into())])
            }
        };
        if let Some(beams) = beams {
            set(&made, "beams", beams.objects());
        }
        made.into()
    }

    /// Ends the turn, if there is one; what was computed stays in the cache.
    pub fn end(&mut self) {
        self.end_turn();
    }

    /// Restores the output of `snapshot`; returns its messages. After an error the cache is empty.
    ///
    /// # Errors
    /// `snapshot_damaged`; `snapshot_foreign` if another model or other settings made it; `context_full`.
    pub fn restore(&mut self, bytes: &[u8]) -> JsResult<Array> {
        self.forget().map_err(js)?;
        let found = snapshot::open(bytes, &self.origin(), sha256).map_err(js)?;
        self.session.import(&mut self.device, found.prefix.held(), found.kv).map_err(js)?;
        let messages = found.history.messages.iter().map(message_object).collect();
        self.conversation.restore(found.history, found.prefix).map_err(js)?;
        Ok(messages)
    }
}

impl Chat {
    /// An empty one for `context` tokens.
    pub(crate) async fn open(loaded: &Rc<Loaded>, context: usize) -> Result<Chat, DeviceError> {
        let (device, session) = loaded.session(context).await?;
        Ok(Chat {
            conversation: Conversation::new(),
            device,
            session,
            loaded: Rc::clone(loaded),
            readout: Readout::Logits,
            sparse: SparseLogits::default(),
            chunk: Chunk::default(),
            collector: ChunkCollector::default(),
            turn: Turn::Text { measured: false },
            beams: None,
            seed: 0,
            timings: Timings::begin(),
        })
    }

    /// Begins the continuation of tokens.
    pub(crate) fn continue_tokens(&mut self, tokens: Vec<u32>, options: TurnOptions) -> Result<()> {
        let turn = Turn::Text { measured: options.logprobs.is_some() };
        self.begin(Request::Complete(tokens), options, turn)
    }

    /// Ends the turn, and empties the cache.
    fn forget(&mut self) -> Result<()> {
        self.end();
        self.conversation.set_prefix(PrefixState::default())?;
        self.session.truncate(0)
    }

    /// Goes on with the same model with other adapters, which has none of its keys and values.
    #[cfg(not(feature = "gpu"))]
    pub(crate) fn change(&mut self, loaded: &Rc<Loaded>) -> Result<()> {
        if loaded.fingerprint() == self.loaded.fingerprint() {
            return Ok(());
        }
        self.forget()?;
        self.device = loaded.weights.device(self.session.capacity())?;
        self.loaded = Rc::clone(loaded);
        Ok(())
    }

    fn begin_search(&mut self, beams: Beams, turn: Turn) {
        self.end();
        self.chunk = Chunk::default();
        (self.turn, self.seed, self.timings) = (turn, 0, Timings::begin());
        self.beams = Some(beams);
    }

    fn begin(&mut self, request: Request, mut options: TurnOptions, turn: Turn) -> Result<()> {
        self.end();
        (self.chunk, self.collector) = Default::default();
        self.turn = turn;
        self.seed = options.sampler.seed;
        self.timings = Timings::begin();
        options.batch = self.loaded.weights.batch(&self.device);
        self.readout = device::readout(&options);
        let Chat { conversation, loaded, session, .. } = self;
        let state = SessionState { position: session.position(), capacity: session.capacity() };
        let held = loaded.with_chat_model(|model| conversation.start(model, state, request, &options))?;
        session.truncate(held)
    }

    /// Does the next bounded piece of work.
    pub(crate) async fn advance(&mut self) -> Result<Step, DeviceError> {
        let Chat { conversation, device, session, loaded, readout, sparse, chunk, timings, beams, .. } = self;
        let (turn, collector) = (&self.turn, &mut self.collector);
        if let Some(beams) = beams {
            let (begun, goes_on) = beams.advance(device, loaded, session.capacity()).await?;
            if begun {
                timings.token();
            }
            if let Some((text, best)) = beams.best() {
                (chunk.content, chunk.tokens) = (text.clone(), best.tokens.clone());
            }
            // There is nothing to be taken before the end.
            return Ok(if goes_on { Step::Prompt } else { Step::Done });
        }
        loop {
            let tokens = match conversation.next() {
                Action::Done(_) => return Ok(Step::Done),
                Action::Shift { keep, drop } => {
                    session.shift(device, keep, drop)?;
                    conversation.shifted(session.position());
                    continue;
                }
                Action::Decode(tokens) => tokens,
            };
            let logits = session.read_out(device, tokens, *readout, sparse).await?;
            let Some(piece) = conversation.logits(&*loaded.tokenizer, logits)? else {
                return Ok(Step::Prompt);
            };
            match turn {
                // Its log-probabilities are those of its text; elsewhere there is one for each token.
                Turn::Completion { .. } => collector.push(chunk, &piece, &*loaded.tokenizer),
                Turn::Text { .. } | Turn::Chat { .. } => chunk.push(&piece),
            }
            // The token that ends a reply is not part of it.
            if piece.tokens.is_empty() {
                return Ok(Step::Done);
            }
            timings.token();
            return Ok(Step::Token);
        }
    }

    /// The conversation as bytes; ends a turn.
    pub(crate) async fn export(&mut self, messages: &[ChatMessage]) -> Result<Vec<u8>, DeviceError> {
        self.end();
        let len = self.session.export_len(&self.device);
        // The caller's messages may be others than those of the last turn.
        let history = self.conversation.history();
        let other = (history.messages != messages).then(|| History::from(messages.to_vec()));
        let history = other.as_ref().unwrap_or(history);
        let mut bytes = snapshot::begin(&self.origin(), history, self.conversation.prefix(), len)?;
        self.session.export(&mut self.device, &mut bytes).await?;
        Ok(snapshot::seal(bytes, sha256))
    }

    fn origin(&self) -> Origin {
        let Loaded { weights, session, .. } = &*self.loaded;
        Origin::new(self.loaded.fingerprint(), device::LAYOUT, session, weights.activations())
    }

    fn end_turn(&mut self) -> Option<Finish> {
        self.beams = None;
        let (held, finish) = self.conversation.end(self.session.position());
        // Never more than it holds.
        let _ = self.session.truncate(held);
        finish
    }
}
