//! The Swift package: against the header, by clang's modules, and where there is a Swift compiler, its own tests.
#![cfg(unix)]

use shohin::core::{Format, Gguf};
use shohin::{Model, SamplerConfig};
use shohin_tests::lora::Adapter;
use shohin_tests::model::{Model as TestModel, Shape, Stored};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The names of C in Swift sources, without those in comments.
fn names(sources: &[PathBuf]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for source in sources {
        let text = fs::read_to_string(source).unwrap();
        let code = text.lines().map(|line| line.split("//").next().unwrap());
        let words = code.flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
        names.extend(words.filter(|word| word.to_lowercase().starts_with("shohin_")).map(String::from));
    }
    names
}

/// Whether clang accepts a program that imports the module.
fn accepts(clang: &str, module: &Path, body: &str) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("uses.m");
    fs::write(&program, format!("@import CShohin;\nint main(void) {{\n{body}return 0;\n}}\n")).unwrap();
    let mut command = Command::new(clang);
    command.args(["-fmodules", "-fsyntax-only", "-Wall", "-Werror", "-Wno-unused-value"]);
    command.arg(format!("-fmodules-cache-path={}", dir.path().join("cache").display()));
    command.arg("-I").arg(module).arg("-I").arg(root().join("include")).arg(&program);
    let output = command.output().unwrap_or_else(|e| panic!("{clang}: {e}"));
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

#[test]
fn ffi_swift_package() {
    let clang = std::env::var("CLANGXX").unwrap_or_else(|_| "clang".into());
    if Command::new(&clang).arg("--version").output().is_err() {
        println!("skipped: there is no clang");
        return;
    }
    let swift = root().join("swift/Sources/Shohin");
    let sources: Vec<PathBuf> = swift.read_dir().unwrap().map(|file| file.unwrap().path()).collect();
    let names = names(&sources);
    assert!(names.len() > 40, "{names:?}");
    let module = root().join("swift/Sources/CShohin");
    let header = fs::read_to_string(root().join("include/shohin.h")).unwrap();
    let mut body = String::new();
    for name in &names {
        let is_type = header.contains(&format!("}} {name};"));
        body += &if is_type { format!("  (void)sizeof({name});\n") } else { format!("  (void){name};\n") };
    }
    accepts(&clang, &module, &body).unwrap();
    assert!(accepts(&clang, &module, "  (void)shohin_no_such_function;\n").is_err());

    // The framework's own module map, which names the header without a shim.
    let script = fs::read_to_string(root().join("swift/build-xcframework.sh")).unwrap();
    let map = script.split("printf '").nth(1).unwrap().split('\'').next().unwrap().replace("\\n", "\n");
    let headers = tempfile::tempdir().unwrap();
    fs::copy(root().join("include/shohin.h"), headers.path().join("shohin.h")).unwrap();
    fs::write(headers.path().join("module.modulemap"), map).unwrap();
    accepts(&clang, headers.path(), &body).unwrap();
}

/// Compiles and runs, within the Debian that has the compiler: `$0` is that folder, `$1` the repository, `$2` a folder of this test, and
/// `$3` what is run. What is mounted is gone with the process.
const WITHIN: &str = r#"
mkdir -p "$0/mnt/shohin" "$0/mnt/work"
mount --rbind /proc "$0/proc"
mount --bind "$1" "$0/mnt/shohin"
mount --bind "$2" "$0/mnt/work"
exec chroot "$0" sh -ec "$3"
"#;

/// The package's tests, without a warning; the program of the README; the state of the sample's screen.
const SWIFT: &str = r#"
swift test --package-path /mnt/shohin/ffi/swift --scratch-path /var/tmp/shohin/package -Xswiftc -warnings-as-errors
# Swift 6.0's library for observation refers to a function that it has not, and does not call here.
swift build --package-path /mnt/work/programs --scratch-path /var/tmp/shohin/programs -Xswiftc -warnings-as-errors \
  -Xlinker --allow-shlib-undefined
echo "The README's program:"
/var/tmp/shohin/programs/debug/Readme
echo
echo "The sample:"
/var/tmp/shohin/programs/debug/Sample
"#;

/// Uses the state of the sample's screen as the screen does.
const SAMPLE: &str = r#"
let state = ChatState()
await state.load()
state.send("What does a cow say?")
while state.isAnswering { await Task.yield() }
print(state.isReady, state.problem ?? "no problem", state.messages.map { $0.text })
state.send("Tell me a story.")
state.stop()
while state.isAnswering { await Task.yield() }
print(state.messages.count)
"#;

/// A package with the first program of the README, which names a model that is there, and one of the sample's state.
fn programs(dir: &Path) {
    let readme = fs::read_to_string(root().join("swift/README.md")).unwrap();
    let code = readme.split("```swift\n").nth(1).unwrap().split("```").next().unwrap();
    assert!(code.contains("\"sprout.gguf\""), "{code}");
    let code = code.replace("sprout.gguf", "/mnt/shohin/models/sprout-nano.gguf");
    let sources = dir.join("programs/Sources");
    let write = |name: &str, text: &str| {
        let file = sources.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    };
    write("Readme/main.swift", &code);
    write("Sample/main.swift", SAMPLE);
    let state = fs::read_to_string(root().join("swift/Sample/ChatState.swift")).unwrap();
    write("Sample/ChatState.swift", &state);
    let package = r#"// swift-tools-version: 6.0
import PackageDescription

let package = Package(
    name: "Programs",
    dependencies: [.package(name: "Shohin", path: "/mnt/shohin/ffi/swift")],
    targets: ["Readme", "Sample"].map { .executableTarget(name: $0, dependencies: ["Shohin"]) }
)
"#;
    fs::write(dir.join("programs/Package.swift"), package).unwrap();
}

/// Installs the library as `cargo xtask ffi` does, as far as the package needs it.
fn install(prefix: &Path) {
    let lib = prefix.join("lib");
    fs::create_dir_all(lib.join("pkgconfig")).unwrap();
    fs::create_dir_all(prefix.join("include")).unwrap();
    // Cargo builds it with this test.
    let built = std::env::current_exe().unwrap().with_file_name("libshohin_ffi.so");
    fs::copy(built, lib.join("libshohin.so.0")).unwrap();
    fs::copy(lib.join("libshohin.so.0"), lib.join("libshohin.so")).unwrap();
    fs::copy(root().join("include/shohin.h"), prefix.join("include/shohin.h")).unwrap();
    let described = fs::read_to_string(root().join("shohin.pc.in")).unwrap().replace("@VERSION@", "0.1.0");
    fs::write(lib.join("pkgconfig/shohin.pc"), described).unwrap();
}

#[test]
fn ffi_swift_tests() {
    let Some(debian) = std::env::var_os("SHOHIN_SWIFT_ROOT") else {
        println!("skipped: there is no Swift compiler; `cargo xtask swift` installs one");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    install(&dir.path().join("prefix"));
    programs(dir.path());
    let repository = root().parent().unwrap();
    let path = repository.join("models/sprout-nano.gguf");
    let shape = Shape { context: 2048, ..Shape::tiny() };
    let able = TestModel::new(shape, Stored::new(Format::Q1_0), 1).to_vec().unwrap();
    fs::write(dir.path().join("tools.gguf"), able).unwrap();
    let bytes = fs::read(&path).unwrap();
    let factors = Adapter::random(&Gguf::parse(&bytes).unwrap(), &["blk."], 4, 0.1, 1);
    fs::write(dir.path().join("adapter.gguf"), factors.to_vec()).unwrap();
    let model = Model::load(&path).unwrap();
    let reply = |sampler, max_tokens| {
        let mut chat = model.chat().unwrap();
        (chat.options_mut().sampler, chat.options_mut().max_tokens) = (sampler, max_tokens);
        chat.ask("What does a cow say?").unwrap()
    };
    let default = reply(SamplerConfig::default(), None);

    let mut within = Command::new("unshare");
    within.args(["--mount", "sh", "-ec", WITHIN]).arg(debian).arg(repository).arg(dir.path()).arg(SWIFT);
    within.env_clear().env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    within.env("HOME", "/root").env("LANG", "C.UTF-8");
    within
        .env("PKG_CONFIG_PATH", "/mnt/work/prefix/lib/pkgconfig")
        .env("LD_LIBRARY_PATH", "/mnt/work/prefix/lib");
    within.env("SHOHIN_MODEL", "/mnt/shohin/models/sprout-nano.gguf");
    within.env("SHOHIN_TOOLS", "/mnt/work/tools.gguf").env("SHOHIN_ADAPTER", "/mnt/work/adapter.gguf");
    within
        .env("SHOHIN_REPLY", reply(SamplerConfig::greedy(), Some(40)))
        .env("SHOHIN_DEFAULT_REPLY", &default);
    let output = within.output().unwrap_or_else(|e| panic!("unshare: {e}"));
    let said = String::from_utf8_lossy(&output.stdout);
    let all = format!("{said}{}", String::from_utf8_lossy(&output.stderr));
    println!("{all}");
    assert!(output.status.success(), "{}", output.status);
    assert!(all.contains("Executed 16 tests, with 0 failures"));
    let built_in = Model::built_in().unwrap().chat().unwrap().ask("What does a cow say?").unwrap();
    let want = format!(
        "The README's program:\n{default}\nThe sample:\ntrue no problem [\"What does a cow say?\", {built_in:?}]\n4\n"
    );
    assert!(said.ends_with(&want), "expected {want:?}");
}
