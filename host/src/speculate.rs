//! Speculative decoding: the next tokens are guessed, and the model checks several guesses in one pass over its weights.
//!
//! The text is the same as without: each token is chosen from the model's own logits, which are the same to the bit for one
//! token and for several. A wrong guess only costs time.

use crate::error::{Error, Result};
use crate::model::Model;
use crate::sequence::Sequence;
use shohin_core::device::Readout;
use shohin_core::tokenizer::Tokenizer;

/// Maximum number of guesses that are checked at once.
pub(crate) const MAX_GUESSES: usize = 7;

/// Where guesses come from.
#[derive(Clone, Debug)]
pub enum Speculation {
    /// What followed the last few tokens where they occurred before: fast where a reply repeats its prompt, as in
    /// summaries, corrections and code.
    PromptLookup,
    /// What a smaller model with the same vocabulary finds most likely.
    Draft(Model),
}

/// How many guesses were checked, and how many were right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guesses {
    /// Checked.
    pub checked: u64,
    /// Right: each is a token that took no pass of its own.
    pub right: u64,
}

/// Guesses tokens.
trait Guesser: Send {
    /// Appends up to `most` tokens that may follow `tokens`.
    fn guess(&mut self, tokens: &[u32], most: usize, out: &mut Vec<u32>) -> shohin_core::Result<()>;
}

/// [`Speculation::PromptLookup`]
struct Lookup;

impl Lookup {
    /// Tokens that must have occurred before: the longest match counts.
    const LENGTHS: [usize; 3] = [4, 3, 2];
}

impl Guesser for Lookup {
    fn guess(&mut self, tokens: &[u32], most: usize, out: &mut Vec<u32>) -> shohin_core::Result<()> {
        for n in Self::LENGTHS {
            let Some(start) = tokens.len().checked_sub(n + 1) else { continue };
            let last = &tokens[start + 1..];
            // The latest place is the likeliest to go on alike.
            let found = (0..=start).rev().find(|&at| tokens[at..at + n] == *last);
            if let Some(at) = found {
                out.extend(tokens[at + n..].iter().take(most));
                return Ok(());
            }
        }
        Ok(())
    }
}

/// [`Speculation::Draft`]
struct Draft {
    sequence: Sequence,
    /// The tokens that it holds.
    held: Vec<u32>,
}

impl Guesser for Draft {
    fn guess(&mut self, tokens: &[u32], most: usize, out: &mut Vec<u32>) -> shohin_core::Result<()> {
        // One less than there are, so that something is fed and has logits.
        let same = self.held.iter().zip(&tokens[..tokens.len() - 1]).take_while(|(a, b)| a == b).count();
        self.sequence.truncate(same)?;
        self.held.truncate(same);
        let mut next = tokens[same..].to_vec();
        for _ in 0..most {
            if self.sequence.position() + next.len() > self.sequence.capacity() {
                break;
            }
            let logits = self.sequence.feed(&next)?;
            let likeliest =
                |best: (u32, f32), (id, &logit): (u32, &f32)| if logit > best.1 { (id, logit) } else { best };
            let (token, _) = (0..).zip(logits).fold((0, f32::NEG_INFINITY), likeliest);
            self.held.append(&mut next);
            next.push(token);
            out.push(token);
        }
        Ok(())
    }
}

/// The sequence of a chat, which checks guesses if it makes any.
pub(crate) struct Speculating {
    sequence: Sequence,
    guessing: Option<Guessing>,
}

/// Guesses after a sequence.
struct Guessing {
    guesser: Box<dyn Guesser>,
    /// The tokens it has been fed, without guesses.
    tokens: Vec<u32>,
    /// Guesses that the sequence holds after `tokens`; the first `used` have been fed since.
    guesses: Vec<u32>,
    used: usize,
    /// Logits `(guesses + 1, vocabulary)`: before each guess, and after the last.
    logits: Vec<f32>,
    vocabulary: usize,
    /// How many guesses to make: more after right ones.
    most: usize,
    /// Tokens to decode without guesses, after wrong ones.
    pause: usize,
    next_pause: usize,
    counts: Guesses,
}

impl Guessing {
    fn new(model: &Model, sequence: &Sequence, speculation: &Speculation) -> Result<Self> {
        let guesser: Box<dyn Guesser> = match speculation {
            Speculation::PromptLookup => Box::new(Lookup),
            Speculation::Draft(draft) => {
                check_vocabulary(model.tokenizer(), draft.tokenizer())?;
                let context = sequence.capacity().min(draft.config().max_context_length);
                Box::new(Draft { sequence: draft.sequence(context)?, held: Vec::new() })
            }
        };
        Ok(Guessing {
            guesser,
            tokens: Vec::new(),
            guesses: Vec::new(),
            used: 0,
            logits: Vec::new(),
            vocabulary: model.config().vocab_size,
            most: 3,
            pause: 0,
            next_pause: 1,
            counts: Guesses::default(),
        })
    }

    /// Forgets the guesses that were not used.
    fn settle(&mut self, sequence: &mut Sequence) -> shohin_core::Result<()> {
        if self.used < self.guesses.len() {
            sequence.truncate(self.tokens.len())?;
        }
        self.guesses.clear();
        self.used = 0;
        Ok(())
    }

    /// After a pass: guesses more if all were right, less if few were.
    fn adapt(&mut self) {
        let (made, right) = (self.guesses.len(), self.used);
        if made == 0 {
            return;
        }
        self.most = if right == made { made + 2 } else { right + 1 }.clamp(1, MAX_GUESSES);
        if right == 0 {
            self.pause = self.next_pause;
            self.next_pause = (2 * self.next_pause).min(16);
        } else {
            self.next_pause = 1;
        }
    }

    fn row(&self, row: usize) -> &[f32] {
        &self.logits[row * self.vocabulary..][..self.vocabulary]
    }

    fn feed<'s>(&'s mut self, sequence: &'s mut Sequence, tokens: &[u32]) -> shohin_core::Result<&'s [f32]> {
        if let ([token], Some(guess)) = (tokens, self.guesses.get(self.used))
            && token == guess
        {
            self.tokens.push(*token);
            self.used += 1;
            self.counts.right += 1;
            return Ok(self.row(self.used));
        }
        self.adapt();
        self.settle(sequence)?;
        let [token] = tokens else {
            let before = self.tokens.len();
            self.tokens.extend_from_slice(tokens);
            let all = &mut self.tokens;
            return sequence.feed(tokens).inspect_err(|_| all.truncate(before));
        };
        self.tokens.push(*token);
        let room = (sequence.capacity() - sequence.position()).saturating_sub(1);
        if self.pause > 0 {
            self.pause -= 1;
        } else {
            let most = self.most.min(room);
            if let Err(error) = self.guesser.guess(&self.tokens, most, &mut self.guesses) {
                self.tokens.pop();
                self.guesses.clear();
                return Err(error);
            }
        }
        let mut pass = vec![*token];
        pass.extend_from_slice(&self.guesses);
        let (logits, vocabulary) = (&mut self.logits, self.vocabulary);
        logits.resize(pass.len() * vocabulary, 0.0);
        let outcome = sequence.logits(&pass, &mut |i, row| {
            logits[i * vocabulary..][..vocabulary].copy_from_slice(row);
        });
        if let Err(error) = outcome {
            self.tokens.pop();
            self.guesses.clear();
            return Err(error);
        }
        self.counts.checked += self.guesses.len() as u64;
        Ok(self.row(0))
    }
}

/// A draft must mean the same by every token.
fn check_vocabulary(model: &Tokenizer<'_>, draft: &Tokenizer<'_>) -> Result<()> {
    let len = model.vocab_size().min(draft.vocab_size()) as u32;
    let text = |tokenizer: &Tokenizer<'_>, id| tokenizer.token_bytes(id).map(Vec::from_iter);
    let other = (0..len).find(|&id| text(model, id) != text(draft, id));
    if other.is_none() && model.vocab_size() == draft.vocab_size() {
        return Ok(());
    }
    let found = match other {
        Some(id) => format!("a model whose token {id} is another"),
        None => format!("a model with {} tokens", draft.vocab_size()),
    };
    let expected = format!("one with the same vocabulary of {} tokens", model.vocab_size());
    Err(Error::Option { name: "draft", found, expected })
}

impl Speculating {
    /// A sequence without guesses.
    pub(crate) fn none(sequence: Sequence) -> Self {
        Speculating { sequence, guessing: None }
    }

    pub(crate) fn new(model: &Model, sequence: Sequence, speculation: &Speculation) -> Result<Self> {
        let guessing = Some(Guessing::new(model, &sequence, speculation)?);
        Ok(Speculating { sequence, guessing })
    }

    /// The sequence, which holds no unused guesses.
    pub(crate) fn settled(&mut self) -> shohin_core::Result<&mut Sequence> {
        if let Some(guessing) = &mut self.guessing {
            guessing.settle(&mut self.sequence)?;
        }
        Ok(&mut self.sequence)
    }

    pub(crate) fn position(&self) -> usize {
        self.guessing.as_ref().map_or(self.sequence.position(), |guessing| guessing.tokens.len())
    }

    pub(crate) fn capacity(&self) -> usize {
        self.sequence.capacity()
    }

    /// Reads out only this, unless whole rows are kept.
    pub(crate) fn read_out(&mut self, readout: Readout) {
        if self.guessing.is_none() {
            self.sequence.read_out(readout);
        }
    }

    pub(crate) fn feed(&mut self, tokens: &[u32]) -> shohin_core::Result<&[f32]> {
        let Speculating { sequence, guessing } = self;
        match guessing {
            Some(guessing) => guessing.feed(sequence, tokens),
            None => sequence.feed(tokens),
        }
    }

    pub(crate) fn truncate(&mut self, len: usize) -> shohin_core::Result<()> {
        self.settled()?.truncate(len)?;
        if let Some(guessing) = &mut self.guessing {
            guessing.tokens.truncate(len);
        }
        Ok(())
    }

    pub(crate) fn shift(&mut self, keep: usize, drop: usize) -> shohin_core::Result<()> {
        self.settled()?.shift(keep, drop)?;
        if let Some(Guessing { tokens, .. }) = &mut self.guessing {
            let end = (keep + drop).min(tokens.len());
            tokens.drain(keep.min(end)..end);
            tokens.truncate(self.sequence.position());
        }
        Ok(())
    }

    pub(crate) fn import(&mut self, tokens: &[u32], from: &[u8]) -> shohin_core::Result<()> {
        self.settled()?.import(tokens, from)?;
        if let Some(guessing) = &mut self.guessing {
            guessing.tokens = tokens.to_vec();
        }
        Ok(())
    }

    pub(crate) fn guesses(&self) -> Guesses {
        self.guessing.as_ref().map_or(Guesses::default(), |guessing| guessing.counts)
    }

    pub(crate) fn recoveries(&self) -> usize {
        self.sequence.recoveries()
    }
}
