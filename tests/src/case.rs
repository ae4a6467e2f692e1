//! Random models with tokens for them, over which ways to compute are compared.

use crate::Random;
use crate::model::{Model, Shape, Stored};
use crate::reading;
use shohin_core::{Format, KvFormat};

/// Numbers from bytes, and from their hash when there are no more.
#[derive(Clone, Debug)]
pub struct Choices<'i> {
    bytes: std::slice::Iter<'i, u8>,
    rest: Random,
}

impl<'i> Choices<'i> {
    /// Choices that `input` makes.
    pub fn new(input: &'i [u8]) -> Choices<'i> {
        Choices { bytes: input.iter(), rest: Random::new(reading::fnv(input)) }
    }

    /// A number below `n`, which must not be 0.
    pub fn below(&mut self, n: usize) -> usize {
        match self.bytes.next() {
            Some(byte) => usize::from(*byte) % n,
            None => self.rest.below(n),
        }
    }

    /// One of these.
    pub fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

impl From<Random> for Choices<'static> {
    fn from(rest: Random) -> Choices<'static> {
        Choices { bytes: [].iter(), rest }
    }
}

/// A model, tokens for it, and options.
#[derive(Clone, Debug)]
pub struct Case {
    /// The model.
    pub model: Model,
    /// Up to 40 tokens, at least 2.
    pub tokens: Vec<u32>,
    /// The format of the cache.
    pub kv: KvFormat,
    /// Rows computed together.
    pub batch: usize,
    /// Where the tokens are cut.
    pub cut: usize,
}

impl Case {
    /// Any case.
    pub fn new(choices: &mut Choices<'_>) -> Case {
        let kv_heads = choices.of(&[1, 2]);
        let shape = Shape {
            hidden: choices.of(&[256, 512]),
            layers: choices.of(&[1, 2]),
            kv_heads,
            heads: kv_heads * choices.of(&[1, 2, 3, 4]),
            head_dim: choices.of(&[64, 128]),
            ffn: choices.of(&[256, 512]),
            experts: choices.of(&[None, None, None, Some([3, 2, 256])]),
            vocab: 290 + choices.below(20),
            tied: choices.below(2) == 0,
            context: 64,
            yarn: choices.of(&[None, Some(16)]),
            rope_factors: choices.below(4) == 0,
            ..Shape::tiny()
        };
        // A file with both is refused.
        let shape = Shape { rope_factors: shape.rope_factors && shape.yarn.is_none(), ..shape };
        // Rows of attention's output must be whole blocks.
        let shape = if (shape.heads * shape.head_dim).is_multiple_of(256) {
            shape
        } else {
            Shape { heads: 4 * kv_heads, ..shape }
        };
        let mut formats = vec![Stored::new(choices.of(&Format::ALL))];
        if choices.below(2) == 0 {
            formats.push(Stored::new(choices.of(&Format::ALL)));
        }
        let vocab = shape.vocab;
        let model = Model { shape, formats, seed: choices.below(256) as u64, name: "any".into() };
        let tokens = (0..2 + choices.below(39)).map(|_| choices.rest.below(vocab) as u32).collect::<Vec<_>>();
        Case {
            model,
            kv: choices.of(&KvFormat::ALL),
            batch: 1 + choices.below(48),
            cut: 1 + choices.below(tokens.len() - 1),
            tokens,
        }
    }
}
