//! Sequences of a split model that lose a rank.

use super::*;
use crate::source::Source;
use crate::split::{Group, SplitWeights};
use crate::{Chat, Model, ModelFile, SamplerConfig};
use shohin_core::CpuOptions;
use std::sync::{Arc, Mutex, Weak};

const CONTEXT: usize = 256;

fn model() -> Model {
    Model::builder().cpu().threads(1).context(CONTEXT).load_built_in().unwrap()
}

/// Loses the ranks of the newest group.
#[derive(Clone, Default)]
struct Fault(Arc<Mutex<Vec<Weak<dyn Group>>>>);

impl Fault {
    fn strike(&self) {
        let group = self.0.lock().unwrap().last().unwrap().upgrade().unwrap();
        // No rank knows this order: those after the first end.
        while group.order("leave").is_ok() {
            std::thread::yield_now();
        }
    }

    fn groups(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

/// An empty sequence of `model`, split.
fn sequence(model: &Model, way: &str, fault: &Fault) -> Sequence {
    let (fault, config, session) = (fault.clone(), model.config(), model.session_options(CONTEXT));
    let options = CpuOptions { context: CONTEXT, logit_rows: 4, ..CpuOptions::default() };
    let (file, split) = (ModelFile::built_in(), way.parse().unwrap());
    let source = Source::read(&file, Default::default(), |_| Ok(config.clone()), &[]).unwrap();
    let weights = SplitWeights::load(&source, split, &options, 2).unwrap();
    let open = move || {
        let device = weights.device(&options)?;
        fault.0.lock().unwrap().push(Arc::downgrade(device.group.as_ref().unwrap()));
        let mut device = HostDevice::Split(device);
        let session = device.session(&session)?;
        Ok((device, session))
    };
    Sequence::recovering(open).unwrap()
}

#[test]
fn every_call_goes_on_with_a_new_group() {
    let model = model();
    let tokens: Vec<u32> = (0..90).map(|i| i * 31 % 2048).collect();
    /// All that a sequence computes, and `before` each call.
    fn all(sequence: &mut Sequence, tokens: &[u32], before: &dyn Fn()) -> (Vec<f32>, Vec<u32>, Vec<u8>) {
        let (mut numbers, mut best, mut bytes) = (Vec::new(), vec![0; 5], Vec::new());
        numbers.extend_from_slice(sequence.feed(&tokens[..70]).unwrap());
        before();
        numbers.extend_from_slice(sequence.feed(&tokens[70..]).unwrap());
        sequence.truncate(40).unwrap();
        before();
        sequence.verify(&tokens[..5], &mut best).unwrap();
        before();
        sequence.logits(&tokens[3..9], &mut |_, row| numbers.extend_from_slice(row)).unwrap();
        before();
        sequence.hidden(&tokens[3..9], &mut |_, row| numbers.extend_from_slice(row)).unwrap();
        before();
        sequence.export(&mut bytes).unwrap();
        before();
        let held = [&tokens[..40], &tokens[..5], &tokens[3..9], &tokens[3..9]].concat();
        sequence.import(&held, &bytes).unwrap();
        before();
        sequence.shift(3, 20).unwrap();
        numbers.extend_from_slice(sequence.feed(&[7]).unwrap());
        assert_eq!(sequence.position(), 38);
        (numbers, best, bytes)
    }
    let want = all(&mut model.sequence(CONTEXT).unwrap(), &tokens, &|| ());
    for way in ["tensor:2", "pipeline:3"] {
        let fault = Fault::default();
        let mut split = sequence(&model, way, &fault);
        assert!(all(&mut split, &tokens, &|| fault.strike()) == want, "{way}");
        assert_eq!((split.recoveries(), fault.groups()), (7, 8), "{way}");
    }
}

#[test]
fn a_reply_goes_on_where_it_was() {
    let model = model();
    let fault = Fault::default();
    let talk = |mut chat: Chat, fault: &dyn Fn()| {
        chat.options_mut().sampler = SamplerConfig { seed: 5, ..SamplerConfig::default() };
        let mut said = String::new();
        for text in ["Tell me a story.", "And then?"] {
            let mut reply = chat.send(text).unwrap();
            for piece in 0..30 {
                if piece == 3 {
                    fault();
                }
                said.extend(reply.next().map(|piece| piece.unwrap().text));
            }
        }
        (said, chat.recoveries())
    };
    let (want, none) = talk(Chat::over(&model, model.sequence(CONTEXT).unwrap()), &|| ());
    let split = sequence(&model, "tensor:2", &fault);
    let (said, recoveries) = talk(Chat::over(&model, split), &|| fault.strike());
    assert_eq!((said, none, recoveries), (want, 0, 2));
}

#[test]
fn a_group_that_is_lost_at_once_is_an_error() {
    let (model, fault) = (model(), Fault::default());
    let mut split = sequence(&model, "tensor:2", &fault);
    split.feed(&[1, 2, 3]).unwrap();
    let open = std::mem::replace(&mut split.recovery.as_mut().unwrap().open, Box::new(|| Err(lost().into())));
    fault.strike();
    assert_eq!(split.feed(&[4]).map(drop), Err(lost()));
    // Its tokens are still known.
    split.recovery.as_mut().unwrap().open = open;
    split.feed(&[4]).unwrap();
    assert_eq!((split.position(), split.recoveries()), (4, 1));
}
