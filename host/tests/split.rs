//! Models split among ranks give what one device gives: the same bits, except where sums of floats are added in another
//! order.

use shohin::core::chat::{ChatMessage, Event, Prompt, Role, TurnOptions};
use shohin::core::model::Split;
use shohin::core::{Format, KvFormat};
use shohin::{Activations, Builder, Model, ModelFile, Sequence};
use shohin_tests::device::{error, tokens};
use shohin_tests::model::{Model as File, Shape, Stored};

fn builder() -> Builder {
    Model::builder().cpu().threads(2).context(256)
}

fn split(text: &str) -> Split {
    text.parse().unwrap()
}

/// Several kinds of weights, and eight heads that share four keys.
fn file(formats: &[Format]) -> ModelFile {
    let shape = Shape { heads: 8, kv_heads: 4, layers: 3, context: 300, ..Shape::tiny() };
    let formats = formats.iter().copied().map(Stored::new).collect();
    let model = File { formats, ..File::new(shape, Stored::new(Format::Q1_0), 3) };
    ModelFile::from_bytes("model", &model.to_vec().unwrap()).unwrap()
}

fn all_logits(sequence: &mut Sequence, tokens: &[u32]) -> Vec<f32> {
    let mut all = Vec::new();
    sequence.logits(tokens, &mut |_, row| all.extend_from_slice(row)).unwrap();
    all
}

#[test]
fn logits_are_those_of_one_device() {
    let tokens = tokens(150, 320);
    for (formats, act) in [
        (&[Format::Q1_0][..], Activations::Int8),
        (&[Format::Q4_0, Format::Q8_0, Format::F16][..], Activations::Int8),
        (&[Format::Pq2_0][..], Activations::F32),
    ] {
        let file = file(formats);
        let load = |builder: Builder| builder.activations(act).load_file(&file).unwrap();
        let one = load(builder());
        let mut sequence = one.sequence(200).unwrap();
        let want = all_logits(&mut sequence, &tokens);
        let next = sequence.feed(&[5]).unwrap().to_vec();
        for way in ["tensor:2", "tensor:4", "pipeline:2", "pipeline:3", "tensor-reduce:2", "tensor-reduce:4"]
        {
            let model = load(builder().split(split(way)));
            assert_eq!(model.split(), Some(split(way)));
            let mut sequence = model.sequence(200).unwrap();
            let got = [all_logits(&mut sequence, &tokens), sequence.feed(&[5]).unwrap().to_vec()];
            // Sums in another order; where inputs of products are rounded to integers, some become another one.
            let allowed = if act == Activations::F32 { 1e-4 } else { 0.05 };
            for (got, want) in got.iter().zip([&want, &next]) {
                let error = error(got, want);
                let same = if way.contains("reduce") { error < allowed } else { got == want };
                assert!(same, "{formats:?}, {way}: {error}");
            }
        }
    }
}

/// Chosen tokens, hidden states, keys that move, and keys and values that go on elsewhere.
#[test]
fn sequences_do_all_that_they_do_on_one_device() {
    let (file, tokens) = (file(&[Format::Q1_0]), tokens(90, 320));
    for kv in [KvFormat::F16, KvFormat::Q4] {
        let one = builder().kv(kv).load_file(&file).unwrap();
        let run = |model: &Model| {
            let mut sequence = model.sequence(120).unwrap();
            let mut best = vec![0; tokens.len()];
            sequence.verify(&tokens, &mut best).unwrap();
            let mut exported = Vec::new();
            sequence.export(&mut exported).unwrap();
            assert_eq!(exported.len(), sequence.export_len());
            sequence.shift(3, 40).unwrap();
            assert_eq!(sequence.position(), 50);
            let mut hidden = Vec::new();
            sequence.hidden(&[1, 2, 3], &mut |_, state| hidden.extend_from_slice(state)).unwrap();
            (best, exported, hidden)
        };
        let want = run(&one);
        for way in ["tensor:4", "pipeline:2"] {
            let model = builder().kv(kv).split(split(way)).load_file(&file).unwrap();
            assert!(run(&model) == want, "{kv:?}, {way}");
            // Keys and values of one device go on in a split model.
            let mut sequence = model.sequence(130).unwrap();
            sequence.import(&tokens, &want.1).unwrap();
            let mut other = one.sequence(110).unwrap();
            other.import(&tokens, &want.1).unwrap();
            assert_eq!(sequence.feed(&[7]).unwrap(), other.feed(&[7]).unwrap(), "{kv:?}, {way}");
        }
    }
}

/// The built-in model's replies, one after the other and several at once.
#[test]
fn replies_are_those_of_one_device() {
    let one = Model::builder().cpu().load_built_in().unwrap();
    let reply = |model: &Model| {
        let mut chat = model.chat().unwrap();
        chat.options_mut().max_tokens = Some(24);
        chat.send("What does a cow say?").unwrap().map(|piece| piece.unwrap().text).collect::<String>()
    };
    let replies = |model: &Model| {
        let mut scheduler = model.scheduler(2, 32).unwrap();
        let options = TurnOptions { max_tokens: Some(12), ..TurnOptions::default() };
        for text in ["Tell me a story.", "What does a cow say?"] {
            let messages = vec![ChatMessage::new(Role::User, text)];
            scheduler.begin(Prompt::Messages(messages), &options).unwrap();
        }
        let mut said = String::new();
        let mut events = |id, event: Event<'_>| {
            if let Event::Piece(piece) = event {
                said.push_str(&format!("{id:?}{}", piece.text));
            }
        };
        while scheduler.step(&mut |_| true, &mut events).unwrap() {}
        said
    };
    for way in ["tensor:2", "pipeline:2"] {
        let model = Model::builder().split(split(way)).load_built_in().unwrap();
        assert_eq!(reply(&model), reply(&one), "{way}");
        assert_eq!(replies(&model), replies(&one), "{way}");
    }
}

#[test]
fn splits_that_do_not_fit_are_refused_by_name() {
    for (format, way, problem) in [
        (Format::Q1_0, "tensor:8", "key-value heads"),
        (Format::Q1_0, "pipeline:4", "stages of the pipeline"),
        (Format::Q4K, "tensor-reduce:4", "boundaries of blocks"),
    ] {
        let error = builder().split(split(way)).load_file(&file(&[format])).unwrap_err().to_string();
        assert!(error.contains(problem), "{way}: {error}");
    }
    for wrong in ["tensor", "tensor:0", "tensor:x", "pipeline:65", "data:2"] {
        assert!(wrong.parse::<Split>().is_err(), "{wrong}");
    }
    let experts = File::new(Shape::tiny_experts(), Stored::new(Format::Q8_0), 3).to_vec().unwrap();
    let experts = ModelFile::from_bytes("experts", &experts).unwrap();
    let error = builder().split(split("tensor:2")).load_file(&experts).unwrap_err().to_string();
    assert!(error.contains("mixture of experts"), "{error}");
    // A pipeline divides them.
    let all = |builder: Builder| {
        let model = builder.load_file(&experts).unwrap();
        all_logits(&mut model.sequence(20).unwrap(), &tokens(9, 320))
    };
    assert_eq!(all(builder().split(split("pipeline:2"))), all(builder()));
}
