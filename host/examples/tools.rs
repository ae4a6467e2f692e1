//! A function that the model calls: `cargo run --release --example tools [MODEL.gguf]`.

use shohin::core::chat::{FunctionCall, ToolChoice};
use shohin::{ChatMessage, Model, Result};

const WEATHER: &str = r#"{
    "name": "weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"]
    }
}"#;

/// Does what the model asks for. Arguments are JSON in the form of the function's parameters.
fn call(call: &FunctionCall) -> String {
    match (call.name.as_str(), call.arguments.contains("Rome")) {
        ("weather", true) => "sunny".into(),
        ("weather", false) => "rainy".into(),
        (name, _) => format!("there is no function {name}"),
    }
}

/// Asks about the weather; the calls that the model made, and its answer to their results.
pub(crate) fn ask(model: &Model) -> Result<(Vec<FunctionCall>, String)> {
    let mut chat = model.chat()?;
    let options = chat.options_mut();
    options.tools = vec![WEATHER.into()];
    // For models whose template has no tools: in the system message.
    options.describe_tools = true;
    // A larger model decides by itself: leave `tool_choice` and `parallel_tool_calls` as they are.
    options.tool_choice = ToolChoice::Required;
    options.parallel_tool_calls = false;
    let calls = chat.send("How is the weather in Rome?")?.finish()?.message.tool_calls;

    let results = calls.iter().map(|of| ChatMessage::tool(call(of))).collect();
    chat.options_mut().tool_choice = ToolChoice::Auto;
    chat.options_mut().max_tokens = Some(100);
    let answer = chat.send_messages(results)?.text()?;
    Ok((calls, answer))
}

fn main() -> Result<()> {
    let model = std::env::args().nth(1).map_or_else(Model::built_in, Model::load)?;
    let (calls, answer) = ask(&model)?;
    for call in calls {
        println!("{}({})", call.name, call.arguments);
    }
    println!("{answer}");
    Ok(())
}
