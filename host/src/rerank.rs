//! Documents by how well they answer a query.

use crate::error::{Error, FileError, Result};
use crate::model::Model;
use crate::sequence::Sequence;
use shohin_core::Gguf;
use shohin_core::model::Pooling;
use shohin_core::model::program::CLASSIFIER;
use shohin_core::quant::unpack;
use shohin_core::tokenizer::Special;
use std::path::Path;

/// What a document is judged by unless something else is said, as in the model card of Qwen3-Reranker.
const INSTRUCTION: &str = "Given a web search query, retrieve relevant passages that answer the query";

/// The form in which Qwen3-Reranker was trained: before the texts, and after them.
const BEFORE: &str = "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct \
     provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n";
const AFTER: &str = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

/// How a model judges.
enum Judge {
    /// By the logits of these tokens, yes and no, after the texts.
    Tokens([u32; 2]),
    /// By two rows of the classifier, `(2, hidden)`.
    Rows(Vec<f32>),
    /// By the cosine of embeddings.
    Cosine(Pooling),
}

/// The scores of documents, computed one by one in their order.
pub struct Reranking {
    judge: Judge,
    model: Model,
    /// Those of a query, if it is embedded alone.
    query: Vec<f32>,
    /// The tokens of each document, with what is around it.
    texts: std::vec::IntoIter<Vec<u32>>,
    tokens: usize,
    sequence: Option<Sequence>,
    /// What the sequence holds.
    held: Vec<u32>,
}

impl Model {
    /// How well documents answer a query, computed lazily one by one. A reranker such as Qwen3-Reranker says how likely it is that one
    /// does, from 0 to 1: the share of its answer yes, in softmax(yes, no). Of an embedding model, it is the cosine of the angle
    /// between the two embeddings, from -1 to 1. `instruction` says what the query is for, instead of web search.
    ///
    /// A model is a reranker if its file has `pooling_type` rank, or "rerank" in its name, and an embedding model if that is mean or
    /// last, or "embed" in its name.
    ///
    /// # Errors
    /// [`FileError::Model`] if it is neither; if a text is empty or too long; as [`Model::sequence`].
    pub fn rerank<T: AsRef<str>>(
        &self,
        query: &str,
        documents: &[T],
        instruction: Option<&str>,
    ) -> Result<Reranking> {
        let judge = self.judge()?;
        let documents = documents.iter().map(AsRef::as_ref);
        let (mut tokens, mut asked) = (0, Vec::new());
        let texts: Vec<Vec<u32>> = if let Judge::Cosine(pooling) = judge {
            // The form of Qwen3-Embedding.
            let query = instruction.map_or_else(
                || query.into(),
                |instruction| format!("Instruct: {instruction}\nQuery:{query}"),
            );
            let query = self.tokenize_whole(&query);
            tokens = query.len();
            asked =
                self.token_embeddings(vec![query], pooling, true)?.next().transpose()?.unwrap_or_default();
            documents.map(|document| self.tokenize_whole(document)).collect()
        } else {
            let instruction = instruction.unwrap_or(INSTRUCTION);
            let fixed = |text: &str| self.tokenize_with(text, Special::Parse);
            let (before, after) = (fixed(BEFORE), fixed(AFTER));
            let judged = |document: &str| {
                // As one text, but without the tokens that begin and end texts.
                let text = format!("<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}");
                let mut ids = before.clone();
                self.tokenizer().encode(&text, Special::UserDefined, &mut ids);
                ids.extend(&after);
                ids
            };
            documents.map(judged).collect()
        };
        let most = self.config().max_context_length;
        for (number, text) in (1..).zip(&texts) {
            match text.len() {
                0 => return Err(Error::EmptyText { number }),
                found if found > most => return Err(Error::LongText { number, found, most }),
                found => tokens += found,
            }
        }
        let longest = texts.iter().map(Vec::len).max().unwrap_or(1);
        let sequence = match judge {
            Judge::Tokens(_) => Some(self.sequence(longest.min(self.config().longest_sequence()))?),
            Judge::Rows(_) | Judge::Cosine(_) => None,
        };
        let texts = texts.into_iter();
        Ok(Reranking { judge, model: self.clone(), query: asked, texts, tokens, sequence, held: Vec::new() })
    }

    /// How the model judges.
    fn judge(&self) -> Result<Judge> {
        let file = self.file();
        let named = |source| Error::from(FileError::Model { name: file.name().into(), source });
        let gguf = file.gguf(&self.0.read)?;
        let architecture = gguf.metadata().str("general.architecture").map_err(named)?.unwrap_or_default();
        let key = format!("{architecture}.pooling_type");
        let pooling = gguf.metadata().u32(&key).map_err(named)?;
        let own = Path::new(file.name()).file_name().unwrap_or_default().to_string_lossy();
        let name = format!("{} {own}", self.name()).to_lowercase();
        let [ranks, embeds] = match pooling {
            None | Some(0) => ["rerank", "embed"].map(|word| name.contains(word)),
            Some(kind) => [kind == 4, kind != 4],
        };
        match (ranks, embeds) {
            (true, _) => self.yes_or_no(&gguf),
            (false, true) => Ok(Judge::Cosine(self.pooling()?)),
            (false, false) => Err(named(shohin_core::Error::Unsupported {
                key: shohin_core::Name::new(&key),
                found: shohin_core::Name::new("none"),
                expected: "rank of a reranker, or mean or last of an embedding model (or either in its name)",
            })),
        }
    }

    fn yes_or_no(&self, gguf: &Gguf<'_>) -> Result<Judge> {
        let named = |source| Error::from(FileError::Model { name: self.file().name().into(), source });
        let refused = |found: &str, expected| {
            let name = shohin_core::Name::new;
            Err(named(shohin_core::Error::Unsupported {
                key: name("reranker"),
                found: name(found),
                expected,
            }))
        };
        if let Some(rows) = gguf.tensor(CLASSIFIER) {
            let labels = gguf.metadata().strings(&format!(
                "{}.classifier.output_labels",
                gguf.metadata().str("general.architecture").map_err(named)?.unwrap_or_default()
            ));
            let labels: Vec<&[u8]> = labels.map_err(named)?.iter().flat_map(|all| all.iter()).collect();
            let hidden = self.config().hidden_size;
            let format = rows.format().filter(|_| *rows.dims() == [hidden as u64, 2]);
            let (Some(format), [b"yes", b"no"]) = (format, &labels[..]) else {
                return refused(CLASSIFIER, "a classifier with the labels yes and no");
            };
            let mut weights = vec![0.0; 2 * hidden];
            unpack(format, gguf.data(rows), &mut weights).map_err(named)?;
            return Ok(Judge::Rows(weights));
        }
        let only = |word: &str| {
            let mut ids = Vec::new();
            self.tokenizer().encode(word, Special::UserDefined, &mut ids);
            if let [id] = ids[..] { Some(id) } else { None }
        };
        match (only("yes"), only("no")) {
            (Some(yes), Some(no)) => Ok(Judge::Tokens([yes, no])),
            _ => refused("a vocabulary without them", "the tokens yes and no"),
        }
    }
}

impl Reranking {
    /// Tokens of all texts.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    fn score(&mut self, tokens: Vec<u32>) -> Result<f32> {
        let embedding = |model: &Model, tokens, pooling, normalize| -> Result<Vec<f32>> {
            let mut all = model.token_embeddings(vec![tokens], pooling, normalize)?;
            all.next().unwrap_or(Err(Error::EmptyText { number: 1 }))
        };
        match &self.judge {
            Judge::Cosine(pooling) => Ok(dot(&self.query, &embedding(&self.model, tokens, *pooling, true)?)),
            Judge::Rows(rows) => {
                let state = embedding(&self.model, tokens, Pooling::Last, false)?;
                let (yes, no) = rows.split_at(state.len());
                Ok(share(dot(yes, &state), dot(no, &state)))
            }
            Judge::Tokens([yes, no]) => {
                let Some(sequence) = &mut self.sequence else { return Err(Error::EmptyText { number: 1 }) };
                // The instructions and the query are computed once.
                let same = tokens.iter().zip(&self.held).take_while(|(a, b)| a == b).count();
                let same = same.min(tokens.len() - 1);
                sequence.truncate(same)?;
                self.held.truncate(same);
                let row = sequence.feed(&tokens[same..])?;
                let score = share(row[*yes as usize], row[*no as usize]);
                self.held = tokens;
                Ok(score)
            }
        }
    }
}

impl Iterator for Reranking {
    type Item = Result<f32>;

    fn next(&mut self) -> Option<Result<f32>> {
        let tokens = self.texts.next()?;
        Some(self.score(tokens))
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>() as f32
}

/// The first part of softmax(a, b).
fn share(a: f32, b: f32) -> f32 {
    (1.0 / (1.0 + f64::from(b - a).exp())) as f32
}
