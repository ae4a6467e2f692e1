//! A beam search in the place of a turn.

use crate::device::{Device, DeviceError};
use crate::error::{JsResult, js};
use crate::loaded::Loaded;
use crate::object::{count, get, object};
use crate::options::whole;
use js_sys::Array;
use shohin_core::beam::{Beam, BeamOptions, BeamSessions};
use shohin_core::chat::{ChatMessage, Finish, Role, Usage};
use shohin_core::{Result, Session, SessionOptions};
use wasm_bindgen::prelude::*;

/// The options of a search, if those of a reply ask for one.
///
/// # Errors
/// `option` if a count is not a whole number.
pub(crate) fn beam_options(given: &JsValue) -> JsResult<Option<BeamOptions>> {
    let Some(beams) = get(given, "beams").as_f64() else { return Ok(None) };
    let mut options = BeamOptions { beams: whole("beams", beams)?, ..BeamOptions::default() };
    if let Some(max) = get(given, "maxTokens").as_f64() {
        options.max_tokens = whole("maxTokens", max)?;
    }
    if let Some(penalty) = get(given, "lengthPenalty").as_f64() {
        options.length_penalty = penalty as f32;
    }
    options.early_stopping = get(given, "earlyStopping").is_truthy();
    options.check().map_err(js)?;
    Ok(Some(options))
}

/// A search.
pub(crate) struct Beams {
    prompt: Vec<u32>,
    options: BeamOptions,
    /// After the first step.
    search: Option<BeamSessions<Device>>,
    /// With their texts, best first, when it has ended.
    found: Vec<(String, Beam)>,
}

impl Beams {
    pub(crate) fn new(prompt: Vec<u32>, options: BeamOptions) -> Beams {
        Beams { prompt, options, search: None, found: Vec::new() }
    }

    /// Does the next bounded piece of work, in sessions of `context` tokens; returns whether there are tokens, and whether
    /// the search goes on.
    pub(crate) async fn advance(
        &mut self,
        device: &mut Device,
        loaded: &Loaded,
        context: usize,
    ) -> Result<(bool, bool), DeviceError> {
        let search = match &mut self.search {
            Some(search) => search,
            None => {
                let options = SessionOptions { context, ..loaded.session };
                let session = Session::open_paged(device, &options).await?;
                let search =
                    BeamSessions::new(device, session, &self.prompt, &self.options, &*loaded.tokenizer)?;
                self.search.insert(search)
            }
        };
        let goes_on = search.step(device, &*loaded.tokenizer).await?;
        let begun = !search.is_empty();
        if !goes_on {
            for beam in self.search.take().map_or(Vec::new(), BeamSessions::finish) {
                self.found.push((loaded.detokenize(&beam.tokens)?, beam));
            }
        }
        Ok((begun, goes_on))
    }

    /// The best beam and its text.
    pub(crate) fn best(&self) -> Option<&(String, Beam)> {
        self.found.first()
    }

    /// How the search ended.
    pub(crate) fn finish(&self) -> Option<Finish> {
        let (text, best) = self.best()?;
        let (prompt_tokens, completion_tokens) = (self.prompt.len(), best.tokens.len());
        Some(Finish {
            reason: best.reason,
            message: ChatMessage::new(Role::Assistant, text.as_str()),
            text: text.clone(),
            usage: Usage { prompt_tokens, completion_tokens, ..Usage::default() },
        })
    }

    /// All beams, as `Beam[]` of the TypeScript side.
    pub(crate) fn objects(&self) -> Array {
        let beam = |(text, beam): &(String, Beam)| {
            let tokens: Array = beam.tokens.iter().map(|&token| count(token as usize)).collect();
            JsValue::from(object([
                ("text", text.into()),
                ("tokens", tokens.into()),
                ("score", beam.score.into()),
                ("logprob", beam.logprob.into()),
                ("reason", beam.reason.code().into()),
            ]))
        };
        self.found.iter().map(beam).collect()
    }
}
