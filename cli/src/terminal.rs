//! Standard output and error: colours only on a terminal, and numbers formatted for people.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use shohin::core::is_printable;

/// Escape codes, empty if there is no terminal or if colours are disabled.
#[derive(Clone, Copy)]
pub(crate) struct Colours {
    pub(crate) bold: &'static str,
    pub(crate) dim: &'static str,
    pub(crate) accent: &'static str,
    pub(crate) off: &'static str,
}

impl Colours {
    pub(crate) fn new(on: bool) -> Self {
        match on {
            true => Colours { bold: "\x1b[1m", dim: "\x1b[2m", accent: "\x1b[1;32m", off: "\x1b[0m" },
            false => Colours { bold: "", dim: "", accent: "", off: "" },
        }
    }

    pub(crate) fn stdout() -> Self {
        Colours::new(io::stdout().is_terminal() && wanted())
    }
}

fn wanted() -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|v| !v.is_empty());
    !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Prints a line to standard error, which may be closed.
pub(crate) fn remark(text: impl std::fmt::Display) {
    let _ = writeln!(io::stderr(), "{}", printable(&text.to_string()));
}

/// A message for the user. It may quote file names and arguments, of any length and with any characters: those that
/// would steer the terminal or hide text are replaced, and a long message loses its middle.
pub(crate) fn printable(text: &str) -> String {
    const MOST: usize = 4000;
    let safe = |c: char| if c == '\n' || c == '\t' || is_printable(c) { c } else { '?' };
    let count = text.chars().count();
    if count <= MOST {
        return text.chars().map(safe).collect();
    }
    let start: String = text.chars().take(MOST / 2).map(safe).collect();
    let end: String = text.chars().skip(count - MOST / 2).map(safe).collect();
    format!("{start} ... ({} characters left out) ... {end}", count - 2 * (MOST / 2))
}

/// Writes the model's text. On a terminal, control characters are replaced by U+FFFD: a model must not move
/// the cursor, set titles or write to the clipboard.
pub(crate) fn write_model_text(out: &mut impl Write, text: &str, terminal: bool) -> io::Result<()> {
    if !terminal {
        return out.write_all(text.as_bytes());
    }
    for part in text.split_inclusive(|c: char| c.is_control() && c != '\n' && c != '\t') {
        match part.chars().next_back() {
            Some(c) if c.is_control() && c != '\n' && c != '\t' => {
                out.write_all(&part.as_bytes()[..part.len() - c.len_utf8()])?;
                out.write_all("\u{FFFD}".as_bytes())?;
            }
            _ => out.write_all(part.as_bytes())?,
        }
    }
    Ok(())
}

static LISTENING: AtomicBool = AtomicBool::new(false);
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// While it exists, the first Ctrl-C is recorded instead of ending the program.
pub(crate) struct CtrlC;

impl CtrlC {
    pub(crate) fn listen() -> Self {
        static HANDLER: std::sync::Once = std::sync::Once::new();
        HANDLER.call_once(|| {
            // Without a handler Ctrl-C ends the program, which is fine too. WASI has no signals.
            #[cfg(not(target_os = "wasi"))]
            let _ = ctrlc::set_handler(|| {
                if !LISTENING.load(Relaxed) || INTERRUPTED.swap(true, Relaxed) {
                    echo_again();
                    std::process::exit(130);
                }
            });
        });
        INTERRUPTED.store(false, Relaxed);
        LISTENING.store(true, Relaxed);
        CtrlC
    }

    pub(crate) fn pressed(&self) -> bool {
        INTERRUPTED.load(Relaxed)
    }
}

impl Drop for CtrlC {
    fn drop(&mut self) {
        LISTENING.store(false, Relaxed);
    }
}

/// Columns of the terminal that is the standard output.
#[cfg(not(target_os = "wasi"))]
pub(crate) fn width() -> Option<usize> {
    terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| width.0.into()).filter(|width| *width > 0)
}

/// WASI does not tell the size of a terminal.
#[cfg(target_os = "wasi")]
pub(crate) fn width() -> Option<usize> {
    None
}

/// The terminal's mode before it was silenced.
#[cfg(unix)]
static ECHOING: std::sync::Mutex<Option<rustix::termios::Termios>> = std::sync::Mutex::new(None);

/// While it exists, what is typed is not shown: it would be in the middle of a reply. It is kept for the next line. On Windows
/// only what is read is shown.
pub(crate) struct Silence;

impl Silence {
    pub(crate) fn keep() -> Silence {
        #[cfg(unix)]
        {
            use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
            let stdin = io::stdin();
            if stdin.is_terminal()
                && let Ok(before) = tcgetattr(&stdin)
                && let Ok(mut echoing) = ECHOING.lock()
            {
                let mut silent = before.clone();
                silent.local_modes.remove(LocalModes::ECHO | LocalModes::ECHONL);
                if tcsetattr(&stdin, OptionalActions::Now, &silent).is_ok() {
                    *echoing = Some(before);
                }
            }
        }
        Silence
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        echo_again();
    }
}

/// Ends a silence.
fn echo_again() {
    #[cfg(unix)]
    if let Ok(mut echoing) = ECHOING.lock()
        && let Some(before) = echoing.take()
    {
        // A terminal that is gone has no mode.
        let _ = rustix::termios::tcsetattr(io::stdin(), rustix::termios::OptionalActions::Now, &before);
    }
}

/// `1536` as `1.5 KiB`.
pub(crate) fn bytes(n: u64) -> String {
    let mut value = n as f64;
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{n} B"),
        _ => format!("{} {}", short(value), units[unit]),
    }
}

/// `1720574976` as `1.72 billion`.
pub(crate) fn count(n: u64) -> String {
    match n {
        0..10_000 => n.to_string(),
        10_000..1_000_000 => format!("{} thousand", short(n as f64 / 1e3)),
        1_000_000..1_000_000_000 => format!("{} million", short(n as f64 / 1e6)),
        _ => format!("{} billion", short(n as f64 / 1e9)),
    }
}

/// Formats three significant digits.
pub(crate) fn short(x: f64) -> String {
    match x.abs() {
        a if a >= 99.95 => format!("{x:.0}"),
        a if a >= 9.995 => format!("{x:.1}"),
        _ => format!("{x:.2}"),
    }
}

/// Rounds to three decimals; more would be noise.
pub(crate) fn round(x: f64) -> f64 {
    (x * 1e3).round() / 1e3
}

/// Writes rows with aligned columns: the first to the left, the others as in `right`.
pub(crate) fn table(out: &mut impl Write, rows: &[Vec<String>], right: &[bool]) -> io::Result<()> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        let mut line = String::from(" ");
        for (c, cell) in row.iter().enumerate() {
            let pad = " ".repeat(widths[c] - cell.chars().count());
            line.push(' ');
            match right.get(c) {
                Some(true) => line.extend([&pad, cell.as_str()]),
                _ => line.extend([cell.as_str(), &pad]),
            }
            line.push(' ');
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1536), "1.50 KiB");
        assert_eq!(bytes(248_302_272), "237 MiB");
        assert_eq!(count(2048), "2048");
        assert_eq!(count(1_720_574_976), "1.72 billion");
        assert_eq!(count(5_250_000), "5.25 million");
        assert_eq!((short(9.996), short(99.96), short(0.5)), ("10.0".into(), "100".into(), "0.50".into()));
    }

    #[test]
    fn a_model_cannot_steer_the_terminal() {
        let text = "a\x1b]0;title\x07b\r\u{9b}2Jc\n\td";
        let mut out = Vec::new();
        write_model_text(&mut out, text, true).unwrap();
        let shown = "a\u{FFFD}]0;title\u{FFFD}b\u{FFFD}\u{FFFD}2Jc\n\td";
        assert_eq!(String::from_utf8(out).unwrap(), shown);
        let mut out = Vec::new();
        write_model_text(&mut out, text, false).unwrap();
        assert_eq!(out, text.as_bytes());
    }

    #[test]
    fn tables_align() {
        let mut out = Vec::new();
        let row = |a: &str, b: &str| vec![a.to_string(), b.to_string()];
        table(&mut out, &[row("naïve", "1"), row("x", "100")], &[false, true]).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "  naïve    1\n  x      100\n");
    }
}
