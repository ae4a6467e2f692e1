//! Texts of requests, which may be tokens.

use crate::api::dialect::Input;
use shohin::core::Result;
use shohin::core::chat::fields::Field;

/// A text, tokens, or several of either.
pub(in crate::api) fn inputs(field: &Field<'_>) -> Result<Vec<Input>> {
    if let Some(text) = field.value.as_string() {
        return Ok(Vec::from([Input::Text(text)]));
    }
    let problem = "must be a text, an array of texts, or tokens";
    let (mut all, mut tokens) = (Vec::new(), Vec::new());
    field.each(problem, &mut |part| {
        if let Some(text) = part.value.as_string() {
            all.push(Input::Text(text));
        } else if part.value.as_number().is_some() {
            tokens.push(token(&part)?);
        } else {
            let mut inner = Vec::new();
            part.each(problem, &mut |part| {
                inner.push(token(&part)?);
                Ok(())
            })?;
            all.push(Input::Tokens(inner));
        }
        Ok(())
    })?;
    match (all.is_empty(), tokens.is_empty()) {
        (true, false) => Ok(Vec::from([Input::Tokens(tokens)])),
        (false, true) => Ok(all),
        _ => Err(field.refused(problem)),
    }
}

/// Tokens.
pub(in crate::api) fn tokens(field: &Field<'_>) -> Result<Vec<u32>> {
    let mut tokens = Vec::new();
    field.each("must be an array of tokens", &mut |part| {
        tokens.push(token(&part)?);
        Ok(())
    })?;
    Ok(tokens)
}

fn token(field: &Field<'_>) -> Result<u32> {
    let id = field.value.as_number().filter(|id| (0.0..=f64::from(u32::MAX)).contains(id));
    let id = id.filter(|id| f64::from(*id as u32) == *id);
    Ok(id.ok_or_else(|| field.refused("must be a token"))? as u32)
}
