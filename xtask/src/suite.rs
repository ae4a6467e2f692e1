//! The test suites.

use std::env::consts::ARCH;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::command::{Cmd, Result, Tally};
use crate::machine::{
    ARM_GCC, CHROMEDRIVER, CHROMIUM, CLANG, CMAKE, FIREFOX, GXX, HEADLESS_SHELL, JAVA, MAKE, MPICC, MPIRUN,
    Machine, Need, QEMU_ARM, QEMU_X86, VALGRIND, WASM, XZ,
};
use crate::package::{
    BINDGEN, CLI, CORE, CUDA, EMBEDDED, FFI, FUZZ, GPU, HOST, JNI, METAL, PROGRAM, SCHEDULES, TESTS, TRAIN,
    WASM as WASM_SHELL, WASM_TRAIN,
};
use crate::runner::unable;
use crate::web;
use crate::{api, bochs, demo, ffi, firmware, fuzz, instructions, source, wasi};

/// The targets for which `no-std` compiles core.
const BARE_TARGETS: [&str; 3] = ["thumbv7em-none-eabihf", CORTEX_M0, "riscv32imac-unknown-none-elf"];
const CORTEX_M0: &str = "thumbv6m-none-eabi";
const ARM_LINUX: &str = "aarch64-unknown-linux-gnu";
const APPLE: &str = "aarch64-apple-darwin";
const ANDROID: &str = "aarch64-linux-android";
const IOS: &str = "aarch64-apple-ios";
const WASI: &str = "wasm32-wasip1";

/// Compiles what is built for phones, without what teaches.
const FOR_PHONES: &str = "check --profile suite --no-default-features --target";

/// Kernels are inlined by attributes. With less inlining of everything else core is compiled in six sevenths of the time.
const LESS_INLINED: &str = "-Cllvm-args=-inline-threshold=50";
/// With a threshold of 50, each load and store of a vector is a call while assertions are on.
const SIMD128: &str = "-Ctarget-feature=+simd128 -Cllvm-args=-inline-threshold=100";

/// Those integration tests of [`PORTABLE`] and the fuzz targets that reach kernels of WebAssembly, or sizes that 32 bits cannot
/// hold. The others, and unit tests, say on wasm32 what they say elsewhere.
const ON_32_BITS: &[&str] = &[
    "parity",
    "quant",
    "repack",
    "packed",
    "gguf",
    "malformed",
    "parts",
    "allocation",
    "states",
    "paging",
    "golden_logits",
    "mutations",
    "products",
    "gradients",
];

/// Packages that are not part of `--quick`.
const NOT_NATIVE: &[&str] =
    &[GPU, METAL, FFI, JNI, FUZZ, SCHEDULES, EMBEDDED, BINDGEN, WASM_SHELL, WASM_TRAIN];

/// The packages tested on other instruction sets.
const PORTABLE: &[&str] = &[CORE, TESTS, TRAIN];

/// The profile is described in Cargo.toml.
const TEST: &str = "test --profile suite";

/// Tests of the native crates with the GPU engine. Every suite selects the same packages and features: with others, cargo
/// would build most crates again.
fn native(m: &Machine) -> Cmd {
    // The tools have no tests, nor has the C library for microcontrollers; the CUDA engine has a suite of its own, and so has
    // the WebAssembly crate, which tests nothing on the host.
    let cargo = m.cargo().args(TEST).all_packages_but(&[BINDGEN, CUDA, EMBEDDED, WASM_SHELL, WASM_TRAIN]);
    cargo.arg("--features").arg(format!("{CLI}/gpu,{CLI}/cuda,{HOST}/stream"))
}

/// [`native`] without the tests of the GPU engines themselves, which have suites of their own.
fn native_but_gpu(m: &Machine) -> Cmd {
    [GPU, METAL].iter().fold(native(m), |cargo, package| cargo.arg("--exclude").arg(package))
}

/// [`native`] with the tests of the GPU engine.
fn gpu(m: &Machine) -> Cmd {
    native(m).arg("--exclude").arg(METAL)
}

fn cuda(m: &Machine) -> Cmd {
    m.cargo().args(TEST).packages(&[CUDA])
}

fn metal(m: &Machine) -> Result<Cmd> {
    Ok(m.cargo().args(TEST).packages(&[METAL]).env("CLANGXX", m.program(&CLANG)?))
}

/// Builds the program `shohin` as the suite `test` does, and returns its path.
fn program(m: &Machine) -> Result<PathBuf> {
    native_but_gpu(m).args("--test cli --no-run").run()?;
    Ok(m.target.join("suite").join(PROGRAM))
}

/// The environment variable that names it to the tests of the npm package.
const PROGRAM_PATH: &str = "SHOHIN_PROGRAM";

/// An engine whose results must be those of another, with a test over random inputs that goes on for as long as it is told.
pub(crate) struct Engine {
    /// The suite with the test; also the name that the test prints.
    pub(crate) suite: &'static str,
    /// What the test says it has made.
    pub(crate) what: &'static str,
    test: fn(&mut Machine) -> Result<Cmd>,
}

impl Engine {
    /// The test, when all that it needs is installed; prints why there is none otherwise.
    pub(crate) fn ready(&self, m: &mut Machine) -> Result<Option<Cmd>> {
        let suite = SUITES.iter().find(|suite| suite.name == self.suite).ok_or("there is no such suite")?;
        m.prepare(suite.needs);
        if let Some(why) = unable(m, suite) {
            println!("{} is skipped: {why}", self.suite);
            return Ok(None);
        }
        (self.test)(m).map(Some)
    }
}

const EXACTLY: &str = "-- --exact --nocapture";

/// The engines of `cargo xtask fuzz --engines`.
pub(crate) const ENGINES: &[Engine] = &[
    Engine {
        suite: "gpu",
        what: "models",
        test: |m| Ok(gpu(m).args("--test gpu_model").args(EXACTLY).arg("random_models_agree")),
    },
    Engine {
        suite: "cuda",
        what: "models",
        test: |m| Ok(cuda(m).args("--test model").args(EXACTLY).arg("random_models_agree")),
    },
    Engine {
        suite: "metal",
        what: "models",
        test: |m| Ok(metal(m)?.args("--test metal").args(EXACTLY).arg("model::random_models_agree")),
    },
    Engine {
        suite: "npm",
        what: "conversations",
        test: |m| {
            web::build(m)?;
            let node = m.cmd("node").args("--test --test-reporter=spec wasm/js/test/agree.test.mjs");
            Ok(in_browsers(m, node)?.env(PROGRAM_PATH, program(m)?))
        },
    },
];

/// Tests of run-time dispatch: the processor's best instruction set is chosen, and no unsupported instruction
/// is executed. They are the parity tests of prompts, and the replies of two small models, which reach every
/// kernel.
const DISPATCH: &str = "--test parity --test repack -- instruction_sets prompts go_on_alike";

/// Those among [`DISPATCH`] that need no kernel of an instruction set's own.
const REPLIES: &str = "--test parity --test repack -- instruction_sets go_on_alike";

/// The tests of `parity` among [`DISPATCH`]: models take minutes on an emulator of a whole machine.
const PROMPTS: &str = "instruction_sets prompts";

/// The features of core that can be left out.
fn default_features(m: &Machine) -> Result<Vec<String>> {
    let manifest = firmware::read(&m.root.join("core/Cargo.toml"))?;
    let list = manifest.split("default = [").nth(1).and_then(|rest| rest.split(']').next());
    let list = list.ok_or("core/Cargo.toml has no default features")?;
    Ok(list.split('"').skip(1).step_by(2).map(str::to_owned).collect())
}

/// How the names of the CLI's tests begin that need a GPU.
const GPU_TESTS: &str = "a_gpu";

/// How the names of the tests begin that need compilers of C and C++.
const FFI_TESTS: &str = "ffi_";

/// How the names of the CLI's tests begin that run on CUDA's kernels.
const CUDA_TESTS: &str = "cuda_";

/// The environment variable that tells the parity tests which instruction set to expect.
const EXPECTED_ISA: &str = "SHOHIN_EXPECTED_ISA";

/// The name of what every processor runs.
const SCALAR: &str = "scalar";

/// The name of the instruction set with AMX.
const AMX: &str = "avx512amx";

/// The environment variable that tells the parity tests which instruction sets need not be compared.
const COMPARED_ELSEWHERE: &str = "SHOHIN_COMPARED_ELSEWHERE";

/// The environment variable that shortens, for emulators, what the suite `test` runs in full.
const BRIEF: &str = "SHOHIN_BRIEF";

/// The environment variable that names SmolLM2's file. Its tests are skipped if the variable is empty: they
/// are a separate suite.
const SMOLLM2: &str = "SHOHIN_SMOLLM2";

/// The environment variable that multiplies the number of mutations.
const FUZZ_TIMES: &str = "SHOHIN_FUZZ_TIMES";

/// The environment variable that names the folder with a Debian that has Swift's compiler.
const SWIFT_ROOT: &str = "SHOHIN_SWIFT_ROOT";

/// Installs Swift's compiler, and builds and tests the Swift package.
pub(crate) fn swift(m: &mut Machine) -> Result<Tally> {
    m.prepare(&[Need::Swift]);
    if let Some(why) = m.absent(Need::Swift) {
        return Err(why.into());
    }
    let tests = m.cargo().args(TEST).packages(&[FFI]).args("--test swift -- --nocapture ffi_swift_tests");
    tests.env(SWIFT_ROOT, m.swift()).tests()
}

/// What the suite `fuzz` takes of one core, and with `--thorough`.
const FUZZ_SECONDS: [f64; 2] = [60.0, 300.0];

/// The budget of installing what several suites need.
pub(crate) const SET_UP_BUDGET: u64 = 120;

pub(crate) struct Suite {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Processor-seconds that it may take in a whole run from a fresh clone; the table in docs/CONTRIBUTING.md has them, too.
    pub(crate) budget: u64,
    pub(crate) needs: &'static [Need],
    /// The reason why this machine cannot run the suite, if any.
    pub(crate) unfit: fn() -> Option<String>,
    pub(crate) run: fn(&mut Machine) -> Result<Tally>,
    /// Whether the suite fails if it reports no tests.
    pub(crate) counts: bool,
    pub(crate) beside: Beside,
}

/// What may run at the same time as a suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beside {
    Anything,
    /// Anything, and it may take long: it measures no time. At low priority it can hold cargo's lock of a directory for minutes;
    /// who waits for that leaves it a core.
    AnythingAtLowPriority,
    /// The suite measures time.
    Nothing,
    /// All but these suites, which build `target/suite/shohin` with other features.
    AllBut(&'static [&'static str]),
}

const ANYWHERE: fn() -> Option<String> = || None;

const FORMAT: Suite = Suite {
    name: "format",
    about: "cargo fmt --check",
    budget: 5,
    needs: &[Need::Component("rustfmt")],
    unfit: ANYWHERE,
    run: |m| m.cargo().args("fmt --all --check").run().map(|()| Tally::default()),
    counts: false,
    beside: Beside::Anything,
};

const SOURCE: Suite = Suite {
    name: "source",
    about: "source rules: no panic in core without a reason, no circles of imports, nothing unfinished",
    budget: 5,
    needs: &[],
    unfit: ANYWHERE,
    run: |m| source::check(&m.root).map(|()| Tally::default()),
    counts: false,
    beside: Beside::Anything,
};

/// The suites of `--quick`. They use the profile `dev`, so that they share builds with `cargo test`.
pub(crate) const QUICK: &[Suite] = &[
    FORMAT,
    SOURCE,
    Suite {
        name: "clippy",
        about: "clippy with warnings as errors: the native crates",
        budget: 60,
        needs: &[Need::Component("clippy")],
        unfit: ANYWHERE,
        run: |m| {
            let lint = m.cargo().args("clippy --all-targets").all_packages_but(NOT_NATIVE);
            lint.args("-- -Dwarnings").run().map(|()| Tally::default())
        },
        counts: false,
        beside: Beside::Anything,
    },
    Suite {
        name: "test",
        about: "unit and integration tests of the native crates",
        budget: 100,
        needs: &[],
        unfit: ANYWHERE,
        run: |m| {
            let tests = m.cargo().arg("test").all_packages_but(NOT_NATIVE).args("--lib --bins --tests");
            tests.env(SMOLLM2, "").tests()
        },
        counts: true,
        beside: Beside::Anything,
    },
];

/// Long ones come early, so that no core waits for one at the end.
pub(crate) const SUITES: &[Suite] = &[
    FORMAT,
    SOURCE,
    Suite {
        name: "clippy",
        about: "clippy with warnings as errors, for the host, wasm32 and aarch64",
        budget: 190,
        needs: &[Need::Component("clippy"), Need::Target(WASM), Need::Target(ARM_LINUX)],
        unfit: ANYWHERE,
        run: clippy,
        counts: false,
        beside: Beside::Anything,
    },
    Suite {
        name: "npm",
        about: "the npm package: build, contents of the tarball, type check, tests in Node, Chromium and Firefox",
        budget: 560,
        needs: BROWSERS,
        unfit: ANYWHERE,
        run: |m| {
            web::build(m)?;
            // What takes seconds comes before what takes minutes.
            m.cmd("node").arg(m.root.join("xtask/npm-pack.mjs")).run()?;
            m.cmd("npm").args("run --silent check").run()?;
            let tests = m.cmd("npm").args("test --silent --workspace wasm");
            in_browsers(m, tests)?.env(PROGRAM_PATH, program(m)?).tests()
        },
        counts: true,
        beside: Beside::Anything,
    },
    Suite {
        name: "test",
        about: "unit and integration tests of every crate",
        budget: 280,
        needs: &[],
        unfit: ANYWHERE,
        run: |m| {
            let tests = native_but_gpu(m).args("--lib --bins --tests --examples -- --skip").arg(GPU_TESTS);
            let tests = tests.arg("--skip").arg(FFI_TESTS).arg("--skip").arg(CUDA_TESTS);
            // The suite `fuzz` makes mutations.
            tests.env(SMOLLM2, "").env(FUZZ_TIMES, "0").tests()
        },
        counts: true,
        beside: Beside::Anything,
    },
    Suite {
        name: "smollm2",
        about: "SmolLM2, a trained model from PyPI, against llama.cpp and transformers",
        budget: 25,
        needs: &[Need::SmolLm2],
        unfit: ANYWHERE,
        run: |m| {
            let tests = native_but_gpu(m).args("--test smollm2");
            tests.env(SMOLLM2, m.smollm2()).tests()
        },
        counts: true,
        beside: Beside::Anything,
    },
    Suite {
        name: "doc",
        about: "examples in the documentation and the README; rustdoc with warnings as errors",
        budget: 30,
        needs: &[],
        unfit: ANYWHERE,
        run: |m| {
            let tally = native_but_gpu(m).arg("--doc").tests()?;
            // The packages of clippy: what they depend on is checked once.
            let doc = m.cargo().args("doc --profile suite --no-deps").all_packages_but(&[BINDGEN]);
            doc.env("RUSTDOCFLAGS", "-Dwarnings").run()?;
            if m.thorough {
                api::run(m, true)?;
            }
            Ok(tally)
        },
        counts: true,
        beside: Beside::Anything,
    },
    Suite {
        name: "page",
        about: "the chat page in headless Chromium and Firefox, from the first keystroke to the streamed reply",
        budget: 300,
        needs: BROWSERS,
        unfit: ANYWHERE,
        run: |m| {
            web::build(m)?;
            let tests = m.cmd("npm").args("run --silent test:page --workspace web-demo");
            in_browsers(m, tests)?.env(SMOLLM2, fetched_smollm2(m)).tests()
        },
        counts: true,
        beside: Beside::Anything,
    },
    Suite {
        name: "fuzz",
        about: "a minute of mutations for all readers and parsers; docs/SECURITY.md has more",
        budget: 65,
        needs: &[],
        unfit: ANYWHERE,
        run: |m| {
            let targets = fuzz::targets(&m.root)?.len().max(1);
            let seconds = FUZZ_SECONDS[usize::from(m.thorough)] / targets as f64;
            let mutations = native_but_gpu(m).args("--test mutations -- --show-output");
            mutations.env("SHOHIN_FUZZ_SECONDS", seconds.to_string()).tests()
        },
        counts: true,
        beside: Beside::Anything,
    },
    Suite {
        name: "wasm-browser",
        about: "the WebAssembly crate in Chromium and Node, with relaxed SIMD; its kernels in Chromium",
        budget: 110,
        needs: &[
            Need::Target(WASM),
            Need::BindgenTestRunner,
            Need::Node,
            Need::Program(&CHROMIUM),
            Need::Program(&CHROMEDRIVER),
        ],
        unfit: ANYWHERE,
        run: wasm_bindgen_tests,
        counts: true,
        beside: Beside::Anything,
    },
    Suite {
        name: "firmware",
        about: "chats on emulated Cortex-M and RISC-V boards: replies, memory, flash, instructions per token",
        budget: 170,
        needs: firmware::NEEDS,
        unfit: ANYWHERE,
        run: |m| firmware::run(m, false),
        counts: true,
        beside: Beside::Anything,
    },
    Suite {
        name: "ffi",
        about: "the C interface: every function, with sanitizers and Valgrind, too; examples in C, C++ and Python; CMake, pkg-config",
        budget: 45,
        needs: &[Need::Program(&GXX), Need::Program(&CMAKE), Need::Program(&VALGRIND)],
        unfit: || (!cfg!(unix)).then(|| "requires the compilers of a Unix system".into()),
        run: |m| {
            // Without the GPU engine: drivers print messages and leak memory, which these tests refuse.
            let mut tally = m.cargo().args(TEST).packages(&[FFI]).tests()?;
            tally.add(m.cargo().args(TEST).packages(&[EMBEDDED]).tests()?);
            tally.passed += ffi::try_out(m, &m.target.join("suite/deps"))?;
            Ok(tally)
        },
        counts: true,
        beside: Beside::Anything,
    },
    Suite {
        name: "kotlin",
        about: "the Kotlin package over JNI on a desktop JVM; its native library compiles for Android",
        budget: 35,
        needs: &[Need::Program(&JAVA), Need::Node, Need::Kotlin, Need::Target(ANDROID)],
        unfit: || (!cfg!(unix)).then(|| "requires a Unix system".into()),
        run: |m| {
            let tests = m.cargo().args(TEST).packages(&[JNI]).args("--test kotlin");
            let tally = tests.env("SHOHIN_KOTLINC", m.kotlinc()).tests()?;
            let check = m.cargo_for(ANDROID).args(FOR_PHONES).arg(ANDROID);
            check.packages(&[JNI]).env("RUSTFLAGS", "-Dwarnings").run()?;
            Ok(tally)
        },
        counts: true,
        beside: Beside::Anything,
    },
    Suite {
        name: "swift",
        about: "the Swift package against the C header, in clang (with --thorough also its tests); the library compiles for iOS",
        budget: 10,
        needs: &[Need::Program(&CLANG), Need::Target(IOS)],
        unfit: || (!cfg!(unix)).then(|| "requires a Unix system".into()),
        run: |m| {
            let tests = m.cargo().args(TEST).packages(&[FFI]).args("--test swift");
            let mut tests = tests.env("CLANGXX", m.program(&CLANG)?);
            if m.thorough {
                m.prepare(&[Need::Swift]);
                match m.absent(Need::Swift) {
                    None => tests = tests.env(SWIFT_ROOT, m.swift()),
                    Some(why) => println!("xtask: the Swift package is not compiled: {why}"),
                }
            }
            let tally = tests.tests()?;
            let check = m.cargo_for(IOS).args(FOR_PHONES).arg(IOS);
            check.packages(&[FFI]).env("RUSTFLAGS", "-Dwarnings").run()?;
            Ok(tally)
        },
        counts: true,
        beside: Beside::Anything,
    },
    Suite {
        name: "wasm-node",
        about: "on a 32-bit target, wasm32 with simd128, in Node: kernels, readers, fuzz targets; the program under WASI",
        budget: 110,
        needs: &[Need::Target(WASI), Need::Node],
        unfit: ANYWHERE,
        run: |m| {
            // Not without simd128 as well: that build has the scalar kernels only, and this one tests them, too.
            let runner = format!("node --no-warnings {}", m.root.join("xtask/wasi.mjs").display());
            let cargo = |command: &str| {
                let cargo = m.cargo_for(WASI).args(command).arg("--target").arg(WASI);
                let cargo = cargo.env("CARGO_TARGET_WASM32_WASIP1_RUNNER", &runner);
                cargo.env("CARGO_TARGET_WASM32_WASIP1_RUSTFLAGS", SIMD128)
            };
            // In one command: core is built once, with the features of both.
            let tests = cargo(TEST).packages(PORTABLE).packages(&[FUZZ]);
            let tests = match m.thorough {
                true => tests.args("--lib --tests"),
                false => ON_32_BITS.iter().fold(tests, |tests, test| tests.arg("--test").arg(test)),
            };
            let mut tally = tests.env(FUZZ_TIMES, "0.3").tests()?;
            tally.add(wasi::run(m, cargo, WASI)?);
            Ok(tally)
        },
        counts: true,
        beside: Beside::AnythingAtLowPriority,
    },
    Suite {
        name: "no-std",
        about: "core and train compile for Cortex-M4F, Cortex-M0 and RV32, core with and without features; other suites: wasm32, aarch64",
        budget: 40,
        needs: &[Need::Target(BARE_TARGETS[0]), Need::Target(BARE_TARGETS[1]), Need::Target(BARE_TARGETS[2])],
        unfit: ANYWHERE,
        run: |m| {
            // One command per toolchain keeps all cores busy.
            let (ours, fallback): (Vec<&str>, Vec<&str>) =
                BARE_TARGETS.iter().partition(|target| m.target_of(target) == m.target);
            for group in [ours, fallback].iter().filter(|group| !group.is_empty()) {
                let build = m.cargo_for(group[0]).args("check --profile tool").packages(&[CORE, TRAIN]);
                group.iter().fold(build, |build, target| build.arg("--target").arg(target)).run()?;
            }
            // Without any feature, and with every second one: each is left out beside some others.
            let features = default_features(m)?;
            let every_second =
                |first| features.iter().skip(first).step_by(2).map(String::as_str).collect::<Vec<_>>();
            for kept in [Vec::new(), every_second(0), every_second(1)] {
                let check = m.cargo_for(BARE_TARGETS[0]).args("check --profile tool").packages(&[CORE]);
                let check =
                    check.arg("--target").arg(BARE_TARGETS[0]).args("--no-default-features --features");
                check.arg(kept.join(",")).env("RUSTFLAGS", "-Dwarnings").run()?;
            }
            // The suite `firmware` builds and runs it for the others.
            let build = m.cargo_for(CORTEX_M0).args("build --profile tool").packages(&[CORE]);
            build.arg("--target").arg(CORTEX_M0).run()?;
            let left_out =
                m.cargo().args("test --profile tool --package").arg(CORE).args("--no-default-features");
            left_out.args("--features one-bit-formats --test left_out").tests()
        },
        counts: true,
        beside: Beside::AnythingAtLowPriority,
    },
    Suite {
        name: "sizes",
        about: "flash of the smallest chat for a Cortex-M7, compared with xtask/sizes.txt",
        budget: 5,
        needs: firmware::SIZES_NEEDS,
        unfit: ANYWHERE,
        run: |m| firmware::sizes(m, false),
        counts: true,
        beside: Beside::AnythingAtLowPriority,
    },
    Suite {
        name: "neon",
        about: "kernels and forward pass on aarch64 under QEMU; dispatch on a processor without the dot product",
        budget: 95,
        needs: &[Need::Target(ARM_LINUX), Need::Program(&ARM_GCC), Need::Program(&QEMU_ARM)],
        unfit: || (ARCH == "aarch64").then(|| "on aarch64 these tests are part of the suite `test`".into()),
        run: neon,
        counts: true,
        beside: Beside::AnythingAtLowPriority,
    },
    Suite {
        name: "x86",
        about: "dispatch on x86-64 processors without AVX2 and without AVX-512, under QEMU",
        budget: 20,
        needs: &[Need::Program(&QEMU_X86)],
        unfit: || {
            let fit = cfg!(all(target_arch = "x86_64", target_os = "linux"));
            (!fit).then(|| "requires Linux on x86-64".into())
        },
        run: x86,
        counts: true,
        beside: Beside::AnythingAtLowPriority,
    },
    Suite {
        name: "amx",
        about: "dispatch and kernels on a processor with AMX and AVX-VNNI, under Bochs where this machine has none",
        budget: 80,
        needs: &[Need::Program(&GXX), Need::Program(&MAKE), Need::Program(&XZ), Need::Amx],
        unfit: || {
            let fit = cfg!(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"));
            (!fit).then(|| "requires Linux on x86-64 with glibc".into())
        },
        run: amx,
        counts: true,
        beside: Beside::AnythingAtLowPriority,
    },
    Suite {
        name: "instructions",
        about: "instructions per token, compared with xtask/instructions.txt",
        budget: 40,
        needs: instructions::NEEDS,
        unfit: instructions::unfit,
        run: |m| instructions::run(m, false),
        counts: true,
        beside: Beside::AnythingAtLowPriority,
    },
    Suite {
        name: "gpu",
        about: "the GPU engine compared with core, on Vulkan or Metal; in software if there is no GPU",
        budget: 140,
        needs: &[Need::Vulkan],
        unfit: ANYWHERE,
        run: |m| {
            let engine = |m: &Machine| gpu(m).env(SMOLLM2, fetched_smollm2(m));
            let mut tally = engine(m).args("--lib -- error::tests kernel::tests shader::tests").tests()?;
            let tests = integration_tests(&m.root.join("gpu/tests"))?;
            tally.add(tests.iter().fold(engine(m), |all, test| all.arg("--test").arg(test)).tests()?);
            tally.add(native_but_gpu(m).args("--test cli").arg(GPU_TESTS).tests()?);
            Ok(tally)
        },
        counts: true,
        beside: Beside::Anything,
    },
    Suite {
        name: "metal",
        about: "the kernels for Macs compared with core, as C++ on the CPU; whole models on them",
        budget: 30,
        needs: &[Need::Program(&CLANG)],
        unfit: ANYWHERE,
        run: |m| metal(m)?.args("--lib --test metal -- kernel::tests races:: model::").tests(),
        counts: true,
        beside: Beside::Anything,
    },
    Suite {
        name: "cuda",
        about: "the CUDA kernels and their host code, on a CPU, compared with core; models split among GPUs",
        budget: 80,
        needs: &[Need::Program(&GXX)],
        unfit: ANYWHERE,
        run: |m| {
            let mut tally = cuda(m).args("--lib --tests").tests()?;
            tally.add(native_but_gpu(m).args("--test cuda").tests()?);
            Ok(tally)
        },
        counts: true,
        beside: Beside::Anything,
    },
    Suite {
        name: "mpi",
        about: "models split among processes, with Open MPI on this machine; a killed process",
        budget: 20,
        needs: &[Need::Component("clippy"), Need::Program(&MPICC), Need::Program(&MPIRUN), Need::LibClang],
        unfit: || (!cfg!(target_os = "linux")).then(|| "requires Linux".into()),
        run: |m| {
            let with_mpi = |cargo: Cmd| cargo.arg("--features").arg(format!("{CLI}/mpi"));
            // Among all packages, as in the suite `clippy`, so that only what uses MPI is checked again.
            let lint =
                m.cargo().args("clippy --profile suite --lib --bins --test mpi").all_packages_but(&[BINDGEN]);
            with_mpi(lint).args("-- -Dwarnings").run()?;
            with_mpi(native_but_gpu(m)).args("--test mpi").tests()
        },
        counts: true,
        beside: Beside::AllBut(&["test", "smollm2", "gpu", "cuda", "npm"]),
    },
    Suite {
        name: "apple",
        about: "the Metal device and the library compile for Macs",
        budget: 10,
        needs: &[Need::Target(APPLE)],
        unfit: ANYWHERE,
        run: |m| {
            let check = || {
                let check = m.cargo_for(APPLE).args("check --profile suite --target").arg(APPLE);
                check.env("RUSTFLAGS", "-Dwarnings")
            };
            check().packages(&[METAL]).arg("--all-targets").run()?;
            let host = check().packages(&[HOST]).arg("--features").arg(format!("{HOST}/metal"));
            host.run().map(|()| Tally::default())
        },
        counts: false,
        beside: Beside::AnythingAtLowPriority,
    },
    Suite {
        name: "budget",
        about: "what a first visit of the chat page costs: bytes, layout shift, the longest task",
        budget: 60,
        needs: BROWSERS,
        unfit: ANYWHERE,
        run: |m| {
            web::build(m)?;
            let tests = m.cmd("npm").args("run --silent test:budget --workspace web-demo");
            in_browsers(m, tests)?.tests()
        },
        counts: true,
        beside: Beside::Nothing,
    },
    Suite {
        name: "demo",
        about: "`cargo xtask demo --check`",
        budget: 20,
        needs: PAGE,
        unfit: ANYWHERE,
        run: |m| {
            let options = demo::Options { check: true, no_open: true, port: 0 };
            demo::demo(m, &options).map(|()| Tally::default())
        },
        counts: false,
        beside: Beside::Nothing,
    },
];

const PAGE: &[Need] =
    &[Need::Target(WASM), Need::Bindgen, Need::Node, Need::NodeModules, Need::Program(&CHROMIUM)];

/// What the tests of the package and the page need; the demonstration opens in one browser.
pub(crate) const BROWSERS: &[Need] = &[
    Need::Target(WASM),
    Need::Bindgen,
    Need::Node,
    Need::NodeModules,
    Need::Program(&CHROMIUM),
    Need::Program(&FIREFOX),
];

/// Names the browsers to the tests.
pub(crate) fn in_browsers(m: &Machine, tests: Cmd) -> Result<Cmd> {
    let chromium = m.program(&CHROMIUM)?;
    let shell = m.locate(&HEADLESS_SHELL).unwrap_or_else(|| chromium.clone());
    let tests = tests.env("CHROME", chromium).env("HEADLESS_SHELL", shell);
    Ok(tests.env("FIREFOX", m.program(&FIREFOX)?))
}

fn clippy(m: &mut Machine) -> Result<Tally> {
    let lint = |target: Option<&str>, packages: fn(Cmd) -> Cmd| {
        // In the profile of the tests, so that procedural macros and build scripts are compiled once.
        let lint = packages(m.cargo().args("clippy --profile suite"));
        let lint = target.into_iter().fold(lint, |lint, target| lint.arg("--target").arg(target));
        lint.args("-- -Dwarnings").run()
    };
    lint(None, |cargo| {
        let cargo = cargo.args("--all-targets").all_packages_but(&[BINDGEN]);
        cargo.arg("--features").arg(format!("{CLI}/gpu,{CLI}/cuda,{HOST}/stream"))
    })?;
    // What is compiled without these features; all packages again, for the same features of the crates that they depend on.
    lint(None, |cargo| cargo.args("--lib --bins").all_packages_but(&[BINDGEN]))?;
    if m.thorough {
        // Two files, for which tools of the size of all other dependencies are checked.
        m.cargo().args("clippy --profile suite").packages(&[BINDGEN]).args("-- -Dwarnings").run()?;
    }
    // clippy does not work with the fallback toolchain.
    let ours = |target: &str| m.target_of(target) == m.target;
    if ours(WASM) {
        lint(Some(WASM), |cargo| cargo.args("--all-targets").packages(&[CORE, WASM_SHELL, WASM_TRAIN]))?;
        lint(Some(WASM), |cargo| {
            let cargo = cargo.args("--all-targets").packages(&[WASM_SHELL]);
            cargo.arg("--features").arg(format!("{WASM_SHELL}/gpu"))
        })?;
    }
    if ours(ARM_LINUX) {
        // Only core has code specific to an instruction set, and none of that is in tests.
        lint(Some(ARM_LINUX), |cargo| cargo.args("--lib").packages(&[CORE]))?;
    }
    Ok(Tally::default())
}

/// `cargo xtask cut`: the tests that kill the program, with more kills.
pub(crate) fn cut(m: &mut Machine, count: &str) -> Result<()> {
    let Ok(kills) = count.parse::<u32>() else {
        return Err(format!("--count expects a number, found {count}"));
    };
    let tests = m.cargo().args(TEST).packages(&[CLI]).args("--test cut --test hub -- --nocapture killed");
    tests.env("SHOHIN_CUTS", count).tests()?;
    m.prepare(BROWSERS);
    web::build(m)?;
    // Two minutes per kill; node takes no more than 31 bits of milliseconds.
    let limit = kills.saturating_add(1).saturating_mul(120_000).min(i32::MAX.unsigned_abs());
    let node = m.cmd("node").args("--test --test-reporter=spec").arg(format!("--test-timeout={limit}"));
    let page = in_browsers(m, node.arg("web-demo/test/cut.test.mjs"))?;
    page.env("SHOHIN_CUTS", count).tests().map(drop)
}

/// SmolLM2's file if the suite `smollm2` could fetch it, else the empty path.
fn fetched_smollm2(m: &Machine) -> PathBuf {
    Some(m.smollm2()).filter(|file| file.is_file()).unwrap_or_default()
}

/// The names of the integration tests in a directory.
fn integration_tests(dir: &Path) -> Result<Vec<OsString>> {
    let files = dir.read_dir().map_err(|e| format!("{}: {e}", dir.display()))?;
    let files = files.flatten().map(|file| file.path());
    let tests = files.filter(|file| file.extension().is_some_and(|extension| extension == "rs"));
    Ok(tests.filter_map(|file| file.file_stem().map(OsString::from)).collect())
}

/// Runs `tests`, such as [`DISPATCH`].
fn dispatch(run: Cmd, tests: &str, isa: &str) -> Result<Tally> {
    let tally = run.args(tests).env(EXPECTED_ISA, isa).tests()?;
    let names = tests.split_once("-- ").map_or(tests, |(_, names)| names).split(' ').count();
    if tally.passed + tally.failed < names {
        return Err(format!("some of these tests do not exist: {tests}"));
    }
    Ok(tally)
}

fn neon(m: &mut Machine) -> Result<Tally> {
    let (qemu, linker) = (m.program(&QEMU_ARM)?, m.program(&ARM_GCC)?);
    let on = |cpu: &str| {
        let runner = format!("{} -cpu {cpu} -L /usr/aarch64-linux-gnu", qemu.display());
        m.cargo_for(ARM_LINUX)
            .args(TEST)
            .packages(PORTABLE)
            .args("--no-default-features --target")
            .arg(ARM_LINUX)
            .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", runner)
            .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS", LESS_INLINED)
            .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", &linker)
            // The portable kernels are slow to emulate, and the suite `test` has compared them.
            .env(COMPARED_ELSEWHERE, SCALAR)
            .env(BRIEF, "1")
    };
    // All kernels run on this processor, and whole models with every cache: to the bit what the reference gives,
    // which the suite `test` compares with other engines.
    let mut tally = on("max").args("--test parity --test quant --test products").tests()?;
    tally.add(on("max").args("--test repack -- alike").tests()?);
    tally.add(dispatch(on("cortex-a53"), DISPATCH, "neon")?);
    Ok(tally)
}

/// Only dispatch: the suite `test` compares the AVX2 kernels with the scalar ones natively.
fn x86(m: &mut Machine) -> Result<Tally> {
    let qemu = m.program(&QEMU_X86)?;
    let mut tally = Tally::default();
    for (cpu, isa, tests) in [("Nehalem", SCALAR, REPLIES), ("Haswell", "avx2", DISPATCH)] {
        let runner = format!("{} -cpu {cpu}", qemu.display());
        let cargo = native_but_gpu(m).env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER", runner);
        let cargo = cargo.env(BRIEF, "1").env(COMPARED_ELSEWHERE, SCALAR);
        tally.add(dispatch(cargo, tests, isa)?);
    }
    Ok(tally)
}

fn amx(m: &mut Machine) -> Result<Tally> {
    let native = native_but_gpu(m).args("--test parity -- --nocapture instruction_sets").read()?;
    let native = native.lines().find_map(|line| line.split_once("instruction sets: "));
    let (_, native) = native.ok_or("the test names no instruction sets")?;
    if native.split(',').any(|name| name == AMX) {
        return dispatch(native_but_gpu(m), &format!("--test parity -- {PROMPTS}"), AMX);
    }
    // It was not built yet if the processor has AMX and the system does not permit it.
    bochs::install(m)?;
    let xtask = std::env::current_exe().map_err(|e| format!("the path of xtask: {e}"))?;
    let emulate = Cmd::new(xtask, &m.root).arg("emulate").arg(static_parity(m)?);
    // Those of this machine were compared by the suite `test`.
    dispatch(emulate.env(COMPARED_ELSEWHERE, native).env(BRIEF, "1"), PROMPTS, AMX)
}

/// Links the test `parity` of the suite `test` once more, as a static program without symbols, which the emulator needs. Cargo
/// would compile core for that as well.
fn static_parity(m: &Machine) -> Result<PathBuf> {
    let built = native_but_gpu(m).args("--test parity --no-run --message-format json").read()?;
    let messages = built.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let core = messages
        .filter(|message| message["target"]["name"] == CORE.replace('-', "_"))
        .flat_map(|message| message["filenames"].as_array().cloned().unwrap_or_default())
        .find_map(|file| file.as_str().filter(|file| file.ends_with(".rlib")).map(PathBuf::from))
        .ok_or("cargo names no library of core")?;
    let program = m.target.join("suite/parity-static");
    let rustc = m.cmd("rustc").arg(m.root.join("core/tests/parity.rs")).args("--edition 2024 --test");
    let rustc = rustc.args("-Cdebug-assertions=on -Crelocation-model=static -Cstrip=symbols");
    let rustc = rustc.args("-Ctarget-feature=+crt-static --extern").arg(extern_of("shohin_core", &core));
    let dependencies = core.parent().ok_or("the library of core is in no directory")?;
    let rustc = rustc.arg("-L").arg(extern_of("dependency", dependencies)).arg("-o").arg(&program);
    rustc.run().map(|()| program)
}

/// `name=path`, as rustc takes it.
fn extern_of(name: &str, path: &Path) -> OsString {
    let mut named = OsString::from(format!("{name}="));
    named.push(path);
    named
}

/// The switch for relaxed SIMD of Node 20. Later versions do without it, and have none of that name.
const RELAXED_IN_NODE: &str = "--experimental-wasm-relaxed-simd";

/// Tests written with wasm-bindgen-test.
fn wasm_bindgen_tests(m: &mut Machine) -> Result<Tally> {
    let options = m.tools().join("webdriver.json");
    let browser = m.program(&CHROMIUM)?;
    // The runner adds the switches required in containers.
    let switches = "[\"--no-first-run\", \"--enable-unsafe-webgpu\"]";
    let json = format!("{{\"goog:chromeOptions\": {{\"binary\": {browser:?}, \"args\": {switches}}}}}\n");
    std::fs::create_dir_all(m.tools())
        .and_then(|()| std::fs::write(&options, json))
        .map_err(|e| format!("{}: {e}", options.display()))?;
    let driver = m.program(&CHROMEDRIVER)?;
    // All with relaxed SIMD, for one build of core: other suites test the one without, `npm` in browsers, `wasm-node` its kernels.
    let node = m.cmd("node").arg(RELAXED_IN_NODE).args("--eval 0").read().is_ok();
    let node = if node { RELAXED_IN_NODE } else { "" };
    let test = |browser: bool| {
        let test = m
            .cargo_for(WASM)
            .args(TEST)
            .arg("--target")
            .arg(WASM)
            .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS", web::RELAXED)
            .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUNNER", "wasm-bindgen-test-runner")
            .env("NODE_ARGS", node)
            .env("WASM_BINDGEN_TEST_WEBDRIVER_JSON", &options)
            .env("WASM_BINDGEN_TEST_TIMEOUT", "600")
            .env("CHROMEDRIVER", &driver);
        if browser { test.env("WASM_BINDGEN_USE_BROWSER", "1") } else { test }
    };
    let mut tally = test(false).packages(&[WASM_SHELL]).tests()?;
    tally.add(test(true).packages(&[WASM_SHELL]).tests()?);
    tally.add(test(true).packages(&[CORE]).args("--test parity").tests()?);
    Ok(tally)
}
