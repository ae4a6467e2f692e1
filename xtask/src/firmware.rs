//! `cargo xtask firmware`: the chats of `examples/firmware` on emulated boards. Replies and logits must be those of the
//! desktop; memory, flash and instructions per token must not exceed what `examples/firmware/bounds.txt` records.

use std::fs;
use std::path::{Path, PathBuf};

use crate::command::{Cmd, HANGS, Result, Tally};
use crate::instructions::{Counts, compare, compiler};
use crate::machine::{CLANG, Machine, Need, QEMU_SYSTEM_ARM, QEMU_SYSTEM_RISCV};
use crate::package::EMBEDDED;
use crate::sysroot::rust_lld;

const CORTEX_M7: &str = "thumbv7em-none-eabihf";
const ARMV8_M: &str = "thumbv8m.main-none-eabihf";
const RISCV: &str = "riscv32imac-unknown-none-elf";

pub(crate) const NEEDS: &[Need] = &[
    Need::Target(CORTEX_M7),
    Need::Target(ARMV8_M),
    Need::Target(RISCV),
    Need::Program(&QEMU_SYSTEM_ARM),
    Need::Program(&QEMU_SYSTEM_RISCV),
    Need::Program(&CLANG),
];

pub(crate) const SIZES_NEEDS: &[Need] = &[Need::Target(CORTEX_M7)];

/// The boards: folders of `examples/firmware`, and their targets.
const BOARDS: [(&str, &str); 4] =
    [("mps2-an500", CORTEX_M7), ("mps2-an505", ARMV8_M), ("mps3-an547", ARMV8_M), ("riscv-virt", RISCV)];

/// The models: files in `models` and in `examples/firmware/replies`.
pub(crate) const MODELS: [&str; 2] = ["sprout", "sprout-q1"];

/// Whether a chat is tested with a model. `--thorough` adds the other pairs: their kernels are those of another chat, or compared
/// with the reference on the same board.
fn is_tested(m: &Machine, chat: &str, model: &str) -> bool {
    let [ternary, one_bit] = MODELS;
    m.thorough
        || match chat {
            "mps2-an505" | "riscv-virt" | "mps2-an500-sd" | "mps2-an500-c-sd" => model == ternary,
            "mps2-an500-c" => model == one_bit,
            _ => true,
        }
}

/// The boards whose UART is tested without `--thorough`: one of each kind.
const UARTS: [&str; 2] = ["mps2-an500", "riscv-virt"];

const HEAD: &str = "\
# Limits of the chats in examples/firmware, written by `cargo xtask firmware --update`: bytes of flash without the model, of
# the heap that the set-up uses, of scratch memory, of the session's cache and of the stack; instructions per prompt token
# and per reply token. With the model on a card: bytes of its header and of the window, both included in the above, and
# bytes read per reply token.
";

const SIZES_HEAD: &str = "\
# Flash of the smallest chat in examples/firmware/mps2-an500 (profile `small`, ternary weights only) without the model, in
# bytes. Written by `cargo xtask sizes --update`.
";

/// The name of the value that is compared with the desktop's.
const LOGITS: &str = "logits";

/// Builds and runs every board, then compares with the recorded values or replaces them.
pub(crate) fn run(m: &mut Machine, update: bool) -> Result<Tally> {
    m.prepare(NEEDS);
    m.thorough |= update;
    let examples = m.root.join("examples/firmware");
    let target_dir = m.target.join("firmware");
    let (mut rows, mut products) = (Vec::new(), 0);
    for (board, target) in BOARDS {
        let dir = examples.join(board);
        cargo(m, target, &dir, &target_dir).args("build --release --locked").run()?;
        let program = target_dir.join(target).join("release").join(board);
        rows.push((format!("{board} flash"), loaded_bytes(&program)? as f64));
        let parity = program.with_file_name(format!("{board}-parity"));
        let parity = emulate(m, &dir, &parity, MODELS[0], "")?;
        print!("{parity}");
        let equal = parity.lines().filter(|line| line.ends_with(" equal")).count();
        // The reference and at least one instruction set, for each format, and damaged files.
        if equal < 9 || parity.contains("DIFFERENT") {
            return Err(format!("{board}: {equal} results equal the reference's"));
        }
        products += equal;
        for model in MODELS.into_iter().filter(|model| is_tested(m, board, model)) {
            let file = examples.join("replies").join(model).with_extension("txt");
            let dialogue = read(&file)?;
            let said = emulate(m, &dir, &program, model, &input(&dialogue))?;
            rows.extend(
                check(&dialogue, &said)
                    .map_err(|why| format!("{board}, {model}: {why}"))?
                    .into_iter()
                    .map(|(what, value)| (format!("{board} {model} {what}"), value)),
            );
            println!("{board} {model}: the desktop's replies");
        }
    }
    rows.extend(card(m, &examples, &target_dir)?);
    rows.extend(c(m, &examples)?);
    small_replies(m, &examples, &target_dir)?;
    uart(m, &examples, &target_dir)?;
    let counted = Counts { compiler: compiler(m)?, rows };
    let file = examples.join("bounds.txt");
    if update {
        fs::write(&file, counted.to_text(HEAD)).map_err(|e| format!("{}: {e}", file.display()))?;
        println!("Recorded in examples/firmware/bounds.txt.");
    }
    let left_out = |row: &str| {
        row.split_once(' ').is_some_and(|(chat, rest)| {
            MODELS.iter().any(|model| rest.starts_with(&format!("{model} ")) && !is_tested(m, chat, model))
        })
    };
    let mut tally = within(&file, &counted, "firmware", left_out)?;
    tally.passed += products;
    Ok(tally)
}

/// Cargo in the folder of a board. Without debug information, which the emulators do not read, core is compiled in six sevenths of
/// the time.
fn cargo(m: &Machine, target: &str, dir: &Path, target_dir: &Path) -> Cmd {
    let cargo = m.cargo_for(target).dir(dir).env("CARGO_TARGET_DIR", target_dir);
    cargo.env("CARGO_PROFILE_RELEASE_DEBUG", "false")
}

/// Runs the chat that reads its model from a card, on the first of [`BOARDS`], without a model in flash.
fn card(m: &Machine, examples: &Path, target_dir: &Path) -> Result<Vec<(String, f64)>> {
    const NAME: &str = "mps2-an500-sd";
    let (board, target) = BOARDS[0];
    let (dir, program) = (examples.join(board), target_dir.join(target).join("release").join(NAME));
    let mut rows = vec![(format!("{NAME} flash"), f64::from(loaded_bytes(&program)?))];
    for model in MODELS.into_iter().filter(|model| is_tested(m, NAME, model)) {
        let dialogue = read(&examples.join("replies").join(model).with_extension("txt"))?;
        let emulator = without_model(&emulator(&dir, model)?);
        let said = emulate_with(m, &dir, &emulator, &program, &input(&dialogue))?;
        let reported = check(&dialogue, &said).map_err(|why| format!("{NAME}, {model}: {why}"))?;
        rows.extend(reported.into_iter().map(|(what, value)| (format!("{NAME} {model} {what}"), value)));
        println!("{NAME} {model}: the desktop's replies");
    }
    Ok(rows)
}

/// The command of an emulator that loads no model into flash.
fn without_model(emulator: &str) -> String {
    without(emulator, "-device")
}

/// The command of an emulator without an option and its value.
fn without(emulator: &str, option: &str) -> String {
    let words: Vec<&str> = emulator.split_whitespace().collect();
    let kept = words
        .iter()
        .enumerate()
        .filter(|(at, word)| **word != option && (*at == 0 || words[at - 1] != option));
    kept.map(|(_, word)| *word).collect::<Vec<_>>().join(" ")
}

/// Builds the chats whose console is a UART, and types at a terminal, without semihosting.
fn uart(m: &Machine, examples: &Path, target_dir: &Path) -> Result<()> {
    for (board, target) in BOARDS.into_iter().filter(|(board, _)| m.thorough || UARTS.contains(board)) {
        let dir = examples.join(board);
        let cargo = cargo(m, target, &dir, target_dir);
        cargo.args("build --release --locked --features uart --bin").arg(board).run()?;
        let program = target_dir.join(target).join("release").join(board);
        let model = MODELS[0];
        let dialogue = read(&examples.join("replies").join(model).with_extension("txt"))?;
        let dialogue = if m.thorough { dialogue } else { first_exchange(&dialogue) };
        let emulator = without(&emulator(&dir, model)?, "-semihosting-config");
        let emulation = emulation(m, &dir, &emulator, &program).args("-serial stdio");
        let said = emulation.converse("> ", &typed(&dialogue), LAST)?;
        let seen = on_screen(&said);
        let seen = if m.thorough { seen } else { without_reports(&seen) };
        check(&dialogue, &seen).map_err(|why| format!("{board}, UART: {why}"))?;
        let spoken: Vec<&str> = dialogue.lines().filter(|line| !line.starts_with("# ")).collect();
        if !seen.lines().take(spoken.len()).eq(spoken) {
            return Err(format!("{board}, UART: a terminal shows\n{seen}\ninstead of\n{dialogue}"));
        }
        println!("{board} UART: the desktop's replies");
    }
    Ok(())
}

/// The last line that a chat reports begins with this.
const LAST: &str = "# reply ";

/// The keys for the lines of a dialogue, with ends of all kinds and mistakes that are taken back; then Ctrl-D.
fn typed(dialogue: &str) -> Vec<String> {
    let ends = ["\r", "\n", "\r\n"].into_iter().cycle();
    let mut keys: Vec<String> = input(dialogue)
        .lines()
        .zip(ends)
        .map(|(line, end)| {
            let (first, rest) = line.split_at(line.len().min(4));
            // Backspace on an empty line, ASCII removed by either key, a key without text, a character of three bytes.
            format!("\u{8}x\u{7f}{first}yz\u{8}\u{7f}\u{1b}\u{20ac}\u{8}{rest}{end}")
        })
        .collect();
    keys.push("\u{4}".to_owned());
    keys
}

/// What a terminal shows: carriage returns and backspaces move back, and other characters replace those that are there.
fn on_screen(text: &str) -> String {
    let (mut lines, mut line, mut at) = (Vec::new(), Vec::new(), 0);
    for c in text.chars() {
        match c {
            '\n' => {
                lines.push(line);
                line = vec![' '; at];
            }
            '\r' => at = 0,
            '\u{8}' => at = at.saturating_sub(1),
            c => {
                line.splice(at..line.len().min(at + 1), [c]);
                at += 1;
            }
        }
    }
    lines.push(line);
    lines.join(&'\n').into_iter().collect()
}

/// Builds and runs the chat in C, on the board of the first of [`BOARDS`], with the model in flash and on a card.
fn c(m: &Machine, examples: &Path) -> Result<Vec<(String, f64)>> {
    let (board, target) = BOARDS[0];
    let cargo =
        m.cargo_for(target).env("RUSTFLAGS", "-Ctarget-cpu=cortex-m7").args("rustc --release --package");
    let cargo = cargo.arg(EMBEDDED).args("--features dsp --crate-type staticlib --target").arg(target);
    cargo.run()?;
    let library = m.target_of(target).join(target).join("release/libshohin_embedded.a");
    let dir = examples.join("mps2-an500-c");
    let mut rows = Vec::new();
    for (name, card) in [("mps2-an500-c", false), ("mps2-an500-c-sd", true)] {
        let program = m.target.join("firmware").join(name);
        let clang = m.cmd(&m.program(&CLANG)?.to_string_lossy()).dir(&dir);
        let clang = clang.arg(format!("--target={target}")).args("-mcpu=cortex-m7 -O2 -ffreestanding");
        let clang = clang.args("-nostdlib -std=c11 -Wall -Wextra -Werror -I../../../ffi/include");
        let clang = clang.arg(ld_path(m)?).args(if card { "-DSD_CARD" } else { "" });
        clang
            .args("-Wl,--gc-sections -T board.ld -x c main.c board.c -x none")
            .arg(&library)
            .arg("-o")
            .arg(&program)
            .run()?;
        rows.push((format!("{name} flash"), f64::from(loaded_bytes(&program)?)));
        for model in MODELS.into_iter().filter(|model| is_tested(m, name, model)) {
            let dialogue = read(&examples.join("replies").join(model).with_extension("txt"))?;
            let emulator = emulator(&examples.join(board), model)?;
            let emulator = if card { without_model(&emulator) } else { emulator };
            let said = emulate_with(m, &examples.join(board), &emulator, &program, &input(&dialogue))?;
            // There are no logits in C.
            let dialogue = without_reports(&dialogue);
            let reported = check(&dialogue, &said).map_err(|why| format!("{name}, {model}: {why}"))?;
            let bytes = |name: &str| reported.iter().find(|(what, _)| what == name).map(|(_, bytes)| *bytes);
            if bytes("memory").is_none() || bytes("memory") != bytes("memory-peak") {
                return Err(format!("{name}, {model}: replies allocate: {reported:?}"));
            }
            rows.extend(reported.into_iter().map(|(what, value)| (format!("{name} {model} {what}"), value)));
            println!("{name} {model}: the desktop's replies");
        }
        // A message that is longer than the context is an error, after which the chat goes on.
        let lines = format!("{}\nWhat is 3 plus 4?\n", "1".repeat(250));
        let said = emulate(m, &examples.join(board), &program, MODELS[0], &lines)?;
        if !(said.starts_with("error: ")
            && said.contains(" tokens do not fit into a context of 256\n")
            && said.contains("\n3 plus 4 is 7.\n"))
        {
            return Err(format!("{name} did not refuse a message that is too long: {said}"));
        }
    }
    Ok(rows)
}

/// The option that tells clang to link with the linker that comes with Rust.
fn ld_path(m: &Machine) -> Result<String> {
    let named = |lld: PathBuf| match lld.with_file_name("gcc-ld").join("ld.lld") {
        wrapper if wrapper.exists() => wrapper,
        _ => lld,
    };
    let lld =
        rust_lld(m).map(named).ok_or("Rust's linker, rust-lld, was not found: install Rust with rustup")?;
    Ok(format!("--ld-path={}", lld.display()))
}

/// Runs a program in the emulator of a board's folder.
fn emulate(m: &Machine, dir: &Path, program: &Path, model: &str, input: &str) -> Result<String> {
    emulate_with(m, dir, &emulator(dir, model)?, program, input)
}

fn emulate_with(m: &Machine, dir: &Path, emulator: &str, program: &Path, input: &str) -> Result<String> {
    emulation(m, dir, emulator, program).input(input).read()
}

fn emulation(m: &Machine, dir: &Path, emulator: &str, program: &Path) -> Cmd {
    let (name, args) = emulator.split_once(' ').unwrap_or((emulator, ""));
    m.cmd(name).dir(dir).args(args).arg(program).limit(HANGS)
}

/// Builds the smallest chat, for models with ternary weights on the first of [`BOARDS`].
fn small(m: &Machine, target_dir: &Path) -> Result<PathBuf> {
    let (board, target) = BOARDS[0];
    let cargo = cargo(m, target, &m.root.join("examples/firmware").join(board), target_dir);
    let cargo = cargo.args("build --profile small --locked --bin").env("CARGO_PROFILE_SMALL_DEBUG", "false");
    cargo.arg(board).args("--no-default-features --features ternary-formats").run()?;
    Ok(target_dir.join(target).join("small").join(board))
}

/// Builds and runs the smallest chat, which reports nothing but replies.
fn small_replies(m: &Machine, examples: &Path, target_dir: &Path) -> Result<()> {
    let (program, dir) = (small(m, target_dir)?, examples.join(BOARDS[0].0));
    let model = MODELS[0];
    let dialogue = read(&examples.join("replies").join(model).with_extension("txt"))?;
    let said = emulate(m, &dir, &program, model, &input(&dialogue))?;
    check(&without_reports(&dialogue), &said).map_err(|why| format!("the smallest chat, {model}: {why}"))?;
    println!("the smallest chat, {model}: the desktop's replies");
    // A format that it lacks is refused by an error, not by a panic or a hang.
    let emulator = emulator(&dir, MODELS[1])?;
    let file = m.target.join("firmware/refused.log");
    let ended = emulation(m, &dir, &emulator, &program).log(&file);
    let said = read(&file)?;
    match ended {
        Err(_) if said.lines().any(|line| line == "error: tensor_type") && !said.contains("panic") => Ok(()),
        Err(why) => Err(format!("the smallest chat does not refuse {}: {why}: {said}", MODELS[1])),
        Ok(()) => Err(format!("the smallest chat accepts {}, whose format it lacks", MODELS[1])),
    }
}

/// The first message of a dialogue and its reply.
fn first_exchange(dialogue: &str) -> String {
    let mut messages = 0;
    let first = dialogue.lines().take_while(|line| {
        messages += usize::from(line.starts_with("> "));
        messages < 2 && !line.starts_with("# ")
    });
    first.collect::<Vec<_>>().join("\n")
}

/// A dialogue without the checksum of the logits.
fn without_reports(dialogue: &str) -> String {
    dialogue.lines().filter(|line| !line.starts_with("# ")).collect::<Vec<_>>().join("\n")
}

/// `cargo xtask sizes`: the flash of a chat on a Cortex-M7, as small as it gets, compared with `xtask/sizes.txt`.
pub(crate) fn sizes(m: &mut Machine, update: bool) -> Result<Tally> {
    m.prepare(SIZES_NEEDS);
    let board = BOARDS[0].0;
    let program = small(m, &m.target.join("firmware"))?;
    let rows = vec![(format!("{board} flash"), loaded_bytes(&program)? as f64)];
    let counted = Counts { compiler: compiler(m)?, rows };
    let file = m.root.join("xtask/sizes.txt");
    if update {
        fs::write(&file, counted.to_text(SIZES_HEAD)).map_err(|e| format!("{}: {e}", file.display()))?;
        println!("Recorded in xtask/sizes.txt.");
    }
    within(&file, &counted, "sizes", |_| false)
}

/// Compares with recorded limits, except those of rows that were left out.
fn within(file: &Path, counted: &Counts, command: &str, left_out: impl Fn(&str) -> bool) -> Result<Tally> {
    let mut kept = Counts::read(&read(file)?)?;
    kept.rows.retain(|(name, _)| !left_out(name));
    let verdict = compare(&kept, counted);
    print!("{}", verdict.text);
    let passed = counted.rows.len();
    if verdict.failed > 0 {
        println!(
            "If this is intended, run `cargo xtask {command} --update` and explain it in the commit message."
        );
        return Err(format!("{} of {passed} values are over their limits", verdict.failed));
    }
    Ok(Tally { passed, ..Tally::default() })
}

pub(crate) fn read(file: &Path) -> Result<String> {
    fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))
}

/// The command that a board's `.cargo/config.toml` runs programs with, for another model.
fn emulator(dir: &Path, model: &str) -> Result<String> {
    let config = read(&dir.join(".cargo/config.toml"))?;
    let runner = config.split("runner = \"\"\"").nth(1).and_then(|rest| rest.split("\"\"\"").next());
    let runner = runner.ok_or_else(|| format!("no runner in {}/.cargo/config.toml", dir.display()))?;
    Ok(runner.replace("\\\n", "").replace("models/sprout.gguf", &format!("models/{model}.gguf")))
}

/// The lines to type: those of a dialogue that begin with `> `.
pub(crate) fn input(dialogue: &str) -> String {
    dialogue.lines().filter_map(|line| line.strip_prefix("> ")).flat_map(|line| [line, "\n"]).collect()
}

/// Compares what a board printed with a dialogue. Returns the values it reported.
fn check(dialogue: &str, said: &str) -> Result<Vec<(String, f64)>> {
    let (expected, found) = (replies(dialogue), replies(said));
    if expected != found {
        return Err(format!("replied\n{found}\nand the desktop\n{expected}"));
    }
    let reported = said.lines().filter_map(|line| line.strip_prefix("# ")?.split_once(' '));
    let numbers = reported.filter_map(|(what, value)| Some((what.to_owned(), value.parse().ok()?)));
    Ok(numbers.filter(|(what, _)| what != LOGITS).collect())
}

/// The replies, and the checksum of the logits.
pub(crate) fn replies(text: &str) -> String {
    let kept = |line: &&str| !line.starts_with("> ") && (!line.starts_with("# ") || line.contains(LOGITS));
    text.lines().filter(kept).collect::<Vec<_>>().join("\n")
}

/// Bytes that a 32-bit ELF file loads: what a chip's flash must hold.
fn loaded_bytes(file: &Path) -> Result<u32> {
    let wrong = || format!("{} is not a 32-bit little-endian ELF file", file.display());
    let elf = fs::read(file).map_err(|e| format!("{}: {e}", file.display()))?;
    if elf.get(..6) != Some(b"\x7fELF\x01\x01") {
        return Err(wrong());
    }
    let word = |at: usize| Some(u32::from_le_bytes(*elf.get(at..)?.first_chunk()?));
    let half = |at: usize| Some(u16::from_le_bytes(*elf.get(at..)?.first_chunk()?));
    let (table, size, count) = (word(28), half(42), half(44));
    let (table, size, count) = table.zip(size).zip(count).map(|((t, s), c)| (t, s, c)).ok_or_else(wrong)?;
    let mut sum = 0;
    for i in 0..count {
        let header = table as usize + usize::from(size) * usize::from(i);
        const LOAD: u32 = 1;
        if word(header).ok_or_else(wrong)? == LOAD {
            sum += word(header + 16).ok_or_else(wrong)?;
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIALOGUE: &str = "> Hello!\nHi!\n# logits 00ff\n";

    #[test]
    fn a_card_is_tested_without_a_model_in_flash() {
        let emulator = "qemu -icount shift=0 -device loader,file=models/sprout.gguf,addr=0x100000 -kernel";
        assert_eq!(without_model(emulator), "qemu -icount shift=0 -kernel");
    }

    #[test]
    fn keys_that_take_back_are_shown_as_a_terminal_does() {
        assert_eq!(on_screen("ax\u{8} \u{8}b\r\nc\u{8}d\r\n"), "ab\nd\n");
        // Without the carriage return, a line begins below the end of the last one.
        assert_eq!(on_screen("ab\nc"), "ab\n  c");
    }

    #[test]
    fn a_dialogue_begins_with_one_exchange() {
        assert_eq!(first_exchange("> a\nb\nc\n> d\ne\n# logits 0\n"), "> a\nb\nc");
        assert_eq!(first_exchange(DIALOGUE), "> Hello!\nHi!");
    }

    #[test]
    fn other_replies_and_other_logits_fail() {
        assert_eq!(input(DIALOGUE), "Hello!\n");
        let said = "Hi!\n# isa tables\n# logits 00ff\n# reply 12\n";
        assert_eq!(check(DIALOGUE, said), Ok(vec![("reply".to_owned(), 12.0)]));
        assert!(check(DIALOGUE, &said.replace("Hi", "Ho")).is_err());
        assert!(check(DIALOGUE, &said.replace("00ff", "00fe")).is_err());
        assert!(check(DIALOGUE, "").is_err());
    }
}
