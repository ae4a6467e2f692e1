//! The Python package: built by pip, and tested by its own tests.
#![cfg(unix)]

use shohin::core::{Format, Gguf};
use shohin::{Model, SamplerConfig};
use shohin_tests::lora::Adapter;
use shohin_tests::model::{Model as TestModel, Shape, Stored};
use std::path::Path;
use std::process::{Command, Output};

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}\n{}{}", text(&output.stdout), text(&output.stderr));
    output
}

#[test]
fn ffi_python_package() {
    let python = || Command::new("python3");
    if !python().args(["-m", "pip", "--version"]).output().is_ok_and(|output| output.status.success()) {
        println!("skipped: there is no python3 with pip");
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let test = std::env::current_exe().unwrap();
    let library = if cfg!(target_os = "macos") { "libshohin_ffi.dylib" } else { "libshohin_ffi.so" };
    let dir = tempfile::tempdir().unwrap();
    let pip =
        ["-m", "pip", "install", "--quiet", "--no-index", "--no-cache-dir", "--disable-pip-version-check"];
    run(python()
        .args(pip)
        .arg("--target")
        .arg(dir.path())
        .arg(root.join("python"))
        .env("PIP_ROOT_USER_ACTION", "ignore")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        // Cargo builds it with this test.
        .env("SHOHIN_LIBRARY", test.with_file_name(library)));
    assert!(dir.path().join("shohin/__init__.py").is_file());

    let path = root.join("../models/sprout-nano.gguf");
    let model = Model::load(&path).unwrap();
    let reply = |options: SamplerConfig, most| -> String {
        let mut chat = model.chat().unwrap();
        (chat.options_mut().sampler, chat.options_mut().max_tokens) = (options, most);
        chat.send("What does a cow say?").unwrap().map(|piece| piece.unwrap().content).collect()
    };
    let package = |file: &str| {
        let mut command = python();
        command.arg(root.join(file)).env("PYTHONPATH", dir.path());
        command.env("PYTHONDONTWRITEBYTECODE", "1").current_dir(dir.path());
        command
    };
    let greedy = reply(SamplerConfig::greedy(), Some(40));
    // A model that can call functions.
    let tools = dir.path().join("tools.gguf");
    let shape = Shape { context: 2048, ..Shape::tiny() };
    std::fs::write(&tools, TestModel::new(shape, Stored::new(Format::Q1_0), 1).to_vec().unwrap()).unwrap();
    let adapter = dir.path().join("adapter.gguf");
    let bytes = std::fs::read(&path).unwrap();
    let factors = Adapter::random(&Gguf::parse(&bytes).unwrap(), &["blk."], 4, 0.1, 1);
    std::fs::write(&adapter, factors.to_vec()).unwrap();
    let folder = root.join("../tests/fixtures/hf/qwen3");
    let mut logits = Vec::new();
    Model::load(&folder).unwrap().logits(&[1, 2, 3], &mut |_, all| logits = all.to_vec()).unwrap();
    let mut tests = package("tests/package.py");
    tests
        .env("SHOHIN_MODEL", &path)
        .env("SHOHIN_REPLY", greedy)
        .env("SHOHIN_TOOLS", tools)
        .env("SHOHIN_FOLDER", folder)
        .env("SHOHIN_LOGIT", f64::from(logits[0]).to_string())
        .env("SHOHIN_ADAPTER", adapter);
    let tests = run(&mut tests);
    let report = String::from_utf8(tests.stderr).unwrap();
    assert!(report.contains("Ran 34 tests"), "{report}");
    // The README's programs, with the path of a model that is there.
    let readme = std::fs::read_to_string(root.join("python/README.md")).unwrap();
    let programs: Vec<&str> =
        readme.split("```python\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    let file = dir.path().join("readme.py");
    let said: Vec<String> = programs
        .iter()
        .map(|code| {
            assert!(code.contains("\"sprout.gguf\""), "{code}");
            std::fs::write(&file, code.replace("sprout.gguf", path.to_str().unwrap())).unwrap();
            String::from_utf8(run(&mut package(file.to_str().unwrap())).stdout).unwrap()
        })
        .collect();
    let [farmer, taught, answered] = said.as_slice() else { panic!("{} programs", said.len()) };
    let mut chat = model.chat().unwrap();
    chat.system("You are a farmer.");
    (chat.options_mut().sampler, chat.options_mut().max_tokens) = (SamplerConfig::greedy(), Some(200));
    let moo = chat.ask("What does a cow say?").unwrap();
    let rest = farmer.strip_prefix(&moo).unwrap_or_else(|| panic!("{farmer}"));
    assert!(rest.starts_with("\n{\"sound\":\""), "{farmer}");
    assert!(dir.path().join("cow.session").is_file());
    assert_eq!(taught, "The door code is 4711.\n");
    assert!(dir.path().join("house.gguf").is_file());
    let whole = reply(SamplerConfig::greedy(), None);
    assert_eq!(answered, &format!("{whole}\n{whole}"));
    let about =
        run(python().args(["-m", "pip", "show", "--verbose", "shohin"]).env("PYTHONPATH", dir.path()));
    let about = String::from_utf8(about.stdout).unwrap();
    for line in [
        "Version: 0.1.0",
        "Summary: Run small language models, 1-bit and ternary Bonsai above all",
        "  Typing :: Typed",
        "  Homepage, https://github.com/shohin-rs/shohin",
    ] {
        assert!(about.lines().any(|found| found == line), "{line}: {about}");
    }
    let example = run(package("examples/python/chat.py").arg(&path));
    let want = reply(SamplerConfig::default(), None) + "\n";
    assert_eq!(String::from_utf8(example.stdout).unwrap(), want);
}
