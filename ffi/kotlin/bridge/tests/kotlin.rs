//! The Kotlin package: compiled by kotlinc, and run on a JVM by its own tests. `SHOHIN_KOTLINC` is the directory of the
//! compiler.
#![cfg(unix)]

use shohin::core::{Format, Gguf};
use shohin::{Model, SamplerConfig};
use shohin_tests::lora::Adapter;
use shohin_tests::model::{Model as TestModel, Shape, Stored};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const MESSAGE: &str = "What does a cow say?";

/// For programs that run for some seconds.
const JVM: [&str; 2] = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"];

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}\n{}{}", text(&output.stdout), text(&output.stderr));
    output
}

fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../models/sprout-nano.gguf")
}

/// The reply by the Rust API.
fn reply(model: &Model, sampler: SamplerConfig, most: Option<usize>) -> String {
    let mut chat = model.chat().unwrap();
    (chat.options_mut().sampler, chat.options_mut().max_tokens) = (sampler, most);
    chat.send(MESSAGE).unwrap().map(|piece| piece.unwrap().content).collect()
}

/// The README's program, with the path of a model that is there.
fn readme_program(dir: &Path) -> PathBuf {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let readme = std::fs::read_to_string(readme).unwrap();
    let (_, code) = readme.split_once("```kotlin\n").unwrap();
    let code = code.split("```").next().unwrap();
    assert!(code.contains("\"sprout.gguf\"") && code.contains(MESSAGE), "{code}");
    let file = dir.join("Readme.kt");
    std::fs::write(&file, code.replace("sprout.gguf", model().to_str().unwrap())).unwrap();
    file
}

#[test]
fn ffi_kotlin_package() {
    let Some(kotlinc) = std::env::var_os("SHOHIN_KOTLINC").filter(|dir| !dir.is_empty()) else {
        println!("skipped: SHOHIN_KOTLINC is not set");
        return;
    };
    let lib = Path::new(&kotlinc).join("lib");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let classes = dir.path().join("classes");
    // What the script `kotlinc` does.
    let mut compile = Command::new("java");
    compile.args(JVM).arg("-cp").arg(lib.join("kotlin-compiler.jar"));
    compile.arg("org.jetbrains.kotlin.cli.jvm.K2JVMCompiler").arg("-kotlin-home").arg(&kotlinc);
    compile.args(["-Werror", "-jvm-target", "17", "-cp"]).arg(lib.join("kotlinx-coroutines-core-jvm.jar"));
    compile.arg("-d").arg(&classes).arg(root.join("shohin/src"));
    compile.arg(root.join("sample/src/main/kotlin/rs/shohin/sample/ChatState.kt"));
    run(compile.arg(readme_program(dir.path())));

    // A model that can call functions.
    let tools = dir.path().join("tools.gguf");
    let shape = Shape { context: 2048, ..Shape::tiny() };
    std::fs::write(&tools, TestModel::new(shape, Stored::new(Format::Q1_0), 1).to_vec().unwrap()).unwrap();

    let adapter = dir.path().join("adapter.gguf");
    let bytes = std::fs::read(model()).unwrap();
    let factors = Adapter::random(&Gguf::parse(&bytes).unwrap(), &["blk."], 4, 0.1, 1);
    std::fs::write(&adapter, factors.to_vec()).unwrap();

    let loaded = Model::load(model()).unwrap();
    let default = reply(&loaded, SamplerConfig::default(), None);
    let jars = ["kotlin-stdlib.jar", "kotlinx-coroutines-core-jvm.jar"].map(|jar| lib.join(jar));
    let path = std::env::join_paths([classes].into_iter().chain(jars)).unwrap();
    // Cargo builds the library with this test.
    let built = std::env::current_exe().unwrap();
    let built = built.parent().unwrap().display();
    let program = |main: &str| {
        let mut java = Command::new("java");
        java.args(JVM).arg("-Xcheck:jni").arg(format!("-Djava.library.path={built}"));
        java.arg("-cp").arg(&path).arg(main).env("SHOHIN_MODEL", model()).env("SHOHIN_TOOLS", &tools);
        java.env("SHOHIN_ADAPTER", &adapter);
        java.env("SHOHIN_REPLY", reply(&loaded, SamplerConfig::greedy(), Some(40)));
        let output = run(java.env("SHOHIN_DEFAULT_REPLY", &default));
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{main}");
        String::from_utf8(output.stdout).unwrap()
    };
    let report = program("rs.shohin.PackageTestKt");
    // -Xcheck:jni prints warnings.
    assert!(!report.contains("WARNING") && report.contains("19 tests passed"), "{report}");
    assert_eq!(program("ReadmeKt"), default + "\n");
}
