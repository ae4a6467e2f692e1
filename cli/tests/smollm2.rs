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
