//! The module that teaches: a model's file goes in, with conversations as tokens, and an adapter comes out. It answers nothing itself.

use js_sys::{Error, Reflect, Uint8Array};
use shohin_core::cpu::Isa;
use shohin_core::gguf::Gguf;
use shohin_core::model::program::{TensorId, TensorRole};
use shohin_core::model::{BonsaiModel, LoraAdapter};
use shohin_core::{Qwen3Config, Serial};
use shohin_train::adapter::{AdapterOptions, new_adapter, with_factors};
use shohin_train::gemm::Weight;
use shohin_train::run::Tensor;
use shohin_train::teach::{Lesson, TeachOptions, Teaching};
use std::fmt::Display;
use std::ptr::NonNull;
use wasm_bindgen::prelude::*;

type JsResult<T> = Result<T, JsValue>;

/// A plain `Error` object that carries a code, as the other modules make it.
fn js(code: &str, error: impl Display) -> JsValue {
    let made = Error::new(&error.to_string());
    // Setting a property of a fresh, extensible object cannot fail.
    let _ = Reflect::set(&made, &JsValue::from_str("code"), &JsValue::from_str(code));
    made.into()
}

fn of_core(error: shohin_core::Error) -> JsValue {
    js(error.code(), error)
}

fn of_train(error: shohin_train::Error) -> JsValue {
    match error {
        shohin_train::Error::Core(error) => of_core(error),
        other => js("logits", other),
    }
}

/// The model's file as it arrives, and what is to be learned.
#[wasm_bindgen]
pub struct Lessons {
    bytes: Vec<u8>,
    facts: Vec<Lesson>,
    pool: Vec<Lesson>,
}

#[wasm_bindgen]
impl Lessons {
    /// Takes memory for `expected` bytes; 0: unknown.
    ///
    /// # Errors
    /// `memory` if there is not that much.
    #[wasm_bindgen(constructor)]
    pub fn new(expected: f64) -> JsResult<Lessons> {
        let mut lessons = Lessons { bytes: Vec::new(), facts: Vec::new(), pool: Vec::new() };
        lessons.reserve(expected as usize)?;
        Ok(lessons)
    }

    fn reserve(&mut self, more: usize) -> JsResult<()> {
        let (need, have) = (self.bytes.len() as u64 + more as u64, self.bytes.capacity() as u64);
        let reserved = self.bytes.try_reserve_exact(more);
        reserved.map_err(|_| of_core(shohin_core::Error::Memory { need, have }))
    }

    /// Appends a piece of the model's file.
    ///
    /// # Errors
    /// `memory` if it does not fit.
    pub fn append(&mut self, piece: &Uint8Array) -> JsResult<()> {
        let (at, len) = (self.bytes.len(), piece.length() as usize);
        if self.bytes.capacity() - at < len {
            self.reserve(len)?;
        }
        self.bytes.resize(at + len, 0);
        piece.copy_to(&mut self.bytes[at..]);
        Ok(())
    }

    /// Adds a conversation: its tokens, and where each reply begins and ends. A fact is learned, others are rehearsed.
    pub fn add(&mut self, tokens: Vec<u32>, replies: &[u32], is_fact: bool) {
        let (pairs, _) = replies.as_chunks::<2>();
        let replies = pairs.iter().map(|[start, end]| *start as usize..*end as usize).collect();
        let lesson = Lesson { tokens, replies };
        if is_fact { self.facts.push(lesson) } else { self.pool.push(lesson) }
    }

    /// Begins to teach an adapter of rank `rank` in the last third of the layers. 0 for the usual number of steps, rate or rank.
    ///
    /// # Errors
    /// If the file is malformed or cannot be trained, for a conversation that does not fit, or `memory`.
    pub fn begin(self, rank: u32, steps: u32, rate: f64, seed: u32) -> JsResult<Teacher> {
        let Lessons { bytes, facts, pool } = self;
        Teacher::new(bytes, &facts, &pool, (rank, steps, rate, seed))
    }
}

/// A model with an adapter, and its vectors as floats.
struct Base {
    model: BonsaiModel<Vec<u8>>,
    /// Empty for matrices.
    vectors: Vec<Vec<f32>>,
}

/// A training.
#[wasm_bindgen]
pub struct Teacher {
    /// Before what it refers to, so that it is dropped first.
    teaching: Teaching<'static>,
    _base: Owner,
    /// Of the adapter before the training.
    file: Vec<u8>,
}

/// Frees a base when it is dropped.
struct Owner(NonNull<Base>);

impl Drop for Owner {
    fn drop(&mut self) {
        // SAFETY: it came from a box, and is freed once. Whoever refers to it was dropped before.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl Teacher {
    fn new(
        bytes: Vec<u8>,
        facts: &[Lesson],
        pool: &[Lesson],
        (rank, steps, rate, seed): (u32, u32, f64, u32),
    ) -> JsResult<Teacher> {
        let usual = TeachOptions::default();
        let options = TeachOptions {
            steps: if steps == 0 { usual.steps } else { steps.into() },
            learning_rate: if rate == 0.0 { usual.learning_rate } else { rate },
            seed: seed.into(),
            ..usual
        };
        let base = BonsaiModel::load(bytes).map_err(of_core)?;
        let (config, layers) = (base.config(), base.config().num_layers);
        longest(config, facts, pool)?;
        let shape = AdapterOptions {
            rank: if rank == 0 { 8 } else { rank as usize },
            layers: Some(layers - layers.div_ceil(3)..=layers - 1),
            seed: seed.into(),
            ..AdapterOptions::default()
        };
        let file =
            new_adapter(base.program(), config.architecture.name, "taught", &shape).map_err(of_core)?;
        let model = {
            let gguf = Gguf::parse(&file).map_err(of_core)?;
            let adapter = LoraAdapter::from_gguf(&gguf).map_err(of_core)?;
            base.adapt(&[(&adapter, 1.0)], |factors| factors).map_err(of_core)?
        };
        let vectors = vectors(&model).map_err(of_core)?;
        let base = NonNull::from(Box::leak(Box::new(Base { model, vectors })));
        let owner = Owner(base);
        // SAFETY: the box stays where it is until the owner is dropped, which is after the training.
        let base: &'static Base = unsafe { base.as_ref() };
        let (program, tensors) = (base.model.program(), tensors(base).map_err(of_core)?);
        let teaching = Teaching::new(program, tensors, facts, pool, options, Isa::detect(), &Serial);
        Ok(Teacher { teaching: teaching.map_err(of_train)?, _base: owner, file })
    }
}

fn longest(config: &Qwen3Config, facts: &[Lesson], pool: &[Lesson]) -> JsResult<()> {
    let longest = facts.iter().chain(pool).map(|lesson| lesson.tokens.len()).max().unwrap_or(0);
    let max = config.max_context_length;
    if longest <= max {
        return Ok(());
    }
    let (what, found, max) = ("tokens of a conversation to learn", longest as u64, max as u64);
    Err(of_core(shohin_core::Error::Limit { what, found, max }))
}

/// The vectors of a model as floats.
fn vectors(model: &BonsaiModel<Vec<u8>>) -> shohin_core::Result<Vec<Vec<f32>>> {
    let program = model.program();
    let vector = |id: TensorId| {
        let spec = program.tensor(id);
        let mut row = vec![0.0; if spec.role == TensorRole::Vector { spec.cols } else { 0 }];
        if !row.is_empty() {
            model.weights().matrix(id)?.unpack_row(0, &mut row)?;
        }
        Ok(row)
    };
    program.tensor_ids().map(vector).collect()
}

/// The tensors of a base, matrices as they are in its file.
fn tensors(base: &Base) -> shohin_core::Result<Vec<Tensor<'_>>> {
    let program = base.model.program();
    let tensor = |id: TensorId| match program.tensor(id).role {
        TensorRole::Matrix => Ok(Tensor::Matrix(Weight::Packed(base.model.weights().matrix(id)?))),
        TensorRole::Vector => Ok(Tensor::Vector(&base.vectors[id.index()])),
    };
    program.tensor_ids().map(tensor).collect()
}

#[wasm_bindgen]
impl Teacher {
    /// Computes a part of what does not change; the share that is done.
    ///
    /// # Errors
    /// Those of a pass over the model.
    pub fn prepare(&mut self) -> JsResult<f64> {
        self.teaching.prepare().map_err(of_train)
    }

    /// The next step: the loss before it, the probability of the least probable token of an answer, and 1 if nothing is left to do.
    ///
    /// # Errors
    /// `logits` for a loss that is not finite.
    pub fn step(&mut self) -> JsResult<Vec<f64>> {
        let report = self.teaching.step().map_err(of_train)?;
        let done = f64::from(u8::from(self.teaching.is_done()));
        Ok(vec![report.loss, report.least, done])
    }

    /// Whether all was learned.
    pub fn learned(&self) -> bool {
        self.teaching.is_learned()
    }

    /// The adapter's file, with its name and the facts, which are a JSON array.
    ///
    /// # Errors
    /// Those of writing a file.
    pub fn file(&self, name: &str, facts: &str) -> JsResult<Vec<u8>> {
        let gguf = Gguf::parse(&self.file).map_err(of_core)?;
        let factor = |name: &str| (self.teaching.factor(name).unwrap_or(&[]), 1.0);
        let metadata = [("general.name", name), ("shohin.facts", facts)];
        with_factors(&gguf, factor, &metadata).map_err(of_core)
    }
}
