//! What a corpus has, and how much each of its tokens counts.
#![cfg(feature = "train")]

use shohin::Model;
use shohin::core::tokenizer::Special;
use shohin::train::{Corpus, CorpusOptions, Example};
use std::path::Path;

/// Everything but replies counts as prompts do: what the system and users say, results of tools, and what begins messages.
#[test]
fn prompts_in_texts_count_as_much_as_is_said() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/sprout.gguf");
    let model = Model::builder().cpu().threads(1).inspect_only().load(path).unwrap();
    let reply = "assistant\nIt is 12.<|im_end|>\n";
    let before = "A text.<|endoftext|><|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nWhen?<|im_end|>\n<|im_start|>";
    let again = "<|im_start|>user\n\n<tool_response>\n12\n</tool_response><|im_end|>\n<|im_start|>";
    let text = [before, reply, again, reply, "<|endoftext|>Another text."].concat();
    let options = CorpusOptions { prompt_weight: Some(0.25), ..CorpusOptions::default() };
    let corpus = Corpus::text_with(&model, &text, &options).unwrap();
    let (tokens, weights) = (corpus.data().tokens(), corpus.data().weights());
    let count = |weight: f32| -> Vec<u32> {
        tokens.iter().zip(weights).filter(|(_, w)| **w == weight).map(|(id, _)| *id).collect()
    };
    let ids = |text: &str| model.tokenize_with(text, Special::Parse);
    assert_eq!(tokens.len(), weights.len());
    let learned = ["A text.<|endoftext|>", reply, reply, "<|endoftext|>Another text."].concat();
    assert_eq!(count(1.0), ids(&learned));
    let prompts = [before.strip_prefix("A text.<|endoftext|>").unwrap(), again].concat();
    assert_eq!(count(0.25), ids(&prompts));
}

/// A model is given descriptions of functions as they are written: learned with another order of keys, they would be others.
#[test]
fn descriptions_of_functions_are_learned_as_they_are_written() {
    let tool = r#"{"type": "function", "function": {"name": "now", "description": "Tells the time.", "parameters": {}}}"#;
    let messages = r#"[{"role": "user", "content": "When?"}, {"role": "assistant", "content": "Now."}]"#;
    let example = Example::parse(&format!(r#"{{"messages": {messages}, "tools": [{tool}]}}"#)).unwrap();
    assert_eq!(example.tools, [tool]);
    for (line, problem) in [
        (r#"{"tools": []}"#, "\"messages\""),
        ("[]", "\"messages\""),
        (r#"{"messages": [], "tool": []}"#, "unknown field \"tool\""),
        (r#"{"messages": [], "tools": {}}"#, "expected an array in \"tools\""),
        (r#"{"messages": ["#, "JSON"),
    ] {
        let error = Example::parse(line).unwrap_err();
        assert!(error.contains(problem), "{error}");
    }
}
