//! One conversation over a model on the CPU: its cache, and the generation under way in it.

use crate::error::{JsResult, js};
use crate::model::Loaded;
use crate::reply::{Past, Reply, Step, tell_of_reply};
use crate::sampling::Sampling;
use crate::snapshot;
use crate::team::pool;
use shohin_core::device::BlockingDevice;
use shohin_core::{Cpu, CpuOptions, Result, Session, SessionOptions};
use std::rc::Rc;
use std::sync::Arc;
use wasm_bindgen::prelude::*;

/// The CPU over a model that owns its bytes.
pub(crate) type CpuDevice = Cpu<'static, Vec<u8>>;

/// A conversation's cache over a model that others may use, too.
#[wasm_bindgen]
pub struct Timeline {
    reply: Reply,
    device: CpuDevice,
    session: Session<CpuDevice>,
    loaded: Rc<Loaded>,
}

tell_of_reply!(Timeline);

#[wasm_bindgen]
impl Timeline {
    /// Begins a generation; returns how many tokens of the prompt are in the cache already.
    ///
    /// # Errors
    /// `option` for a setting outside its range, `context_full` if the prompt does not fit, `length` if it is empty.
    pub fn begin(&mut self, prompt: &[u32], sampling: Sampling) -> JsResult<usize> {
        self.start(prompt, sampling).map_err(js)
    }

    /// Does the next bounded piece of work.
    ///
    /// # Errors
    /// `logits` if the model's output is unusable.
    pub fn step(&mut self) -> JsResult<Step> {
        self.advance().map_err(js)
    }

    /// The cache as bytes; ends a generation.
    ///
    /// # Errors
    /// `memory` if there is none for them.
    pub fn snapshot(&mut self) -> JsResult<Vec<u8>> {
        self.end();
        self.kept().map_err(js)
    }

    /// Takes over what `snapshot` gave. After an error the cache is empty.
    ///
    /// # Errors
    /// `snapshot_damaged`; `snapshot_foreign` if another model or other settings made it; `context_full`.
    pub fn restore(&mut self, bytes: &[u8]) -> JsResult<()> {
        self.end();
        self.reply.past = Past::default();
        let _ = self.session.truncate(0); // always as much as it holds
        let (past, kv) = snapshot::open(bytes, &self.origin())?;
        self.session.import(&mut self.device, past.held(), kv).map_err(js)?;
        self.reply.past = past;
        Ok(())
    }
}

impl Loaded {
    /// A device and a session for `context` tokens.
    pub(crate) fn session(&self, context: usize) -> Result<(CpuDevice, Session<CpuDevice>)> {
        let options = CpuOptions { context, ..self.options };
        let mut device = Cpu::with_weights(Arc::clone(&self.weights), &options, pool())?;
        let session = Session::new(&mut device, &SessionOptions { context, kv: self.kv })?;
        Ok((device, session))
    }
}

impl Timeline {
    pub(crate) fn new(loaded: Rc<Loaded>, context: usize) -> Result<Timeline> {
        let (device, session) = loaded.session(context)?;
        Ok(Timeline { reply: Reply::default(), device, session, loaded })
    }

    pub(crate) fn context(&self) -> usize {
        self.session.capacity()
    }

    fn origin(&self) -> snapshot::Origin {
        let Loaded { fingerprint, kv, options, .. } = &*self.loaded;
        snapshot::Origin::new(*fingerprint, snapshot::Layout::Cpu, *kv, options.activations)
    }

    fn kept(&mut self) -> Result<Vec<u8>> {
        let len = self.session.export_len(&self.device);
        let mut bytes = snapshot::begin(&self.origin(), &self.reply.past, len)?;
        CpuDevice::wait(self.session.export(&mut self.device, &mut bytes))?;
        Ok(snapshot::seal(bytes))
    }

    fn start(&mut self, prompt: &[u32], sampling: Sampling) -> Result<usize> {
        self.end();
        let (config, capacity) = (self.loaded.config(), self.session.capacity());
        let batch = self.loaded.batch();
        let Loaded { tokenizer, facts, .. } = &*self.loaded;
        let cached = self.reply.start(prompt, sampling, batch, config, capacity, tokenizer, facts)?;
        self.session.truncate(self.reply.past.held())?;
        Ok(cached)
    }

    fn advance(&mut self) -> Result<Step> {
        if let Some((keep, drop)) = self.reply.room() {
            self.session.shift(&mut self.device, keep, drop)?;
            self.reply.shifted(self.session.position());
        }
        let Some(tokens) = self.reply.wanted() else { return Ok(Step::Done) };
        let logits = self.session.forward_prefill(&mut self.device, tokens)?;
        self.reply.take(&self.loaded.tokenizer, logits)
    }
}
