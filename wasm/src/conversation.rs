//! What was said, on its way to the chat template, and what a reply is made of.

use crate::error::{JsResult, js};
use js_sys::{Array, Object, Reflect};
use shohin_core::chat::{ChatOptions, Message, Reply, Role, Template, ToolCall};
use shohin_core::{Error, Name};
use wasm_bindgen::prelude::*;

/// A message with all that belongs to it.
struct Said {
    role: Role,
    content: String,
    reasoning: Option<String>,
    /// Name and arguments.
    calls: Vec<(String, String)>,
}

/// Messages of a conversation, and the tools the model may use in it.
#[wasm_bindgen]
#[derive(Default)]
pub struct Conversation {
    said: Vec<Said>,
    tools: Vec<String>,
}

#[wasm_bindgen]
impl Conversation {
    /// An empty one.
    #[wasm_bindgen(constructor)]
    pub fn new() -> Conversation {
        Conversation::default()
    }

    /// Appends a message.
    ///
    /// # Errors
    /// `unsupported` for an unknown role.
    pub fn push(&mut self, role: &str, content: String, reasoning: Option<String>) -> JsResult<()> {
        let role = match role {
            "system" => Role::System,
            "user" => Role::User,
            "assistant" => Role::Assistant,
            "tool" => Role::Tool,
            _ => {
                let (key, found) = (Name::new("role"), Name::new(role));
                return Err(js(Error::Unsupported {
                    key,
                    found,
                    expected: "system, user, assistant or tool",
                }));
            }
        };
        self.said.push(Said { role, content, reasoning, calls: Vec::new() });
        Ok(())
    }

    /// Adds a call to the last message; `arguments` is a JSON text. Without a message it does nothing.
    pub fn push_call(&mut self, name: String, arguments: String) {
        if let Some(last) = self.said.last_mut() {
            last.calls.push((name, arguments));
        }
    }

    /// Adds the description of a function that the model may call, a JSON text.
    pub fn push_tool(&mut self, description: String) {
        self.tools.push(description);
    }
}

impl Conversation {
    /// Hands the conversation to the template.
    pub(crate) fn with<T>(
        &self,
        template: Template,
        thinking: bool,
        work: impl FnOnce(&[Message<'_>], &ChatOptions<'_>) -> T,
    ) -> T {
        let calls: Vec<Vec<ToolCall<'_>>> = self
            .said
            .iter()
            .map(|said| said.calls.iter().map(|(name, arguments)| ToolCall { name, arguments }).collect())
            .collect();
        let messages: Vec<Message<'_>> = self
            .said
            .iter()
            .zip(&calls)
            .map(|(said, tool_calls)| Message {
                reasoning: said.reasoning.as_deref(),
                tool_calls,
                ..Message::new(said.role, &said.content)
            })
            .collect();
        let tools: Vec<&str> = self.tools.iter().map(String::as_str).collect();
        work(
            &messages,
            &ChatOptions { template, thinking: Some(thinking), tools: &tools, ..ChatOptions::default() },
        )
    }
}

/// The calls, with `name` and `arguments`, in a text that may hold some: in JSON, and where no tools are known, it is not
/// asked. What is not as a call should be stays out.
#[wasm_bindgen]
pub fn tool_calls(text: &str) -> Array {
    let set = |object: &Object, name: &str, value: &str| {
        // Setting a property of a fresh, extensible object cannot fail.
        let _ = Reflect::set(object, &name.into(), &value.into());
    };
    Reply::parse(text)
        .calls
        .iter()
        .filter_map(|call| Reply::call(call).ok())
        .map(|(name, arguments)| {
            let call = Object::new();
            set(&call, "name", &name);
            set(&call, "arguments", arguments);
            call
        })
        .collect()
}
