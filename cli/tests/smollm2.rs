//! SmolLM2 in the terminal. Skipped if its file is absent.

use std::process::Command;

#[test]
fn smollm2_answers() {
    let Some(file) = shohin_tests::smollm2_path() else { return };
    let out = Command::new(env!("CARGO_BIN_EXE_shohin"))
        .args(["run", "What is the opposite of hot?", "--preset", "greedy", "-n", "20", "-m"])
        .arg(file)
        .output()
        .unwrap();
    let (reply, errors) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(reply.starts_with("The opposite of hot is cold."), "{reply}{errors}");
}

/// Its vocabulary lacks bytes, such as 0xF1.
#[test]
fn smollm2_answers_in_the_form_that_is_asked_for() {
    let Some(file) = shohin_tests::smollm2_path() else { return };
    let schema = r#"{"type":"object","properties":{"legs":{"type":"integer","minimum":0,"maximum":8}},"required":["legs"],"additionalProperties":false}"#;
    let out = Command::new(env!("CARGO_BIN_EXE_shohin"))
        .args([
            "run",
            "How many legs has a cow?",
            "--preset",
            "greedy",
            "-n",
            "20",
            "--json-schema",
            schema,
            "-m",
        ])
        .arg(file)
        .output()
        .unwrap();
    let (reply, errors) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    let reply: serde_json::Value = serde_json::from_str(&reply).unwrap_or_else(|_| panic!("{reply}{errors}"));
    assert!(reply["legs"].as_u64().is_some_and(|legs| legs <= 8), "{reply}");
}
