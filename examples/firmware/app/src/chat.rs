//! The application: a conversation over the console.

use alloc::vec::Vec;
use core::ffi::CStr;
use core::mem::ManuallyDrop;
use core::ops::ControlFlow;
use shohin_core::sync::Arc;

use shohin_core::chat::{ChatEncoder, ChatOptions, Message, Role, Template};
use shohin_core::cpu::{CpuWeights, Isa};
use shohin_core::generate::{Backend, Event, Generation, GenerationOptions, Reason, drive};
use shohin_core::gguf::{HeaderBytes, Metadata, ReadOptions};
use shohin_core::model::ModelBytes;
use shohin_core::paging::PagedFile;
use shohin_core::session::Decoder;
use shohin_core::{
    BonsaiModel, Cpu, CpuOptions, Error, Gguf, KvFormat, ModelConfig, Sampler, SamplerConfig, Serial,
};
use shohin_core::{SessionOptions, Tokenizer};
use static_cell::ConstStaticCell;

use crate::clock::Clock;
use crate::measured::Measured;
use crate::sd_card::SdCard;
use crate::{console, heap, model};
#[cfg(feature = "report")]
use crate::{measured, stack};

/// Positions of a conversation: prompt and reply of several turns.
const CONTEXT: usize = 256;
/// Prompt tokens computed together: more are faster and take more scratch memory.
const BATCH: usize = 4;
/// Bytes of a line.
const LINE: usize = 256;
/// Maximum number of tokens of a reply.
const REPLY: usize = 64;
/// Scratch memory of the device, and the cache of the session. The program ends with an error if they are too small.
const SCRATCH: usize = 96 << 10;
const SESSION: usize = 448 << 10;

/// Bytes of weights in memory at once if the model is on a card; they are part of the scratch memory.
const WINDOW: usize = 32 << 10;
/// Bytes for the header of a model on a card, with the vocabulary; a longer one takes more of the heap.
const HEADER: usize = 64 << 10;
/// The model file on the card, if the program has no argument.
const FILE: &CStr = c"../../../models/sprout.gguf";

/// The kernels, if the build asks for others than the processor's fastest: `SHOHIN_ISA=scalar cargo run --release`.
const ISA: Option<&str> = option_env!("SHOHIN_ISA");

static SCRATCH_MEMORY: ConstStaticCell<[u8; SCRATCH]> = ConstStaticCell::new([0; SCRATCH]);
static SESSION_MEMORY: ConstStaticCell<[u8; SESSION]> = ConstStaticCell::new([0; SESSION]);

/// Chats until the input ends, then prints how much memory and how many instructions it took, with the feature `report`.
pub fn run(clock: &mut dyn Clock) -> ! {
    begin();
    end(from_flash(clock))
}

/// As [`run`], with the model file on a card: the header and the vocabulary are in memory, and the weights pass through a
/// window. The program's argument is the path of the file.
// Compiled with the programs that call it, and for no other board.
#[inline]
pub fn run_from_card(clock: &mut dyn Clock) -> ! {
    begin();
    end(from_card(clock))
}

fn from_flash(clock: &mut dyn Clock) -> Result<(), Error> {
    let gguf = Gguf::parse(model::flash())?;
    let weights = CpuWeights::new(BonsaiModel::from_gguf(&gguf)?)?;
    chat(clock, gguf.metadata(), weights)
}

#[inline]
fn from_card(clock: &mut dyn Clock) -> Result<(), Error> {
    let card = open()?;
    let bytes = HeaderBytes::read_into(Vec::with_capacity(HEADER), &card, &ReadOptions::default())?;
    let header = bytes.header()?;
    let config = ModelConfig::from_header(&header)?;
    let model = BonsaiModel::from_header(&header, PagedFile::new(card, WINDOW), config)?;
    let weights = CpuWeights::new(model)?;
    #[cfg(feature = "report")]
    measured::report_card(bytes.len(), WINDOW, weights.bytes_per_token());
    chat(clock, header.metadata(), weights)
}

/// Opens the model file on the card.
fn open() -> Result<SdCard, Error> {
    let mut path = heapless::Vec::<u8, LINE>::new();
    if let Ok(args) = semihosting::experimental::env::args::<LINE>()
        && let Some(Ok(arg)) = (&args).next()
    {
        // A path that is cut off is not found.
        let _ = path.extend_from_slice(arg.as_bytes());
        let _ = path.push(0);
    }
    let path = CStr::from_bytes_with_nul(&path).unwrap_or(FILE);
    SdCard::open(path).map_err(|_| Error::device("there is no model on the card"))
}

/// Begins to measure memory, gives the heap its own, and prepares the console.
fn begin() {
    #[cfg(feature = "report")]
    stack::paint();
    heap::init();
    console::open();
}

/// Ends the program.
fn end(result: Result<(), Error>) -> ! {
    match result {
        Ok(()) => console::end(0),
        Err(error) => {
            console::error(&error);
            console::end(1)
        }
    }
}

fn chat<B: ModelBytes>(
    clock: &mut dyn Clock,
    metadata: &Metadata<'_>,
    weights: CpuWeights<B>,
) -> Result<(), Error> {
    // Nothing is freed: the program ends with the chat.
    let tokenizer = ManuallyDrop::new(Tokenizer::from_metadata(metadata)?);
    let template = Template::from_metadata(metadata, &tokenizer)?;
    let weights = Arc::new(weights);

    let isa = ISA.map_or(Ok(Isa::detect()), Isa::named)?;
    let options = CpuOptions { context: CONTEXT, batch: BATCH, isa, ..CpuOptions::default() };
    let session = SessionOptions { context: CONTEXT, kv: KvFormat::Q8, ..SessionOptions::default() };
    #[cfg(feature = "report")]
    let plan = weights.memory_plan(&options, &session)?;
    let cpu = Cpu::new_in(weights, &options, Serial, SCRATCH_MEMORY.take().as_mut_slice())?;
    let mut cpu = ManuallyDrop::new(cpu);
    let mut session = ManuallyDrop::new(cpu.session_in(&session, SESSION_MEMORY.take().as_mut_slice())?);
    let capacity = session.capacity();

    let sampler = Sampler::new(&SamplerConfig::greedy(), cpu.model().config().vocab_size)?;
    let options = GenerationOptions { max_tokens: REPLY, batch: BATCH, ..GenerationOptions::default() };
    let mut reply = ManuallyDrop::new(Generation::waiting(capacity, LINE, sampler, options)?);
    let chat = ChatOptions { template, ..ChatOptions::default() };
    let mut encoder = ManuallyDrop::new(ChatEncoder::with_capacity(2 * LINE));
    let mut ids = ManuallyDrop::new(Vec::with_capacity(2 * LINE));

    heap::seal();
    let decoder = Decoder { device: &mut *cpu, session: &mut *session };
    let mut backend = Measured::new(decoder, clock);
    let mut line = heapless::Vec::<u8, LINE>::new();
    while console::read_line(&mut line) {
        let Ok(text) = core::str::from_utf8(&line) else {
            console::print("(That was not UTF-8.)\n");
            continue;
        };
        let message = [Message::new(Role::User, text)];
        ids.clear();
        encoder.encode_next(&tokenizer, reply.tokens(), &message, &chat, &mut ids)?;
        // Leaves room for an answer; otherwise the conversation begins again.
        if reply.tokens().len() + ids.len() + REPLY > capacity {
            reply.clear();
            backend.truncate(0)?;
            ids.clear();
            encoder.encode_next(&tokenizer, &[], &message, &chat, &mut ids)?;
        }
        match reply.follow_up(&ids) {
            Err(Error::ContextFull { .. }) => {
                console::print("(That is too long.)\n");
                continue;
            }
            other => other?,
        }
        let reason = drive(&mut reply, &mut backend, &*tokenizer, &mut |event| {
            if let Event::Token(token) = event {
                console::print(token.text);
            }
            ControlFlow::Continue(())
        })?;
        console::print(if reason == Reason::Stop { "\n" } else { " ...\n" });
    }

    #[cfg(feature = "report")]
    backend.report(isa, &plan);
    Ok(())
}
