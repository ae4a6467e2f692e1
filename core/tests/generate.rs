//! The generation state machine on scripted backends: the "model" is a list of tokens to generate.

use shohin_core::generate::{
    Action, Backend, Detokenizer, Event, Generation, GenerationOptions, Overflow, Reason, common_prefix,
    drive,
};
use shohin_core::sample::{Pcg32, Sampler, SamplerConfig};
use shohin_core::{Error, Result};
use std::ops::ControlFlow;

/// Token `i` is the i-th text; `END` ends a reply and has no text.
struct Words(Vec<&'static [u8]>);

const END: u32 = 0;

impl Detokenizer for Words {
    fn append_text(&self, token: u32, text: &mut Vec<u8>) {
        text.extend_from_slice(self.0[token as usize]);
    }

    fn is_end(&self, token: u32) -> bool {
        token == END
    }
}

/// Generates `script` token by token after the prompt.
struct Script {
    prompt: usize,
    script: Vec<u32>,
    held: Vec<u32>,
    capacity: usize,
    logits: Vec<f32>,
    feeds: Vec<usize>,
}

impl Script {
    fn new(vocabulary: &Words, prompt: usize, script: &[u32]) -> Self {
        Script {
            prompt,
            script: script.to_vec(),
            held: Vec::new(),
            capacity: 1000,
            logits: vec![0.0; vocabulary.0.len()],
            feeds: Vec::new(),
        }
    }
}

impl Backend for Script {
    fn position(&self) -> usize {
        self.held.len()
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn feed(&mut self, tokens: &[u32]) -> Result<&[f32]> {
        assert!(!tokens.is_empty());
        self.held.extend_from_slice(tokens);
        assert!(self.held.len() <= self.capacity, "fed more than there is room for");
        self.feeds.push(tokens.len());
        self.logits.fill(0.0);
        if let Some(said) = self.held.len().checked_sub(self.prompt) {
            self.logits[self.script[said] as usize] = 1.0;
        }
        Ok(&self.logits)
    }

    fn truncate(&mut self, len: usize) -> Result<()> {
        self.held.truncate(len);
        Ok(())
    }
}

const LETTERS: [&[u8]; 6] = [b"", b"a", b"b", b"ab", b"ba", b" "];

fn greedy(vocab: usize) -> Sampler {
    Sampler::new(&SamplerConfig::greedy(), vocab).unwrap()
}

/// The texts of all events, and the reason.
fn say(words: &Words, script: &[u32], options: GenerationOptions) -> (Vec<String>, Reason, Generation) {
    let mut backend = Script::new(words, 1, script);
    let mut generation = Generation::new(&[1], 0, 1000, greedy(words.0.len()), options).unwrap();
    let mut texts = Vec::new();
    let reason = drive(&mut generation, &mut backend, words, &mut |step| {
        if let Event::Token(event) = step {
            texts.push(event.text.to_string());
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    (texts, reason, generation)
}

fn stops(texts: &[&str]) -> GenerationOptions {
    GenerationOptions {
        stop_strings: texts.iter().map(|s| s.to_string()).collect(),
        ..GenerationOptions::default()
    }
}

#[test]
fn a_reply_ends_at_the_end_token() {
    let words = Words(LETTERS.to_vec());
    let (texts, reason, generation) = say(&words, &[1, 5, 3, END], GenerationOptions::default());
    assert_eq!(texts, ["a", " ", "ab", ""]);
    assert_eq!(reason, Reason::Stop);
    assert_eq!(generation.reply(), [1, 5, 3]);
    // The end token was chosen, not fed.
    assert_eq!(generation.held(), [1, 1, 5, 3]);
}

#[test]
fn stop_tokens_of_the_options_end_it_too_and_ends_can_be_ignored() {
    let words = Words(LETTERS.to_vec());
    let options = GenerationOptions { stop_tokens: vec![4], ..GenerationOptions::default() };
    let (texts, reason, _) = say(&words, &[1, 4, 1], options);
    assert_eq!((texts.concat().as_str(), reason), ("a", Reason::Stop));
    let options = GenerationOptions { ignore_end: true, max_tokens: 4, ..GenerationOptions::default() };
    let (texts, reason, generation) = say(&words, &[1, END, END, 2], options);
    assert_eq!((texts.concat().as_str(), reason), ("ab", Reason::Length));
    assert_eq!(generation.reply(), [1, END, END, 2]);
}

#[test]
fn the_prompt_is_fed_in_batches_after_what_is_held() {
    let words = Words(LETTERS.to_vec());
    let prompt: Vec<u32> = (0..25).map(|i| i % 6).collect();
    let mut backend = Script::new(&words, 25, &[1, END]);
    backend.held.extend_from_slice(&prompt[..4]);
    let options = GenerationOptions { batch: 8, ..GenerationOptions::default() };
    let mut generation = Generation::new(&prompt, 4, 100, greedy(6), options).unwrap();
    let mut progress = Vec::new();
    drive(&mut generation, &mut backend, &words, &mut |step| {
        if let Event::Prompt(fed, of) = step {
            progress.push((fed, of));
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(backend.feeds, [8, 8, 5, 1]);
    assert_eq!(progress, [(12, 25), (20, 25)]);
    assert_eq!(backend.held, generation.held());
}

#[test]
fn a_prompt_is_not_penalized_for_presence() {
    let words = Words(LETTERS.to_vec());
    let config = SamplerConfig { presence_penalty: 0.5, ..SamplerConfig::greedy() };
    let sampler = Sampler::new(&config, words.0.len()).unwrap();
    let options = GenerationOptions { max_tokens: 2, ..GenerationOptions::default() };
    let mut generation = Generation::new(&[1, 1, 2], 0, 100, sampler, options).unwrap();
    let logits = [0.0, 1.0, 0.8, 0.0, 0.0, 0.0];
    for _ in 0..2 {
        while let Action::Decode(_) = generation.next() {
            generation.logits(&words, &logits).unwrap();
        }
        assert_eq!(generation.reply(), [1, 2]);
        generation.follow_up(&[1]).unwrap();
    }
}

#[test]
fn length_counts_generated_tokens() {
    let words = Words(LETTERS.to_vec());
    for max_tokens in 0..4 {
        let options = GenerationOptions { max_tokens, ..GenerationOptions::default() };
        let (texts, reason, generation) = say(&words, &[1, 1, 1, 1, 1], options);
        assert_eq!((texts.len(), reason), (max_tokens, Reason::Length));
        assert_eq!(generation.reply().len(), max_tokens);
        // The last token is never fed: its logits are not needed.
        assert_eq!(generation.held().len(), 1 + max_tokens.saturating_sub(1));
    }
}

#[test]
fn a_full_context_is_a_reason_and_nothing_is_fed_beyond_it() {
    let words = Words(LETTERS.to_vec());
    let mut backend = Script::new(&words, 3, &[1; 10]);
    backend.capacity = 5;
    let mut generation = Generation::new(&[1, 2, 1], 0, 5, greedy(6), GenerationOptions::default()).unwrap();
    let mut text = String::new();
    let reason = drive(&mut generation, &mut backend, &words, &mut |step| {
        if let Event::Token(event) = step {
            text += event.text;
        }
        ControlFlow::Continue(())
    });
    assert_eq!(reason, Ok(Reason::ContextFull));
    assert_eq!((backend.held.len(), text.as_str()), (5, "aaa"));
    let new = |prompt: &[u32], held, capacity| {
        Generation::new(prompt, held, capacity, greedy(6), GenerationOptions::default()).map(|_| ())
    };
    assert_eq!(new(&[1; 6], 2, 5), Err(Error::ContextFull { position: 2, adding: 4, capacity: 5 }));
    assert_eq!(new(&[1; 5], 0, 5), Ok(()));
    assert_eq!(new(&[], 0, 5), Err(Error::Length { what: "prompt", expected: 1, found: 0 }));
    assert!(new(&[1, 2], 2, 5).is_err(), "nothing to feed, so no logits to go on from");
}

#[test]
fn characters_over_several_tokens_come_whole() {
    let words = Words(vec![b"", b"\xF0\x9F", b"\x98\x80", b"\xC3", b"\xA9!", b"\xFF", b"x", b"\xE2\x82"]);
    let (texts, ..) = say(&words, &[1, 2, 3, 4, 6, END], GenerationOptions::default());
    assert_eq!(texts, ["", "\u{1F600}", "", "é!", "x", ""]);
    // Invalid bytes are replaced as by String::from_utf8_lossy, as soon as they are known to be invalid.
    let (texts, ..) = say(&words, &[1, 6, 5, 7, END], GenerationOptions::default());
    assert_eq!(texts, ["", "\u{FFFD}x", "\u{FFFD}", "", "\u{FFFD}"]);
    // Of a character that is cut off nothing is shown.
    for tokens in [[6, 1], [6, 7]] {
        let options = GenerationOptions { max_tokens: 2, ..GenerationOptions::default() };
        let (texts, reason, _) = say(&words, &tokens, options);
        assert_eq!((texts.concat().as_str(), reason), ("x", Reason::Length));
    }
}

#[test]
fn any_bytes_stream_as_the_standard_library_decodes_them() {
    let all: &'static [[u8; 1]; 256] = Box::leak(Box::new(std::array::from_fn(|b| [b as u8])));
    let words = Words(all.iter().map(|b| b.as_slice()).collect());
    let pieces = ["é", "日", "🌱", "a", "\u{FFFD}"];
    let mut rng = Pcg32::new(1);
    for _ in 0..300 {
        let mut bytes = Vec::new();
        while bytes.len() < 24 {
            match rng.next_u32() % 4 {
                0 => bytes.push(rng.next_u32() as u8 | 0x80),
                _ => {
                    let piece = pieces[rng.next_u32() as usize % 5].as_bytes();
                    let cut = piece.len() - usize::from(rng.next_u32().is_multiple_of(5));
                    bytes.extend_from_slice(&piece[..cut]);
                }
            }
        }
        bytes.retain(|&b| b != 0);
        let script: Vec<u32> = bytes.iter().map(|&b| b.into()).chain([END]).collect();
        let (texts, ..) = say(&words, &script, GenerationOptions::default());
        assert_eq!(texts.concat(), String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn stop_strings_end_the_reply_and_are_not_part_of_it() {
    let words = Words(LETTERS.to_vec());
    // "aba" over two tokens, after a space.
    let (texts, reason, generation) = say(&words, &[3, 5, 1, 4, 2, END], stops(&["aba"]));
    assert_eq!((texts.concat().as_str(), reason), ("ab ", Reason::StopString));
    assert_eq!(generation.reply(), [3, 5, 1, 4]);
    let (texts, reason, _) = say(&words, &[3, 5, 2, 3, 1, 2, END], stops(&["bab", "aba"]));
    assert_eq!((texts.concat().as_str(), reason), ("ab ", Reason::StopString));
    // A possible stop string is held back, then released.
    let (texts, ..) = say(&words, &[1, 2, 1, 5, END], stops(&["abab"]));
    assert_eq!(texts, ["", "", "", "aba ", ""]);
    let (texts, reason, _) = say(&words, &[1, 2, END], stops(&["abab"]));
    assert_eq!((texts.concat().as_str(), reason), ("ab", Reason::Stop));
    let options = GenerationOptions { max_tokens: 2, ..stops(&["abab"]) };
    let (texts, reason, _) = say(&words, &[1, 2, 1], options);
    assert_eq!((texts.concat().as_str(), reason), ("ab", Reason::Length));
    assert!(Generation::new(&[1], 0, 9, greedy(6), stops(&[""])).is_err());
}

#[test]
fn stop_strings_are_found_and_held_back_exactly() {
    let words = Words(LETTERS.to_vec());
    let texts = ["a", "b", "ab", "ba", "aab", "abab", "bba", "a b", "  a", "abaabab"];
    let mut rng = Pcg32::new(2);
    let mut found = 0;
    for _ in 0..2000 {
        let mut pick = |n: usize| rng.next_u32() as usize % n;
        let chosen: Vec<&str> = (0..1 + pick(3)).map(|_| texts[2 + pick(8)]).collect();
        let script: Vec<u32> = (0..12).map(|_| 1 + pick(5) as u32).chain([END]).collect();
        let (events, reason, _) = say(&words, &script, stops(&chosen));
        // By definition: the text up to the first stop string, and at every moment all of it but the longest
        // suffix that could still become one.
        let mut text = String::new();
        let mut shown = String::new();
        for (event, &token) in events.iter().zip(&script) {
            text.push_str(std::str::from_utf8(words.0[token as usize]).unwrap());
            shown.push_str(event);
            let first = chosen.iter().filter_map(|s| text.find(s)).min();
            let could =
                |n: &usize| chosen.iter().any(|s| *n < s.len() && s.starts_with(&text[text.len() - n..]));
            let keep = (0..=text.len()).rev().find(could).unwrap();
            match first {
                Some(at) => assert_eq!(shown, text[..at]),
                None if token == END => assert_eq!(shown, text),
                None => assert_eq!(shown, text[..text.len() - keep]),
            }
        }
        let stopped = chosen.iter().any(|s| text.contains(s));
        assert_eq!(stopped, reason == Reason::StopString);
        found += usize::from(stopped);
    }
    assert!(found > 500);
}

#[test]
fn cancelling_releases_what_was_held_back() {
    let words = Words(LETTERS.to_vec());
    let mut backend = Script::new(&words, 1, &[1, 2, 1, 1]);
    let mut generation = Generation::new(&[1], 0, 99, greedy(6), stops(&["abab"])).unwrap();
    let mut seen = Vec::new();
    let reason = drive(&mut generation, &mut backend, &words, &mut |step| {
        match step {
            Event::Token(event) => seen.push(event.text.to_string()),
            Event::Flush(text) => seen.push(format!("rest: {text}")),
            Event::Prompt(..) => {}
        }
        if seen.len() < 2 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    assert_eq!(reason, Ok(Reason::Cancelled));
    assert_eq!(seen, ["", "", "rest: ab"]);
    assert_eq!(generation.next(), Action::Done(Reason::Cancelled));
    assert_eq!(generation.cancel(), "");
    // The next prompt can continue from the held tokens.
    assert_eq!(common_prefix(generation.held(), &[1, 1, 2, 5]), 2);
}

#[test]
fn the_common_prefix_leaves_a_token_to_feed() {
    assert_eq!(common_prefix(&[1, 2, 3], &[1, 2, 3]), 2);
    assert_eq!(common_prefix(&[1, 2, 3], &[1, 2, 4, 5]), 2);
    assert_eq!(common_prefix(&[1, 2, 3], &[1, 2]), 1);
    assert_eq!(common_prefix(&[], &[1]), 0);
    assert_eq!(common_prefix(&[1], &[]), 0);
}

#[test]
fn logprobs_come_with_every_token() {
    let words = Words(LETTERS.to_vec());
    let mut backend = Script::new(&words, 1, &[1, 2, END]);
    let options = GenerationOptions { logprobs: Some(2), ..GenerationOptions::default() };
    let mut generation = Generation::new(&[1], 0, 99, greedy(6), options).unwrap();
    // One logit of 1 and five of 0.
    let expected = (1.0 - (1f64.exp() + 5.0).ln()) as f32;
    let mut n = 0;
    drive(&mut generation, &mut backend, &words, &mut |step| {
        if let Event::Token(event) = step {
            assert!((event.logprob.unwrap() - expected).abs() < 1e-6);
            assert_eq!((event.top.len(), event.top[0].token), (2, event.token));
            n += 1;
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(n, 3);
}

#[test]
fn a_failing_backend_or_odd_logits_are_errors_not_text() {
    let words = Words(LETTERS.to_vec());
    let mut generation = Generation::new(&[1], 0, 99, greedy(6), GenerationOptions::default()).unwrap();
    assert!(matches!(generation.logits(&words, &[f32::NAN; 6]), Err(Error::Logits { .. })));
    assert!(matches!(generation.logits(&words, &[0.0; 5]), Err(Error::Length { .. })));
    assert_eq!(generation.reply(), []);
}

/// Generates the number of tokens so far; holds and drops tokens as requested.
struct Counter {
    held: Vec<u32>,
    capacity: usize,
    /// Whether it moves tokens, rather than having them fed again.
    moves: bool,
    said: u32,
    logits: Vec<f32>,
    shifts: usize,
}

impl Backend for Counter {
    fn position(&self) -> usize {
        self.held.len()
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn feed(&mut self, tokens: &[u32]) -> Result<&[f32]> {
        assert!(!tokens.is_empty());
        self.held.extend_from_slice(tokens);
        assert!(self.held.len() <= self.capacity, "fed more than there is room for");
        self.logits.fill(0.0);
        self.logits[(self.held.last().unwrap() + 1) as usize] = 1.0;
        self.said += 1;
        Ok(&self.logits)
    }

    fn truncate(&mut self, len: usize) -> Result<()> {
        self.held.truncate(len);
        Ok(())
    }

    fn shift(&mut self, keep: usize, drop: usize) -> Result<()> {
        assert_eq!(self.held.len(), self.capacity, "there is still room");
        self.shifts += 1;
        if self.moves {
            self.held.drain(keep..keep + drop);
        } else {
            self.truncate(keep)?;
        }
        Ok(())
    }
}

#[test]
fn a_full_context_forgets_what_follows_the_first_tokens() {
    let words = Words(vec![b"x"; 600]);
    for (moves, keep, prompt, capacity) in
        [(true, 4, 10, 32), (false, 4, 10, 32), (true, 0, 100, 21), (false, 7, 100, 21), (true, 9, 5, 10)]
    {
        let prompt: Vec<u32> = (1..=prompt).collect();
        let options = GenerationOptions {
            max_tokens: 300,
            batch: 8,
            ignore_end: true,
            overflow: Overflow::Shift { keep },
            ..GenerationOptions::default()
        };
        let logits = vec![0.0; 600];
        let mut backend = Counter { held: Vec::new(), capacity, moves, said: 0, logits, shifts: 0 };
        let mut generation = Generation::new(&prompt, 0, capacity, greedy(600), options.clone()).unwrap();
        let mut fed = Vec::new();
        let reason = drive(&mut generation, &mut backend, &words, &mut |step| {
            if let Event::Prompt(n, of) = step {
                assert_eq!(of, prompt.len());
                fed.push(n);
            }
            ControlFlow::Continue(())
        });
        assert_eq!(reason, Ok(Reason::Length));
        // Each token follows the one before, so none was lost or fed twice.
        let first = prompt.len() as u32 + 1;
        assert!(generation.reply().iter().copied().eq(first..first + 300));
        assert!(fed.is_sorted() && fed.last() <= Some(&prompt.len()));
        // The first tokens and the last ones.
        let all: Vec<u32> = (1..first + 300).collect();
        let dropped = generation.dropped();
        assert!(backend.shifts > 10 && dropped > 200);
        let want = [&all[..keep], &all[keep + dropped..]].concat();
        assert_eq!(generation.tokens(), want);
        assert_eq!(
            (generation.held(), backend.held.as_slice()),
            (&want[..want.len() - 1], generation.held())
        );
        assert!(dropped + capacity >= all.len() - 1);
        let overflow = Overflow::Shift { keep: capacity };
        let error =
            Generation::new(&prompt, 0, capacity, greedy(600), GenerationOptions { overflow, ..options });
        assert_eq!(error.unwrap_err().code(), "option");
    }
}
