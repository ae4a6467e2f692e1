//! Descriptions of tools.

use shohin::core::chat::fields::Field;
use shohin::core::chat::openai::request::check_arguments;
use shohin::core::{Result, json};

/// A description of a function as templates show it and grammars read it.
pub(super) fn tool_text(
    name: &Field<'_>,
    description: Option<&Field<'_>>,
    parameters: Option<&Field<'_>>,
    strict: Option<&Field<'_>>,
) -> Result<String> {
    let mut out = String::from("{\"type\": \"function\", \"function\": {\"name\": ");
    json::string(&name.string()?, &mut out);
    if let Some(description) = description {
        out.push_str(", \"description\": ");
        json::string(&description.string()?, &mut out);
    }
    check_arguments(parameters, strict)?;
    for (key, value) in [(", \"parameters\": ", parameters), (", \"strict\": ", strict)] {
        if let Some(value) = value {
            out.extend([key, value.value.text()]);
        }
    }
    out.push_str("}}");
    Ok(out)
}
