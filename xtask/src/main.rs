//! `cargo xtask`: set-up, demo, tests and benchmarks; see `HELP`.
#![forbid(unsafe_code)]

mod api;
mod bench;
mod bochs;
mod clients;
mod command;
mod cpu_time;
mod demo;
mod ffi;
mod firmware;
mod fuzz;
mod gpu;
mod imports;
mod install;
mod instructions;
mod machine;
mod miri;
mod package;
mod pictures;
mod release;
mod runner;
mod serve;
mod soak;
mod source;
mod suite;
mod sysroot;
mod wasi;
mod wasm_pack;
mod web;

use std::process::ExitCode;

use command::Result;
use machine::Machine;

const HELP: &str = "\
Usage: cargo xtask COMMAND

Commands:
  demo          build the chat page, serve it locally and open it in a browser
      --check       headless: send one message through the page and print the reply
      --no-open     do not open a browser
      --port N      listen on this port or the next free one (default 8000)
  test          run every test suite, then print a table of results, wall times and CPU times beside their budgets
      --quick       formatting, source rules, clippy and the fast tests of the native crates: under 3 minutes once the
                    dependencies are built
      --only NAME   run only this suite (repeatable, or as A,B)
      --thorough    before a release: also the sweeps that repeat what a smaller sample finds
      --jobs N      run N suites at the same time (default 2), and one more at low priority if N is not 1; the output
                    of each is printed when it ends
      --list        list the suites
  bench         measure a 1.7B model with random weights, natively and in headless Chromium, and print tables
      --peers       install llama.cpp (PyPI), wllama and transformers.js (npm) and measure them in turn with ours;
                    takes half an hour
      --quick       fewer formats, tokens and rounds; takes some minutes
      --only WHERE  native or browser
      --format A,B  only these formats, or smollm2, a trained model
      --rounds N    repeat every measurement N times
      --train       measure steps of training instead, beside PyTorch (PyPI); takes ten minutes
      --surgery     instead, what pruning and quantizing do to the perplexity of SmolLM2; takes ten minutes
  gpu           compare every GPU of this machine with the CPU, measure it, and put a server on it under load; writes
                target/gpu/report.md
      --device NAME only devices whose names begin with this, such as cuda
      --software    also drivers in software, with small models
  instructions  count instructions per token and compare them with xtask/instructions.txt (suite `instructions`)
      --update      write the counts to that file
  firmware      run the chats of examples/firmware on emulated boards (suite `firmware`)
      --update      write sizes and instructions per token to examples/firmware/bounds.txt
  sizes         build the smallest chat for a Cortex-M7 and compare its flash with xtask/sizes.txt (suite `sizes`)
      --update      write the size to that file
  ffi           build the C library and install it with its header, pkg-config and CMake files (ffi/README.md)
      --prefix DIR  install to DIR/include and DIR/lib, such as /usr/local
      --debug       with line numbers, and little optimized
  fuzz          run the fuzz targets in turn, with libFuzzer and the address sanitizer; failures and counts are in
                target/fuzz (Linux on x86-64, except with --plain and --engines)
      --hours N     for this long (default 1)
      --only NAME   only this target, or with --engines this engine (repeatable)
      --turn N      seconds before the next target's turn (default 60)
      --program P   a program that was built before
      --plain       mutations only, with neither coverage nor the sanitizer: many times as many inputs; without --turn
                    and --program
      --engines     instead of the targets, random models on the kernels of GPUs (gpu, cuda, metal) against the CPU, and
                    random conversations with the npm package (npm) against the program; each for an equal time, without
                    --turn, --program and --plain
      --keep        run nothing new: of the inputs found so far (target/fuzz/corpus), add those to tests/fuzz/corpus that
                    reach code which neither the seeds nor that folder reach
  cut           kill the program N times in each of its commands that write files, and the browser in replies of the
                page, at random instants, and check what they leave (part of suites `test` and `page`, with 8 and 3)
      --count N     default 200
  soak          send mixed requests to `shohin serve`, with slow, broken and malicious clients beside them, chat in the
                terminal and in the page, kill, reload and stop: right answers in time, nothing lost, memory that
                does not grow, and the waiting times of a polite client
      --requests N  to the server; default 10000
      --hours N     for this long instead
  clients       install the newest clients of PyPI and npm, and hold a conversation with a tool through each against
                `shohin serve`; prints the table of docs/SERVER.md
  api           list the public items of core and the library in docs/api
      --check       compare them with the lists instead (suite `doc` with --thorough)
  miri          run the tests of the thread pool and of core's readers in Miri, with Rust's nightly
      --schedules N schedules of the pool's threads (default 16)
  package       pack the crates and the npm package into a folder, with checksums, and chat from what is packed
      --out DIR     that folder
  swift         install Swift's compiler in target/tools (on Debian, as root), and build and test the Swift package (part of the
                suite `swift` with --thorough)
  wasm-pack     build and test the WebAssembly module with wasm-pack, in Node and browsers (wasm/README.md)
  pictures      make the README's pictures: the chat page answering, and a recording of the terminal
  emulate FILE  run a static Linux program for x86-64 on an emulated processor with AMX (suite `amx` installs it)
  help          print this text

Missing tools are installed first: Rust targets and components with rustup, programs with apt-get (on Debian, as root),
Node.js with pip, JavaScript tools with npm. A suite whose tools cannot be installed is skipped; the table says why.
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match command(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

fn command(args: &[String]) -> Result<bool> {
    let mut args = args.iter().map(String::as_str);
    let is_help = |arg: &str| ["-h", "--help"].contains(&arg);
    let name = match args.next().unwrap_or("help") {
        // Its arguments are a program's.
        "emulate" => "emulate",
        _ if args.clone().any(is_help) => "help",
        name => name,
    };
    let unknown = |arg: &str| Err(format!("{name} has no option {arg}; see `cargo xtask help`"));
    match name {
        "demo" => {
            let mut options = demo::Options { check: false, no_open: false, port: 8000 };
            while let Some(arg) = args.next() {
                match arg {
                    "--check" => options.check = true,
                    "--no-open" => options.no_open = true,
                    "--port" => {
                        let port = args.next().and_then(|n| n.parse().ok());
                        options.port = port.ok_or("--port expects a number up to 65535")?;
                    }
                    _ => return unknown(arg),
                }
            }
            demo::demo(&mut Machine::new()?, &options).map(|()| true)
        }
        "test" => {
            let (mut suites, mut only, mut jobs) = (suite::SUITES, Vec::new(), 2);
            let mut thorough = false;
            while let Some(arg) = args.next() {
                match arg {
                    // They share one build.
                    "--quick" => (suites, jobs) = (suite::QUICK, 1),
                    "--thorough" => thorough = true,
                    "--jobs" => {
                        let number = args.next().and_then(|n| n.parse().ok()).filter(|n| *n > 0);
                        jobs = number.ok_or("--jobs expects a number above 0")?;
                    }
                    "--only" => {
                        let names = args.next().ok_or("--only expects the name of a suite; see --list")?;
                        only.extend(names.split(',').map(String::from));
                    }
                    "--list" => {
                        suites.iter().for_each(|suite| println!("{:<14}{}", suite.name, suite.about));
                        return Ok(true);
                    }
                    _ => return unknown(arg),
                }
            }
            let mut machine = Machine::new()?;
            machine.thorough |= thorough;
            runner::run(&mut machine, suites, &only, jobs)
        }
        // What `test` runs for each of several suites.
        "suite" => {
            let report = args.next().ok_or("suite expects a file and names")?;
            let names: Vec<String> = args.map(String::from).collect();
            runner::one_of(&mut Machine::new()?, report.as_ref(), &names)
        }
        "bench" => {
            let mut options = bench::Options::default();
            let (mut train, mut surgery) = (false, false);
            while let Some(arg) = args.next() {
                match arg {
                    "--train" => train = true,
                    "--surgery" => surgery = true,
                    "--peers" => options.peers = true,
                    "--quick" => options.quick = true,
                    "--only" => match args.next() {
                        Some("native") => options.browser = false,
                        Some("browser") => options.native = false,
                        _ => return Err("--only expects native or browser".into()),
                    },
                    "--format" => {
                        let names = args.next().ok_or("--format expects names, such as q1_0,pq2_0")?;
                        options.formats.extend(names.split(',').map(String::from));
                    }
                    "--rounds" => {
                        let rounds = args.next().and_then(|n| n.parse().ok()).filter(|n| *n > 0);
                        options.rounds = Some(rounds.ok_or("--rounds expects a number above 0")?);
                    }
                    _ => return unknown(arg),
                }
            }
            let mut machine = Machine::new()?;
            match (train, surgery) {
                (true, _) => bench::train(&mut machine, options.rounds.unwrap_or(3)),
                (_, true) => bench::surgery(&mut machine),
                _ => bench::bench(&mut machine, &options),
            }
            .map(|()| true)
        }
        "gpu" => {
            let mut options = gpu::Options::default();
            while let Some(arg) = args.next() {
                match arg {
                    "--software" => options.software = true,
                    "--device" => {
                        options.device = Some(args.next().ok_or("--device expects a name")?.into());
                    }
                    _ => return unknown(arg),
                }
            }
            gpu::gpu(&Machine::new()?, &options)
        }
        "instructions" => {
            let mut update = false;
            for arg in args {
                match arg {
                    "--update" => update = true,
                    _ => return unknown(arg),
                }
            }
            instructions::run(&mut Machine::new()?, update).map(|_| true)
        }
        "firmware" => {
            let mut update = false;
            for arg in args {
                match arg {
                    "--update" => update = true,
                    _ => return unknown(arg),
                }
            }
            firmware::run(&mut Machine::new()?, update).map(|_| true)
        }
        "sizes" => {
            let mut update = false;
            for arg in args {
                match arg {
                    "--update" => update = true,
                    _ => return unknown(arg),
                }
            }
            firmware::sizes(&mut Machine::new()?, update).map(|_| true)
        }
        "ffi" => {
            let (mut prefix, mut profile) = (None, "release");
            while let Some(arg) = args.next() {
                match arg {
                    "--prefix" => prefix = args.next().map(std::path::PathBuf::from),
                    "--debug" => profile = "suite",
                    _ => return unknown(arg),
                }
            }
            let prefix = prefix.ok_or("ffi expects --prefix and a directory")?;
            ffi::install(&Machine::new()?, &ffi::Options { prefix, profile }).map(|()| true)
        }
        "fuzz" => {
            let mut options = fuzz::Options::default();
            while let Some(arg) = args.next() {
                let mut value = || args.next().ok_or_else(|| format!("{arg} expects a value"));
                match arg {
                    "--hours" => {
                        let hours =
                            value()?.parse().ok().filter(|hours: &f64| (0.0..=1000.0).contains(hours));
                        options.hours = hours.ok_or("--hours expects a number")?;
                    }
                    "--only" => options.only.push(value()?.into()),
                    "--turn" => options.turn = Some(value()?.parse().map_err(|_| "--turn expects seconds")?),
                    "--program" => options.program = Some(value()?.into()),
                    "--plain" => options.plain = true,
                    "--engines" => options.engines = true,
                    "--keep" => options.keep = true,
                    _ => return unknown(arg),
                }
            }
            fuzz::fuzz(&mut Machine::new()?, &options)
        }
        "cut" => {
            let mut count = String::from("200");
            while let Some(arg) = args.next() {
                match arg {
                    "--count" => count = args.next().ok_or("--count expects a number")?.into(),
                    _ => return unknown(arg),
                }
            }
            suite::cut(&mut Machine::new()?, &count).map(|()| true)
        }
        "soak" => {
            let mut end = String::from("10000");
            while let Some(arg) = args.next() {
                match arg {
                    "--requests" => {
                        let number = args.next().filter(|n| n.parse::<usize>().is_ok_and(|n| n > 0));
                        end = number.ok_or("--requests expects a number above 0")?.into();
                    }
                    "--hours" => {
                        let hours =
                            args.next().filter(|n| n.parse::<f64>().is_ok_and(|n| n > 0.0 && n < 1000.0));
                        end = format!("{}h", hours.ok_or("--hours expects a number above 0")?);
                    }
                    _ => return unknown(arg),
                }
            }
            soak::soak(&mut Machine::new()?, &end).map(|()| true)
        }
        "clients" => match args.next() {
            Some(arg) => unknown(arg),
            None => clients::clients(&Machine::new()?).map(|()| true),
        },
        "api" => {
            let mut check = false;
            for arg in args {
                match arg {
                    "--check" => check = true,
                    _ => return unknown(arg),
                }
            }
            api::run(&Machine::new()?, check).map(|()| true)
        }
        "miri" => {
            let mut seeds = String::from("16");
            while let Some(arg) = args.next() {
                match arg {
                    "--schedules" => {
                        let number = args.next().filter(|n| n.parse::<u32>().is_ok_and(|n| n > 0));
                        seeds = number.ok_or("--schedules expects a number above 0")?.into();
                    }
                    _ => return unknown(arg),
                }
            }
            miri::miri(&Machine::new()?, &seeds).map(|()| true)
        }
        "package" => match (args.next(), args.next(), args.next()) {
            (Some("--out"), Some(out), None) => {
                release::run(&mut Machine::new()?, out.as_ref()).map(|()| true)
            }
            _ => Err("package expects --out DIR".into()),
        },
        "swift" => match args.next() {
            None => suite::swift(&mut Machine::new()?).map(|_| true),
            Some(arg) => unknown(arg),
        },
        "wasm-pack" => match args.next() {
            None => wasm_pack::run(&mut Machine::new()?).map(|()| true),
            Some(arg) => unknown(arg),
        },
        "pictures" => match args.next() {
            None => pictures::pictures(&mut Machine::new()?).map(|()| true),
            Some(arg) => unknown(arg),
        },
        "emulate" => {
            let args: Vec<String> = args.map(String::from).collect();
            match bochs::run(&Machine::new()?, &args)? {
                0 => Ok(true),
                _ => Ok(false),
            }
        }
        "help" | "-h" | "--help" => {
            print!("{HELP}");
            Ok(true)
        }
        _ => Err(format!("there is no command {name}; see `cargo xtask help`")),
    }
}
