//! `shohin tokenize`: text to ids and back.

use crate::error::{CliError, Context, Result};
use crate::input::read_text;
use crate::model::{FileArgs, token_text};
use crate::terminal::write_model_text;
use clap::Args;
use serde_json::Value;
use shohin::core::Tokenizer;
use shohin::core::tokenizer::{Decoder, EncodeOptions, Special};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::Path;

/// Convert text to token ids, or ids to text
///
/// Reads the argument or standard input. Text such as <|im_end|> is plain text unless --special is given. If texts begin
/// with a token of the model's, it comes first, as in `run --raw`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  shohin tokenize \"Once upon a time\"
  shohin tokenize --pieces \"Once upon a time\"
  shohin tokenize --decode 401 17 33
  shohin tokenize --special \"<|im_start|>user\"
  echo '[\"one text\", \"another\"]' | shohin tokenize --json
  shohin tokenize \"A text\" > ids.txt && shohin logits --tokens ids.txt --out logits.f32")]
pub(crate) struct TokenizeArgs {
    /// The text, or with --decode the ids [default: standard input]
    #[arg(allow_negative_numbers = true)]
    input: Vec<String>,
    /// Convert ids to text
    #[arg(short, long)]
    decode: bool,
    /// Read a JSON array of strings and print an array of arrays of ids; with --decode the reverse
    #[arg(long)]
    json: bool,
    /// Parse control tokens such as <|im_start|> in the text, and show them when decoding
    #[arg(long)]
    special: bool,
    /// Leave out the token that texts begin with
    #[arg(long, conflicts_with = "decode")]
    no_bos: bool,
    /// Leave out the token that whole texts end with, as those of some embedding models do
    #[arg(long, conflicts_with = "decode")]
    no_eos: bool,
    /// Normalize the text to Unicode NFC first, as Hugging Face tokenizers do
    #[arg(long, conflicts_with = "decode")]
    nfc: bool,
    /// Print one token per line: id and text
    #[arg(long, conflicts_with_all = ["json", "decode"])]
    pieces: bool,
    #[command(flatten)]
    file: FileArgs,
}

pub(crate) fn tokenize(args: &TokenizeArgs) -> Result {
    let file = args.file.open()?;
    // Only the header is needed: the tokenizer of a model that cannot run works too.
    let gguf = file.gguf(&args.file.read_options())?;
    let tokenizer = Tokenizer::from_gguf(&gguf).context(file.name())?;
    let input = match args.input.as_slice() {
        [] => read_text(Path::new("-"))?,
        words => words.join(" "),
    };
    let mut out = BufWriter::new(io::stdout().lock());
    let encode = |text: &str| {
        // Without `--special`, as in llama.cpp and Hugging Face: control tokens are plain text, user-defined
        // tokens (`<think>`) are not.
        let special = if args.special { Special::Parse } else { Special::UserDefined };
        let options = EncodeOptions::new(special).with_nfc(args.nfc);
        let mut ids = Vec::from_iter(tokenizer.leading_bos().filter(|_| !args.no_bos));
        tokenizer.encode_with(text, &options, &mut ids);
        ids.extend(tokenizer.trailing_eos().filter(|_| !args.no_eos));
        ids
    };
    match (args.json, args.decode) {
        (true, false) => {
            let texts = texts_from_json(&input)?;
            let ids: Vec<Vec<u32>> = texts.iter().map(|text| encode(text)).collect();
            writeln!(out, "{}", Value::from(ids))?;
        }
        (true, true) => {
            let rows = from_json(&input, "an array of arrays of ids", |row| {
                row.as_array()?
                    .iter()
                    .map(|id| u32::try_from(id.as_u64()?).ok())
                    .collect::<Option<Vec<u32>>>()
            })?;
            let texts: Result<Vec<String>> =
                rows.iter().map(|ids: &Vec<u32>| decode(&tokenizer, ids, args.special)).collect();
            writeln!(out, "{}", Value::from(texts?))?;
        }
        (false, true) => {
            let ids = parse_ids(&input, "the input")?;
            let text = decode(&tokenizer, &ids, args.special)?;
            write_model_text(&mut out, &text, io::stdout().is_terminal())?;
            writeln!(out)?;
        }
        (false, false) if args.pieces => {
            for id in encode(&input) {
                writeln!(out, "{id:>7}  {:?}", token_text(&tokenizer, id))?;
            }
        }
        (false, false) => {
            let ids: Vec<String> = encode(&input).iter().map(u32::to_string).collect();
            writeln!(out, "{}", ids.join(" "))?;
        }
    }
    out.flush()?;
    Ok(())
}

fn decode(tokenizer: &Tokenizer<'_>, ids: &[u32], special: bool) -> Result<String> {
    let mut decoder = Decoder::new(tokenizer).show_control(special).whole();
    let mut text = String::new();
    for &id in ids {
        let vocab = tokenizer.vocab_size() as u32;
        if id >= vocab {
            return Err(shohin::core::Error::Token { id, vocab }.into());
        }
        text.push_str(decoder.push(id));
    }
    text.push_str(decoder.finish());
    Ok(text)
}

/// Ids separated by white space or commas.
pub(crate) fn parse_ids(text: &str, place: &str) -> Result<Vec<u32>> {
    let words = text.split(|c: char| c.is_whitespace() || c == ',').filter(|w| !w.is_empty());
    words
        .enumerate()
        .map(|(i, word)| {
            word.parse().map_err(|_| {
                let n = i + 1;
                CliError::new(format_args!("{place}: expected a token id, found {word:?} as number {n}"))
            })
        })
        .collect()
}

/// A JSON array of strings.
pub(crate) fn texts_from_json(input: &str) -> Result<Vec<String>> {
    from_json(input, "an array of strings", |text| text.as_str().map(String::from))
}

fn from_json<T>(input: &str, expected: &str, item: impl Fn(&Value) -> Option<T>) -> Result<Vec<T>> {
    let value: Value = serde_json::from_str(input)
        .map_err(|e| CliError::new(format_args!("the input is not JSON, expected {expected}: {e}")))?;
    let items = value.as_array().and_then(|items| items.iter().map(item).collect());
    items.ok_or_else(|| {
        let found = match &value {
            Value::Array(_) => "an array with other things in it",
            Value::Object(_) => "an object",
            Value::String(_) => "a string",
            _ => "a single value",
        };
        CliError::new(format_args!("the input is {found}, expected {expected}"))
    })
}
