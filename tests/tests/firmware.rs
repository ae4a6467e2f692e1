//! The dialogues of `examples/firmware` on this machine: the boards, under emulation, must give the same replies and the
//! same bits of every logit.

extern crate alloc;

use std::fmt::Write;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use shohin_core::chat::{ChatEncoder, ChatOptions, Message, Role, Template};
use shohin_core::generate::{Backend, Event, Generation, GenerationOptions, drive};
use shohin_core::session::Decoder;
use shohin_core::{BonsaiModel, Cpu, CpuOptions, Error, Gguf, KvFormat, Sampler, SamplerConfig, Serial};
use shohin_core::{Session, SessionOptions, Tokenizer};

/// As in `examples/firmware/app/src/chat.rs`.
const CONTEXT: usize = 256;
const REPLY: usize = 64;

/// A checksum of all logits that were fed to a generation.
struct Checksum<B> {
    backend: B,
    sum: u32,
}

impl<B: Backend> Backend for Checksum<B> {
    fn position(&self) -> usize {
        self.backend.position()
    }

    fn capacity(&self) -> usize {
        self.backend.capacity()
    }

    fn feed(&mut self, tokens: &[u32]) -> Result<&[f32], Error> {
        let logits = self.backend.feed(tokens)?;
        for logit in logits {
            self.sum = (self.sum.rotate_left(5) ^ logit.to_bits()).wrapping_mul(0x9e37_79b9);
        }
        Ok(logits)
    }

    fn truncate(&mut self, len: usize) -> Result<(), Error> {
        self.backend.truncate(len)
    }
}

/// The dialogue with these lines typed: each as `> line`, then the reply; last the checksum.
fn dialogue(file: &[u8], lines: &[&str]) -> Result<String, Error> {
    let gguf = Gguf::parse(file)?;
    let tokenizer = Tokenizer::from_gguf(&gguf)?;
    let template = Template::from_metadata(gguf.metadata(), &tokenizer)?;
    let options = CpuOptions { context: CONTEXT, ..CpuOptions::default() };
    let mut cpu = Cpu::new(BonsaiModel::from_gguf(&gguf)?, &options, Serial)?;
    let session = SessionOptions { context: CONTEXT, kv: KvFormat::Q8, ..SessionOptions::default() };
    let mut session = Session::new(&mut cpu, &session)?;
    let sampler = Sampler::new(&SamplerConfig::greedy(), cpu.model().config().vocab_size)?;
    // Logits are read after each part of a prompt: the parts are those of the boards.
    let options = GenerationOptions { max_tokens: REPLY, batch: 4, ..GenerationOptions::default() };
    let mut reply = Generation::waiting(session.capacity(), 256, sampler, options)?;
    let mut backend = Checksum { backend: Decoder { device: &mut cpu, session: &mut session }, sum: 0 };
    let chat = ChatOptions { template, ..ChatOptions::default() };
    let (mut encoder, mut ids, mut text) = (ChatEncoder::default(), Vec::new(), String::new());
    for line in lines {
        ids.clear();
        encoder.encode_next(
            &tokenizer,
            reply.tokens(),
            &[Message::new(Role::User, line)],
            &chat,
            &mut ids,
        )?;
        reply.follow_up(&ids)?;
        let _ = writeln!(text, "> {line}");
        drive(&mut reply, &mut backend, &tokenizer, &mut |event| {
            if let Event::Token(token) = event {
                text += token.text;
            }
            ControlFlow::Continue(())
        })?;
        text += "\n";
    }
    let _ = writeln!(text, "# logits {:08x}", backend.sum);
    Ok(text)
}

#[test]
fn boards_are_expected_to_reply_like_this_machine() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let replies = fs::read_dir(root.join("examples/firmware/replies")).unwrap();
    let mut models = 0;
    for file in replies {
        let file = file.unwrap().path();
        let expected = fs::read_to_string(&file).unwrap();
        let model = root.join("models").join(file.file_stem().unwrap()).with_extension("gguf");
        let lines: Vec<&str> = expected.lines().filter_map(|line| line.strip_prefix("> ")).collect();
        let found = dialogue(&fs::read(&model).unwrap(), &lines).unwrap();
        assert_eq!(found, expected, "{}", model.display());
        models += 1;
    }
    assert_eq!(models, 2);
}

#[path = "../../examples/firmware/app/src/damaged.rs"]
mod damaged;

#[test]
fn damaged_files_are_what_boards_find_them_to_be() {
    assert_eq!(damaged::outcomes(damaged::FILES).unwrap(), damaged::EXPECTED);
}
