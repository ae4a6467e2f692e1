//! Programs in C and C++, compiled and run as their authors would.
#![cfg(unix)]

use shohin::core::{Format, Gguf};
use shohin::{Model, SamplerConfig};
use shohin_tests::lora::Adapter;
use shohin_tests::model::{Model as TestModel, Shape, Stored};
use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const MESSAGE: &str = "What does a cow say?";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn model() -> PathBuf {
    root().join("../models/sprout-nano.gguf")
}

/// The directory with the libraries: cargo builds them with this test.
fn libraries() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().into()
}

/// Compiles a program against the static library.
fn compile(compiler: &str, options: &[&str], source: &str, out: &Path) {
    let mut command = Command::new(compiler);
    command.args(options).args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I"]);
    command.arg(root().join("include")).arg(root().join(source)).arg(libraries().join("libshohin_ffi.a"));
    command.args(["-lpthread", "-ldl", "-lm"]).arg("-o").arg(out);
    if cfg!(target_os = "macos") {
        command.args(["-framework", "CoreFoundation", "-framework", "Metal", "-framework", "QuartzCore"]);
    }
    let output = command.output().unwrap_or_else(|e| panic!("{compiler}: {e}"));
    assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
}

fn run(program: &Path, args: &[&OsStr], input: &str) -> String {
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {}\n{stderr}", program.display(), output.status);
    assert_eq!(stderr, "", "{}", program.display());
    String::from_utf8(output.stdout).unwrap()
}

/// The greedy reply by the Rust API.
fn reply() -> String {
    let model = Model::load(model()).unwrap();
    let mut chat = model.chat().unwrap();
    chat.options_mut().sampler = SamplerConfig::greedy();
    chat.options_mut().max_tokens = Some(40);
    let pieces = chat.send(MESSAGE).unwrap();
    let text: String = pieces.map(|piece| piece.unwrap().content).collect();
    assert!(!text.is_empty());
    text
}

/// Runs the test of all functions; `runner` comes before the program.
fn symbols(options: &[&str], runner: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("symbols");
    compile("cc", &[&["-std=c11"], options].concat(), "tests/symbols.c", &program);
    let tools = dir.path().join("tools.gguf");
    let shape = Shape { context: 2048, ..Shape::tiny() };
    let able = TestModel::new(shape, Stored::new(Format::Q1_0), 1).to_vec().unwrap();
    std::fs::write(&tools, able).unwrap();
    let (model, adapter) = (model(), dir.path().join("adapter.gguf"));
    let bytes = std::fs::read(&model).unwrap();
    let factors = Adapter::random(&Gguf::parse(&bytes).unwrap(), &["blk."], 4, 0.1, 1);
    std::fs::write(&adapter, factors.to_vec()).unwrap();
    let mut args: Vec<&OsStr> =
        vec![model.as_ref(), dir.path().as_ref(), MESSAGE.as_ref(), tools.as_ref(), adapter.as_ref()];
    let said = match runner {
        [] => {
            // Under Valgrind it would take minutes to teach it.
            args.push(model.as_ref());
            run(&program, &args, "")
        }
        [runner, options @ ..] => {
            let mut all: Vec<&OsStr> = options.iter().map(OsStr::new).collect();
            all.push(program.as_ref());
            all.extend(args);
            run(Path::new(runner), &all, "")
        }
    };
    assert_eq!(said, reply());
}

#[test]
fn ffi_every_symbol() {
    symbols(&[], &[]);
}

#[test]
fn ffi_every_symbol_with_sanitizers() {
    symbols(&["-fsanitize=address,undefined", "-fno-sanitize-recover=all"], &[]);
}

#[test]
fn ffi_every_symbol_under_valgrind() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("skipped: there is no valgrind");
        return;
    }
    // Threads that still run hold memory, which is "possibly" lost.
    let checks = [
        "--quiet",
        "--error-exitcode=99",
        "--leak-check=full",
        "--errors-for-leak-kinds=definite,indirect",
        "--show-leak-kinds=definite,indirect",
    ];
    symbols(&[], &[&["valgrind"], &checks[..]].concat());
}

#[test]
fn ffi_examples() {
    let dir = tempfile::tempdir().unwrap();
    let model = Model::load(model()).unwrap();
    let mut chat = model.chat().unwrap();
    let mut want = String::new();
    for message in [MESSAGE, "And a dog?"] {
        want.extend(chat.send(message).unwrap().map(|piece| piece.unwrap().content));
        want.push('\n');
    }
    let examples = [("cc", "-std=c99", "examples/c/chat.c"), ("c++", "-std=c++17", "examples/cpp/chat.cpp")];
    for (compiler, standard, source) in examples {
        let program = dir.path().join("chat");
        compile(compiler, &[standard], source, &program);
        let said = run(&program, &[self::model().as_ref()], &format!("{MESSAGE}\nAnd a dog?\n"));
        assert_eq!(said, want, "{source}");
    }
}

#[test]
fn ffi_readme() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let code = readme.split("```c\n").nth(1).unwrap().split("```").next().unwrap();
    assert!(
        code.contains("int main") && code.contains("\"sprout.gguf\"") && code.contains(MESSAGE),
        "{code}"
    );
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("readme.c"), dir.path().join("readme"));
    std::fs::write(&source, code.replace("sprout.gguf", model().to_str().unwrap())).unwrap();
    // Absolute paths stay as they are when they are joined.
    compile("cc", &["-std=c11"], source.to_str().unwrap(), &program);
    let model = Model::load(model()).unwrap();
    let mut chat = model.chat().unwrap();
    let want: String = chat.send(MESSAGE).unwrap().map(|piece| piece.unwrap().content).collect();
    assert_eq!(run(&program, &[], ""), want + "\n");
}

#[test]
fn every_function_is_called_in_symbols_c() {
    let header = std::fs::read_to_string(root().join("include/shohin.h")).unwrap();
    // The rest is not in this library.
    let header = header.split("/* ---- Without an operating system").next().unwrap();
    let test = std::fs::read_to_string(root().join("tests/symbols.c")).unwrap();
    let starts = ["shohin_code shohin_", "const char *shohin_"];
    let functions: Vec<&str> = header
        .lines()
        .filter(|line| starts.iter().any(|start| line.starts_with(start)) && line.contains('('))
        .map(|line| line.split('(').next().unwrap().rsplit([' ', '*']).next().unwrap())
        .collect();
    assert!(functions.len() > 20);
    for name in functions {
        assert!(test.contains(&format!("{name}(")), "{name}");
    }
}
