//! `shohin bench --profile`: where the time of a forward pass goes.

use crate::convert::check_new;
use crate::error::{CliError, Result};
use crate::model::{ModelArgs, settings};
use crate::terminal;
use plotters::prelude::{Color, HSLColor, IntoDrawingArea, IntoFont, Rectangle, SVGBackend, Text, WHITE};
use serde_json::{Value, json};
use shohin::new_file::NewFile;
use shohin::{Model, Profile};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

/// Tokens of a batch of a prompt.
const BATCH: usize = 64;

/// What is profiled.
pub(crate) struct Run<'a> {
    pub(crate) model: &'a ModelArgs,
    /// Lengths of prompts and of replies, of which the longest count.
    pub(crate) prefill: &'a [usize],
    pub(crate) decode: &'a [usize],
    /// Tokens before a reply.
    pub(crate) depth: usize,
    /// The flame graph to write, and whether it may replace a file.
    pub(crate) flame: Option<&'a Path>,
    pub(crate) force: bool,
    pub(crate) json: bool,
}

pub(crate) fn run(args: &Run<'_>) -> Result {
    if let Some(path) = args.flame {
        check_new(path, args.force)?;
    }
    let depth = args.depth.max(1);
    let longest = |of: &[usize]| of.iter().copied().max().unwrap_or(0);
    let (prefill, decode) = (longest(args.prefill), longest(args.decode));
    if prefill == 0 && decode == 0 {
        return Err(CliError::usage(
            "--profile: expected a length of --prefill or of --decode that is not 0",
        ));
    }
    let context = prefill.max(if decode == 0 { 0 } else { decode.saturating_add(depth) });
    let model = args.model.load_for(context)?;
    if model.gpu().is_some() {
        return Err(CliError::usage("--profile: expected --device cpu, whose operations it measures"));
    }
    if context > model.config().max_context_length {
        return Err(CliError::new(format_args!(
            "a test needs {context} tokens, but this model holds at most {}",
            model.config().max_context_length
        )));
    }
    let vocab = model.config().vocab_size;
    let tokens: Vec<u32> = (0..context).map(|i| (i * 7919 % vocab) as u32).collect();
    let mut profiles = Vec::new();
    if prefill > 0 {
        profiles.push(("prefill", model.profile(&tokens[..prefill], 0, BATCH)?));
    }
    if decode > 0 {
        profiles.push(("decode", model.profile(&tokens[..depth + decode], depth, 1)?));
    }
    if let Some(path) = args.flame {
        flame(path, &model, &profiles)?;
    }
    let mut out = io::stdout().lock();
    if args.json {
        let of = |(name, profile): &(&str, Profile)| ((*name).to_string(), to_json(profile));
        let all: serde_json::Map<String, Value> = profiles.iter().map(of).collect();
        writeln!(out, "{:#}", json!({"model": model.name(), "profiles": all}))?;
        return Ok(());
    }
    writeln!(out, "{}: {}", model.name(), settings(&model))?;
    for (name, profile) in &profiles {
        print(&mut out, name, profile)?;
    }
    Ok(())
}

/// Operations of all blocks together, those that took longest first.
fn by_name(profile: &Profile) -> Vec<(&str, u64, f64)> {
    let mut sums: BTreeMap<&str, (u64, f64)> = BTreeMap::new();
    for operation in &profile.operations {
        let (rows, seconds) = sums.entry(&operation.name).or_default();
        *rows += operation.rows;
        *seconds += operation.seconds;
    }
    let mut all: Vec<_> = sums.into_iter().map(|(name, (rows, seconds))| (name, rows, seconds)).collect();
    all.sort_by(|a, b| b.2.total_cmp(&a.2));
    all
}

/// Seconds of each block, and of what is in none.
fn by_block(profile: &Profile) -> BTreeMap<Option<usize>, f64> {
    let mut sums = BTreeMap::new();
    for operation in &profile.operations {
        *sums.entry(operation.block).or_default() += operation.seconds;
    }
    sums
}

fn print(out: &mut impl Write, name: &str, profile: &Profile) -> Result {
    let whole = profile.seconds().max(1e-12);
    let ms = |seconds: f64| format!("{:.3}", 1e3 * seconds / profile.tokens as f64);
    let share = |seconds: f64| format!("{:.1} %", 100.0 * seconds / whole);
    writeln!(out, "\n{name} of {} tokens: {} ms per token\n", profile.tokens, ms(whole))?;
    let head = [name, "rows", "ms/token", "share"].map(String::from).to_vec();
    let rows = by_name(profile).into_iter();
    let rows = rows.map(|(name, rows, s)| vec![name.to_string(), rows.to_string(), ms(s), share(s)]);
    let rows: Vec<_> = [head].into_iter().chain(rows).collect();
    terminal::table(out, &rows, &[false, true, true, true])?;
    let blocks = by_block(profile);
    let of_blocks: Vec<f64> = blocks.iter().filter_map(|(block, s)| block.map(|_| *s)).collect();
    if let Some(longest) = of_blocks.iter().copied().reduce(f64::max) {
        let mean = of_blocks.iter().sum::<f64>() / of_blocks.len() as f64;
        let at = blocks.iter().find(|(block, s)| block.is_some() && **s == longest);
        let at = at.and_then(|(block, _)| *block).unwrap_or(0);
        writeln!(
            out,
            "\n  {} blocks of {} ms per token on average; the longest, block {at}, takes {}.",
            of_blocks.len(),
            ms(mean),
            ms(longest)
        )?;
    }
    let depths: Vec<_> = profile
        .depths()
        .iter()
        .map(|depth| {
            format!("{}: {:.0} %", depth.block, 100.0 * depth.taking_part as f64 / depth.tokens.max(1) as f64)
        })
        .collect();
    if !depths.is_empty() {
        writeln!(out, "  Tokens that took part in blocks that they may skip: {}", depths.join(", "))?;
    }
    Ok(())
}

fn to_json(profile: &Profile) -> Value {
    let operations = profile.operations.iter().map(|operation| {
        json!({
            "block": operation.block,
            "name": operation.name,
            "calls": operation.calls,
            "rows": operation.rows,
            "seconds": operation.seconds,
        })
    });
    let depths = profile.depths();
    let depths = depths
        .iter()
        .map(|depth| json!({"block": depth.block, "tokens": depth.tokens, "taking_part": depth.taking_part}));
    json!({
        "tokens": profile.tokens,
        "seconds": profile.seconds(),
        "operations": operations.collect::<Vec<_>>(),
        "depths": depths.collect::<Vec<_>>(),
    })
}

/// Width and height of a row of a flame graph, in pixels.
const WIDTH: f64 = 1600.0;
const ROW: i32 = 22;
/// Pixels of a character of a label.
const CHARACTER: f64 = 7.5;

/// A rectangle of a flame graph.
struct Frame {
    name: String,
    level: i32,
    /// Seconds before it, and its own.
    start: f64,
    seconds: f64,
}

/// What calls what: all, profiles, blocks, operations.
fn frames(profiles: &[(&str, Profile)]) -> Vec<Frame> {
    let whole = profiles.iter().map(|(_, profile)| profile.seconds()).sum();
    let mut all = vec![Frame { name: "all".into(), level: 0, start: 0.0, seconds: whole }];
    let mut now = 0.0;
    for (name, profile) in profiles {
        all.push(Frame { name: (*name).into(), level: 1, start: now, seconds: profile.seconds() });
        let mut rest = profile.operations.as_slice();
        while let Some(first) = rest.first() {
            let len = rest.iter().take_while(|operation| operation.block == first.block).count();
            let (block, later) = rest.split_at(len);
            rest = later;
            let level = match first.block {
                Some(number) => {
                    let seconds = block.iter().map(|operation| operation.seconds).sum();
                    all.push(Frame { name: format!("block {number}"), level: 2, start: now, seconds });
                    3
                }
                None => 2,
            };
            for operation in block {
                let (name, seconds) = (operation.name.clone(), operation.seconds);
                all.push(Frame { name, level, start: now, seconds });
                now += seconds;
            }
        }
    }
    all
}

/// Writes a flame graph of all profiles: each level stands on what calls it.
fn flame(path: &Path, model: &Model, profiles: &[(&str, Profile)]) -> Result {
    let frames = frames(profiles);
    let mut svg = String::new();
    draw(&mut svg, model, &frames)
        .map_err(|error| CliError::new(format_args!("{}: {error}", path.display())))?;
    let written = NewFile::create(path).and_then(|mut file| {
        file.write_all(svg.as_bytes())?;
        file.finish()
    });
    written.map_err(|error| crate::error::file_error("write", path, &error))
}

fn draw(
    svg: &mut String,
    model: &Model,
    frames: &[Frame],
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let whole = frames.first().map_or(0.0, |frame| frame.seconds).max(1e-12);
    let height = 6 * ROW;
    let root = SVGBackend::with_string(svg, (WIDTH as u32, height as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    let text = ("sans-serif", 13).into_font();
    let title = format!("{}, CPU: {:.1} ms", model.name(), 1e3 * whole);
    root.draw(&Text::new(title, (4, 4), text.clone()))?;
    for frame in frames {
        let x = |seconds: f64| (WIDTH * seconds / whole).round() as i32;
        let (left, right) = (x(frame.start), x(frame.start + frame.seconds));
        if right == left {
            continue;
        }
        let top = height - (frame.level + 1) * ROW - 4;
        // The same colour for the same name.
        let hue = frame.name.bytes().fold(0u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
        let colour = HSLColor(0.02 + f64::from(hue % 100) / 800.0, 0.8, 0.7);
        let corners = [(left, top), (right, top + ROW - 1)];
        root.draw(&Rectangle::new(corners, colour.filled()))?;
        root.draw(&Rectangle::new(corners, WHITE.stroke_width(1)))?;
        let room = (f64::from(right - left) / CHARACTER) as usize;
        if room > 2 {
            let label: String = frame.name.chars().take(room).collect();
            root.draw(&Text::new(label, (left + 3, top + 4), text.clone()))?;
        }
    }
    root.present()?;
    Ok(())
}
