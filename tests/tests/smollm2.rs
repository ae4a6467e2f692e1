//! SmolLM2-135M-Instruct, a trained model, against llama.cpp and Hugging Face (`oracle/smollm2.py`). Skipped
//! if its file is absent.
#![cfg(not(target_family = "wasm"))]

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::Value;
use shohin_core::chat::{self, ChatOptions, Message, Role, Template};
use shohin_core::constrain::Constraint;
use shohin_core::generate::{Event, Generation, GenerationOptions, drive};
use shohin_core::gguf::GgufWriter;
use shohin_core::sample::log_sum_exp;
use shohin_core::session::Decoder;
use shohin_core::tokenizer::Special;
use shohin_core::{
    BonsaiModel, Cpu, CpuOptions, Format, Gguf, KvFormat, Sampler, SamplerConfig, Serial, Session,
    SessionOptions, Tokenizer,
};
use shohin_tests::cpu::{all_logits, exact, in_format, repacked};
use shohin_tests::smollm2;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/smollm2").join(name)
}

fn json(name: &str) -> Value {
    serde_json::from_slice(&fs::read(fixture(name)).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn texts_become_the_ids_of_hugging_face_and_llama_cpp() {
    let Some(file) = smollm2() else { return };
    let t = Tokenizer::from_gguf(&Gguf::parse(&file).unwrap()).unwrap();
    let (exact, llama) = (json("exact.json"), json("llama.json"));
    let texts = exact["texts"].as_array().unwrap();
    assert!(texts.len() > 250);
    // Control characters and bytes of unassigned planes that have no token in the vocabulary.
    let lacks = |c: char| {
        matches!(c, '\x04' | '\x06' | '\x13' | '\x14' | '\x16' | '\x1d' | '\u{40000}'..='\u{bffff}')
    };
    for (case, theirs) in texts.iter().zip(llama["texts"].as_array().unwrap()) {
        let text = case["text"].as_str().unwrap();
        for (special, kind) in [(Special::Text, "plain"), (Special::Parse, "parse")] {
            let mut got = Vec::new();
            t.encode(text, special, &mut got);
            assert_eq!(got, ids(&case[kind]), "{kind} {text:?}");
            // llama.cpp differs if a byte without a token prevented its neighbours from merging.
            assert!(theirs.get(kind).is_none() || text.contains(lacks), "{kind} {text:?}");
            if !text.contains(lacks) {
                let bytes: Vec<u8> = got.iter().flat_map(|id| t.token_bytes(*id).unwrap()).collect();
                assert_eq!(String::from_utf8(bytes).as_deref(), Ok(text));
            }
        }
    }
    let mut passage = Vec::new();
    t.encode(exact["passage"].as_str().unwrap(), Special::Text, &mut passage);
    assert_eq!(passage, ids(&exact["ids"]));
}

#[test]
fn conversations_become_the_ids_of_transformers() {
    let Some(file) = smollm2() else { return };
    let gguf = Gguf::parse(&file).unwrap();
    let t = Tokenizer::from_gguf(&gguf).unwrap();
    assert_eq!(t.leading_bos(), None);
    assert_eq!(t.eos(), t.added_id("<|im_end|>"));
    assert!(!t.is_end(t.bos().unwrap()));
    let template = Template::from_metadata(gguf.metadata(), &t).unwrap();
    assert_eq!(template, Template::SMOLLM2);
    for chat in json("exact.json")["chats"].as_array().unwrap() {
        let options = ChatOptions { template, ..ChatOptions::default() };
        assert_eq!(chat::encode(&t, &messages(chat), &options).unwrap(), ids(&chat["prompt"]));
    }
}

/// The messages of a chat of `exact.json`, alternating between the user and the model.
fn messages(chat: &Value) -> Vec<Message<'_>> {
    let roles = [Role::User, Role::Assistant].into_iter().cycle();
    let contents = chat["messages"].as_array().unwrap();
    roles.zip(contents).map(|(role, content)| Message::new(role, content.as_str().unwrap())).collect()
}

/// The f64 results of transformers for the passage of `exact.json`.
struct Exact {
    ids: Vec<u32>,
    /// Positions with known logits.
    positions: Vec<usize>,
    /// Those logits.
    logits: Vec<Vec<f32>>,
    /// The loss of each of `ids` but the first, in nats.
    losses: Vec<f64>,
}

impl Exact {
    /// Several tests compare with them.
    fn get(file: &[u8]) -> &'static Exact {
        static EXACT: OnceLock<Exact> = OnceLock::new();
        EXACT.get_or_init(|| Exact::read(file))
    }

    fn read(file: &[u8]) -> Exact {
        let json = json("exact.json");
        let positions: Vec<usize> =
            json["positions"].as_array().unwrap().iter().map(|p| p.as_u64().unwrap() as usize).collect();
        // The fixture contains the inputs of the head, which is the embedding, as the file stores it.
        let gguf = Gguf::parse(file).unwrap();
        let head = gguf.matrix("token_embd.weight").unwrap();
        let states: Vec<f32> = fs::read(fixture("exact.hidden"))
            .unwrap()
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect();
        assert_eq!(states.len(), positions.len() * head.cols());
        let mut logits = vec![Vec::with_capacity(head.rows()); positions.len()];
        let mut weights = vec![0.0; head.cols()];
        for row in 0..head.rows() {
            head.unpack_row(row, &mut weights).unwrap();
            for (state, logits) in states.chunks_exact(head.cols()).zip(&mut logits) {
                let dot: f64 = state.iter().zip(&weights).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
                logits.push(dot as f32);
            }
        }
        for (top, logits) in json["top"].as_array().unwrap().iter().zip(&logits) {
            for (id, want) in ids(&top["ids"]).iter().zip(top["logits"].as_array().unwrap()) {
                let got = f64::from(logits[*id as usize]);
                assert!((got - want.as_f64().unwrap()).abs() < 1e-5, "{got} {want}");
            }
        }
        let losses = floats(&json["losses"]);
        Exact { ids: ids(&json["ids"]), positions, logits, losses }
    }

    /// The largest error of `got`, the logits after every token; and the root mean square.
    fn compare(&self, got: &[f32]) -> (f64, f64) {
        let vocab = self.logits[0].len();
        let got = self.positions.iter().map(|p| &got[p * vocab..][..vocab]);
        errors(got.flatten(), self.logits.iter().flatten())
    }
}

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

/// The largest difference, and the root mean square.
fn errors<'x>(got: impl Iterator<Item = &'x f32>, want: impl Iterator<Item = &'x f32>) -> (f64, f64) {
    let (mut worst, mut sum, mut count) = (0.0f64, 0.0, 0);
    for (got, want) in got.zip(want) {
        let error = f64::from(*got) - f64::from(*want);
        assert!(error.is_finite());
        worst = worst.max(error.abs());
        sum += error * error;
        count += 1;
    }
    (worst, (sum / f64::from(count)).sqrt())
}

/// The loss of each token but the first from the logits after every token.
fn losses(logits: &[f32], ids: &[u32]) -> Vec<f64> {
    let vocab = logits.len() / ids.len();
    logits
        .chunks_exact(vocab)
        .zip(&ids[1..])
        .map(|(row, next)| log_sum_exp(row) - f64::from(row[*next as usize]))
        .collect()
}

fn perplexity(losses: &[f64]) -> f64 {
    (losses.iter().sum::<f64>() / losses.len() as f64).exp()
}

/// A device that computes the logits of many tokens together, which does not change them.
fn quick(file: &[u8], options: CpuOptions) -> Cpu<'static, Vec<u8>> {
    repacked(file, &CpuOptions { logit_rows: options.batch, ..options }).unwrap()
}

/// The file with every weight as the f32 that it means, for which there are kernels that do not unpack.
fn as_f32(file: &[u8]) -> Vec<u8> {
    let gguf = Gguf::parse(file).unwrap();
    let mut writer = GgufWriter::new();
    for (key, value) in gguf.metadata().iter() {
        writer.set(key, value).unwrap();
    }
    for tensor in gguf.tensors() {
        writer.tensor(tensor.name(), tensor.dims(), Format::F32).unwrap();
    }
    let tensors = gguf.tensors().iter().map(|tensor| {
        if tensor.format() == Some(Format::F32) {
            return gguf.data(tensor).to_vec();
        }
        let matrix = gguf.matrix(tensor.name()).unwrap();
        let mut bytes = vec![0; matrix.rows() * matrix.cols() * size_of::<f32>()];
        let mut row = vec![0.0; matrix.cols()];
        let rows = bytes.as_chunks_mut().0.chunks_exact_mut(matrix.cols());
        for (at, bytes) in rows.enumerate() {
            matrix.unpack_row(at, &mut row).unwrap();
            bytes.iter_mut().zip(&row).for_each(|(bytes, weight)| *bytes = f32::to_le_bytes(*weight));
        }
        bytes
    });
    writer.to_vec(tensors).unwrap()
}

/// Our logits for the passage where only f32 arithmetic rounds.
fn passage(file: &[u8]) -> &'static [f32] {
    static LOGITS: OnceLock<Vec<f32>> = OnceLock::new();
    LOGITS.get_or_init(|| {
        let mut device = quick(file, exact());
        all_logits(&mut device, &Exact::get(file).ids, &in_format(KvFormat::F32)).unwrap()
    })
}

#[test]
fn logits_are_those_of_transformers() {
    let Some(file) = smollm2() else { return };
    let (want, got) = (Exact::get(&file), passage(&file));
    let (worst, rms) = want.compare(got);
    println!("exact: worst {worst}, rms {rms}");
    assert!(worst < 1e-3, "{worst}");
    for (got, want) in losses(got, &want.ids).iter().zip(&want.losses) {
        assert!((got - want).abs() < 1e-3, "{got} {want}");
    }
}

#[test]
fn int8_activations_are_as_near_as_llama_cpp() {
    let Some(file) = smollm2() else { return };
    let want = Exact::get(&file);
    let llama = json("llama.json");
    let mut device = quick(&file, CpuOptions::default());
    let got = all_logits(&mut device, &want.ids, &SessionOptions::default()).unwrap();
    let (_, rms) = want.compare(&got);

    // llama.cpp's logits, which differ from the exact ones by 0.2 because of its int8 activations.
    let unit = llama["noise_unit"].as_f64().unwrap() as f32;
    let noise = fs::read(fixture("llama.noise")).unwrap();
    let vocab = want.logits[0].len();
    let known = llama["noise_positions"].as_u64().unwrap() as usize;
    assert_eq!(noise.len(), known * vocab);
    let theirs: Vec<f32> = noise
        .iter()
        .zip(want.logits.iter().flatten())
        .map(|(noise, exact)| exact + f32::from(noise.cast_signed()) * unit)
        .collect();
    let ours: Vec<f32> =
        want.positions[..known].iter().flat_map(|p| &got[p * vocab..][..vocab]).copied().collect();
    let (_, apart) = errors(ours.iter(), theirs.iter());
    let (_, away) = errors(theirs.iter(), want.logits.iter().flatten());
    println!("rms: ours {rms}, theirs {away}, from each other {apart}");
    assert!((0.15..0.25).contains(&away), "{away}");
    assert!(rms < 0.25, "{rms}");
    assert!(apart < 0.35, "{apart}");

    let (ours, theirs) = (losses(&got, &want.ids), floats(&llama["losses"]));
    let [ours, theirs, exact] = [&ours, &theirs, &want.losses].map(|losses| perplexity(losses));
    println!("perplexity: exact {exact}, ours {ours}, theirs {theirs}");
    assert!((theirs / exact - 1.0).abs() < 0.03, "{theirs} {exact}");
    assert!((ours / exact - 1.0).abs() < 0.03, "{ours} {exact}");
}

#[test]
fn caches_cost_little_perplexity() {
    let Some(file) = smollm2() else { return };
    let want = Exact::get(&file);
    let options = CpuOptions { logit_rows: exact().batch, ..exact() };
    let model = BonsaiModel::load(as_f32(&file)).unwrap();
    let mut device = Cpu::repacked(model, &options, Serial).unwrap();
    let exact = perplexity(&want.losses);
    for kv in KvFormat::ALL {
        let bound = match kv {
            KvFormat::F32 => 1e-4,
            KvFormat::F16 => 1e-3,
            KvFormat::Q8 => 1e-2,
            KvFormat::Q4 => 0.03,
            KvFormat::Fp8E4M3 => 0.1,
            KvFormat::Fp8E5M2 => 0.2,
        };
        let got = all_logits(&mut device, &want.ids, &in_format(kv)).unwrap();
        // To the bit what the weights of the file give.
        assert!(kv != KvFormat::F32 || got == passage(&file));
        let (worst, rms) = want.compare(&got);
        let got = perplexity(&losses(&got, &want.ids));
        println!("{}: perplexity {got} ({exact} exact), logits {rms} rms, {worst} at worst", kv.name());
        assert!((got / exact - 1.0).abs() < bound, "{} {got} {exact}", kv.name());
    }
}

/// The greedy reply of a chat of `exact.json`: its tokens and text.
fn reply(
    device: &mut Cpu<'_, Vec<u8>>,
    tokenizer: &Tokenizer<'_>,
    chat: &Value,
    kv: KvFormat,
) -> (Vec<u32>, String) {
    answer(device, tokenizer, (&messages(chat), None), &SamplerConfig::greedy(), kv)
}

/// The tokens and the text of a reply to messages, which satisfies the constraint.
fn answer(
    device: &mut Cpu<'_, Vec<u8>>,
    tokenizer: &Tokenizer<'_>,
    (messages, constraint): (&[Message<'_>], Option<Constraint>),
    sampler: &SamplerConfig,
    kv: KvFormat,
) -> (Vec<u32>, String) {
    let options = ChatOptions { template: Template::SMOLLM2, ..ChatOptions::default() };
    let prompt = chat::encode(tokenizer, messages, &options).unwrap();
    let mut session = Session::new(device, &in_format(kv)).unwrap();
    let sampler = Sampler::new(sampler, tokenizer.vocab_size()).unwrap();
    let limits = GenerationOptions { max_tokens: 40, ..GenerationOptions::default() };
    let mut generation = Generation::new(&prompt, 0, session.capacity(), sampler, limits).unwrap();
    if let Some(constraint) = constraint {
        generation.constrain(constraint);
    }
    let mut text = String::new();
    drive(&mut generation, &mut Decoder { device, session: &mut session }, tokenizer, &mut |event| {
        if let Event::Token(token) = event {
            text += token.text;
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    (generation.reply().to_vec(), text)
}

/// The reply of transformers, without the token that ends it.
fn said(chat: &Value) -> Vec<u32> {
    let mut said = ids(&chat["ids"]);
    assert_eq!(said.pop(), Some(2), "a reply that ends");
    said
}

#[test]
fn greedy_replies_are_those_of_transformers() {
    let Some(file) = smollm2() else { return };
    let chats = json("exact.json")["chats"].clone();
    let gguf = Gguf::parse(&file).unwrap();
    let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
    let mut device = repacked(&file, &exact()).unwrap();
    for chat in chats.as_array().unwrap() {
        let (tokens, text) = reply(&mut device, &tokenizer, chat, KvFormat::F32);
        assert_eq!(text, chat["text"].as_str().unwrap());
        assert_eq!(tokens, said(chat));
    }
    // int8 activations may choose another token only if it is nearly as likely.
    let mut device = repacked(&file, &CpuOptions::default()).unwrap();
    for chat in chats.as_array().unwrap() {
        let (tokens, text) = reply(&mut device, &tokenizer, chat, KvFormat::F16);
        let want = said(chat);
        println!("{text}");
        if let Some(at) = tokens.iter().zip(&want).position(|(got, want)| got != want) {
            let margin = chat["margins"][at].as_f64().unwrap();
            assert!(margin < 1.0, "token {at} of {text:?} differs, of which the model is sure: {margin}");
        } else {
            assert_eq!(tokens.len(), want.len());
        }
    }
}

/// Its vocabulary lacks bytes of UTF-8 that no assigned character needs.
#[cfg(feature = "json-schema")]
#[test]
fn replies_have_the_form_that_is_asked_for() {
    use shohin_core::constrain::{Grammar, Vocabulary, Whitespace};
    use std::sync::Arc;
    let Some(file) = smollm2() else { return };
    let gguf = Gguf::parse(&file).unwrap();
    let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
    let vocabulary = Arc::new(Vocabulary::new(&tokenizer));
    let mut device = repacked(&file, &CpuOptions::default()).unwrap();
    let hot = SamplerConfig { temperature: 2.0, top_k: 0, top_p: 1.0, seed: 7, ..SamplerConfig::bonsai() };
    let mut ask = |text: &str, grammar: &Grammar, sampler: &SamplerConfig| {
        let constraint = Constraint::new(grammar.clone(), vocabulary.clone()).unwrap();
        let asked = ([Message::new(Role::User, text)], Some(constraint));
        answer(&mut device, &tokenizer, (&asked.0, asked.1), sampler, KvFormat::F16).1
    };
    for (text, schema) in [
        (
            "Describe a cow as JSON.",
            r#"{"type":"object","properties":{"name":{"type":"string","maxLength":12},"legs":{"type":"integer","minimum":0,"maximum":8},"sound":{"enum":["moo","meow"]}},"required":["name","legs","sound"],"additionalProperties":false}"#,
        ),
        (
            "Name three colours in Greek.",
            r#"{"type":"array","items":{"type":"string","pattern":"^[^ -~]{2,6}$"},"minItems":1,"maxItems":3}"#,
        ),
        ("Say anything at all.", r#"{"type":"object"}"#),
    ] {
        let grammar = Grammar::json_schema(schema, Whitespace::None).unwrap();
        let validator = jsonschema::validator_for(&serde_json::from_str(schema).unwrap()).unwrap();
        for sampler in [SamplerConfig::greedy(), hot] {
            let reply = ask(text, &grammar, &sampler);
            let value = serde_json::from_str(&reply).unwrap_or_else(|error| panic!("{reply}: {error}"));
            assert!(validator.is_valid(&value), "{reply}");
            println!("{reply}");
        }
    }
    // U+40000 begins with a byte that the vocabulary lacks.
    let choices = Grammar::choices(&["\u{40000}", "four", "forty\u{40000}"]).unwrap();
    assert_eq!(ask("How many legs has a cow?", &choices, &hot), "four");
    let unwritable = Grammar::choices(&["\u{40000}", "forty\u{40000}"]).unwrap();
    let error = Constraint::new(unwritable, vocabulary.clone()).unwrap_err().to_string();
    assert!(error.starts_with("vocabulary is \"without byte 0xF1\""), "{error}");
    let date = ask("When did Armstrong land on the moon?", &Grammar::regex(r"\d{4}-[01]\d").unwrap(), &hot);
    assert!(date.len() == 7 && date.as_bytes()[4] == b'-', "{date}");
    let list = Grammar::gbnf("root ::= (\"- \" [^\\n]{1,9} \"\\n\"){2}").unwrap();
    let list = ask("List two animals.", &list, &hot);
    assert!(list.lines().count() == 2 && list.lines().all(|line| line.starts_with("- ")), "{list:?}");
}
