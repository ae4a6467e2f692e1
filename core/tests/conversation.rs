//! Conversations on a scripted backend, compared with the earlier implementations of the terminal and the npm
//! package.

use shohin_core::chat::{
    self, ChatMessage, ChatModel, ChatOptions, Conversation, Finish, Message, OverflowPolicy, Piece,
    Progress, Request, ResponseFormat, Role, SessionState, Template, Thinking, ToolChoice, TurnOptions,
};
use shohin_core::constrain::Vocabulary;
use shohin_core::constrain::Whitespace;
use shohin_core::generate::{
    self, Action, Backend, Detokenizer, Event, Generation, GenerationOptions, Overflow, Reason, common_prefix,
};
use shohin_core::tokenizer::Special;
use shohin_core::{Error, Gguf, Result, Sampler, SamplerConfig, Tokenizer};
use std::ops::ControlFlow;
use std::sync::Arc;

const FILE: &[u8] = include_bytes!("fixtures/bpe2k.gguf");

fn with_model(test: impl FnOnce(&ChatModel<'_>)) {
    let tokenizer = Tokenizer::from_gguf(&Gguf::parse(FILE).unwrap()).unwrap();
    let vocabulary = || Arc::new(Vocabulary::new(&tokenizer));
    test(&ChatModel {
        tokenizer: &tokenizer,
        template: Template::QWEN3,
        renderer: None,
        logits: tokenizer.vocab_size(),
        vocabulary: &vocabulary,
    });
}

#[derive(Clone, Debug, PartialEq)]
enum Op {
    /// Fewer tokens than before.
    Truncate(usize),
    Feed(Vec<u32>),
    Shift(usize, usize),
}

/// A backend that replies with a script whatever it is fed, and records its inputs.
struct Script {
    held: Vec<u32>,
    capacity: usize,
    ops: Vec<Op>,
    /// The remaining script, reversed.
    script: Vec<u32>,
    logits: Vec<f32>,
    /// Tokens to feed until it fails.
    fails: usize,
}

impl Script {
    fn new(model: &ChatModel<'_>, capacity: usize) -> Script {
        let logits = vec![0.0; model.logits];
        Script { held: Vec::new(), capacity, ops: Vec::new(), script: Vec::new(), logits, fails: usize::MAX }
    }

    fn says(&mut self, model: &ChatModel<'_>, text: &str) {
        self.script.clear();
        model.tokenizer.encode(text, Special::Parse, &mut self.script);
        self.script.push(model.tokenizer.added_id("<|im_end|>").unwrap());
        self.script.reverse();
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
        if self.fails < tokens.len() {
            return Err(Error::Device { problem: "it was told to fail" });
        }
        self.fails -= tokens.len();
        self.held.extend_from_slice(tokens);
        assert!(self.held.len() <= self.capacity, "fed more than there is room for");
        self.ops.push(Op::Feed(tokens.to_vec()));
        self.logits.fill(0.0);
        self.logits[self.script.last().copied().unwrap_or(0) as usize] = 1.0;
        Ok(&self.logits)
    }

    fn truncate(&mut self, len: usize) -> Result<()> {
        assert!(len <= self.held.len());
        if len < self.held.len() {
            self.ops.push(Op::Truncate(len));
        }
        self.held.truncate(len);
        Ok(())
    }

    fn shift(&mut self, keep: usize, drop: usize) -> Result<()> {
        self.ops.push(Op::Shift(keep, drop));
        self.held.drain(keep..keep + drop);
        Ok(())
    }
}

fn greedy() -> TurnOptions {
    TurnOptions { sampler: SamplerConfig::greedy(), batch: 1000, ..TurnOptions::default() }
}

fn user(text: &str) -> Vec<ChatMessage> {
    vec![ChatMessage::new(Role::User, text)]
}

/// Runs the current turn; passes all pieces to `each`, and advances the script after each.
fn run(
    conversation: &mut Conversation,
    backend: &mut Script,
    detokenizer: &dyn Detokenizer,
    each: &mut dyn FnMut(Piece<'_>) -> ControlFlow<()>,
) -> Result<Option<Finish>> {
    // The script advances only when a token was chosen, which `drive` could not guarantee.
    backend.truncate(conversation.held())?;
    let outcome = loop {
        match conversation.next() {
            Action::Done(_) => break Ok(()),
            Action::Shift { keep, drop } => {
                backend.shift(keep, drop)?;
                conversation.shifted(backend.position());
            }
            Action::Decode(tokens) => {
                let logits = match backend.feed(tokens) {
                    Ok(logits) => logits,
                    Err(error) => break Err(error),
                };
                let flow = match conversation.logits(detokenizer, logits)? {
                    Some(piece) => {
                        backend.script.pop();
                        each(piece)
                    }
                    None => ControlFlow::Continue(()),
                };
                if flow.is_break() {
                    conversation.cancel();
                }
            }
        }
    };
    let (held, finish) = conversation.end(backend.position());
    backend.truncate(held)?;
    outcome.map(|()| finish)
}

fn ends(conversation: &mut Conversation, backend: &mut Script, model: &ChatModel<'_>) -> Finish {
    run(conversation, backend, model.tokenizer, &mut |_| ControlFlow::Continue(())).unwrap().unwrap()
}

/// As `generate::drive`, advancing the script.
fn generate(generation: &mut Generation, backend: &mut Script, model: &ChatModel<'_>) -> String {
    let mut text = String::new();
    loop {
        match generation.next() {
            Action::Done(_) => return text,
            Action::Shift { keep, drop } => {
                backend.shift(keep, drop).unwrap();
                generation.shifted(backend.position());
            }
            Action::Decode(tokens) => {
                let logits = backend.feed(tokens).unwrap();
                if let Some(token) = generation.logits(model.tokenizer, logits).unwrap() {
                    text.push_str(token.text);
                    backend.script.pop();
                }
            }
        }
    }
}

/// The terminal's conversation before it moved to core.
struct Terminal {
    thinking: bool,
    keep: Option<usize>,
    system: Option<String>,
    /// Message, reply, tokens before the message.
    turns: Vec<(String, Option<String>, usize)>,
    tokens: Vec<u32>,
    held: Vec<u32>,
}

impl Terminal {
    fn options(&self, model: &ChatModel<'_>) -> ChatOptions<'static> {
        ChatOptions { template: model.template, thinking: Some(self.thinking), ..ChatOptions::default() }
    }

    fn encode(&self, model: &ChatModel<'_>, from: usize) -> Vec<u32> {
        let system = self.system.as_deref().map(|text| Message::new(Role::System, text));
        let turns = self.turns[from..].iter().flat_map(|(user, reply, _)| {
            let reply = reply.as_deref().map(|text| Message::new(Role::Assistant, text));
            [Message::new(Role::User, user)].into_iter().chain(reply)
        });
        let messages: Vec<Message<'_>> = system.into_iter().chain(turns).collect();
        chat::encode(model.tokenizer, &messages, &self.options(model)).unwrap()
    }

    /// Returns the number of dropped turns.
    fn answer(&mut self, model: &ChatModel<'_>, backend: &mut Script) -> usize {
        let capacity = backend.capacity;
        let mut prompt = self.tokens.clone();
        if prompt.is_empty() {
            prompt = self.encode(model, 0);
        } else {
            let next = [Message::new(Role::User, &self.turns.last().unwrap().0)];
            let options = self.options(model);
            prompt.extend(chat::encode_next(model.tokenizer, &self.tokens, &next, &options).unwrap());
        }
        let mut dropped = 0;
        let reserve = (capacity / 4).min(256);
        while self.keep.is_none()
            && prompt.len() + if dropped == 0 { reserve } else { capacity / 2 } > capacity
            && dropped + 1 < self.turns.len()
        {
            dropped += 1;
            prompt = self.encode(model, dropped);
        }
        if dropped > 0 {
            self.turns.drain(..dropped);
            self.turns.last_mut().unwrap().2 = 0;
        }
        let held = common_prefix(&self.held, &prompt);
        backend.truncate(held).unwrap();
        let overflow = self.keep.map_or(Overflow::Error, |keep| Overflow::Shift { keep });
        let options = GenerationOptions { batch: 1000, overflow, ..GenerationOptions::default() };
        let sampler = Sampler::new(&SamplerConfig::greedy(), model.logits).unwrap();
        let mut generation = Generation::new(&prompt, held, capacity, sampler, options).unwrap();
        let text = generate(&mut generation, backend, model);
        self.held = generation.held().to_vec();
        self.tokens = generation.tokens().to_vec();
        let turn = self.turns.last_mut().unwrap();
        turn.1 = Some(text);
        if let Some(keep) = self.keep
            && generation.dropped() > 0
            && turn.2 > keep
        {
            turn.2 = turn.2.checked_sub(generation.dropped()).filter(|start| *start >= keep).unwrap_or(0);
        }
        dropped
    }

    fn say(&mut self, model: &ChatModel<'_>, backend: &mut Script, text: &str) -> usize {
        self.turns.push((text.into(), None, self.tokens.len()));
        self.answer(model, backend)
    }

    fn retry(&mut self, model: &ChatModel<'_>, backend: &mut Script) {
        let turn = self.turns.last_mut().unwrap();
        turn.1 = None;
        self.tokens.truncate(turn.2);
        self.answer(model, backend);
    }
}

const LONG: &str = "The fox ran over the hill and the dog and the cow ran after it. ";

/// The message of each turn (`None` is a retry) and its reply.
fn scenario(turns: usize) -> Vec<(Option<String>, String)> {
    let reply = |i: usize| format!("{}{i}", LONG.repeat(1 + i % 3));
    let mut all = Vec::new();
    for i in 0..turns {
        all.push((Some(format!("Question {i}?")), reply(i)));
        if i % 3 == 1 {
            all.push((None, reply(i + 1)));
            all.push((None, reply(i)));
        }
    }
    all
}

#[test]
fn turns_and_retries_feed_what_the_terminal_fed() {
    with_model(|qwen| {
        for (template, thinking, capacity, keep, turns) in [
            (Template::QWEN3, false, 4000, None, 6),
            (Template::QWEN3, true, 4000, None, 6),
            (Template::PLAIN, false, 4000, None, 6),
            (Template::QWEN3, false, 300, None, 12),
            (Template::PLAIN, false, 260, None, 12),
            (Template::QWEN3, false, 120, Some(20), 12),
            (Template::PLAIN, false, 90, Some(4), 15),
            (Template::PLAIN, false, 333, Some(30), 15),
        ] {
            let model = &ChatModel { template, ..*qwen };
            let mut old = Terminal {
                thinking,
                keep,
                system: Some("Be kind.".into()),
                turns: Vec::new(),
                tokens: Vec::new(),
                held: Vec::new(),
            };
            let mut conversation = Conversation::new();
            conversation.set_messages(vec![ChatMessage::new(Role::System, "Be kind.")]);
            let overflow = match keep {
                Some(_) => OverflowPolicy::Shift { keep },
                None => OverflowPolicy::Trim { reserve: (capacity / 4).min(256), free: capacity / 2 },
            };
            let thinking = if thinking { Thinking::On } else { Thinking::Off };
            let options = TurnOptions { overflow, thinking, ..greedy() };
            let (mut expected, mut backend) = (Script::new(model, capacity), Script::new(model, capacity));
            let (mut dropped, mut shifts) = (0, 0);
            for (said, reply) in scenario(turns) {
                expected.says(model, &reply);
                backend.says(model, &reply);
                let session = SessionState::of(&backend);
                let gone = match &said {
                    Some(text) => {
                        conversation.start(model, session, Request::Send(user(text)), &options).unwrap();
                        old.say(model, &mut expected, text)
                    }
                    None => {
                        conversation.start(model, session, Request::Retry, &options).unwrap();
                        old.retry(model, &mut expected);
                        0
                    }
                };
                let finish = ends(&mut conversation, &mut backend, model);
                assert_eq!(finish.usage.dropped_messages, 2 * gone);
                assert_eq!(Some(&finish.text), old.turns.last().unwrap().1.as_ref());
                assert_eq!(backend.held, expected.held, "{template:?} {capacity} {said:?}");
                assert_eq!(backend.ops, expected.ops, "{template:?} {capacity} {said:?}");
                dropped += gone;
                shifts += backend.ops.iter().filter(|op| matches!(op, Op::Shift(..))).count();
                (backend.ops, expected.ops) = (Vec::new(), Vec::new());
                assert_eq!(conversation.messages().len(), 1 + 2 * old.turns.len());
            }
            assert_eq!((capacity < 301 && keep.is_none(), keep.is_some()), (dropped > 0, shifts > 3));
        }
    });
}

/// The token bookkeeping of the npm package's module before it moved to core.
#[derive(Default)]
struct Module {
    seen: Vec<u32>,
    kept: usize,
    dropped: usize,
}

impl Module {
    fn answer(
        &mut self,
        model: &ChatModel<'_>,
        backend: &mut Script,
        prompt: &[u32],
        overflow: Overflow,
    ) -> usize {
        let goes_on = self.dropped > 0
            && overflow == Overflow::Shift { keep: self.kept }
            && prompt.len() > self.seen.len()
            && prompt.starts_with(&self.seen);
        let intact = if self.dropped == 0 { &self.seen[..] } else { &self.seen[..self.kept] };
        let (left, cached) = match goes_on {
            true => {
                let hole = self.kept + self.dropped;
                ([&prompt[..self.kept], &prompt[hole..]].concat(), self.seen.len() - self.dropped)
            }
            false => (prompt.to_vec(), common_prefix(intact, prompt)),
        };
        let sampler = Sampler::new(&SamplerConfig::greedy(), model.logits).unwrap();
        let options = GenerationOptions { batch: 1000, overflow, ..GenerationOptions::default() };
        let mut generation = Generation::new(&left, cached, backend.capacity, sampler, options).unwrap();
        if !goes_on {
            let kept = if let Overflow::Shift { keep } = overflow { keep } else { 0 };
            *self = Module { seen: prompt[..cached].to_vec(), kept, dropped: 0 };
        }
        let cached = self.seen.len();
        backend.truncate(self.seen.len() - self.dropped).unwrap();
        generate(&mut generation, backend, model);
        self.dropped += generation.dropped();
        self.seen = [prompt, generation.reply()].concat();
        self.seen.truncate(generation.held().len() + self.dropped);
        cached
    }
}

#[test]
fn whole_conversations_feed_what_the_module_fed() {
    with_model(|qwen| {
        for (template, capacity, overflow) in [
            (Template::QWEN3, 4000, OverflowPolicy::Error),
            (Template::PLAIN, 4000, OverflowPolicy::Error),
            (Template::QWEN3, 300, OverflowPolicy::Trim { reserve: 100, free: 100 }),
            (Template::PLAIN, 128, OverflowPolicy::Shift { keep: None }),
            (Template::QWEN3, 128, OverflowPolicy::Shift { keep: None }),
        ] {
            let model = &ChatModel { template, ..*qwen };
            let mut old = Module::default();
            let mut conversation = Conversation::new();
            let options = TurnOptions { overflow, ..greedy() };
            let (mut expected, mut backend) = (Script::new(model, capacity), Script::new(model, capacity));
            let mut messages = vec![ChatMessage::new(Role::System, "You are a cow.")];
            let mut forgotten = 0;
            for (i, (said, reply)) in scenario(12).into_iter().enumerate() {
                match said {
                    Some(text) => messages.extend(user(&text)),
                    // The same again, or with a message changed.
                    None => {
                        messages.pop();
                        if i % 2 == 0 {
                            messages.last_mut().unwrap().content.push_str(" Or so.");
                        }
                    }
                }
                let encode = |messages: &[ChatMessage]| {
                    let messages: Vec<Message<'_>> =
                        messages.iter().map(|m| Message::new(m.role, &m.content)).collect();
                    let options = ChatOptions { template, thinking: Some(false), ..ChatOptions::default() };
                    chat::encode(model.tokenizer, &messages, &options).unwrap()
                };
                let (mut left, policy) = (
                    messages.clone(),
                    match overflow {
                        OverflowPolicy::Shift { .. } => {
                            let (ids, other) = (encode(&messages), encode(&messages[..1]));
                            let differs = ids.iter().zip(&other).position(|(a, b)| a != b).unwrap();
                            Overflow::Shift { keep: differs.max(4).min(capacity / 2) }
                        }
                        OverflowPolicy::Error | OverflowPolicy::Trim { .. } => Overflow::Error,
                    },
                );
                if let OverflowPolicy::Trim { reserve, .. } = overflow {
                    while encode(&left).len() + reserve > capacity && left.len() > 2 {
                        left.drain(1..3);
                    }
                }
                expected.says(model, &reply);
                backend.says(model, &reply);
                let cached = old.answer(model, &mut expected, &encode(&left), policy);
                let session = SessionState::of(&backend);
                conversation.start(model, session, Request::Respond(messages.clone()), &options).unwrap();
                let finish = ends(&mut conversation, &mut backend, model);
                assert_eq!(backend.ops, expected.ops, "{template:?} {i}");
                let prefix = conversation.prefix();
                assert_eq!((&prefix.tokens, prefix.dropped), (&old.seen, old.dropped));
                assert_eq!(finish.usage.cached_tokens, cached);
                assert_eq!(finish.usage.forgotten_tokens, old.dropped);
                assert_eq!(finish.usage.prompt_tokens, encode(&left).len());
                assert_eq!(finish.usage.dropped_messages, messages.len() - left.len());
                (backend.ops, expected.ops) = (Vec::new(), Vec::new());
                forgotten += finish.usage.forgotten_tokens + finish.usage.dropped_messages;
                messages.push(finish.message);
            }
            assert_eq!(forgotten > 0, capacity < 4000);
        }
    });
}

/// A conversation without a plan, and what is left of it if exchanges are left out one after the other.
fn trimmed_one_by_one(
    model: &ChatModel<'_>,
    mut left: Vec<ChatMessage>,
    capacity: usize,
    (reserve, free): (usize, usize),
    options: &TurnOptions,
) -> (usize, usize) {
    let mut room = reserve.min(capacity / 2);
    loop {
        let tokens = options.encode(model, &left).unwrap().len();
        let first = left.iter().position(|m| m.role != Role::System).unwrap_or(left.len());
        let next = left.iter().skip(first + 1).position(|m| m.role == Role::User);
        match next.filter(|_| tokens + room > capacity) {
            Some(next) => drop(left.drain(first..first + 1 + next)),
            None => return (left.len(), tokens),
        }
        room = free.min(capacity / 2);
    }
}

#[test]
fn as_few_exchanges_are_left_out_as_if_one_by_one() {
    let mut state = 7u64;
    let mut random = move |n: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((state >> 33) % n) as usize
    };
    with_model(|qwen| {
        let (mut dropped, mut fits) = (0, 0);
        for round in 0..600 {
            let template = [Template::QWEN3, Template::PLAIN, Template::SMOLLM2][round % 3];
            let model = &ChatModel { template, ..*qwen };
            let mut messages = Vec::new();
            for i in 0..1 + random(40) {
                let roles =
                    [Role::User, Role::Assistant, Role::User, Role::Assistant, Role::Tool, Role::System];
                let role = if i < 2 && random(3) == 0 { Role::System } else { roles[random(6)] };
                let mut message = ChatMessage::new(role, "A cow. ".repeat(random(12)));
                if role == Role::Assistant && random(2) == 0 {
                    message.reasoning = Some("Hm. ".repeat(1 + random(6)));
                }
                messages.push(message);
            }
            let go_on = random(4) == 0;
            messages.push(ChatMessage::new(if go_on { Role::Assistant } else { Role::User }, "And then"));
            let (capacity, rooms) = (40 + random(500), (random(200), random(400)));
            let overflow = OverflowPolicy::Trim { reserve: rooms.0, free: rooms.1 };
            let options = TurnOptions { overflow, continue_final_message: go_on, ..greedy() };
            let (left, tokens) = trimmed_one_by_one(model, messages.clone(), capacity, rooms, &options);
            let (mut conversation, session) = (Conversation::new(), SessionState { position: 0, capacity });
            match conversation.start(model, session, Request::Respond(messages.clone()), &options) {
                Ok(_) => {
                    let usage = conversation.usage();
                    let expected = (messages.len() - left, tokens);
                    assert_eq!((usage.dropped_messages, usage.prompt_tokens), expected, "{round}");
                    dropped += usize::from(usage.dropped_messages > 0);
                    fits += 1;
                }
                Err(error) => assert!(tokens >= capacity, "{round}: {error}"),
            }
        }
        assert!(dropped > 200 && fits > dropped + 50, "{dropped} {fits}");
    });
}

/// Each exchange that was left out once encoded all the others again.
#[test]
fn a_long_conversation_is_trimmed_in_about_the_time_of_encoding_it() {
    with_model(|model| {
        let exchange = [ChatMessage::new(Role::User, "A cow?"), ChatMessage::new(Role::Assistant, "Moo.")];
        let mut messages = exchange.iter().cycle().take(4000).cloned().collect::<Vec<_>>();
        messages.extend(user("And a dog?"));
        let options = TurnOptions { overflow: OverflowPolicy::TRIM, ..greedy() };
        // The least of three: other programs may run, too.
        let timed = |work: &mut dyn FnMut()| {
            let one = |_| {
                let start = std::time::Instant::now();
                work();
                start.elapsed()
            };
            (0..3).map(one).min().unwrap()
        };
        let encoding = timed(&mut || drop(options.encode(model, &messages).unwrap()));
        let session = SessionState { position: 0, capacity: 512 };
        let trimming = timed(&mut || {
            let mut conversation = Conversation::new();
            conversation.start(model, session, Request::Respond(messages.clone()), &options).unwrap();
            assert!(conversation.usage().dropped_messages > 3800);
        });
        println!("trimming takes {trimming:?}, encoding {encoding:?}");
        // One by one it is a thousand times as long.
        assert!(trimming < 100 * encoding, "{trimming:?} {encoding:?}");
    });
}

#[test]
fn a_shift_keeps_the_template_s_own_system_message() {
    with_model(|qwen| {
        let model = &ChatModel { template: Template::SMOLLM2, ..*qwen };
        let (mut conversation, mut backend) = (Conversation::new(), Script::new(model, 150));
        let options = TurnOptions { overflow: OverflowPolicy::Shift { keep: None }, ..greedy() };
        conversation.start(model, SessionState::of(&backend), Request::Respond(user("?")), &options).unwrap();
        backend.says(model, &LONG.repeat(3));
        assert!(ends(&mut conversation, &mut backend, model).usage.dropped_tokens > 0);
        let mut text = Vec::new();
        backend.held.iter().for_each(|&token| model.tokenizer.append_text(token, &mut text));
        let text = String::from_utf8(text).unwrap();
        let system = Template::SMOLLM2.system.unwrap();
        assert!(text.starts_with(&format!("system\n{system}\nuser\n")), "{text}");
    });
}

/// With all messages at each turn, the tokens of replies that are encoded otherwise than they were chosen.
#[test]
fn a_resumed_conversation_keeps_the_tokens_of_replies() {
    with_model(|model| {
        let options = TurnOptions { stop_strings: vec!["rst".into()], ..greedy() };
        let mut conversations = [(); 3].map(|()| (Conversation::new(), Script::new(model, 500)));
        let mut messages = Vec::new();
        for (i, (text, is_retry)) in
            [("One?", false), ("Two?", false), ("", true), ("Three?", false)].into_iter().enumerate()
        {
            if is_retry {
                messages.pop();
            } else {
                messages.extend(user(text));
            }
            let finishes = [0, 1, 2].map(|way| {
                let (conversation, backend) = &mut conversations[way];
                let (state, all) = (SessionState::of(backend), messages.clone());
                match way {
                    0 => conversation.start(model, state, Request::Resume(all), &options).unwrap(),
                    1 if is_retry => conversation.start(model, state, Request::Retry, &options).unwrap(),
                    1 => conversation.start(model, state, Request::Send(user(text)), &options).unwrap(),
                    _ => conversation.start(model, state, Request::Respond(all), &options).unwrap(),
                };
                backend.says(model, "I am the first of all.");
                ends(conversation, backend, model)
            });
            let [resumed, sent, encoded] = &finishes;
            assert_eq!(resumed, sent, "{text}");
            assert_eq!(conversations[0].0.prefix(), conversations[1].0.prefix());
            assert_eq!(resumed.message, encoded.message);
            if i == 1 {
                // Otherwise this compares nothing.
                assert!(resumed.usage.cached_tokens > encoded.usage.cached_tokens);
            }
            messages.push(resumed.message.clone());
        }
        // Another conversation replaces this one.
        let (conversation, backend) = &mut conversations[0];
        conversation
            .start(model, SessionState::of(backend), Request::Resume(user("Who?")), &options)
            .unwrap();
        backend.says(model, "No one.");
        ends(conversation, backend, model);
        assert_eq!(conversation.messages().len(), 2);
    });
}

#[test]
fn a_turn_that_fails_or_says_nothing_was_not_sent() {
    with_model(|model| {
        let mut conversation = Conversation::new();
        let mut backend = Script::new(model, 500);
        let options = greedy();
        let go = |conversation: &mut Conversation,
                  backend: &mut Script,
                  reply: &str,
                  most: usize,
                  fails: usize| {
            backend.says(model, reply);
            backend.fails = fails;
            let mut n = 0;
            let outcome = run(conversation, backend, model.tokenizer, &mut |_| {
                n += 1;
                if n < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
            backend.fails = usize::MAX;
            assert_eq!(conversation.held(), backend.held.len());
            assert_eq!(conversation.prefix().tokens, backend.held);
            outcome
        };
        let all = usize::MAX;
        conversation.start(model, SessionState::of(&backend), Request::Send(user("One?")), &options).unwrap();
        go(&mut conversation, &mut backend, "First.", all, all).unwrap().unwrap();
        let before = conversation.messages().to_vec();
        assert_eq!(before.len(), 2);

        // In the prompt, in the reply, and before there is text.
        for fails in [0, 3, 30] {
            conversation
                .start(model, SessionState::of(&backend), Request::Send(user("Two?")), &options)
                .unwrap();
            let error = go(&mut conversation, &mut backend, LONG, all, fails).unwrap_err();
            assert_eq!(error.code(), "device");
            assert_eq!(conversation.messages(), before);
        }
        let stop_strings = vec!["First and second".into()];
        let held_back = TurnOptions { stop_strings, ..greedy() };
        conversation
            .start(model, SessionState::of(&backend), Request::Send(user("Two?")), &held_back)
            .unwrap();
        conversation.cancel();
        assert!(go(&mut conversation, &mut backend, LONG, all, all).unwrap().is_some());
        assert_eq!(conversation.messages(), before);
        // Another reply would be to the message before it.
        for request in [Request::Retry, Request::Continue] {
            let session = SessionState::of(&backend);
            let error = conversation.start(model, session, request, &options).unwrap_err();
            assert_eq!(error.code(), "argument");
            assert!(error.to_string().contains("send it again"), "{error}");
        }
        let refused = user(&LONG.repeat(40));
        let error = conversation
            .start(model, SessionState::of(&backend), Request::Send(refused), &options)
            .unwrap_err();
        assert_eq!((error.code(), conversation.messages()), ("context_full", &before[..]));

        // A turn that is cancelled with text keeps the text.
        conversation.start(model, SessionState::of(&backend), Request::Send(user("Two?")), &options).unwrap();
        let finish = go(&mut conversation, &mut backend, "One two three four five", 3, all).unwrap().unwrap();
        assert_eq!(finish.reason, Reason::Cancelled);
        assert!(!finish.text.is_empty() && "One two three four".starts_with(&finish.text), "{}", finish.text);
        assert_eq!(conversation.messages().last().unwrap().content, finish.text);

        // A retry that fails keeps the first reply, and one that succeeds replaces it.
        let messages = conversation.messages().to_vec();
        conversation.start(model, SessionState::of(&backend), Request::Retry, &options).unwrap();
        go(&mut conversation, &mut backend, LONG, all, 5).unwrap_err();
        assert_eq!(conversation.messages(), messages);
        conversation.start(model, SessionState::of(&backend), Request::Retry, &options).unwrap();
        go(&mut conversation, &mut backend, "Second.", all, all).unwrap();
        let texts: Vec<&str> = conversation.messages().iter().map(|m| m.content.as_str()).collect();
        assert_eq!(texts, ["One?", "First.", "Two?", "Second."]);
        let session = SessionState::of(&backend);
        let error = Conversation::new().start(model, session, Request::Retry, &options).unwrap_err();
        assert_eq!(error.code(), "argument");

        // A turn that is abandoned was not sent either, and the next one begins normally.
        conversation
            .start(model, SessionState::of(&backend), Request::Send(user("Three?")), &options)
            .unwrap();
        conversation
            .start(model, SessionState::of(&backend), Request::Send(user("Four?")), &options)
            .unwrap();
        go(&mut conversation, &mut backend, "Fourth.", all, all).unwrap();
        assert_eq!(conversation.messages().len(), 6);
    });
}

#[test]
fn thoughts_end_at_their_budget() {
    with_model(|model| {
        let mut backend = Script::new(model, 500);
        let mut think = |text: &str, thinking: Thinking| {
            let mut conversation = Conversation::new();
            backend.held.clear();
            let options = TurnOptions { thinking, ..greedy() };
            conversation
                .start(model, SessionState::of(&backend), Request::Send(user("?")), &options)
                .unwrap();
            backend.says(model, text);
            let (mut reasoning, mut content, mut tokens, mut forced) = (String::new(), String::new(), 0, 0);
            let finish = run(&mut conversation, &mut backend, model.tokenizer, &mut |piece| {
                reasoning.push_str(piece.reasoning);
                content.push_str(piece.content);
                tokens += piece.tokens.len();
                forced += piece.tokens.len().saturating_sub(1);
                ControlFlow::Continue(())
            });
            let finish = finish.unwrap().unwrap();
            assert_eq!(finish.usage.completion_tokens, tokens);
            assert_eq!(finish.message.content, content);
            assert_eq!(finish.message.reasoning.clone().unwrap_or_default(), reasoning);
            (finish, forced)
        };
        let text = "<think>a b c d</think>\n\nSo.";
        let (finish, forced) = think(text, Thinking::On);
        assert_eq!((finish.text.as_str(), forced), (text, 0));
        assert_eq!(
            (finish.message.reasoning.as_deref(), finish.message.content.as_str()),
            (Some("a b c d"), "So.")
        );
        let mut thoughts = Vec::new();
        model.tokenizer.encode("<think>a b c d", Special::Parse, &mut thoughts);
        assert_eq!(finish.usage.reasoning_tokens, thoughts.len());
        // Each letter is a token.
        let (finish, forced) = think(text, Thinking::Budget(4));
        assert!(forced > 1);
        assert_eq!(finish.usage.reasoning_tokens, 4);
        assert_eq!(finish.message.reasoning.as_deref(), Some("a b"));
        assert!(finish.text.starts_with("<think>a b\n</think>\n\n c d"), "{}", finish.text);
        let (finish, _) = think("So.", Thinking::Budget(3));
        assert_eq!((finish.message.reasoning, finish.usage.reasoning_tokens), (None, 0));
    });
}

/// Thinking models of 2507: the prompt opens the thoughts, whatever the options say.
#[test]
fn replies_of_models_that_always_think_begin_inside_their_thoughts() {
    with_model(|model| {
        let model = &ChatModel { template: Template::QWEN3_THINKING, ..*model };
        let prompt = |options: &TurnOptions| options.encode(model, &user("?")).unwrap();
        for thinking in [Thinking::Off, Thinking::On, Thinking::Budget(0)] {
            let ids = prompt(&TurnOptions { thinking, ..greedy() });
            let mut open = Vec::new();
            model.tokenizer.encode("assistant\n<think>\n", Special::Parse, &mut open);
            assert!(ids.ends_with(&open), "{thinking:?}");
        }
        let mut backend = Script::new(model, 500);
        let mut reply = |text: &str, options: &TurnOptions| {
            let mut conversation = Conversation::new();
            backend.held.clear();
            conversation.start(model, SessionState::of(&backend), Request::Send(user("?")), options).unwrap();
            backend.says(model, text);
            let mut reasoning = String::new();
            let finish = run(&mut conversation, &mut backend, model.tokenizer, &mut |piece| {
                reasoning.push_str(piece.reasoning);
                ControlFlow::Continue(())
            });
            let finish = finish.unwrap().unwrap();
            assert_eq!(finish.message.reasoning.clone().unwrap_or_default(), reasoning);
            (conversation, finish)
        };
        for thinking in [Thinking::Off, Thinking::On] {
            let options = TurnOptions { thinking, ..greedy() };
            let (_, finish) = reply("a b c\n</think>\n\nSo.", &options);
            assert_eq!(finish.message.reasoning.as_deref(), Some("a b c"));
            assert_eq!(finish.message.content, "So.");
            assert!(finish.usage.reasoning_tokens > 0);
        }
        let budget = TurnOptions { thinking: Thinking::Budget(2), ..greedy() };
        let (_, finish) = reply("a b c d", &budget);
        assert!(
            finish.text.starts_with("a\n</think>\n\n") || finish.text.starts_with("a \n</think>\n\n"),
            "{}",
            finish.text
        );
        // The form begins after the thoughts.
        let choice = ResponseFormat::Choice(vec!["yes".into(), "no".into()]);
        let options = TurnOptions { response_format: choice, ..greedy() };
        let (_, finish) = reply("a b</think>\n\nyes", &options);
        assert_eq!(finish.message.reasoning.as_deref(), Some("a b"));
        assert_eq!(finish.message.content, "yes");
        // A reply that was cut off goes on where it was, in its thoughts or after them.
        for (begun, more, reasoning, content) in [
            ("a b", " c</think>\n\nSo.", "a b c", "So."),
            ("a b</think>\n\nSo", " it is.", "a b", "So it is."),
        ] {
            let mut tokens = Vec::new();
            model.tokenizer.encode(begun, Special::Parse, &mut tokens);
            let options = TurnOptions { max_tokens: Some(tokens.len()), ..greedy() };
            let (mut conversation, cut) = reply(begun, &options);
            assert_eq!(cut.reason, Reason::Length);
            let mut whole = Script::new(model, 500);
            for mut again in [None, Some(Conversation::new())] {
                // With the tokens that the model chose, and from the messages alone.
                let conversation = match &mut again {
                    None => &mut conversation,
                    Some(again) => {
                        again.set_messages(vec![user("?").remove(0), cut.message.clone()]);
                        again
                    }
                };
                whole.held.clear();
                let begin = conversation.start(model, SessionState::of(&whole), Request::Continue, &greedy());
                begin.unwrap();
                whole.says(model, more);
                let finish = ends(conversation, &mut whole, model);
                assert_eq!(finish.message.reasoning.as_deref(), Some(reasoning), "{begun}");
                assert_eq!(finish.message.content, content, "{begun}");
            }
        }
    });
}

#[test]
fn calls_come_as_they_are_complete_and_are_part_of_what_follows() {
    with_model(|model| {
        let tool = r#"{"type":"function","function":{"name":"add","parameters":{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}}}"#;
        let mut conversation = Conversation::new();
        let mut backend = Script::new(model, 2000);
        let options = TurnOptions { tools: vec![tool.into()], ..greedy() };
        conversation.start(model, SessionState::of(&backend), Request::Send(user("2?")), &options).unwrap();
        backend.says(
            model,
            "I add.\n\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 12}}\n</tool_call>",
        );
        let mut calls = Vec::new();
        let finish = run(&mut conversation, &mut backend, model.tokenizer, &mut |piece| {
            calls.extend_from_slice(piece.tool_calls);
            ControlFlow::Continue(())
        });
        let message = finish.unwrap().unwrap().message;
        assert_eq!((message.content.as_str(), calls.len()), ("I add.", 1));
        assert_eq!((calls[0].name.as_str(), calls[0].arguments.as_str()), ("add", "{\"a\": 12}"));
        assert_eq!(message.tool_calls, calls);

        // The result follows the model's own tokens.
        let before = backend.held.clone();
        let result = vec![ChatMessage::new(Role::Tool, "14")];
        let held =
            conversation.start(model, SessionState::of(&backend), Request::Send(result), &options).unwrap();
        assert_eq!(held, before.len());
        backend.says(model, "It is 14.");
        assert_eq!(ends(&mut conversation, &mut backend, model).message.content, "It is 14.");
        let roles: Vec<&str> = conversation.messages().iter().map(|m| m.role.name()).collect();
        assert_eq!(roles, ["user", "assistant", "tool", "assistant"]);

        // The instructions describe the tools. Without tools, the conversation is encoded again.
        let held = backend.held.clone();
        conversation
            .start(model, SessionState::of(&backend), Request::Send(user("Thanks.")), &greedy())
            .unwrap();
        backend.says(model, "Welcome.");
        ends(&mut conversation, &mut backend, model);
        assert!(!backend.held.starts_with(&held));
        let mut anew = Conversation::new();
        let mut other = Script::new(model, 2000);
        let mut messages = conversation.messages().to_vec();
        messages.pop();
        anew.start(model, SessionState::of(&other), Request::Respond(messages), &greedy()).unwrap();
        other.says(model, "Welcome.");
        ends(&mut anew, &mut other, model);
        assert_eq!(backend.held, other.held);

        // No tool is offered, whatever was called before.
        let says = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 12}}\n</tool_call>";
        conversation
            .start(model, SessionState::of(&backend), Request::Send(user("And 3?")), &greedy())
            .unwrap();
        backend.says(model, says);
        let message = ends(&mut conversation, &mut backend, model).message;
        assert_eq!((message.content.as_str(), message.tool_calls.len()), (says, 0));

        // In JSON a call is text. The constraint overrides the script.
        let said = "</think> <tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
        let schema = serde_json::json!({ "const": said }).to_string();
        let json = TurnOptions { response_format: ResponseFormat::JsonSchema(schema), ..greedy() };
        conversation.start(model, SessionState::of(&backend), Request::Send(user("?")), &json).unwrap();
        backend.says(model, "No.");
        let finish = ends(&mut conversation, &mut backend, model);
        assert_eq!(serde_json::from_str::<String>(&finish.text).unwrap(), said);
        assert_eq!(finish.message, ChatMessage::new(Role::Assistant, finish.text.clone()));
        // Options of a constraint that change from turn to turn.
        let schema = serde_json::json!({ "const": [1, 2] }).to_string();
        let dense = TurnOptions { response_format: ResponseFormat::JsonSchema(schema), ..json };
        let spaced = TurnOptions { json_whitespace: Whitespace::Allowed, ..dense.clone() };
        for (options, text) in [(&dense, "[1,2]"), (&spaced, "[1, 2]"), (&dense, "[1,2]")] {
            conversation.start(model, SessionState::of(&backend), Request::Send(user("?")), options).unwrap();
            backend.says(model, "No.");
            assert_eq!(ends(&mut conversation, &mut backend, model).text, text);
        }
        // With tools, a reply is a call or has the format, as the model begins it.
        let schema = serde_json::json!({ "type": "object", "properties": { "x": { "const": said } }, "required": ["x"] });
        let response_format = ResponseFormat::JsonSchema(schema.to_string());
        let both = TurnOptions { tools: vec![tool.into()], response_format, ..dense };
        let call = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 12}}\n</tool_call>";
        let json = serde_json::json!({ "x": said }).to_string();
        let required = TurnOptions { tool_choice: ToolChoice::Required, ..both.clone() };
        for (options, says, content, calls) in
            [(&both, call, "", 1), (&both, &json, &json, 0), (&required, call, "", 1)]
        {
            let mut anew = Conversation::new();
            let mut backend = Script::new(model, 2000);
            anew.start(model, SessionState::of(&backend), Request::Send(user("?")), options).unwrap();
            backend.says(model, says);
            let mut streamed = String::new();
            let finish = run(&mut anew, &mut backend, model.tokenizer, &mut |piece| {
                streamed.push_str(piece.content);
                ControlFlow::Continue(())
            });
            let message = finish.unwrap().unwrap().message;
            assert_eq!((message.content.as_str(), message.tool_calls.len()), (content, calls), "{says}");
            assert_eq!(streamed, content);
        }

        // A schema that is not supported is refused as such, also where the prompt does not fit.
        let schema = serde_json::json!({ "type": "object", "maxProperties": 2 }).to_string();
        let refused = TurnOptions { response_format: ResponseFormat::JsonSchema(schema), ..greedy() };
        let (small, mut anew) = (Script::new(model, 4), Conversation::new());
        let error =
            anew.start(model, SessionState::of(&small), Request::Send(user("?")), &refused).unwrap_err();
        assert_eq!(error.code(), "unsupported");
        let error =
            anew.start(model, SessionState::of(&small), Request::Send(user("?")), &greedy()).unwrap_err();
        assert_eq!(error.code(), "context_full");
    });
}

#[test]
fn the_random_sequence_goes_on_or_begins_anew() {
    with_model(|model| {
        let flat = |reseed: bool| {
            let sampler =
                SamplerConfig { seed: 3, temperature: 5.0, top_k: 0, top_p: 1.0, ..SamplerConfig::greedy() };
            let options =
                TurnOptions { sampler, reseed, max_tokens: Some(6), batch: 1000, ..TurnOptions::default() };
            let mut conversation = Conversation::new();
            let mut backend = Script::new(model, 2000);
            let mut say = |retry: bool| {
                let session = SessionState::of(&backend);
                match retry {
                    true => conversation.start(model, session, Request::Retry, &options).unwrap(),
                    false => conversation.start(model, session, Request::Send(user("?")), &options).unwrap(),
                };
                let mut reply = Vec::new();
                let finish = chat::drive(&mut conversation, &mut backend, model.tokenizer, &mut |progress| {
                    if let Progress::Piece(piece) = progress {
                        reply.extend(piece.token);
                    }
                    ControlFlow::Continue(())
                });
                assert!(finish.unwrap().is_some());
                reply
            };
            let (first, again) = (say(false), say(true));
            (first, again)
        };
        let (first, again) = flat(true);
        assert_eq!(first, again);
        let (started, another) = flat(false);
        assert_eq!(started, first);
        assert_ne!(started, another);
    });
}

#[test]
fn penalties_count_the_beginning_of_a_reply_that_goes_on() {
    with_model(|model| {
        for (frequency_penalty, presence_penalty) in [(0.6, 0.0), (0.0, 1.5)] {
            let sampler = SamplerConfig { frequency_penalty, presence_penalty, ..SamplerConfig::greedy() };
            let mut a = Vec::new();
            model.tokenizer.encode("a", Special::Text, &mut a);
            // As many tokens as `parts` say, each part but the first going on.
            let reply = |parts: &[usize]| {
                let (mut conversation, mut backend) = (Conversation::new(), Script::new(model, 500));
                let mut tokens = Vec::new();
                for (i, &most) in parts.iter().enumerate() {
                    let options = TurnOptions { sampler, max_tokens: Some(most), ..greedy() };
                    let session = SessionState::of(&backend);
                    match i {
                        0 => conversation.start(model, session, Request::Send(user("?")), &options).unwrap(),
                        _ => conversation.start(model, session, Request::Continue, &options).unwrap(),
                    };
                    backend.script = a.repeat(20);
                    let finish = run(&mut conversation, &mut backend, model.tokenizer, &mut |piece| {
                        tokens.extend(piece.token);
                        ControlFlow::Continue(())
                    });
                    assert_eq!(finish.unwrap().unwrap().reason, Reason::Length);
                }
                tokens
            };
            let whole = reply(&[4]);
            assert!(whole[0] == a[0] && whole[3] != a[0], "{whole:?}");
            for cut in 1..4 {
                assert_eq!(reply(&[cut, 4 - cut]), whole, "{cut}");
            }
        }
    });
}

/// Models without thoughts may write what looks like some.
#[test]
fn all_text_of_a_reply_goes_on_where_models_have_no_thoughts() {
    with_model(|model| {
        for template in [Template::QWEN3_INSTRUCT, Template::PLAIN] {
            let model = &ChatModel { template, ..*model };
            let said = "<think>b</think>c";
            let messages = [user("?").remove(0), ChatMessage::new(Role::Assistant, said)];
            let options = TurnOptions { continue_final_message: true, ..greedy() };
            let mut text = Vec::new();
            for token in options.encode(model, &messages).unwrap() {
                model.tokenizer.append_text(token, &mut text);
            }
            let text = String::from_utf8(text).unwrap();
            assert!(text.ends_with(&format!("assistant\n{said}")), "{text}");
        }
    });
}

#[test]
fn drive_does_what_a_host_would() {
    with_model(|model| {
        let mut conversation = Conversation::new();
        let mut backend = Script::new(model, 600);
        let options = TurnOptions { max_tokens: Some(3), batch: 8, ..greedy() };
        let session = SessionState::of(&backend);
        conversation.start(model, session, Request::Send(user(LONG)), &options).unwrap();
        let (mut prompt, mut pieces) = (Vec::new(), 0);
        let finish = chat::drive(&mut conversation, &mut backend, model.tokenizer, &mut |progress| {
            match progress {
                Progress::Prompt(decoded, of) => prompt.push((decoded, of)),
                Progress::Piece(_) => pieces += 1,
            }
            ControlFlow::Continue(())
        });
        let finish = finish.unwrap().unwrap();
        assert_eq!((finish.reason, pieces, finish.usage.completion_tokens), (Reason::Length, 3, 3));
        assert_eq!(prompt.len(), finish.usage.prompt_tokens.div_ceil(8) - 1);
        assert_eq!(prompt[0], (8, finish.usage.prompt_tokens));
        assert_eq!(conversation.messages().len(), 2);
        // A raw text takes the session, and leaves the messages.
        let text = vec![64, 65, 66];
        assert_eq!(
            conversation.start(model, SessionState::of(&backend), Request::Complete(text), &options),
            Ok(0)
        );
        let finish = chat::drive(&mut conversation, &mut backend, model.tokenizer, &mut |progress| {
            if let Progress::Piece(piece) = progress {
                assert_eq!(piece.content, piece.text);
            }
            ControlFlow::Break(())
        });
        assert_eq!(finish.unwrap().unwrap().reason, Reason::Cancelled);
        assert_eq!((conversation.messages().len(), backend.held.len()), (2, 3));
        // Generations report the same events.
        let sampler = Sampler::new(&SamplerConfig::greedy(), model.logits).unwrap();
        let options = GenerationOptions { max_tokens: 2, ..GenerationOptions::default() };
        let mut generation = Generation::new(&[64, 65], 0, 10, sampler, options).unwrap();
        backend.held.clear();
        let mut tokens = 0;
        let reason = generate::drive(&mut generation, &mut backend, model.tokenizer, &mut |event| {
            tokens += usize::from(matches!(event, Event::Token(_)));
            ControlFlow::Continue(())
        });
        assert_eq!((reason, tokens), (Ok(Reason::Length), 2));
    });
}
