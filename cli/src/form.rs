//! The form that replies are kept to.

use crate::args::FormArgs;
use crate::engine::Engine;
use crate::failure::{At, Outcome};
use crate::terminal;
use shohin_core::chat::Style;
use shohin_core::constrain::{Constraint, Grammar, Vocabulary};
use std::path::Path;
use std::sync::Arc;

/// The grammar that was asked for. Known before the model is loaded, as it may be wrong.
pub(crate) fn grammar(args: &FormArgs) -> Outcome<Option<Grammar>> {
    let Some(schema) = &args.json_schema else {
        return Ok(args.json_object.then(Grammar::json_object));
    };
    // No file of that name is meant by text in braces.
    let text = if schema.trim_start().starts_with('{') {
        schema.clone()
    } else {
        terminal::read_text(Path::new(schema))?
    };
    Grammar::json_schema(&text).at("--json-schema").map(Some)
}

/// A constraint for replies of this engine, which may think first if it is asked to.
pub(crate) fn constraint(grammar: Grammar, engine: &Engine<'_>, think: bool) -> Outcome<Constraint> {
    let thinks = think && engine.template.style == Style::Qwen3;
    let grammar = if thinks { grammar.after_thoughts()? } else { grammar };
    Ok(Constraint::new(grammar, Arc::new(Vocabulary::new(&engine.tokenizer)))?)
}
