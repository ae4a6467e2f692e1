//! Chat templates of files, in Jinja, for those that are not built in.
//!
//! A template is parsed by minijinja and executed here, as transformers executes it, within bounds: a number of steps, of bytes
//! and of levels. It sees the conversation and nothing else: no files, no network, no other templates. Strings know which of
//! their bytes come from messages and descriptions of tools, through every operation, so that these never form control tokens
//! (promise G7 of docs/SECURITY.md).

mod date;
mod error;
mod eval;
mod exec;
mod filters;
mod messages;
mod methods;
mod source;
mod tests;
mod text;
mod tojson;
mod value;

pub use error::TemplateError;
pub use messages::SpecialTokens;

use eval::{Bounds, Eval};
use minijinja::machinery::ast::Stmt;
use shohin_core::chat::{
    CallForm, ChatOptions, FileStyle, Message, Renderer, Rendering, Role, Style, Template, ToolCall, render,
};
use std::time::SystemTime;

/// A chat template of a file.
#[derive(Clone, Debug)]
pub struct FileTemplate {
    source: String,
    special: SpecialTokens,
    has_clock: bool,
    style: FileStyle,
}

/// Names of functions and messages that templates are tried with. Nothing of a template contains them.
const PROBE: &str = "shohin_probe_7f3a";

impl FileTemplate {
    /// Parses a template and tries it with short conversations.
    ///
    /// # Errors
    /// If it is not one, is too large, cannot show a message, or uses what is not supported there.
    pub fn new(source: &str, special: SpecialTokens) -> Result<FileTemplate, TemplateError> {
        let source = source::prepared(source)?;
        let style = FileStyle::default();
        let mut template = FileTemplate { source, special, has_clock: true, style };
        template.style = template.probe()?;
        Ok(template)
    }

    /// The same template, for which there is no date: one that asks whether there is takes the date that it states itself.
    pub fn without_clock(self) -> FileTemplate {
        FileTemplate { has_clock: false, ..self }
    }

    /// What was found out about it.
    pub fn style(&self) -> FileStyle {
        self.style
    }

    /// Whether the template shows conversations as a built-in one does, by some that have all that it supports.
    pub(crate) fn agrees(&self, built_in: Template) -> bool {
        let call = [ToolCall { name: "add", arguments: r#"{"a": 1, "b": [true, null, "x\"y"]}"# }];
        let tool = r#"{"type": "function", "function": {"name": "add", "description": "Adds <b>.", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}}"#;
        let message = Message::new;
        let system = message(Role::System, "Be brief.");
        let (ask, say, more) = (
            message(Role::User, " What is 1 + 1? "),
            message(Role::Assistant, "It is 2.\n"),
            message(Role::User, "And\n3?"),
        );
        let calls = Message { tool_calls: &call, ..message(Role::Assistant, "") };
        let thought = Message { reasoning: Some("Easy."), ..say };
        let result = message(Role::Tool, "2");
        let has_tools = built_in.style.has_tools();
        let thinks = built_in.style.can_think();
        let mut talks: Vec<(Vec<Message<'_>>, bool)> = vec![
            (vec![ask], false),
            (vec![system, ask], false),
            (vec![ask, say, more], false),
            (vec![system, ask, say, more, say, ask], false),
        ];
        if has_tools {
            talks.extend([
                (vec![ask], true),
                (vec![system, ask, calls, result], true),
                (vec![ask, calls, result, result, say, more], true),
            ]);
        }
        if thinks {
            talks.extend([(vec![ask, thought, more], false), (vec![ask, thought], false)]);
        }
        talks.iter().all(|(messages, with_tools)| {
            let tools: &[&str] = if *with_tools { &[tool] } else { &[] };
            [Some(false), Some(true), None].into_iter().filter(|thinking| thinks || thinking.is_none()).all(
                |thinking| {
                    let options =
                        ChatOptions { template: built_in, thinking, tools, ..ChatOptions::default() };
                    let theirs = self.render(messages, &options).map(|rendering| rendering.text);
                    match (render(messages, &options), theirs) {
                        // The tokenizer adds the beginning of the sequence.
                        (Ok(ours), Ok(theirs)) => {
                            let bos = self.special.bos.as_deref().unwrap_or_default();
                            theirs.strip_prefix(bos).unwrap_or(&theirs) == ours
                        }
                        _ => false,
                    }
                },
            )
        })
    }

    /// Tries the template.
    fn probe(&self) -> Result<FileStyle, TemplateError> {
        let ask = Message::new(Role::User, PROBE);
        let shows = |rendering: &Rendering, text: &str| {
            let foreign = rendering.foreign.iter();
            foreign.filter_map(|range| rendering.text.get(range.clone())).any(|part| part.contains(text))
        };
        let mut opens = [false; 2];
        for (thinking, opens) in opens.iter_mut().enumerate() {
            let options = ChatOptions { thinking: Some(thinking == 1), ..ChatOptions::default() };
            let prompt = self.shown(&[ask], &options)?;
            if !shows(&prompt, PROBE) {
                let (problem, found) = ("does not show what a user says", String::new());
                return Err(TemplateError { line: 1, problem, found });
            }
            *opens = prompt.text.trim_end().ends_with("<think>");
        }
        let options = ChatOptions::default();
        let system = [Message::new(Role::System, PROBE), Message::new(Role::User, "Hi")];
        let system = self.shown(&system, &options).is_ok_and(|prompt| shows(&prompt, PROBE));
        let tool = format!(
            r#"{{"type": "function", "function": {{"name": "{PROBE}", "description": "", "parameters": {{"type": "object", "properties": {{}}}}}}}}"#
        );
        let question = [Message::new(Role::User, "Hi")];
        let with_tools = ChatOptions { tools: &[&tool], ..options };
        let has_tools = self.shown(&question, &with_tools).is_ok_and(|prompt| shows(&prompt, PROBE));
        let thinks = self.source.contains("</think>") || opens.contains(&true);
        let calls = if has_tools { self.call_form() } else { None };
        Ok(FileStyle { thinks, opens, system, calls })
    }

    /// The form of calls, by the words of the template.
    fn call_form(&self) -> Option<CallForm> {
        let forms = [
            ("<function=", CallForm::Xml),
            ("[ARGS]", CallForm::MistralNamed),
            ("[TOOL_CALLS]", CallForm::Mistral),
            ("<tool_call>[", CallForm::List),
            ("<tool_call>", CallForm::Hermes),
            ("<|start_header_id|>", CallForm::Llama3),
            ("<start_of_turn>", CallForm::Gemma),
        ];
        forms.into_iter().find(|(word, _)| self.source.contains(word)).map(|(_, form)| form)
    }

    fn shown(&self, messages: &[Message<'_>], options: &ChatOptions<'_>) -> Result<Rendering, TemplateError> {
        let parsed = source::parsed(&self.source)?;
        let Stmt::Template(template) = &parsed else { return Ok(Rendering::default()) };
        let bytes = messages.iter().map(|m| m.content.len() + m.reasoning.map_or(0, str::len));
        let bytes = bytes.sum::<usize>() + options.tools.iter().map(|tool| tool.len()).sum::<usize>();
        let bounds = Bounds { steps: (1 << 22) + 64 * bytes, bytes: (64 << 20) + 64 * bytes };
        let now = self.has_clock.then(|| {
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            since.map_or(0, |since| since.as_secs() as i64)
        });
        let globals = messages::globals(messages, options, &self.special, &self.source)?;
        let out = Eval::new(globals, bounds, now).run(&template.children)?;
        let (text, foreign) = out.into_parts();
        Ok(Rendering { text, foreign })
    }
}

impl Renderer for FileTemplate {
    fn render(&self, messages: &[Message<'_>], options: &ChatOptions<'_>) -> shohin_core::Result<Rendering> {
        Ok(self.shown(messages, options)?)
    }
}

/// The template of a model, and how it is rendered.
#[derive(Clone, Debug)]
pub(crate) struct Chosen {
    /// The built-in one, or [`Style::File`].
    pub(crate) template: Template,
    pub(crate) file: Option<FileTemplate>,
    /// Why the file's template is not used, though it is not built in.
    pub(crate) problem: Option<TemplateError>,
}

/// Chooses between the template of a file and the built-in one that was detected in it. The built-in one is taken if both show
/// conversations alike.
pub(crate) fn choose(detected: Template, source: Option<&str>, special: SpecialTokens) -> Chosen {
    let built_in = |problem| Chosen { template: detected, file: None, problem };
    let Some(source) = source else { return built_in(None) };
    // The built-in templates that state a date state the one that they have without a clock.
    let has_date = detected.known && detected.style == Style::Llama31;
    let file = match FileTemplate::new(source, special) {
        Ok(file) if has_date => file.without_clock(),
        Ok(file) => file,
        Err(problem) => return built_in((!detected.known).then_some(problem)),
    };
    let lacks_tools = !detected.style.has_tools() && file.style.calls.is_some();
    if detected.known && !lacks_tools && file.agrees(detected) {
        return built_in(None);
    }
    let template = Template { style: Style::File(file.style), known: true, system: None };
    Chosen { template, file: Some(file), problem: None }
}

#[cfg(test)]
mod choice {
    use super::*;
    use shohin_core::{Gguf, Tokenizer};

    fn detected(source: &str) -> (Template, Template) {
        let gguf = Gguf::parse(include_bytes!("../../../models/sprout.gguf")).unwrap();
        let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
        let detected = Template::detect(Some(source), &tokenizer);
        (detected, choose(detected, Some(source), SpecialTokens::default()).template)
    }

    fn is_file(template: Template) -> bool {
        template.known && matches!(template.style, Style::File(_))
    }

    /// The templates of Qwen2.5 and SmolLM2.
    fn published() -> [(String, Template); 2] {
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        let of = |text: &str| read(text)["template"].as_str().unwrap().to_owned();
        [
            (of(include_str!("../../../core/tests/fixtures/more_chats.json")), Template::QWEN25),
            (of(include_str!("../../../core/tests/fixtures/smollm2_chat.json")), Template::SMOLLM2),
        ]
    }

    #[test]
    fn built_in_templates_are_told_from_those_that_nearly_match() {
        for (source, known) in published() {
            assert_eq!(detected(&source), (known, known));
        }
        let plain = "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n'}}{% endfor %}{% if add_generation_prompt %}{{'<|im_start|>assistant\n'}}{% endif %}";
        assert_eq!(detected(plain), (Template::PLAIN, Template::PLAIN));
        let [(qwen25, _), (smollm2, _)] = published();
        for (source, looks_like) in [
            // What the words do not tell: another order, other white space, other names, another form of calls.
            (plain.replace("messages %}", "messages | reverse %}"), Some(Template::PLAIN)),
            (plain.replace("m['content'] +", "m['content'] | trim +"), Some(Template::PLAIN)),
            (format!("<|im_start|>note\nBe kind.<|im_end|>\n{plain}"), Some(Template::PLAIN)),
            (plain.replace("'<|im_end|>\n'", "'<|im_end|>'"), Some(Template::PLAIN)),
            (qwen25.replace("# Tools", "# Functions"), Some(Template::QWEN25)),
            (qwen25.replace("\\\"arguments\\\"", "\\\"parameters\\\""), Some(Template::QWEN25)),
            (qwen25.replace("- if tools", "- if false"), Some(Template::QWEN25)),
            (smollm2.replace("named SmolLM", "named Sprout"), None),
            (qwen25.replace("You are Qwen", "You are Sprout"), None),
        ] {
            let (found, chosen) = detected(&source);
            assert_eq!(found.known, looks_like.is_some(), "{source}");
            if let Some(like) = looks_like {
                assert_eq!(found, like, "{source}");
            }
            assert!(is_file(chosen), "{source}");
        }
    }

    #[test]
    fn llama_3_has_tools_in_its_file_and_the_date_that_is_built_in() {
        let llama31 = include_str!("../../tests/fixtures/templates/llama31.jinja");
        // Llama 3.2 asks for the date.
        let dated = llama31.replace(
            "    {%- set date_string = \"26 Jul 2024\" %}",
            "{%- if strftime_now is defined %}{%- set date_string = strftime_now('%d %b %Y') %}{%- else %}{%- set date_string = \"26 Jul 2024\" %}{%- endif %}",
        );
        assert_ne!(dated, llama31);
        for source in [llama31, &dated] {
            let gguf = Gguf::parse(include_bytes!("../../../models/sprout.gguf")).unwrap();
            let found = Template::detect(Some(source), &Tokenizer::from_gguf(&gguf).unwrap());
            assert_eq!(found, Template::LLAMA31);
            let chosen = choose(found, Some(source), SpecialTokens::default());
            assert_eq!(chosen.template.style.calls(), Some(CallForm::Llama3));
            assert!(chosen.file.unwrap().agrees(found));
        }
        let today = FileTemplate::new(&dated, SpecialTokens::default()).unwrap();
        let shown = today.render(&[Message::new(Role::User, "Hi")], &ChatOptions::default()).unwrap().text;
        assert!(!shown.contains("26 Jul 2024") && shown.contains("Today Date: "), "{shown}");
    }

    #[test]
    fn a_template_that_cannot_be_used_says_why() {
        let gguf = Gguf::parse(include_bytes!("../../../models/sprout.gguf")).unwrap();
        let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
        for (source, said) in [
            ("{% for m in %}", "cannot be read"),
            ("{% include 'x' %}", "cannot be read"),
            ("Hello", "does not show what a user says"),
            ("{{ messages[0].content | length }}", "does not show what a user says"),
            ("\n{{ messages | frobnicate }}", "line 2"),
            ("{{ messages[0].content.encode() }}", "method that is not supported: encode"),
        ] {
            let chosen =
                choose(Template::detect(Some(source), &tokenizer), Some(source), SpecialTokens::default());
            assert!(!chosen.template.known && chosen.file.is_none());
            let problem = chosen.problem.unwrap().to_string();
            assert!(problem.contains(said), "{problem}");
        }
    }

    #[test]
    fn qwen3s_own_template_is_built_in() {
        let Some(data) = std::env::var_os("SHOHIN_DATA") else {
            return println!("SKIPPED: SHOHIN_DATA is not set");
        };
        let path = std::path::Path::new(&data).join("vocab/Qwen-Qwen3-0.6B.jinja");
        let source = std::fs::read_to_string(path).unwrap();
        assert_eq!(detected(&source), (Template::QWEN3, Template::QWEN3));
    }
}
