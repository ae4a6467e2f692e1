//! The library's public API, with the built-in model.

use serde_json::Value;
use shohin::core::Format;
use shohin::core::chat::{OverflowPolicy, ResponseFormat, Role};
use shohin::core::device::ScratchOptions;
use shohin::core::generate::Reason;
use shohin::core::gguf::{GgufWriter, Id42, ReadOptions, TensorType};
use shohin::core::model::Pooling;
use shohin::speculate::{Guesses, Speculation};
use shohin::{Chat, ChatMessage, Error, KvFormat, Model, ModelFile, Reply, SamplerConfig, Step, TurnOptions};
use std::fs;

const COW: &str = "What does a cow say?";

fn greedy(chat: &mut Chat) -> &mut Chat {
    chat.options_mut().sampler = SamplerConfig::greedy();
    chat
}

fn text(reply: Reply<'_>) -> String {
    reply.map(|piece| piece.unwrap().text).collect()
}

/// Replies of the trainer's own PyTorch model, greedily and in full precision.
fn trainer() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/sprout.expected.json");
    serde_json::from_slice::<Value>(&fs::read(path).unwrap()).unwrap()["models"]["sprout.gguf"].clone()
}

#[test]
fn the_ten_lines_of_the_readme() -> shohin::Result<()> {
    let model = Model::load(concat!(env!("CARGO_MANIFEST_DIR"), "/../models/sprout.gguf"))?;
    let mut chat = model.chat()?;
    let mut said = String::new();
    for piece in chat.send(COW)? {
        said += &piece?.text;
    }
    assert!(!said.is_empty());
    Ok(())
}

#[test]
fn guesses_change_no_reply() {
    let draft = Model::load(concat!(env!("CARGO_MANIFEST_DIR"), "/../models/sprout-nano.gguf")).unwrap();
    let story = "Tell me a story about a cat. The cat is red. The cat is red. The cat is";
    let mut all = [Guesses::default(); 2];
    for context in [48, 512] {
        let model = Model::builder().context(context).load_built_in().unwrap();
        for seed in 0..6 {
            let replies = |speculation: Option<Speculation>| {
                let mut chat = model.chat().unwrap();
                if let Some(speculation) = speculation {
                    chat.speculate(&speculation).unwrap();
                }
                chat.options_mut().sampler = match seed {
                    0 => SamplerConfig::greedy(),
                    seed => SamplerConfig { seed, ..SamplerConfig::default() },
                };
                chat.options_mut().logprobs = Some(2);
                chat.options_mut().overflow = OverflowPolicy::Shift { keep: None };
                chat.options_mut().max_tokens = Some(90);
                let mut pieces = Vec::new();
                for text in [COW, story, COW, COW] {
                    pieces.extend(chat.send(text).unwrap().map(Result::unwrap));
                }
                pieces.extend(chat.retry().unwrap().map(Result::unwrap));
                let snapshot = chat.snapshot().unwrap();
                // Known tokens are guessed from, too.
                chat.restore(&snapshot).unwrap();
                pieces.extend(chat.send(COW).unwrap().map(Result::unwrap));
                (pieces, snapshot, chat.guesses())
            };
            let (want, snapshot, none) = replies(None);
            assert_eq!(none.checked, 0);
            let both = [Speculation::PromptLookup, Speculation::Draft(draft.clone())];
            for (speculation, all) in both.into_iter().zip(&mut all) {
                let (pieces, again, guesses) = replies(Some(speculation));
                assert_eq!(pieces, want);
                // Also the keys and values, to the bit.
                assert_eq!(again, snapshot);
                all.checked += guesses.checked;
                all.right += guesses.right;
            }
        }
    }
    for Guesses { checked, right } in all {
        assert!(right > 10 && right < checked, "{all:?}");
    }
}

#[test]
fn a_conversation_goes_on_from_its_snapshot() {
    let model = Model::built_in().unwrap();
    let mut chat = model.chat().unwrap();
    text(greedy(&mut chat).send("My name is Zoe.").unwrap());
    let snapshot = chat.snapshot().unwrap();
    let messages = chat.messages().to_vec();
    let want = text(chat.send("What is my name?").unwrap());

    let mut other = model.chat().unwrap();
    text(greedy(&mut other).send(COW).unwrap());
    other.restore(&snapshot).unwrap();
    assert_eq!(other.messages(), messages);
    let mut reply = other.send("What is my name?").unwrap();
    // The token that ended the last reply was not computed.
    let usage = reply.usage();
    assert!(usage.cached_tokens + 20 > usage.prompt_tokens, "{usage:?}");
    assert_eq!(text(reply), want);

    // What is refused changes nothing.
    let said = other.messages().to_vec();
    for at in (0..snapshot.len()).step_by(snapshot.len() / 50) {
        let mut changed = snapshot.clone();
        changed[at] ^= 4;
        let refused = other.restore(&changed).unwrap_err().to_string();
        assert!(refused.starts_with("the snapshot is "), "{refused}");
        assert!(other.restore(&snapshot[..at]).is_err());
    }
    assert_eq!(other.messages(), said);
    let mut small = Model::builder().context(16).load_built_in().unwrap().chat().unwrap();
    assert!(matches!(small.restore(&snapshot), Err(Error::Engine(shohin::core::Error::ContextFull { .. }))));
    let mut f32 = Model::builder().kv(KvFormat::F32).load_built_in().unwrap().chat().unwrap();
    let refused = f32.restore(&snapshot).unwrap_err().to_string();
    assert_eq!(refused, "the snapshot is of another format of the KV cache");

    // Files of another model: with more tokens than fit here, and longer than any of this model.
    let dir = tempfile::TempDir::new().unwrap();
    let path = dir.path().join("session");
    let mut foreign = snapshot.clone();
    foreign[8..40].fill(0x5a);
    let mut many = foreign.clone();
    many[56..60].copy_from_slice(&100_000_u32.to_le_bytes());
    foreign.resize(snapshot.len() * 100, 0);
    for bytes in [many, foreign] {
        fs::write(&path, bytes).unwrap();
        let refused = other.open(&path).unwrap_err().to_string();
        assert!(refused.ends_with("the snapshot is of another model"), "{refused}");
    }
}

/// Replies whose text is encoded otherwise than the model wrote it.
#[test]
fn the_tokens_of_replies_are_restored_with_a_snapshot() {
    let model = Model::built_in().unwrap();
    let mut differ = 0;
    for seed in 0..20 {
        let mut chat = model.chat().unwrap();
        chat.options_mut().sampler = SamplerConfig {
            temperature: 3.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed,
            ..SamplerConfig::default()
        };
        chat.options_mut().max_tokens = Some(12);
        chat.options_mut().stop_strings = vec!["a".into()];
        for message in ["My name is Zoe.", COW] {
            text(chat.send(message).unwrap());
        }
        let snapshot = chat.snapshot().unwrap();
        let mut restored = model.chat().unwrap();
        restored.restore(&snapshot).unwrap();
        assert_eq!(restored.snapshot().unwrap(), snapshot);
        let mut again = model.chat().unwrap();
        again.restore(&snapshot).unwrap();
        again.set_messages(chat.messages().to_vec());
        for chat in [&mut chat, &mut restored, &mut again] {
            *chat.options_mut() = TurnOptions { max_tokens: Some(12), ..TurnOptions::default() };
            greedy(chat);
        }
        let send = |chat: &mut Chat, message| {
            let mut reply = chat.send(message).unwrap();
            (reply.usage(), text(reply))
        };
        let (want, from_text) = (send(&mut chat, "Who are you?"), send(&mut again, "Who are you?"));
        differ += usize::from(want.0.cached_tokens > from_text.0.cached_tokens);
        assert_eq!(send(&mut restored, "Who are you?"), want, "seed {seed}");
        let retry = |chat: &mut Chat| {
            let mut reply = chat.retry().unwrap();
            (reply.usage(), text(reply))
        };
        assert_eq!(retry(&mut restored), retry(&mut chat), "seed {seed}");
    }
    assert!(differ > 3, "{differ}");
}

#[test]
fn greedy_replies_are_those_of_the_trainer() {
    let builder = Model::builder().activations(shohin::Activations::F32).kv(KvFormat::F32).cpu();
    let model = builder.load_built_in().unwrap();
    let mut compared = 0;
    for expected in trainer()["chats"].as_array().unwrap() {
        let messages = expected["messages"].as_array().unwrap();
        if expected["smallest_margin"].as_f64().unwrap() < 1e-3 || expected["stopped_by"].is_null() {
            continue;
        }
        let mut chat = model.chat().unwrap();
        let messages = messages.iter().map(|m| {
            let role = if m["role"] == "user" {
                shohin::core::chat::Role::User
            } else {
                shohin::core::chat::Role::Assistant
            };
            ChatMessage::new(role, m["content"].as_str().unwrap())
        });
        let reply = greedy(&mut chat).send_messages(messages.collect()).unwrap();
        let finish = reply.finish().unwrap();
        assert_eq!(finish.text, expected["text"].as_str().unwrap());
        assert_eq!(finish.usage.prompt_tokens, expected["prompt_ids"].as_array().unwrap().len());
        compared += 1;
    }
    assert!(compared >= 2, "{compared}");
}

#[test]
fn one_model_runs_many_chats_on_many_threads() {
    let model = Model::builder().threads(2).cpu().load_built_in().unwrap();
    let alone = text(greedy(&mut model.chat().unwrap()).send(COW).unwrap());
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let model = model.clone();
            std::thread::spawn(move || {
                let mut chat = model.chat().unwrap();
                let first = text(greedy(&mut chat).send(COW).unwrap());
                let held = chat.position();
                let second = chat.send("Hello!").unwrap();
                assert_eq!(second.timings().cached, held, "only the new turn is computed");
                drop(second);
                first
            })
        })
        .collect();
    for thread in threads {
        assert_eq!(thread.join().unwrap(), alone);
    }
    // Types that do not support this would not compile.
    fn shared<T: Clone + Send + Sync>(_: &T) {}
    fn sent<T: Send>(_: &T) {}
    shared(&model);
    sent(&model.chat().unwrap());
}

#[test]
fn a_reply_that_is_dropped_or_cancelled_leaves_what_was_made() {
    let model = Model::built_in().unwrap();
    let mut chat = model.chat().unwrap();
    let begun: String = greedy(&mut chat)
        .send("Tell me a story.")
        .unwrap()
        .take(4)
        .map(|piece| piece.unwrap().text)
        .collect();
    let said = &chat.messages().last().unwrap().content;
    assert!(said.starts_with(begun.trim_end()) && chat.messages().len() == 2, "{said:?} after {begun:?}");
    let mut reply = chat.retry().unwrap();
    let mut pieces = 0;
    while let Some(step) = reply.step() {
        if let Step::Piece(_) = step.unwrap() {
            pieces += 1;
        }
        if pieces == 3 {
            let _ = reply.cancel();
        }
    }
    assert_eq!(reply.finished().unwrap().reason, Reason::Cancelled);
    drop(reply);
    // The conversation continues.
    assert!(!text(chat.send(COW).unwrap()).is_empty());
    assert_eq!(chat.messages().len(), 4);
}

#[test]
fn a_reply_that_was_cut_off_is_continued() {
    let model = Model::built_in().unwrap();
    let begin = |format: &ResponseFormat| {
        let mut chat = model.chat().unwrap();
        greedy(&mut chat).options_mut().response_format = format.clone();
        chat
    };
    let json = ResponseFormat::JsonSchema(
        r#"{"type":"object","properties":{"animal":{"enum":["cow","cat"]},"legs":{"const":4}},"required":["animal","legs"]}"#
            .into(),
    );
    for (format, message) in [(ResponseFormat::Text, "Tell me a story about a cat."), (json, COW)] {
        let mut chat = begin(&format);
        let whole = chat.send(message).unwrap().finish().unwrap();
        let next = text(chat.send("Thank you!").unwrap());
        let tokens = whole.usage.completion_tokens;
        assert!(tokens > 5, "{tokens}");
        for cut in 1..tokens.min(12) {
            let mut chat = begin(&format);
            chat.send(message).unwrap().take(cut).for_each(drop);
            let begun = chat.messages()[1].content.clone();
            // In the same conversation, and in another that knows only its messages.
            let mut other = begin(&format);
            other.set_messages(chat.messages().to_vec());
            for chat in [&mut chat, &mut other] {
                let mut reply = chat.continue_reply().unwrap();
                let added: String = reply.by_ref().map(|piece| piece.unwrap().content).collect();
                let finish = reply.finished().unwrap();
                assert_eq!(finish.reason, Reason::Stop);
                assert_eq!(finish.message.content, format!("{begun}{added}"));
                assert_eq!(finish.text, finish.message.content);
            }
            assert_eq!(chat.messages()[1], whole.message, "cut after {cut} tokens: {begun:?}");
            assert_eq!(text(chat.send("Thank you!").unwrap()), next);
        }
    }
    let mut chat = begin(&ResponseFormat::Text);
    let error = chat.continue_reply().unwrap_err().to_string();
    assert!(error.contains("continue_final_message") && error.contains("a reply"), "{error}");
    // A reply that the schema rules out.
    chat.set_messages(vec![ChatMessage::new(Role::User, COW), ChatMessage::new(Role::Assistant, "Moo")]);
    chat.options_mut().response_format = ResponseFormat::JsonObject;
    let error = chat.continue_reply().unwrap_err().to_string();
    assert!(error.contains("requested format"), "{error}");
    assert_eq!(chat.messages().len(), 2);
}

#[test]
fn plain_text_is_continued() {
    let model = Model::built_in().unwrap();
    let options =
        TurnOptions { sampler: SamplerConfig::greedy(), max_tokens: Some(12), ..TurnOptions::default() };
    let start = "Once upon a time, there was a";
    let finish = model.generate(start, options.clone()).unwrap().finish().unwrap();
    assert_eq!((finish.reason, finish.usage.completion_tokens), (Reason::Length, 12));
    // The same token by token, from the logits.
    let mut tokens = model.tokenize(start);
    let before = tokens.len();
    let mut sequence = model.sequence(64).unwrap();
    let mut logits = sequence.feed(&tokens).unwrap().to_vec();
    for _ in 0..12 {
        let mut best = 0;
        for (token, logit) in logits.iter().enumerate() {
            if *logit > logits[best] {
                best = token;
            }
        }
        tokens.push(best as u32);
        logits = sequence.feed(&[best as u32]).unwrap().to_vec();
    }
    assert_eq!(model.detokenize(&tokens[before..]).unwrap(), finish.text);
    // One pass of verification predicts the generated tokens.
    let mut expected = vec![0; tokens.len() - 1];
    sequence.truncate(0).unwrap();
    sequence.verify(&tokens[..tokens.len() - 1], &mut expected).unwrap();
    assert_eq!(expected[before - 1..], tokens[before..]);
}

#[test]
fn embeddings_have_length_one_and_like_texts_are_near() {
    let model = Model::built_in().unwrap();
    let texts = ["The fox ran home.", "The fox ran back home.", "5 plus 3 is 8."];
    let all: Vec<Vec<f32>> =
        model.embeddings(&texts, Pooling::Mean, true).unwrap().map(Result::unwrap).collect();
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    assert!(all.iter().all(|e| (dot(e, e) - 1.0).abs() < 1e-4));
    assert!(dot(&all[0], &all[1]) > dot(&all[0], &all[2]));
    assert_eq!(model.embed(texts[2]).unwrap(), all[2]);
    let tokens = texts.map(|text| model.tokenize(text)).to_vec();
    let of_tokens = model.token_embeddings(tokens, Pooling::Mean, true).unwrap();
    assert_eq!(of_tokens.map(Result::unwrap).collect::<Vec<_>>(), all);
    let unknown = model.token_embeddings(vec![vec![1], vec![u32::MAX]], Pooling::Mean, true);
    assert!(unknown.is_err_and(|error| error.to_string().starts_with("token 4294967295 is not in")));
    assert!(matches!(model.embed(""), Err(Error::EmptyText { number: 1 })));
    let long = "a fox ".repeat(20_000);
    assert!(matches!(model.embed(&long), Err(Error::LongText { number: 1, .. })));
}

/// The built-in model with LongRoPE, whose frequencies are others in contexts of over 64 tokens.
fn long_rope() -> ModelFile {
    let file = ModelFile::built_in();
    let bytes = file.gguf(&ReadOptions::default()).unwrap().part_bytes()[0].to_vec();
    ModelFile::from_bytes("long-rope.gguf", &shohin_tests::long_rope::long_rope(&bytes, 64, 256).unwrap())
        .unwrap()
}

#[test]
fn a_sequence_longer_than_the_context_has_no_frequencies_of_a_shorter_one() {
    let file = long_rope();
    let load = |context| Model::builder().cpu().context(context).load_file(&file).unwrap();
    let tokens: Vec<u32> = (0..65).map(|i| 7 * i % 300).collect();
    let logits = |model: &Model, len: usize| {
        let mut all = Vec::new();
        model.logits(&tokens[..len], &mut |_, row| all.extend_from_slice(row)).unwrap();
        all
    };
    let [short, least, long] = [16, 65, 256].map(load);
    // Those of up to 64 tokens are the same.
    let want = logits(&short, 64);
    assert_eq!(want, logits(&load(64), 64));
    assert_ne!(want, logits(&long, 64));
    assert_eq!(logits(&least, 65), logits(&long, 65));

    let check = |refused: shohin::Result<()>| {
        let message = refused.unwrap_err().to_string();
        assert!(message.starts_with("context is \"16\", expected at least 65, as long as"), "{message}");
    };
    check(short.logits(&tokens, &mut |_, _| ()));
    check(short.sequence(65).map(drop));
    check(short.filled_sequence(65).map(drop));
    check(short.token_embeddings(vec![vec![1], tokens.clone()], Pooling::Mean, true).map(drop));
    // Those of a text are in a sequence whose length is a power of two.
    let mut embeddings = short.token_embeddings(vec![tokens[..64].to_vec()], Pooling::Mean, true).unwrap();
    assert!(embeddings.next().unwrap().is_ok());
}

#[test]
fn a_snapshot_is_of_the_layout_of_type_42() {
    let built_in = ModelFile::built_in();
    let gguf = built_in.gguf(&ReadOptions::default()).unwrap();
    let mut w = GgufWriter::new();
    gguf.metadata().iter().for_each(|(key, value)| w.set(key, value).unwrap());
    let mut found = 0;
    for tensor in gguf.tensors() {
        let kind = *TensorType::of(tensor.type_id()).unwrap();
        let groups = tensor.format() == Some(Format::Pq2_0);
        found += u32::from(groups);
        let kind = if groups { TensorType { id: 42, ..kind } } else { kind };
        w.tensor_of(tensor.name(), tensor.dims(), &kind).unwrap();
    }
    assert!(found > 0);
    let bytes = w.to_vec(gguf.tensors().iter().map(|tensor| gguf.data(tensor))).unwrap();
    let file = ModelFile::from_bytes("type-42.gguf", &bytes).unwrap();
    let chat = |id42| Model::builder().cpu().id42(id42).load_file(&file).unwrap().chat().unwrap();
    let mut auto = chat(Id42::Auto);
    text(greedy(&mut auto).send(COW).unwrap());
    let snapshot = auto.snapshot().unwrap();
    chat(Id42::Group128).restore(&snapshot).unwrap();
    let refused = chat(Id42::CodesFirst).restore(&snapshot).unwrap_err().to_string();
    assert_eq!(refused, "the snapshot is of another model");
}

#[test]
fn errors_say_what_was_expected_and_what_was_found() {
    let message = |result: shohin::Result<Model>| result.unwrap_err().to_string();
    let load = |path: &str| message(Model::load(path));
    assert_eq!(load("absent.gguf"), "cannot open the model absent.gguf: No such file or directory");
    let folder = if cfg!(feature = "convert") { "a folder without config.json" } else { "a directory" };
    let refused = load(env!("CARGO_MANIFEST_DIR"));
    assert!(
        refused.starts_with(&format!("{} is {folder}, expected a GGUF file", env!("CARGO_MANIFEST_DIR")))
    );
    let toml = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    assert!(load(toml).starts_with(&format!("{toml}: ")), "{}", load(toml));
    assert!(load("https://example.org/a.gguf").contains("curl -LO https://example.org/a.gguf"));
    assert!(
        message(Model::builder().isa("abacus").load_built_in())
            .starts_with("isa is \"abacus\", expected one this machine has: ")
    );
    assert!(message(Model::builder().rope_base(0.0).load_built_in()).contains("rope.freq_base is 0"));
    #[cfg(not(feature = "gpu"))]
    assert!(message(Model::builder().gpu("").load_built_in()).contains("--features gpu"));
    let mut chat = Model::builder().context(16).load_built_in().unwrap().chat().unwrap();
    let error = chat.send("far too long ".repeat(30)).unwrap_err();
    assert!(matches!(error, Error::Engine(shohin::core::Error::ContextFull { capacity: 16, .. })), "{error}");
}

#[test]
fn an_inspected_model_takes_as_much_memory_as_a_loaded_one() {
    use shohin::core::Format;
    let path = std::env::temp_dir().join(format!("shohin-inspected-{}.gguf", std::process::id()));
    for format in [Format::Q1_0, Format::Ptq1_0, Format::Tq1_0, Format::Pq2_0, Format::Q4_0] {
        fs::write(&path, shohin_tests::model::Model::tiny(format)).unwrap();
        for compact in [false, true] {
            let builder = Model::builder().cpu().compact(compact);
            let memory = |model: Model| (model.weight_bytes(), model.memory_plan(100).unwrap());
            let loaded = memory(builder.load(&path).unwrap());
            let inspected = memory(builder.clone().inspect_only().load(&path).unwrap());
            assert_eq!(inspected, loaded, "{format:?}, compact: {compact}");
        }
    }
    fs::remove_file(&path).unwrap();
}

#[test]
fn bytes_behind_the_last_tensor_are_not_read() {
    use shohin::core::Format;
    let path = std::env::temp_dir().join(format!("shohin-tail-{}.gguf", std::process::id()));
    for format in [Format::Q1_0, Format::Ptq1_0, Format::Q2_0, Format::Pq2_0] {
        let bytes = shohin_tests::model::Model::tiny(format);
        fs::write(&path, &bytes).unwrap();
        let memory = |model: Model| (model.weight_bytes(), model.memory_plan(100).unwrap());
        let load = || memory(Model::builder().cpu().load(&path).unwrap());
        let without = load();
        // The tail is a hole in the file.
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(bytes.len() as u64 + (1 << 30)).unwrap();
        assert_eq!(load(), without, "{format:?}");
        let inspected = Model::builder().cpu().inspect_only().load(&path).unwrap();
        assert_eq!(memory(inspected), without, "{format:?}");
    }
    fs::remove_file(&path).unwrap();
}

#[test]
fn a_batch_is_clamped_to_the_context_before_it_is_checked() {
    let model = Model::built_in().unwrap();
    let fitted = |context, batch| {
        ScratchOptions { context, batch, ..ScratchOptions::default() }.fitted(model.config())
    };
    assert_eq!(fitted(100, 5000).unwrap().batch, 100);
    assert_eq!(fitted(100, 0).unwrap_err().code(), "option");
    assert!(model.config().max_context_length < 4096, "no batch of this model is too large");
}
