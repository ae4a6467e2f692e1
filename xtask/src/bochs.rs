//! An emulated processor with AMX: builds Bochs for this repository, and runs static Linux programs on it, with
//! `xtask/bochs.s` instead of an operating system.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::command::{Cmd, Result};
use crate::machine::{GXX, MAKE, Machine};

/// The source package and its Debian release.
const RELEASE: &str = "trixie";
const VERSION: &str = "3.0+dfsg-1";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// The processor features, without display or devices.
const CONFIGURE: &str = "--enable-x86-64 --enable-avx --enable-evex --enable-amx --enable-protection-keys \
    --enable-cet --enable-uintr --enable-vmx=2 --enable-all-optimizations --with-nogui --disable-docbook \
    --disable-cdrom --disable-plugins --disable-gameport --disable-logging";

/// Memory of the emulated machine, in MB.
const MEMORY: u64 = 1024;
/// Bochs loads a file correctly only if it fits into one of its memory blocks.
const BLOCK: usize = 8 << 20;
/// The address at which the program is loaded, in two blocks at most, before `bochs.s` moves it.
const LOADED: u64 = 768 << 20;
/// Memory for brk.
const HEAP: u64 = 32 << 20;
/// The address of the arguments, above the stack.
const ARGUMENTS: u64 = (MEMORY << 20) - (1 << 20);
/// The address of the start parameters read by `bochs.s`.
const START: u64 = 0x10000;

fn home(m: &Machine) -> std::path::PathBuf {
    m.tools().join("bochs")
}

/// Whether this machine's processor has AMX, so that nothing is emulated.
pub(crate) fn is_needless() -> bool {
    fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains(" amx_int8"))
}

/// Builds Bochs, unless it exists, and the firmware.
pub(crate) fn install(m: &Machine) -> Result<()> {
    let home = home(m);
    let at = |e: std::io::Error| format!("{}: {e}", home.display());
    if !home.join("bochs").is_file() {
        println!("xtask: building Bochs {VERSION} (some minutes, once)");
        let _ = fs::remove_dir_all(&home);
        fs::create_dir_all(&home).map_err(at)?;
        let source = fetch(m, &home)?;
        correct(&source.join("cpu/avx/amx.cc"))?;
        let configure = Cmd::new(source.join("configure"), &source).args(CONFIGURE);
        let compiler = m.program(&GXX)?;
        configure.env("CXX", &compiler).env("CXXFLAGS", "-O2 -pipe").env("CFLAGS", "-O2 -pipe").read()?;
        let jobs = std::thread::available_parallelism().map_or(1, usize::from);
        Cmd::new(m.program(&MAKE)?, &source).arg(format!("-j{jobs}")).read()?;
        fs::rename(source.join("bochs"), home.join("bochs")).map_err(at)?;
        fs::remove_dir_all(source).map_err(at)?;
    }
    // The last 64 KB below 4 GB.
    Cmd::new(m.program(&GXX)?, &home)
        .args("-nostdlib -static -Wl,--oformat=binary -Wl,-Ttext=0xffff0000 -Wl,-e,0 -Wl,--build-id=none -o firmware")
        .arg(m.root.join("xtask/bochs.s"))
        .read()?;
    fs::write(home.join("screen"), [0; 512]).map_err(at)
}

/// The configured mirror of Debian's packages.
fn mirror(m: &Machine) -> Result<String> {
    let apt = |line: &str| Cmd::new("apt-get", &m.root).args(line);
    let sources =
        || apt("indextargets --format $(ORIGIN)|$(LABEL)|$(REPO_URI)").arg("Created-By: Packages").read();
    let mut found = sources()?;
    if found.trim().is_empty() {
        // It only reports sources whose lists were downloaded.
        apt("-qq update").read()?;
        found = sources()?;
    }
    let debian = found.lines().find_map(|line| line.strip_prefix("Debian|Debian|"));
    debian.map(String::from).ok_or("this machine takes its packages from somewhere else".into())
}

/// Downloads the source with a separate apt-get configuration: the lists of the system stay unchanged.
fn fetch(m: &Machine, home: &Path) -> Result<std::path::PathBuf> {
    let at = |e: std::io::Error| format!("{}: {e}", home.display());
    let why = |e| format!("the source of Bochs could not be downloaded from Debian: {e}");
    let apt = home.join("apt");
    fs::create_dir_all(apt.join("lists/partial")).map_err(at)?;
    fs::write(apt.join("status"), "").map_err(at)?;
    let list = format!("deb-src [signed-by={KEYRING}] {} {RELEASE} main\n", mirror(m).map_err(why)?);
    fs::write(apt.join("sources.list"), list).map_err(at)?;
    let get = || {
        let option = |name: &str, path: &str| format!("-oDir::{name}={}", apt.join(path).display());
        let cmd =
            Cmd::new("apt-get", home).args("-oDir::Etc::sourceparts=/dev/null -oAcquire::Languages=none");
        let cmd = cmd.args("-oAPT::Sandbox::User=root").arg(option("State", "")).arg(option("Cache", ""));
        cmd.arg(option("State::lists", "lists"))
            .arg(option("State::status", "status"))
            .arg(option("Etc::sourcelist", "sources.list"))
    };
    get().args("-qq update").read().map_err(why)?;
    get()
        .args("-qq source --download-only --tar-only")
        .arg(format!("bochs={VERSION}"))
        .read()
        .map_err(why)?;
    let upstream = VERSION.split('-').next().unwrap_or(VERSION);
    m.cmd("tar").dir(home).arg("-xf").arg(format!("bochs_{upstream}.orig.tar.xz")).read()?;
    Ok(home.join(format!("bochs-{}", upstream.split('+').next().unwrap_or(upstream))))
}

/// Corrects a defect of Bochs 3.0, which treats the bytes of tiles as unsigned in signed instructions, too.
fn correct(file: &Path) -> Result<()> {
    let text = fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let mut corrected = text;
    for matrix in ["xbyte", "ybyte"] {
        let wrong = format!("Bit32s({matrix}[");
        if !corrected.contains(&wrong) {
            return Err(format!("{}: the code to correct was not found", file.display()));
        }
        corrected = corrected.replace(&wrong, &format!("Bit32s((Bit8s) {matrix}["));
    }
    fs::write(file, corrected).map_err(|e| format!("{}: {e}", file.display()))
}

/// Runs a program, `args[0]`, with its arguments. Returns its exit status.
pub(crate) fn run(m: &Machine, args: &[String]) -> Result<u8> {
    let [program, rest @ ..] = args else { return Err("emulate expects a program".into()) };
    let home = home(m);
    let dir = home.join(format!("run-{}", std::process::id()));
    let at = |e: std::io::Error| format!("{}: {e}", dir.display());
    fs::create_dir_all(&dir).map_err(at)?;
    let file = fs::read(program).map_err(|e| format!("{program}: {e}"))?;
    let image = Image::new(&file).ok_or(format!("{program}: not a static Linux program for x86-64"))?;
    let name = Path::new(program).file_name().unwrap_or_default().to_string_lossy();
    let (stack, arguments) = image.arguments(std::iter::once(&*name).chain(rest.iter().map(String::as_str)));
    let heap = image.end.next_multiple_of(1 << 20);
    let bytes = image.bytes.len() as u64;
    let start = [image.entry, stack, heap, heap + HEAP, heap + HEAP, LOADED, LOADED, image.start, bytes];
    let start: Vec<u8> = start.iter().flat_map(|n| n.to_le_bytes()).collect();
    let (first, second) = image.bytes.split_at(image.bytes.len().min(BLOCK));
    if second.len() > BLOCK {
        return Err(format!("{program}: more than {} MB", (2 * BLOCK) >> 20));
    }
    let mut config = format!(
        "romimage: file={0}/firmware, address=0xffff0000\n\
         vgaromimage: file={0}/screen\n\
         memory: guest={MEMORY}, host={MEMORY}, block_size={1}\n\
         cpu: model=sapphire_rapids, ips=100000000, reset_on_triple_fault=0\n\
         display_library: nogui\n\
         port_e9_hack: enabled=1\n\
         log: log\n\
         panic: action=fatal\n\
         boot: disk\n",
        home.display(),
        BLOCK >> 10
    );
    let images = [(START, &start[..]), (stack, &arguments), (LOADED, first), (LOADED + BLOCK as u64, second)];
    for (i, (address, bytes)) in images.into_iter().enumerate().filter(|(_, image)| !image.1.is_empty()) {
        fs::write(dir.join(format!("image{i}")), bytes).map_err(at)?;
        config += &format!("optramimage{}: file=image{i}, address={address:#x}\n", i + 1);
    }
    fs::write(dir.join("config"), config).map_err(at)?;
    let status = emulate(&home.join("bochs"), &dir);
    let _ = fs::remove_dir_all(&dir);
    status
}

/// The memory image of a program.
struct Image {
    entry: u64,
    /// Its first address.
    start: u64,
    /// The end address, including zeros that are not in `bytes`.
    end: u64,
    bytes: Vec<u8>,
    /// Address, number and size of its program headers.
    headers: [u64; 3],
}

impl Image {
    fn new(file: &[u8]) -> Option<Image> {
        const EXECUTABLE: u64 = 2;
        const X86_64: u64 = 62;
        const LOAD: u64 = 1;
        const INTERPRETER: u64 = 3;
        let number = |at: u64, len: u64| {
            let at = usize::try_from(at).ok()?;
            let bytes = file.get(at..at.checked_add(len as usize)?)?;
            Some(bytes.iter().rev().fold(0, |n, &byte| n << 8 | u64::from(byte)))
        };
        if !file.starts_with(b"\x7fELF\x02\x01") || number(16, 2)? != EXECUTABLE || number(18, 2)? != X86_64 {
            return None;
        }
        let (entry, headers, len, count) = (number(24, 8)?, number(32, 8)?, number(54, 2)?, number(56, 2)?);
        let header = |i: u64, at: u64, len_of: u64| number(headers + i * len + at, len_of);
        let mut parts = Vec::new();
        for i in 0..count {
            match header(i, 0, 4)? {
                INTERPRETER => return None,
                // Offset, address, size in the file, size in memory.
                LOAD => {
                    parts.push([header(i, 8, 8)?, header(i, 16, 8)?, header(i, 32, 8)?, header(i, 40, 8)?])
                }
                _ => {}
            }
        }
        let start = parts.iter().map(|part| part[1]).min()? & !0xfff;
        let end = parts.iter().map(|part| part[1] + part[3]).max()?;
        let len_of_bytes = parts.iter().map(|part| part[1] + part[2]).max()? - start;
        if start < START + BLOCK as u64 / 8 || end > LOADED / 2 {
            return None;
        }
        let mut bytes = vec![0; len_of_bytes as usize];
        for [from, address, len, _] in &parts {
            let to = (address - start) as usize;
            let part = file.get(*from as usize..(from + len) as usize)?;
            bytes[to..][..part.len()].copy_from_slice(part);
        }
        let headers = [start + headers, count, len];
        Some(Image { entry, start, end, bytes, headers })
    }

    /// The initial stack as set up by Linux: arguments, environment, auxiliary vector. Returns its address and content.
    fn arguments<'a>(&self, args: impl Iterator<Item = &'a str>) -> (u64, Vec<u8>) {
        const PAGE: u64 = 4096;
        let mut text = vec![0; 16]; // random bytes
        let mut put = |line: &str| {
            text.extend(line.bytes());
            text.push(0);
            ARGUMENTS + (text.len() - line.len() - 1) as u64
        };
        let args: Vec<u64> = args.map(&mut put).collect();
        let ours = std::env::vars().filter(|(name, _)| name.starts_with("SHOHIN_"));
        let environment = ours.map(|(name, value)| put(&format!("{name}={value}")));
        let mut environment: Vec<u64> = environment.collect();
        environment.push(put("RUST_TEST_THREADS=1"));
        let mut words = vec![args.len() as u64];
        words.extend(args.into_iter().chain([0]).chain(environment).chain([0]));
        // Headers, their length and number, size of a page, entry, ids, clock, no privilege, random bytes.
        let [headers, count, len] = self.headers;
        let vector = [(3, headers), (4, len), (5, count), (6, PAGE), (9, self.entry)];
        let vector = vector.into_iter().chain([(11, 0), (12, 0), (13, 0), (14, 0), (17, 100), (23, 0)]);
        words.extend(vector.chain([(25, ARGUMENTS), (0, 0)]).flat_map(|(key, value)| [key, value]));
        let stack = (ARGUMENTS - 8 * words.len() as u64) & !15;
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.resize((ARGUMENTS - stack) as usize, 0);
        bytes.extend(text);
        (stack, bytes)
    }
}

/// Starts the machine described by `config` and forwards the output of its program.
fn emulate(bochs: &Path, dir: &Path) -> Result<u8> {
    let mut command = Command::new(bochs);
    command.args(["-q", "-f", "config"]).current_dir(dir).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::null()).spawn().map_err(|e| format!("{}: {e}", bochs.display()))?;
    let mut pipe = child.stdout.take().ok_or("Bochs has no output")?;
    let mut out = std::io::stdout().lock();
    let mut output = Output { place: Place::Before, status: String::new() };
    let mut bytes = [0; 4096];
    let read = loop {
        match pipe.read(&mut bytes) {
            Ok(0) => break Ok(()),
            Ok(n) => {
                let text: Vec<u8> = bytes[..n].iter().copied().filter(|&byte| output.shows(byte)).collect();
                if let Err(e) = out.write_all(&text).and_then(|()| out.flush()) {
                    break Err(e);
                }
            }
            Err(e) => break Err(e),
        }
    };
    if read.is_err() {
        let _ = child.kill();
    }
    let _ = child.wait();
    read.map_err(|e| format!("the output of Bochs: {e}"))?;
    let words: Vec<&str> = output.status.split_whitespace().collect();
    match words[..] {
        [vector, address, ..] if vector.starts_with('!') => {
            let vector = vector.trim_start_matches(['!', '0']);
            Err(format!("the program was terminated by exception {vector}h near {address}"))
        }
        [status] => {
            u64::from_str_radix(status, 16).map(|n| n as u8).map_err(|e| format!("status {status}: {e}"))
        }
        _ => {
            let log = fs::read_to_string(dir.join("log")).unwrap_or_default();
            let end: Vec<&str> = log.lines().rev().take(5).collect();
            Err(format!("Bochs ended before the program: {}", end.join("; ")))
        }
    }
}

/// Extracts the output of the program from that of Bochs.
struct Output {
    place: Place,
    status: String,
}

#[derive(PartialEq)]
enum Place {
    Before,
    Text,
    Status,
    After,
}

impl Output {
    /// Whether `byte` is output of the program.
    fn shows(&mut self, byte: u8) -> bool {
        match (&self.place, byte) {
            (Place::Before, 2) => self.place = Place::Text,
            (Place::Text, 3) => self.place = Place::Status,
            (Place::Text, _) => return true,
            (Place::Status, b'\n') => self.place = Place::After,
            (Place::Status, byte) => self.status.push(byte.into()),
            _ => {}
        }
        false
    }
}
