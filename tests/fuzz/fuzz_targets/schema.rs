//! A hostile schema, and a random walk through its grammar: the text always ends, and is JSON.
#![no_main]

use libfuzzer_sys::fuzz_target;
use shohin_core::json;
use shohin_core::constrain::{Constraint, Grammar, Vocabulary, Whitespace};
use std::sync::{Arc, LazyLock};

/// The bytes, and a token that ends the text.
static BYTES: LazyLock<Arc<Vocabulary>> = LazyLock::new(|| {
    let texts = (0..=255u8).map(Some).chain([None]);
    Arc::new(Vocabulary::from_texts(texts, &[END]))
});
const END: u32 = 256;

fuzz_target!(|input: &[u8]| {
    // The choices follow a zero byte.
    let at = input.iter().position(|&byte| byte == 0).unwrap_or(input.len());
    let (schema, choices) = input.split_at(at);
    let whitespace = if choices.len() % 2 == 0 { Whitespace::None } else { Whitespace::Allowed };
    let Ok(grammar) = Grammar::json_schema(&String::from_utf8_lossy(schema), whitespace) else { return };
    let Ok(mut constraint) = Constraint::new(grammar, BYTES.clone()) else { return };
    let least = constraint.shortest() as usize;
    if least > 1000 {
        return;
    }
    let mut text = Vec::new();
    let budget = least + choices.len().min(200);
    for left in (1..=budget).rev() {
        if constraint.finished() {
            break;
        }
        let allowed = constraint.allowed(left);
        let tokens: Vec<u32> = (0..=END).filter(|t| allowed[*t as usize / 32] >> (t % 32) & 1 == 1).collect();
        let choice = choices.get(text.len()).copied().unwrap_or(0);
        let token = tokens[usize::from(choice) % tokens.len()];
        if token == END {
            break;
        }
        assert!(constraint.accept(token));
        text.push(token as u8);
    }
    assert!(constraint.complete());
    let text = String::from_utf8(text).expect("UTF-8");
    json::reformat(&text, &mut String::new()).expect("JSON");
});
