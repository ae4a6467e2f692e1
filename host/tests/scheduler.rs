//! Several replies at once have the same bits as one after the other.

use shohin::core::chat::{Event, Finish, Prompt, ReplyId, ResponseFormat, Role};
use shohin::{ChatMessage, Model, Scheduler, TurnOptions};
use std::collections::BTreeMap;

fn model() -> Model {
    Model::builder().context(512).load_built_in().unwrap()
}

fn ask(text: &str) -> Vec<ChatMessage> {
    vec![ChatMessage::new(Role::User, text)]
}

/// Options that differ in what is computed of the logits.
fn options(i: usize) -> TurnOptions {
    let mut options = TurnOptions { max_tokens: Some(12 + i), ..TurnOptions::default() };
    options.sampler.seed = i as u64;
    match i % 4 {
        0 => options.sampler.temperature = 0.0,
        1 => options.logprobs = Some(3),
        2 => options.response_format = ResponseFormat::JsonSchema(r#"{"type":"integer"}"#.into()),
        _ => options.sampler.repetition_penalty = 1.1,
    }
    options
}

fn alone(model: &Model, messages: Vec<ChatMessage>, options: &TurnOptions) -> Finish {
    let mut chat = model.chat().unwrap();
    let (last, before) = messages.split_last().unwrap();
    chat.set_messages(before.to_vec());
    *chat.options_mut() = options.clone();
    chat.send_messages(vec![last.clone()]).unwrap().finish().unwrap()
}

/// Computes all replies in progress; the texts of their pieces and their ends.
fn finish(scheduler: &mut Scheduler) -> BTreeMap<ReplyId, (String, Finish)> {
    let mut texts: BTreeMap<ReplyId, String> = BTreeMap::new();
    let mut ends = BTreeMap::new();
    let mut events = |id, event: Event<'_>| match event {
        Event::Piece(piece) => texts.entry(id).or_default().push_str(piece.text),
        Event::End(finish) => assert!(ends.insert(id, finish).is_none()),
        Event::Failed(error) => panic!("{error}"),
    };
    while scheduler.step(&mut |_| true, &mut events).unwrap() {}
    ends.into_iter().map(|(id, end)| (id, (texts.remove(&id).unwrap_or_default(), end))).collect()
}

#[test]
fn replies_have_the_same_bits_as_alone() {
    let model = model();
    let texts = [
        "Hello!",
        "Tell me a story about a fox and a hen.",
        "What does a cow say?",
        "How many legs has a dog?",
    ];
    let texts: Vec<String> =
        (0..8).map(|i| format!("{} {}", texts[i % 4], "Please. ".repeat(5 * i))).collect();
    // With room for all prompts in a step, and for parts of one.
    for prompt_tokens in [512, 7] {
        let mut scheduler = model.scheduler(8, prompt_tokens).unwrap();
        let begin =
            |(i, text): (usize, &String)| scheduler.begin(Prompt::Messages(ask(text)), &options(i)).unwrap();
        let ids: Vec<ReplyId> = texts.iter().enumerate().map(begin).collect();
        assert!(scheduler.is_full());
        let full = scheduler.begin(Prompt::Messages(ask("?")), &options(0)).unwrap_err();
        assert!(full.to_string().contains('8'), "{full}");
        let ends = finish(&mut scheduler);
        for (i, id) in ids.iter().enumerate() {
            let want = alone(&model, ask(&texts[i]), &options(i));
            let (text, end) = &ends[id];
            assert_eq!((&end.message, end.reason), (&want.message, want.reason), "reply {i}");
            assert_eq!(text, &end.text);
        }
    }
}

#[test]
fn known_tokens_are_not_computed_again() {
    let model = model();
    let mut scheduler = model.scheduler(2, 64).unwrap();
    let mut messages = vec![ChatMessage::new(Role::System, "You are kind. ".repeat(20))];
    messages.extend(ask("Hello!"));
    let mut reply = |messages: &[ChatMessage]| {
        let id = scheduler.begin(Prompt::Messages(messages.to_vec()), &options(0)).unwrap();
        let (_, end) = finish(&mut scheduler).remove(&id).unwrap();
        assert_eq!(end.message, alone(&model, messages.to_vec(), &options(0)).message);
        (end.usage.cached_tokens, end.usage.prompt_tokens, end.message)
    };
    let (cached, prompt, answer) = reply(&messages);
    assert_eq!(cached, 0);
    // Other questions after the same instructions: what is before them is copied.
    let other = [messages[0].clone(), ask("What does a cow say?").remove(0)];
    let (cached, _, _) = reply(&other);
    assert!(cached + 16 > prompt && cached < prompt, "{cached} of {prompt}");
    // The first conversation goes on where it ended.
    messages.extend([answer, ask("And a dog?").remove(0)]);
    let (cached, _, _) = reply(&messages);
    assert!(cached + 8 > prompt, "{cached} of {prompt}");
    // A third one takes the place of the one that was not used for longest.
    assert!(reply(&ask("Tell me a story.")).0 < 16);
}

#[test]
fn a_reply_in_progress_shares_its_prompt() {
    let model = model();
    let mut scheduler = model.scheduler(2, 64).unwrap();
    let system = ChatMessage::new(Role::System, "You are kind. ".repeat(20));
    let first = [system.clone(), ask("Hello!").remove(0)];
    let second = [system, ask("What does a cow say?").remove(0)];
    scheduler.begin(Prompt::Messages(first.to_vec()), &options(0)).unwrap();
    for _ in 0..4 {
        scheduler.step(&mut |_| true, &mut |_, _| ()).unwrap();
    }
    let id = scheduler.begin(Prompt::Messages(second.to_vec()), &options(0)).unwrap();
    let ends = finish(&mut scheduler);
    assert_eq!(ends.len(), 2);
    let end = &ends[&id].1;
    assert!(end.usage.cached_tokens + 16 > end.usage.prompt_tokens, "{:?}", end.usage);
    assert_eq!(end.message, alone(&model, second.to_vec(), &options(0)).message);
}

#[test]
fn replies_wait_end_early_and_leave_the_others_alone() {
    let model = model();
    let mut scheduler = model.scheduler(3, 64).unwrap();
    let mut begin = |text| scheduler.begin(Prompt::Messages(ask(text)), &options(0)).unwrap();
    let [waits, goes_on, ends] = ["Hello!", "Tell me a story.", "What does a cow say?"].map(&mut begin);
    let mut pieces = BTreeMap::new();
    for _ in 0..4 {
        let count = |id, event: Event<'_>| {
            if let Event::Piece(piece) = event {
                *pieces.entry(id).or_insert(0) += piece.tokens.len();
            }
        };
        scheduler.step(&mut |id| id != waits, &mut { count }).unwrap();
    }
    assert_eq!((pieces.get(&waits), pieces.get(&goes_on)), (None, Some(&4)));
    let cut = scheduler.cancel(ends).unwrap();
    assert_eq!(cut.usage.completion_tokens, 4);
    assert!(scheduler.cancel(ends).is_none());
    assert_eq!(scheduler.replies().len(), 2);
    let rest = finish(&mut scheduler);
    assert_eq!(rest[&waits].1.message, alone(&model, ask("Hello!"), &options(0)).message);
    assert_eq!(rest[&goes_on].1.message, alone(&model, ask("Tell me a story."), &options(0)).message);
    // A prompt that does not fit, and one of text alone.
    assert!(scheduler.begin(Prompt::Messages(ask(&"too long ".repeat(600))), &options(0)).is_err());
    let id = scheduler.begin(Prompt::Tokens(model.tokenize("Once upon a")), &options(0)).unwrap();
    let want = model.generate("Once upon a", options(0)).unwrap().finish().unwrap();
    assert_eq!(finish(&mut scheduler)[&id].1.text, want.text);
    assert!(
        model.scheduler(0, 1).is_err() && model.scheduler(1, 0).is_err() && model.scheduler(65, 1).is_err()
    );
}

/// Bytes of the pages of a session with `tokens`, of which there are 128 in each.
fn pages(model: &Model, tokens: usize) -> usize {
    let c = model.config();
    tokens.div_ceil(128) * 128 * 2 * 2 * c.num_layers * c.kv_size()
}

#[test]
fn conversations_hold_what_they_have_in_common_once() {
    let model = model();
    let system = ChatMessage::new(Role::System, "You are kind. ".repeat(61));
    let prompts: Vec<Vec<ChatMessage>> = (0..6)
        .map(|i| vec![system.clone(), ask(&format!("What do you say to {i} cows?")).remove(0)])
        .collect();
    let mut scheduler = model.scheduler(2, 64).unwrap();
    scheduler.set_cache_bytes(Some(usize::MAX));
    let reply = |scheduler: &mut Scheduler, messages: &[ChatMessage]| {
        let id = scheduler.begin(Prompt::Messages(messages.to_vec()), &options(0)).unwrap();
        let (_, end) = finish(scheduler).remove(&id).unwrap();
        assert_eq!(end.message, alone(&model, messages.to_vec(), &options(0)).message);
        end.usage
    };
    let first = reply(&mut scheduler, &prompts[0]);
    let (prompt, all) = (first.prompt_tokens, first.prompt_tokens + first.completion_tokens);
    assert!(prompt > 260 && all < 384, "{first:?}");
    assert_eq!(scheduler.cache_bytes(), pages(&model, all));
    for (i, messages) in prompts.iter().enumerate().skip(1) {
        let usage = reply(&mut scheduler, messages);
        assert!(usage.cached_tokens + 40 > usage.prompt_tokens, "{usage:?}");
        // Each has its last page of three only.
        assert_eq!(scheduler.cache_bytes(), pages(&model, all) + i * pages(&model, 1));
    }
    // Every one of them goes on, though there are only two places.
    for messages in &prompts {
        assert!(reply(&mut scheduler, messages).cached_tokens + 1 >= prompt - 2);
    }
    assert!(scheduler.held_tokens() > 6 * 260);

    // With room for four pages the oldest are given up, and with none all.
    scheduler.set_cache_bytes(Some(pages(&model, 4 * 128)));
    assert_eq!(scheduler.cache_bytes(), pages(&model, 4 * 128));
    assert!(reply(&mut scheduler, &prompts[5]).cached_tokens + 1 >= prompt - 2);
    assert!(reply(&mut scheduler, &prompts[0]).cached_tokens + 40 > prompt);
    scheduler.set_cache_bytes(Some(0));
    assert_eq!((scheduler.cache_bytes(), scheduler.held_tokens()), (0, 0));
    assert_eq!(reply(&mut scheduler, &prompts[0]).cached_tokens, 0);
    assert_eq!(scheduler.cache_bytes(), 0);
}

/// A step takes what its room leaves of the next prompt, too.
#[test]
fn prompts_fill_steps() {
    let model = model();
    let mut scheduler = model.scheduler(3, 64).unwrap();
    let options = TurnOptions { max_tokens: Some(1), ..options(0) };
    for word in ["One. ", "Two. ", "Six. "] {
        scheduler.begin(Prompt::Messages(ask(&word.repeat(14))), &options).unwrap();
    }
    let (mut steps, mut tokens) = (0, Vec::new());
    let mut events = |_, event: Event<'_>| {
        if let Event::End(finish) = event {
            assert_eq!(finish.usage.cached_tokens, 0);
            tokens.push(finish.usage.prompt_tokens);
        }
    };
    while scheduler.step(&mut |_| true, &mut events).unwrap() {
        steps += 1;
    }
    assert!(tokens.len() == 3 && tokens.iter().all(|n| (33..64).contains(n)), "{tokens:?}");
    assert_eq!(steps, tokens.iter().sum::<usize>().div_ceil(64));
}

#[test]
fn counters_say_what_prompts_share_and_priorities_which_comes_first() {
    let model = model();
    let mut scheduler = model.scheduler(2, 16).unwrap();
    let estimate = scheduler.peak_memory_estimate().unwrap();
    let long = ChatMessage::new(Role::System, "You are kind. ".repeat(20));
    let messages = |text: &str| [long.clone(), ask(text).remove(0)].to_vec();
    let begin = |scheduler: &mut Scheduler, text: &str| {
        scheduler.begin(Prompt::Messages(messages(text)), &options(0)).unwrap()
    };
    // Each needs several steps of 16 tokens for its prompt alone: which of them is first ends first.
    for priority in [0, 1] {
        let texts = ["Hello!", "What does a cow say?"].map(|text| format!("{priority} {text}"));
        let [first, second] = [&texts[0], &texts[1]].map(|text| {
            // Other beginnings, so that none is shared.
            let prompt =
                vec![ChatMessage::new(Role::System, format!("{text} ").repeat(12)), ask(text).remove(0)];
            scheduler.begin(Prompt::Messages(prompt), &options(0)).unwrap()
        });
        assert!(scheduler.set_priority(second, priority));
        let mut started = Vec::new();
        let mut events = |id, event: Event<'_>| {
            if matches!(event, Event::Piece(_)) && !started.contains(&id) {
                started.push(id);
            }
        };
        while scheduler.step(&mut |_| true, &mut events).unwrap() {}
        assert_eq!(started, if priority == 0 { [first, second] } else { [second, first] });
        assert!(!scheduler.set_priority(second, 1));
    }
    let before = scheduler.prefix_cache_stats();
    assert_eq!((before.prompts, before.kept, before.evicted), (4, 4, 0));
    scheduler.set_cache_bytes(Some(0));
    let before = scheduler.prefix_cache_stats();
    assert_eq!((before.kept, before.evicted), (0, 4));
    scheduler.set_cache_bytes(None);
    let mut usage = (0, 0);
    for text in ["Hello!", "And a dog?"] {
        let id = begin(&mut scheduler, text);
        let (_, end) = finish(&mut scheduler).remove(&id).unwrap();
        usage = (usage.0 + end.usage.prompt_tokens as u64, usage.1 + end.usage.cached_tokens as u64);
    }
    let after = scheduler.prefix_cache_stats();
    assert_eq!(after.prompts, 6);
    assert_eq!(after.prompt_tokens - before.prompt_tokens, usage.0);
    assert_eq!(after.reused_tokens - before.reused_tokens, usage.1);
    assert!(after.hits > before.hits && usage.1 > 40, "{after:?}");
    // The estimate counts full contexts, weights and a step.
    let held = scheduler.cache_bytes() + model.weight_bytes();
    assert!(estimate > held as u64, "{estimate} {held}");
    let session = model.memory_plan(512).unwrap().session;
    assert!(estimate >= (model.weight_bytes() + 2 * session) as u64);
}
