//! The command line: what can be asked, with its help.

use clap::builder::styling::{AnsiColor, Styles};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use shohin_core::chat::OverflowPolicy;
use shohin_core::{KvFormat, SamplerConfig};
use std::path::PathBuf;

use crate::bench::BenchArgs;
use crate::embed::EmbedArgs;
use crate::eval::EvalArgs;
use crate::inspect::InspectArgs;
use crate::logits::LogitsArgs;
use crate::tokenize::TokenizeArgs;

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

/// Chat with 1-bit and ternary Bonsai language models, on any CPU.
#[derive(Debug, Parser)]
#[command(
    name = "shohin",
    version,
    styles = STYLES,
    disable_help_subcommand = true,
    override_usage = "shohin chat\n       shohin <COMMAND> [OPTIONS]",
    after_help = "\
A small model is built in, so `shohin chat` needs no download. It knows short stories and simple
questions only; for more, give any Bonsai GGUF file:

  shohin chat -m Ternary-Bonsai-1.7B-PQ2_0.gguf
  shohin run \"Tell me a story about a fox.\"
  shohin run -m Bonsai-8B.gguf --file question.txt --json > answer.json
  shohin bench -m Bonsai-1.7B.gguf

`shohin <COMMAND> --help` explains a command with examples.
Exit codes: 0 done, 1 failed, 2 wrong options or values of options, 130 interrupted, 141 output closed."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

/// Where the model comes from and how it is run.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Model and engine")]
pub(crate) struct EngineArgs {
    /// GGUF file of a Bonsai or other Qwen3 model [default: the small built-in model]
    #[arg(short, long, global = true, value_name = "FILE")]
    pub(crate) model: Option<PathBuf>,
    /// Threads to compute with [default: one for each core]
    #[arg(short = 't', long, global = true, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024), allow_negative_numbers = true)]
    pub(crate) threads: Option<u16>,
    /// Most tokens to hold, cut to what the model can [default: 4096]
    #[arg(short = 'c', long, global = true, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    pub(crate) context: Option<u32>,
    /// Precision of activations: int8 is fast, f32 is exact
    #[arg(long, global = true, value_name = "TYPE", default_value = "int8")]
    pub(crate) act: Act,
    /// Precision of cached keys and values: q8 halves memory and reading of a long context, q4 halves them again
    #[arg(long, global = true, value_name = "TYPE", default_value = "f16", value_parser = kv_formats())]
    pub(crate) kv: KvFormat,
    /// Instruction set of the kernels, e.g. scalar or avx2 [default: the best this machine has]
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) isa: Option<String>,
    /// Keep base-3 weights (PTQ1_0, TQ1_0) as they are: a sixth less memory, a fraction of the speed
    #[arg(long, global = true)]
    pub(crate) compact: bool,
    /// Compute on a GPU; --gpu=NAME takes the one whose name has this part (chat, run and bench only)
    #[arg(long, global = true, value_name = "NAME", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub(crate) gpu: Option<String>,
    /// Layout of tensors of type 42, where a file does not tell: weights a group, or codes before scales
    #[arg(long, global = true, value_name = "LAYOUT", default_value = "auto")]
    pub(crate) id42: Id42Layout,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Id42Layout {
    Auto,
    #[value(name = "64")]
    Group64,
    #[value(name = "128")]
    Group128,
    CodesFirst,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Act {
    Int8,
    F32,
}

/// Every format of keys and values by its name.
fn kv_formats() -> impl TypedValueParser<Value = KvFormat> {
    PossibleValuesParser::new(KvFormat::ALL.map(KvFormat::name))
        .map(|name| KvFormat::named(&name).unwrap_or_default())
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Chat(ChatArgs),
    Run(RunArgs),
    Inspect(InspectArgs),
    Tokenize(TokenizeArgs),
    Logits(LogitsArgs),
    Eval(EvalArgs),
    Embed(EmbedArgs),
    Bench(BenchArgs),
}

/// Chat in the terminal
///
/// Replies stream as they are made. Ctrl-C stops a reply, Ctrl-D ends the chat, /help lists commands.
/// Only the new turn is computed; the conversation so far stays in memory. Lines also come from a pipe,
/// one message a line. When the context is full, the oldest exchanges are forgotten before the next reply; with
/// --overflow shift the oldest tokens go instead, also in the middle of a reply, and nothing is read again.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  shohin chat
  shohin chat -m Ternary-Bonsai-1.7B-PQ2_0.gguf --system \"Answer in one sentence.\"
  shohin chat --preset greedy
  shohin chat --context 1024 --overflow shift
  printf 'My name is Zoe.\\nWhat is my name?\\n' | shohin chat")]
pub(crate) struct ChatArgs {
    /// Instructions for the whole conversation
    #[arg(short, long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Let a model that can think do so before it answers
    #[arg(long)]
    pub(crate) think: bool,
    /// Most tokens of a reply [default: until the context is full]
    #[arg(short = 'n', long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub(crate) max_tokens: Option<usize>,
    #[command(flatten)]
    pub(crate) form: FormArgs,
    #[command(flatten)]
    pub(crate) overflow: OverflowArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
}

/// Answer one prompt, or continue a text
///
/// The prompt is the argument, the content of --file, or standard input. It is put to the model as a chat
/// message; with --raw the model continues it as plain text.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  shohin run \"What does a cow say?\"
  shohin run --raw \"Once upon a time, there was\" -n 60 --seed 7
  shohin run --raw \"Once upon a time\" -n 10000 --overflow shift
  shohin run --file question.txt --json
  shohin run \"Describe a fox.\" --json-schema fox.schema.json
  shohin run -m Bonsai-8B.gguf \"Is it raining in Kyoto?\" --tools weather.json --json
  git diff | shohin run -m Bonsai-8B.gguf --system \"Write a commit message for this diff.\"
  shohin run \"Name a fruit.\" --json --logprobs 3 | jq .logprobs")]
pub(crate) struct RunArgs {
    /// The prompt; "-" or nothing reads standard input
    pub(crate) prompt: Option<String>,
    /// Read the prompt from a file
    #[arg(short, long, value_name = "FILE", conflicts_with = "prompt")]
    pub(crate) file: Option<PathBuf>,
    /// Continue the prompt as plain text, without the chat template
    #[arg(long, conflicts_with_all = ["system", "think"])]
    pub(crate) raw: bool,
    /// Instructions that hold for the reply
    #[arg(short, long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Let a model that can think do so before it answers
    #[arg(long)]
    pub(crate) think: bool,
    /// Most tokens to generate [default: until the context is full]
    #[arg(short = 'n', long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub(crate) max_tokens: Option<usize>,
    /// Print one JSON object at the end instead of streaming text
    #[arg(long)]
    pub(crate) json: bool,
    /// With --json: log-probability of each token, and of the N most likely in its place
    #[arg(long, value_name = "N", requires = "json", value_parser = clap::value_parser!(u16).range(0..=100), allow_negative_numbers = true)]
    pub(crate) logprobs: Option<u16>,
    /// Print tokens, times and speed to standard error at the end
    #[arg(long)]
    pub(crate) stats: bool,
    #[command(flatten)]
    pub(crate) form: FormArgs,
    #[command(flatten)]
    pub(crate) tools: ToolArgs,
    #[command(flatten)]
    pub(crate) overflow: OverflowArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
}

/// What the model may call.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Tools")]
pub(crate) struct ToolArgs {
    /// Functions that the model may call, with arguments that satisfy their schemas: a JSON array of
    /// descriptions in OpenAI's form, or a file with one
    #[arg(long, value_name = "FILE|TEXT", conflicts_with_all = ["json_schema", "json_object", "raw"])]
    pub(crate) tools: Option<String>,
    /// auto: the model decides; required: it calls at least one; or the name of the one it calls
    #[arg(long, value_name = "auto|required|NAME", default_value = "auto", requires = "tools")]
    pub(crate) tool_choice: String,
}

/// What a reply may be.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Form of the reply")]
pub(crate) struct FormArgs {
    /// Make every reply a JSON value that satisfies this JSON Schema: a file, or the schema itself
    #[arg(long, value_name = "FILE|TEXT")]
    pub(crate) json_schema: Option<String>,
    /// Make every reply a JSON object
    #[arg(long, conflicts_with = "json_schema")]
    pub(crate) json_object: bool,
}

/// What happens where prompt and reply together are longer than --context.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct OverflowArgs {
    /// When the context is full: error ends the reply, shift forgets the oldest tokens and goes on
    #[arg(long, value_name = "POLICY", default_value = "error")]
    pub(crate) overflow: Policy,
    /// With --overflow shift: how many of the first tokens are never forgotten [default: the instructions, at least 4]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub(crate) keep: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Policy {
    Error,
    Shift,
}

impl OverflowArgs {
    /// For a context of `capacity` tokens whose first `instructions` are the same for every message.
    pub(crate) fn policy(&self, instructions: usize, capacity: usize) -> OverflowPolicy {
        /// Sinks that the paper found to be enough (arXiv 2309.17453, table 2).
        const SINKS: usize = 4;
        match self.overflow {
            Policy::Error => OverflowPolicy::Error,
            // Instructions may not take all of the room that is there.
            Policy::Shift => OverflowPolicy::Shift {
                keep: Some(self.keep.unwrap_or_else(|| instructions.max(SINKS).min(capacity / 2))),
            },
        }
    }
}

/// How tokens are chosen. Options change single values of the preset.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Starting point: bonsai is what the model cards recommend
    #[arg(long, default_value = "bonsai", value_parser = PossibleValuesParser::new(SamplerConfig::PRESETS))]
    pub(crate) preset: String,
    /// Randomness: 0 always takes the most likely token
    #[arg(long, value_name = "T", visible_alias = "temp", allow_negative_numbers = true)]
    pub(crate) temperature: Option<f32>,
    /// Choose among the K most likely tokens (0: all)
    #[arg(long, value_name = "K", allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub(crate) top_k: Option<usize>,
    /// Choose among the most likely tokens that hold probability P together
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) top_p: Option<f32>,
    /// Choose among tokens at least P times as likely as the most likely one
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) min_p: Option<f32>,
    /// Choose among the most typical tokens that hold probability P together
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) typical_p: Option<f32>,
    /// Make recent tokens less likely by this factor (1: off)
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub(crate) repetition_penalty: Option<f32>,
    /// Take X from the score of each recent token
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub(crate) presence_penalty: Option<f32>,
    /// Take X from a recent token's score for each time it occurred
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub(crate) frequency_penalty: Option<f32>,
    /// How many tokens count as recent
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub(crate) penalty_last_n: Option<usize>,
    /// Strength of DRY, which punishes repeated phrases (0: off, 0.8 is usual)
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub(crate) dry_multiplier: Option<f32>,
    /// How fast DRY's penalty grows with the repetition's length
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub(crate) dry_base: Option<f32>,
    /// Longest repetition that is still free
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub(crate) dry_allowed_length: Option<usize>,
    /// How many tokens DRY searches
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub(crate) dry_last_n: Option<usize>,
    /// Same seed, same text [default: another one each time]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<u64>)]
    pub(crate) seed: Option<u64>,
    /// End the reply where this text appears; can be given several times
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
}

impl SamplingArgs {
    /// The preset with the given options put in.
    pub(crate) fn config(&self) -> SamplerConfig {
        let mut c = SamplerConfig::preset(&self.preset).unwrap_or_default();
        macro_rules! put {
            ($($name:ident)*) => { $(if let Some(value) = self.$name { c.$name = value; })* };
        }
        put!(temperature top_k top_p min_p typical_p repetition_penalty presence_penalty
            frequency_penalty penalty_last_n dry_multiplier dry_base dry_allowed_length dry_last_n);
        c.seed = self.seed.unwrap_or_else(random_seed);
        c
    }
}

/// A number that counts something.
pub(crate) fn whole<T: std::str::FromStr>(text: &str) -> Result<T, &'static str> {
    text.parse().map_err(|_| "expected a whole number, 0 or more")
}

/// A seed that differs from run to run; short enough to be typed in again.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish() >> 32
}
