//! A sequence that goes on with a new group when a rank is lost.

use super::{CpuRank, SplitDevice, lost};
use crate::error;
use crate::sequence::{OnDevice, Sequence};
use shohin_core::Result;
use shohin_core::device::Readout;
use shohin_core::generate::Backend;

type Open = dyn Fn() -> error::Result<OnDevice<SplitDevice<CpuRank>>> + Send;

/// A sequence over a group of threads. The weights outlive a group: a new one computes the tokens again, and then what failed.
/// A group that is lost meanwhile is an error. Of a sequence whose keys were moved, only the tokens that are left are computed, as
/// if they had been the first.
pub(super) struct Recovering {
    open: Box<Open>,
    inner: OnDevice<SplitDevice<CpuRank>>,
    /// The tokens whose keys and values the cache holds.
    tokens: Vec<u32>,
    recoveries: usize,
}

impl Recovering {
    pub(super) fn new(
        open: impl Fn() -> error::Result<OnDevice<SplitDevice<CpuRank>>> + Send + 'static,
    ) -> error::Result<Recovering> {
        let inner = open()?;
        let tokens = Vec::with_capacity(inner.capacity());
        Ok(Recovering { open: Box::new(open), inner, tokens, recoveries: 0 })
    }

    fn attempt<T>(
        &mut self,
        mut call: impl FnMut(&mut OnDevice<SplitDevice<CpuRank>>) -> Result<T>,
    ) -> Result<T> {
        match call(&mut self.inner) {
            Err(error) if error == lost() => {
                let mut inner = (self.open)().map_err(|_| error)?;
                if !self.tokens.is_empty() {
                    inner.feed(&self.tokens)?;
                }
                self.inner = inner;
                self.recoveries += 1;
                call(&mut self.inner)
            }
            done => done,
        }
    }
}

/// Passes on row `i`, unless it was before a rank was lost.
fn each_once(passed: &mut usize, i: usize, row: &[f32], sink: &mut dyn FnMut(usize, &[f32])) {
    if i >= *passed {
        *passed = i + 1;
        sink(i, row);
    }
}

impl Backend for Recovering {
    fn position(&self) -> usize {
        self.inner.position()
    }

    fn capacity(&self) -> usize {
        self.inner.capacity()
    }

    fn feed(&mut self, tokens: &[u32]) -> Result<&[f32]> {
        self.attempt(|inner| inner.feed(tokens).map(drop))?;
        self.tokens.extend_from_slice(tokens);
        Ok(self.inner.last_logits())
    }

    fn truncate(&mut self, len: usize) -> Result<()> {
        self.inner.truncate(len)?;
        self.tokens.truncate(len);
        Ok(())
    }

    fn shift(&mut self, keep: usize, drop: usize) -> Result<()> {
        self.attempt(|inner| inner.shift(keep, drop))?;
        self.tokens.drain(keep..keep + drop);
        Ok(())
    }
}

impl Sequence for Recovering {
    fn read_out(&mut self, readout: Readout) {
        self.inner.read_out(readout);
    }

    fn set_len(&mut self, len: usize) -> Result<()> {
        self.inner.set_len(len)?;
        self.tokens.resize(len, 0);
        Ok(())
    }

    fn verify(&mut self, tokens: &[u32], out: &mut [u32]) -> Result<()> {
        self.attempt(|inner| inner.verify(tokens, out))?;
        self.tokens.extend_from_slice(tokens);
        Ok(())
    }

    fn logits(&mut self, tokens: &[u32], sink: &mut dyn FnMut(usize, &[f32])) -> Result<()> {
        let mut passed = 0;
        self.attempt(|inner| inner.logits(tokens, &mut |i, row| each_once(&mut passed, i, row, sink)))?;
        self.tokens.extend_from_slice(tokens);
        Ok(())
    }

    fn hidden(&mut self, tokens: &[u32], sink: &mut dyn FnMut(usize, &[f32])) -> Result<()> {
        let mut passed = 0;
        self.attempt(|inner| inner.hidden(tokens, &mut |i, row| each_once(&mut passed, i, row, sink)))?;
        self.tokens.extend_from_slice(tokens);
        Ok(())
    }

    fn export_len(&mut self) -> Result<usize> {
        self.inner.export_len()
    }

    fn export(&mut self, out: &mut Vec<u8>) -> Result<()> {
        let len = out.len();
        self.attempt(|inner| {
            out.truncate(len);
            inner.export(out)
        })
    }

    fn import(&mut self, tokens: &[u32], from: &[u8]) -> Result<()> {
        let imported = self.attempt(|inner| inner.import(tokens, from));
        match imported {
            Ok(()) => self.tokens = tokens.to_vec(),
            Err(_) => self.tokens.truncate(self.inner.position()),
        }
        imported
    }

    fn recoveries(&self) -> usize {
        self.recoveries
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Group, SplitWeights};
    use super::*;
    use crate::{Chat, Model, ModelFile, SamplerConfig};
    use shohin_core::{CpuOptions, Session};
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
    fn sequence(model: &Model, way: &str, fault: &Fault) -> Recovering {
        let (fault, config, session) = (fault.clone(), model.config(), model.session_options(CONTEXT));
        let options = CpuOptions { context: CONTEXT, logit_rows: 4, ..CpuOptions::default() };
        let (file, read, split) = (ModelFile::built_in(), Default::default(), way.parse().unwrap());
        let weights = SplitWeights::load(&file, &read, config, split, &options, 2).unwrap();
        let open = move || {
            let mut device = weights.device(&options)?;
            fault.0.lock().unwrap().push(Arc::downgrade(device.group.as_ref().unwrap()));
            let session = Session::new(&mut device, &session)?;
            Ok(OnDevice::new(device, session, false))
        };
        Recovering::new(open).unwrap()
    }

    #[test]
    fn every_call_goes_on_with_a_new_group() {
        let model = model();
        let tokens: Vec<u32> = (0..90).map(|i| i * 31 % 2048).collect();
        /// All that a sequence computes, and `before` each call.
        fn all(
            sequence: &mut dyn Sequence,
            tokens: &[u32],
            before: &dyn Fn(),
        ) -> (Vec<f32>, Vec<u32>, Vec<u8>) {
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
        let want = all(&mut *model.sequence(CONTEXT).unwrap(), &tokens, &|| ());
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
        let split = Box::new(sequence(&model, "tensor:2", &fault));
        let (said, recoveries) = talk(Chat::over(&model, split), &|| fault.strike());
        assert_eq!((said, none, recoveries), (want, 0, 2));
    }

    #[test]
    fn a_group_that_is_lost_at_once_is_an_error() {
        let (model, fault) = (model(), Fault::default());
        let mut split = sequence(&model, "tensor:2", &fault);
        split.feed(&[1, 2, 3]).unwrap();
        let open = std::mem::replace(&mut split.open, Box::new(|| Err(lost().into())));
        fault.strike();
        assert_eq!(split.feed(&[4]).map(drop), Err(lost()));
        // Its tokens are still known.
        split.open = open;
        split.feed(&[4]).unwrap();
        assert_eq!((split.position(), split.recoveries()), (4, 1));
    }
}
