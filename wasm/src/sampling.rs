//! How to generate: the sampler's settings, where to end, and the form of the reply.

use crate::error::{JsResult, js};
use shohin_core::constrain::Grammar;
use shohin_core::generate::{GenerationOptions, Overflow};
use shohin_core::{Error, Name, SamplerConfig};
use wasm_bindgen::prelude::*;

/// Settings of one generation.
#[wasm_bindgen]
pub struct Sampling {
    pub(crate) config: SamplerConfig,
    pub(crate) options: GenerationOptions,
    /// What the reply is kept to.
    pub(crate) grammar: Option<Grammar>,
}

#[wasm_bindgen]
impl Sampling {
    /// The settings of a named preset.
    ///
    /// # Errors
    /// `unsupported` for an unknown name.
    pub fn preset(name: &str) -> JsResult<Sampling> {
        let config = SamplerConfig::preset(name).ok_or_else(|| {
            js(Error::Unsupported {
                key: Name::new("preset"),
                found: Name::new(name),
                expected: "bonsai, greedy, balanced, creative or code",
            })
        })?;
        Ok(Sampling { config, options: GenerationOptions::default(), grammar: None })
    }

    /// Sets one setting by its JavaScript name. Ranges are checked when the generation begins.
    ///
    /// # Errors
    /// `option` if a count is not a whole number, `unsupported` for an unknown name.
    pub fn set(&mut self, name: &str, value: f64) -> JsResult<()> {
        let config = &mut self.config;
        match name {
            "temperature" => config.temperature = value as f32,
            "topK" => config.top_k = whole("topK", value)?,
            "topP" => config.top_p = value as f32,
            "minP" => config.min_p = value as f32,
            "typicalP" => config.typical_p = value as f32,
            "repetitionPenalty" => config.repetition_penalty = value as f32,
            "presencePenalty" => config.presence_penalty = value as f32,
            "frequencyPenalty" => config.frequency_penalty = value as f32,
            "penaltyLastN" => config.penalty_last_n = whole("penaltyLastN", value)?,
            "dryMultiplier" => config.dry_multiplier = value as f32,
            "dryBase" => config.dry_base = value as f32,
            "dryAllowedLength" => config.dry_allowed_length = whole("dryAllowedLength", value)?,
            "dryLastN" => config.dry_last_n = whole("dryLastN", value)?,
            "logprobs" => self.options.logprobs = Some(whole("logprobs", value)?),
            // What stays in front when the oldest tokens are forgotten.
            "keep" => self.options.overflow = Overflow::Shift { keep: whole("keep", value)? },
            "maxTokens" => self.options.max_tokens = whole("maxTokens", value)?,
            "seed" => config.seed = exact("seed", value)?,
            _ => {
                let (key, found) = (Name::new("setting"), Name::new(name));
                return Err(js(Error::Unsupported { key, found, expected: "a sampling setting" }));
            }
        }
        Ok(())
    }

    /// Adds a text that ends the generation.
    pub fn add_stop(&mut self, text: String) {
        self.options.stop_strings.push(text);
    }

    /// Keeps the reply to JSON objects.
    pub fn json_object(&mut self) {
        self.grammar = Some(Grammar::json_object());
    }

    /// Keeps the reply to values of a JSON Schema.
    ///
    /// # Errors
    /// `unsupported` with the keyword's JSON pointer, `malformed`, `limit`, `option` if there are no such values.
    pub fn json_schema(&mut self, schema: &str) -> JsResult<()> {
        self.grammar = Some(Grammar::json_schema(schema).map_err(js)?);
        Ok(())
    }

    /// Keeps calls in the reply to those that fit one of `tools`, descriptions in JSON.
    ///
    /// # Errors
    /// As `json_schema`; `missing_key` for a tool without a name, `duplicate` for two of one name.
    pub fn tool_calls(&mut self, tools: Vec<String>, required: bool) -> JsResult<()> {
        let tools: Vec<&str> = tools.iter().map(String::as_str).collect();
        self.grammar = Some(Grammar::tool_calls(&tools, required).map_err(js)?);
        Ok(())
    }

    /// Lets thoughts through before what the reply is kept to.
    ///
    /// # Errors
    /// `limit` if the grammar is as large as can be already.
    pub fn after_thoughts(&mut self) -> JsResult<()> {
        if let Some(grammar) = self.grammar.take() {
            self.grammar = Some(grammar.after_thoughts().map_err(js)?);
        }
        Ok(())
    }
}

/// A count.
pub(crate) fn whole(what: &'static str, value: f64) -> JsResult<usize> {
    // More than the address space is as good as no bound.
    Ok(usize::try_from(exact(what, value)?).unwrap_or(usize::MAX))
}

/// A JavaScript number that is a whole number, exactly.
fn exact(what: &'static str, value: f64) -> JsResult<u64> {
    const LAST: f64 = ((1u64 << 53) - 1) as f64;
    if (0.0..=LAST).contains(&value) && value as u64 as f64 == value {
        Ok(value as u64)
    } else {
        Err(js(Error::Option { what, found: value, expected: "a whole number from 0 to 2^53 - 1" }))
    }
}
