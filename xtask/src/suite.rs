//! Every test suite of the project, as a list; and the loop that runs them and sums up.

use std::env::consts::ARCH;
use std::time::{Duration, Instant};

use crate::command::{Result, Tally};
use crate::machine::{ARM_GCC, CHROMEDRIVER, CHROMIUM, GXX, MAKE, Machine, Need, QEMU_ARM, QEMU_X86, XZ};
use crate::web::{self, WASM};
use crate::{cpu_time, demo, instructions, source};

/// The targets core is built for without an operating system under it, or with a foreign one.
const CORE_TARGETS: [&str; 4] = ["thumbv7em-none-eabihf", "riscv32imac-unknown-none-elf", WASM, ARM_LINUX];
const ARM_LINUX: &str = "aarch64-unknown-linux-gnu";
const WASI: &str = "wasm32-wasip1";

/// The crates whose tests run on foreign instruction sets.
const PORTABLE: &str = "-p shohin-core -p shohin-tests";

/// What of them runs under QEMU, where whole chats would take minutes.
const EMULATED: &str =
    "--lib --test parity --test quant --test golden_logits --test malformed --test no_allocation";

pub(crate) struct Suite {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    needs: &'static [Need],
    /// Says why the suite means nothing on this machine.
    unfit: fn() -> Option<String>,
    run: fn(&mut Machine) -> Result<Tally>,
    /// A suite that must report tests: none at all is then a failure.
    counts: bool,
}

const ANYWHERE: fn() -> Option<String> = || None;

pub(crate) const SUITES: &[Suite] = &[
    Suite {
        name: "format",
        about: "cargo fmt --check",
        needs: &[Need::Component("rustfmt")],
        unfit: ANYWHERE,
        run: |m| m.cargo().args("fmt --all --check").run().map(|()| Tally::default()),
        counts: false,
    },
    Suite {
        name: "source",
        about: "rules on our own source: no panic in core without its reason, nothing unfinished",
        needs: &[],
        unfit: ANYWHERE,
        run: |m| source::check(&m.root).map(|()| Tally::default()),
        counts: false,
    },
    Suite {
        name: "clippy",
        about: "clippy with warnings as errors: every crate and target kind, for the host, wasm32 and aarch64",
        needs: &[Need::Component("clippy"), Need::Target(WASM), Need::Target(ARM_LINUX)],
        unfit: ANYWHERE,
        run: clippy,
        counts: false,
    },
    Suite {
        name: "test",
        about: "unit and integration tests of every crate",
        needs: &[],
        unfit: ANYWHERE,
        run: |m| {
            m.cargo()
                .args("test --workspace --exclude shohin-bindgen --exclude shohin-gpu --lib --bins --tests --examples")
                .tests()
        },
        counts: true,
    },
    Suite {
        name: "doc",
        about: "the examples in the documentation and the README; rustdoc with warnings as errors",
        needs: &[],
        unfit: ANYWHERE,
        run: |m| {
            let tally = m
                .cargo()
                .args("test --workspace --exclude shohin-bindgen --exclude shohin-gpu --doc")
                .tests()?;
            let doc = m.cargo().args(
                "doc --workspace --no-deps --exclude xtask --exclude shohin-bindgen --exclude shohin-gpu",
            );
            doc.env("RUSTDOCFLAGS", "-Dwarnings").run()?;
            Ok(tally)
        },
        counts: true,
    },
    Suite {
        name: "no-std",
        about: "core builds for Cortex-M4F, RV32, wasm32 and aarch64",
        needs: &[
            Need::Target(CORE_TARGETS[0]),
            Need::Target(CORE_TARGETS[1]),
            Need::Target(CORE_TARGETS[2]),
            Need::Target(CORE_TARGETS[3]),
        ],
        unfit: ANYWHERE,
        run: |m| {
            // One command for all that one toolchain has: two cores then stay busy.
            let (ours, fallback): (Vec<&str>, Vec<&str>) =
                CORE_TARGETS.iter().partition(|target| m.target_of(target) == m.target);
            for group in [ours, fallback].iter().filter(|group| !group.is_empty()) {
                let build = m.cargo_for(group[0]).args("build -p shohin-core");
                group.iter().fold(build, |build, target| build.arg("--target").arg(target)).run()?;
            }
            Ok(Tally::default())
        },
        counts: false,
    },
    Suite {
        name: "neon",
        about: "core's tests and the parity suite on aarch64 under QEMU, with and without the dot product",
        needs: &[Need::Target(ARM_LINUX), Need::Program(&ARM_GCC), Need::Program(&QEMU_ARM)],
        unfit: || {
            (ARCH == "aarch64").then(|| "this machine is aarch64: the suite `test` has run them".into())
        },
        run: |m| {
            let mut tally = Tally::default();
            for cpu in ["max", "cortex-a53"] {
                let runner = m.program(&QEMU_ARM)?;
                let runner = format!("{} -cpu {cpu} -L /usr/aarch64-linux-gnu", runner.display());
                let tests = m.cargo_for(ARM_LINUX).arg("test").args(EMULATED).args(PORTABLE).args("--target");
                let tests = tests.arg(ARM_LINUX).env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", runner);
                let linker = m.program(&ARM_GCC)?;
                tally.add(tests.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", linker).tests()?);
            }
            Ok(tally)
        },
        counts: true,
    },
    Suite {
        name: "x86",
        about: "the same on x86-64 processors without AVX2 and without AVX-512 under QEMU",
        needs: &[Need::Program(&QEMU_X86)],
        unfit: || {
            let fit = cfg!(all(target_arch = "x86_64", target_os = "linux"));
            (!fit).then(|| "it takes Linux on x86-64".into())
        },
        run: |m| {
            let mut tally = Tally::default();
            for cpu in ["Nehalem", "Haswell"] {
                let runner = format!("{} -cpu {cpu}", m.program(&QEMU_X86)?.display());
                let tests = m.cargo().arg("test").args(EMULATED).args(PORTABLE);
                tally.add(tests.env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER", runner).tests()?);
            }
            Ok(tally)
        },
        counts: true,
    },
    Suite {
        name: "amx",
        about: "prompts on an emulated processor with AMX, under Bochs: the parity suite, and small models' text",
        needs: &[Need::Program(&GXX), Need::Program(&MAKE), Need::Program(&XZ), Need::Bochs],
        unfit: || {
            let fit = cfg!(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"));
            (!fit).then(|| "it takes Linux on x86-64, with glibc".into())
        },
        run: |m| {
            const LINUX: &str = "x86_64-unknown-linux-gnu";
            let xtask = std::env::current_exe().map_err(|e| format!("the path of xtask: {e}"))?;
            // Static and without debugging symbols, which make it too large; apart from the other builds, which
            // have other flags.
            let tests = m
                .cargo()
                .args("test -p shohin-core -p shohin-tests --test parity --test interleave --target");
            let tests = tests
                .arg(LINUX)
                .args("-- prompts instruction_sets go_on_alike")
                .env("CARGO_TARGET_DIR", m.target.join("amx"))
                .env("RUSTFLAGS", "-Ctarget-feature=+crt-static -Crelocation-model=static -Cstrip=symbols")
                .env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER", format!("{} emulate", xtask.display()))
                .env("SHOHIN_EXPECTED_ISA", "avx512amx");
            tests.tests()
        },
        counts: true,
    },
    Suite {
        name: "instructions",
        about: "instructions a token takes, against the numbers kept in xtask/instructions.txt",
        needs: instructions::NEEDS,
        unfit: instructions::unfit,
        run: |m| instructions::run(m, false),
        counts: true,
    },
    Suite {
        name: "gpu",
        about: "the GPU engine against core, through Vulkan or Metal: in software where there is no GPU",
        needs: &[Need::Component("clippy"), Need::Vulkan],
        unfit: ANYWHERE,
        run: |m| {
            m.cargo()
                .args("clippy -p shohin-gpu -p shohin -p shohin-cli --features shohin-cli/gpu --all-targets -- -Dwarnings")
                .run()?;
            let mut tally = m.cargo().args("test -p shohin-gpu").tests()?;
            tally.add(m.cargo().args("test -p shohin-cli --features gpu --test cli a_gpu").tests()?);
            Ok(tally)
        },
        counts: true,
    },
    Suite {
        name: "wasm-node",
        about: "core's tests, the parity and the malformed-file suites on wasm32 in Node, scalar and simd128",
        needs: &[Need::Target(WASI), Need::Node],
        unfit: ANYWHERE,
        run: |m| {
            let mut tally = Tally::default();
            for features in ["", "-Ctarget-feature=+simd128"] {
                let runner = format!("node --no-warnings {}", m.root.join("xtask/wasi.mjs").display());
                let tests =
                    m.cargo_for(WASI).args("test --lib --tests").args(PORTABLE).args("--target").arg(WASI);
                let tests = tests.env("CARGO_TARGET_WASM32_WASIP1_RUNNER", runner);
                tally.add(tests.env("CARGO_TARGET_WASM32_WASIP1_RUSTFLAGS", features).tests()?);
            }
            Ok(tally)
        },
        counts: true,
    },
    Suite {
        name: "wasm-browser",
        about: "the WebAssembly shell, the parity and malformed-file suites with simd128 in Chromium and Node, parity with relaxed SIMD",
        needs: &[
            Need::Target(WASM),
            Need::BindgenCommands,
            Need::Node,
            Need::Program(&CHROMIUM),
            Need::Program(&CHROMEDRIVER),
        ],
        unfit: ANYWHERE,
        run: wasm_bindgen_tests,
        counts: true,
    },
    Suite {
        name: "npm",
        about: "the npm package: type check, build, its tests in Node and Chromium, what `npm pack` would ship",
        needs: PAGE,
        unfit: ANYWHERE,
        run: |m| {
            web::build(m)?;
            m.cmd("npm").args("run --silent check").run()?;
            let tests = m.cmd("npm").args("test --silent --workspace wasm");
            let tally = tests.env("CHROME", m.program(&CHROMIUM)?).tests()?;
            m.cmd("node").arg(m.root.join("xtask/npm-pack.mjs")).run()?;
            Ok(tally)
        },
        counts: true,
    },
    Suite {
        name: "wasm-pack",
        about: "`wasm-pack build` of the WebAssembly crate",
        needs: &[Need::Target(WASM), Need::BindgenCommands, Need::WasmPack],
        unfit: ANYWHERE,
        run: |m| {
            let out = m.target.join("wasm-pack");
            let build = m.cmd_for(WASM, "wasm-pack").args("build --mode no-install --target web --out-dir");
            build.arg(&out).arg(m.root.join("wasm")).run()?;
            let made = ["package.json", "shohin_wasm.js", "shohin_wasm.d.ts", "shohin_wasm_bg.wasm"];
            match made.iter().find(|file| !out.join(file).is_file()) {
                Some(file) => Err(format!("wasm-pack made no {file}")),
                None => Ok(Tally::default()),
            }
        },
        counts: false,
    },
    Suite {
        name: "page",
        about: "the chat page in headless Chromium, from the first keystroke to the streamed reply",
        needs: PAGE,
        unfit: ANYWHERE,
        run: |m| {
            web::build(m)?;
            let tests = m.cmd("npm").args("test --silent --workspace web-demo");
            tests.env("CHROME", m.program(&CHROMIUM)?).tests()
        },
        counts: true,
    },
    Suite {
        name: "demo",
        about: "`cargo xtask demo --check`",
        needs: PAGE,
        unfit: ANYWHERE,
        run: |m| {
            let options = demo::Options { check: true, no_open: true, port: 0 };
            demo::demo(m, &options).map(|()| Tally::default())
        },
        counts: false,
    },
];

const PAGE: &[Need] =
    &[Need::Target(WASM), Need::Bindgen, Need::Node, Need::NodeModules, Need::Program(&CHROMIUM)];

fn clippy(m: &mut Machine) -> Result<Tally> {
    m.cargo().args("clippy --workspace --exclude shohin-gpu --all-targets -- -Dwarnings").run()?;
    // rustup's clippy has no library of a fallback target; Debian's compiler has no clippy of ours.
    let gpu = "-p shohin-wasm --features shohin-wasm/gpu";
    for (target, packages) in [(WASM, "-p shohin-core -p shohin-wasm"), (WASM, gpu), (ARM_LINUX, PORTABLE)] {
        if m.target_of(target) == m.target {
            let lint = m.cargo().args("clippy --all-targets").args(packages).args("--target").arg(target);
            lint.args("-- -Dwarnings").run()?;
        }
    }
    Ok(Tally::default())
}

/// Tests written with wasm-bindgen-test. Those that choose no place run in both.
fn wasm_bindgen_tests(m: &mut Machine) -> Result<Tally> {
    let options = m.tools().join("webdriver.json");
    let browser = m.program(&CHROMIUM)?;
    // The runner adds the other switches a container wants by itself.
    let switches = "[\"--no-first-run\", \"--enable-unsafe-webgpu\"]";
    let json = format!("{{\"goog:chromeOptions\": {{\"binary\": {browser:?}, \"args\": {switches}}}}}\n");
    std::fs::create_dir_all(m.tools())
        .and_then(|()| std::fs::write(&options, json))
        .map_err(|e| format!("{}: {e}", options.display()))?;
    let mut tally = Tally::default();
    const BOTH: &[&str] =
        &["test -p shohin-wasm", "test -p shohin-core --test parity", "test -p shohin-tests --test wasm"];
    // Only browsers have WebGPU; without a GPU, in software.
    const WEBGPU: &[&str] = &["test -p shohin-wasm --features gpu gpu_tests"];
    // The build with relaxed SIMD differs in kernels only.
    const PARITY: &[&str] = &["test -p shohin-core --test parity"];
    const SIMD128: &str = "-Ctarget-feature=+simd128";
    let runs = [
        (false, SIMD128, BOTH),
        (true, SIMD128, BOTH),
        (true, SIMD128, WEBGPU),
        (true, web::RELAXED, PARITY),
    ];
    for (browser, features, all) in runs {
        for &tests in all {
            let tests = m.cargo_for(WASM).args(tests).args("--target").arg(WASM);
            let tests = tests
                .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS", features)
                .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUNNER", "wasm-bindgen-test-runner")
                .env("WASM_BINDGEN_TEST_WEBDRIVER_JSON", &options)
                .env("WASM_BINDGEN_TEST_TIMEOUT", "600")
                .env("CHROMEDRIVER", m.program(&CHROMEDRIVER)?);
            tally.add(if browser { tests.env("WASM_BINDGEN_USE_BROWSER", "1") } else { tests }.tests()?);
        }
    }
    Ok(tally)
}

/// The time something took.
#[derive(Clone, Copy)]
struct Cost {
    wall: Duration,
    /// That of the processor cores together; `None` where the system does not tell.
    cpu: Option<Duration>,
}

impl Cost {
    fn plus(self, other: Cost) -> Cost {
        let cpu = self.cpu.zip(other.cpu).map(|(a, b)| a + b);
        Cost { wall: self.wall + other.wall, cpu }
    }
}

/// Measures the cost of the child processes started until it is stopped.
struct Clock {
    started: Instant,
    cpu: Option<Duration>,
}

impl Clock {
    fn start() -> Clock {
        Clock { cpu: cpu_time::children(), started: Instant::now() }
    }

    fn stop(self) -> Cost {
        let wall = self.started.elapsed();
        let cpu = cpu_time::children().zip(self.cpu).map(|(now, before)| now.saturating_sub(before));
        Cost { wall, cpu }
    }
}

enum Outcome {
    Passed(Tally),
    Failed(String),
    Skipped(String),
}

/// Runs the suites named (all, if none is) and prints what became of each. Whether none failed.
pub(crate) fn run(machine: &mut Machine, only: &[String]) -> Result<bool> {
    if let Some(name) = only.iter().find(|name| SUITES.iter().all(|suite| suite.name != **name)) {
        let names: Vec<&str> = SUITES.iter().map(|suite| suite.name).collect();
        return Err(format!("there is no suite {name}; there are {}", names.join(", ")));
    }
    let chosen: Vec<&Suite> =
        SUITES.iter().filter(|suite| only.is_empty() || only.iter().any(|name| name == suite.name)).collect();
    cpu_time::adopt_orphans();
    let clock = Clock::start();
    let needs: Vec<Need> =
        chosen.iter().filter(|s| (s.unfit)().is_none()).flat_map(|s| s.needs.iter().copied()).collect();
    machine.prepare(&needs);
    let set_up = clock.stop();
    let mut rows: Vec<(&Suite, Outcome, Cost)> = Vec::new();
    for suite in chosen {
        println!("\n== {}: {}", suite.name, suite.about);
        let clock = Clock::start();
        let outcome = one(machine, suite);
        match &outcome {
            Outcome::Passed(_) => {}
            Outcome::Failed(why) => println!("FAILED: {why}"),
            Outcome::Skipped(why) => println!("skipped: {why}"),
        }
        rows.push((suite, outcome, clock.stop()));
    }
    Ok(summary(&rows, set_up))
}

fn one(machine: &mut Machine, suite: &Suite) -> Outcome {
    if let Some(why) = (suite.unfit)() {
        return Outcome::Skipped(why);
    }
    if let Some(why) = suite.needs.iter().find_map(|need| machine.absent(*need)) {
        return Outcome::Skipped(why.into());
    }
    match (suite.run)(machine) {
        Ok(tally) if tally.failed > 0 => Outcome::Failed(format!("{} tests failed", tally.failed)),
        Ok(tally) if suite.counts && tally.passed == 0 => Outcome::Failed("it ran no tests".into()),
        Ok(tally) => Outcome::Passed(tally),
        Err(why) => Outcome::Failed(why),
    }
}

fn summary(rows: &[(&Suite, Outcome, Cost)], set_up: Cost) -> bool {
    let line = |name: &str, result: &str, passed: usize, ignored: usize, cost: Cost, why: &str| {
        let number = |n: usize| if n == 0 { String::from("-") } else { n.to_string() };
        let cpu = cost.cpu.map_or("-".into(), |time| format!("{} s", time.as_secs()));
        let (passed, ignored, wall) = (number(passed), number(ignored), cost.wall.as_secs());
        let row = format!("{name:<14}{result:<9}{passed:>7}{ignored:>9}{wall:>7} s{cpu:>9}  {why}");
        println!("{}", row.trim_end());
    };
    println!("\n{:<14}{:<9}{:>7}{:>9}{:>9}{:>9}", "suite", "result", "passed", "ignored", "wall", "CPU");
    line("(set-up)", "", 0, 0, set_up, "");
    let (mut failed, mut skipped, mut tests, mut ignored, mut total) = (0, 0, 0, 0, set_up);
    for (suite, outcome, cost) in rows {
        let (word, tally, why) = match outcome {
            Outcome::Passed(tally) => ("pass", *tally, ""),
            Outcome::Failed(why) => ("FAIL", Tally::default(), why.as_str()),
            Outcome::Skipped(why) => ("skipped", Tally::default(), why.as_str()),
        };
        failed += usize::from(matches!(outcome, Outcome::Failed(_)));
        skipped += usize::from(matches!(outcome, Outcome::Skipped(_)));
        tests += tally.passed;
        ignored += tally.ignored;
        total = total.plus(*cost);
        line(suite.name, word, tally.passed, tally.ignored, *cost, why);
    }
    line("(total)", "", tests, ignored, total, "");
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    let passed = rows.len() - failed - skipped;
    println!(
        "\nsuites: {verdict}. {passed} passed; {failed} failed; {skipped} skipped; {tests} tests passed"
    );
    failed == 0
}
